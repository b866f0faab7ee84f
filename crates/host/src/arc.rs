//! The cache of ZFS, the *ARC*: page cache that `/proc/meminfo` counts as used memory.
//!
//! The kernel module shrinks it when the kernel asks for memory, down to `c_min`. How fast it does so was not measured.

use std::str::FromStr;

use memtide_model::Bytes;

use crate::source::parse_once;
use crate::text::number;
use crate::{ParseError, Root};

/// The file below `/proc`.
pub(crate) const ARCSTATS: &str = "spl/kstat/zfs/arcstats";

/// The part of the ARC that the kernel can have back; zero without ZFS.
#[must_use]
pub fn reclaimable_arc(root: &Root) -> Bytes {
    parse_once(root.proc(ARCSTATS), str::parse::<Arc>).map_or(Bytes::ZERO, Arc::reclaimable)
}

/// The ARC, from `arcstats`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Arc {
    /// `size`: its present size.
    size: Bytes,
    /// `c_min`: it never shrinks below this.
    least: Bytes,
}

impl Arc {
    /// The part that the kernel can have back.
    pub(crate) const fn reclaimable(self) -> Bytes {
        self.size.saturating_sub(self.least)
    }
}

/// Two lines of heads, then `name type value`.
impl FromStr for Arc {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let value = |wanted: &'static str| {
            let line = text.lines().find_map(|line| {
                let mut words = line.split_ascii_whitespace();
                (words.next()? == wanted).then(|| words.nth(1)).flatten()
            });
            number(wanted, line.ok_or(ParseError::Missing(wanted))?).map(Bytes::new)
        };
        Ok(Self { size: value("size")?, least: value("c_min")? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_above_the_minimum_can_come_back() {
        let text = "9 1 0x01 147 39984 3892114711 7420104210234\nname                            type data\n\
                    hits                            4    5223\nc                               4    4294967296\n\
                    c_min                           4    268435456\nc_max                           4    8589934592\n\
                    size                            4    2147483648\nhdr_size                        4    1\n";
        assert_eq!(text.parse::<Arc>().unwrap().reclaimable(), Bytes::from_mib(2048 - 256));
        assert_eq!(
            text.replace("268435456", "3000000000").parse::<Arc>().unwrap().reclaimable(),
            Bytes::ZERO
        );
        for text in ["", "size 4", "size 4 x\nc_min 4 1\n", "size 4 1\n"] {
            assert!(text.parse::<Arc>().is_err(), "{text:?}");
        }
    }
}
