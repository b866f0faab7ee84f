//! The identity of a guest.

use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::stays_in_line;

/// The length in bytes at which a guest's name is cut.
pub const MAX_NAME: usize = 128;
/// The end of a name that was cut.
const CUT: char = '…';

/// The identity of a guest, unique even if its name is used again: name, start of the process and boot of the host.
///
/// The name comes from outside: QEMU's `-name`, or its UUID, or `qemu-PID`. `@` and characters that would not stay in their line
/// (see [`stays_in_line`]) become `_`. A name of more than [`MAX_NAME`] bytes is cut, and then ends with `…` and a checksum of the whole. Identities are ordered by
/// name, then start, then boot.
/// The journal writes `name@start@boot`; people see what [`Names`](crate::Names) says.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct GuestId {
    /// The name, followed by the boot. One allocation is enough, and identities are cloned with every decision.
    text: Arc<str>,
    name_len: usize,
    start: u64,
    /// The name's first bytes. They differ for most names, so most comparisons need not fetch the text.
    head: u64,
}

impl GuestId {
    /// The guest `name` whose process started `start` clock ticks after the boot with the id `boot`.
    #[must_use]
    pub fn new(name: &str, start: u64, boot: &str) -> Self {
        let mut text = clean(name);
        let name_len = text.len();
        let head = head(&text);
        text.push_str(&clean(boot));
        Self { text: text.into(), name_len, start, head }
    }

    /// The name alone. Several guests can have the same name: [`Names`](crate::Names) tells them apart.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.text[..self.name_len]
    }

    fn boot(&self) -> &str {
        &self.text[self.name_len..]
    }

    /// The start of the process in clock ticks after the boot.
    #[must_use]
    pub const fn start(&self) -> u64 {
        self.start
    }
}

/// The first eight bytes, padded with zeros, in an integer that sorts like the text.
fn head(text: &str) -> u64 {
    text.bytes().chain(std::iter::repeat(0)).take(8).fold(0, |head, byte| head << 8 | u64::from(byte))
}

/// The name of a guest that was given the name `text`: as in a [`GuestId`].
#[must_use]
pub fn name_given(text: &str) -> String {
    clean(text)
}

/// The pattern that matches the names of guests which `text` was written for. With `*` or `?` in it, only its characters are as in names.
#[must_use]
pub fn pattern_given(text: &str) -> String {
    if text.contains(['*', '?']) { text.replace('@', "_") } else { clean(text) }
}

/// 32 bits of FNV-1a (datatracker.ietf.org/doc/html/rfc9923): tells long names apart that begin alike.
fn checksum(text: &str) -> u32 {
    text.bytes().fold(0x811c_9dc5, |sum, byte| (sum ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

fn clean(text: &str) -> String {
    let mut out = String::new();
    // The longest beginning that leaves room for the mark and the checksum.
    let mut kept = 0;
    for c in text.chars() {
        let c = if !stays_in_line(c) || c == '@' { '_' } else { c };
        if out.len() + c.len_utf8() > MAX_NAME {
            out.truncate(kept);
            out.push_str(&format!("{CUT}{:08x}", checksum(text)));
            break;
        }
        out.push(c);
        if out.len() + CUT.len_utf8() + 8 <= MAX_NAME {
            kept = out.len();
        }
    }
    if out.is_empty() { "_".to_owned() } else { out }
}

impl Ord for GuestId {
    fn cmp(&self, other: &Self) -> Ordering {
        self.head
            .cmp(&other.head)
            .then_with(|| self.name().cmp(other.name()))
            .then_with(|| self.start.cmp(&other.start))
            .then_with(|| self.boot().cmp(other.boot()))
    }
}

impl PartialOrd for GuestId {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl fmt::Display for GuestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl fmt::Debug for GuestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}@{}", self.name(), self.start, self.boot())
    }
}

/// Why a text is not a guest's identity.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a guest's identity: name@start@boot")]
pub struct GuestIdError(String);

impl FromStr for GuestId {
    type Err = GuestIdError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = || GuestIdError(text.chars().take(MAX_NAME).collect());
        let mut parts = text.rsplitn(3, '@');
        let (Some(boot), Some(start), Some(name)) = (parts.next(), parts.next(), parts.next()) else {
            return Err(wrong());
        };
        let start = start.parse().map_err(|_| wrong())?;
        Ok(Self::new(name, start, boot))
    }
}

impl Serialize for GuestId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{self:?}"))
    }
}

impl<'de> Deserialize<'de> for GuestId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn two_lives_of_one_name_are_two_guests() {
        let first = GuestId::new("web", 100, "b");
        let second = GuestId::new("web", 200, "b");
        assert_ne!(first, second);
        assert!(first < second);
        assert_eq!(second.to_string(), "web");
    }

    #[test]
    fn names_from_outside_are_cleaned_and_cut() {
        assert_eq!(GuestId::new("a\u{1b}[31m@b\n", 1, "b").name(), "a_[31m_b_");
        assert_eq!(GuestId::new("", 1, "b").name(), "_");
        let whole = "x".repeat(MAX_NAME);
        assert_eq!(GuestId::new(&whole, 1, "b").name(), whole);
        for long in ["x".repeat(300), "ö".repeat(500), "客".repeat(300)] {
            let id = GuestId::new(&long, 1, "b");
            let (kept, sum) = id.name().split_once(CUT).unwrap();
            assert!(long.starts_with(kept) && sum.len() == 8, "{id}");
            assert!((MAX_NAME - 3..=MAX_NAME).contains(&id.name().len()), "{id}");
            assert_ne!(GuestId::new(&format!("{long}x"), 1, "b"), id, "long names are told apart");
            assert_eq!(name_given(&long), id.name());
            assert_eq!(GuestId::new(id.name(), 1, "b"), id, "a name that was cut stays as it is");
        }
    }

    proptest! {
        #[test]
        fn every_identity_reads_back(name in "\\PC{0,40}", start: u64) {
            let id = GuestId::new(&name, start, "0b1c");
            prop_assert_eq!(format!("{id:?}").parse::<GuestId>(), Ok(id));
        }
    }
}
