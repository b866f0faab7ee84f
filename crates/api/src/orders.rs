//! What the operator's orders do, in words: the same on every surface that asks before it gives one.
//!
//! **Rule.** `{name}` and the like stand for the values of [`Values`].

use memtide_model::{Bytes, Mode};

use crate::view::Wanted;

/// Of [`Wanted::Hold`].
pub const HOLD: &str = "{name} keeps its present {actual} of {full}. memtide neither takes memory from it nor gives it any until you resume it.";
/// Of [`Wanted::Release`].
pub const RELEASE: &str = "{name} keeps {actual} now, and gets its limit as soon as the host has room. Other guests may have to give memory for it. memtide then leaves {name} alone until you resume it.";
/// Of [`Wanted::Resume`].
pub const RESUME: &str =
    "memtide manages {name} again: it keeps {actual}{needs}, and its fair share is {share}.";
/// Of a reclaim.
pub const RECLAIM: &str = "The agent in {name} drops page cache, and its balloon takes free memory. Page cache that is read again then comes from the disk.";
/// What an observer does with a reclaim.
pub const REFUSES: &str = "This memtide only observes, and will refuse.";
/// What an observer does with the other orders.
pub const REMEMBERS: &str =
    "This memtide only observes: it remembers the order, and changes nothing until it manages.";

/// What the words are about.
#[derive(Clone, Copy, Debug)]
pub struct Values<'a> {
    /// The guest.
    pub name: &'a str,
    /// The memory that it keeps.
    pub actual: Bytes,
    /// Its full size.
    pub full: Bytes,
    /// The memory that it needs, as far as this is known.
    pub needs: Option<Bytes>,
    /// Its fair share.
    pub share: Bytes,
}

/// What an order does to the guest; `None` is a reclaim.
#[must_use]
pub fn in_words(order: Option<Wanted>, mode: Mode, of: &Values<'_>) -> String {
    let text = match order {
        Some(Wanted::Hold) => HOLD,
        Some(Wanted::Release) => RELEASE,
        Some(Wanted::Resume) => RESUME,
        None => RECLAIM,
    };
    let needs = of.needs.map_or_else(String::new, |needs| format!(", needs {needs}"));
    let says = text
        .replace("{actual}", &of.actual.to_string())
        .replace("{full}", &of.full.to_string())
        .replace("{needs}", &needs)
        .replace("{share}", &of.share.to_string())
        // The name comes last: a guest may be called `{full}`.
        .replace("{name}", of.name);
    match (mode, order) {
        (Mode::Observe, None) => format!("{says} {REFUSES}"),
        (Mode::Observe, Some(_)) => format!("{says} {REMEMBERS}"),
        (Mode::Manage, _) => says,
    }
}
