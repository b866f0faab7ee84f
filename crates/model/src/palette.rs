//! The name, the colour and the mark of each part of memory. Every surface takes them from here, so a part looks the same everywhere: screens, pages,
//! and the dashboard of Grafana.
//!
//! **Rule.** A colour never stands alone: the mark tells the part where colours do not show.

use std::fmt;

use crate::{Bytes, CostParts, HostReport, SizeParts};

/// A colour: for screens that show any, and the nearest of a terminal's sixteen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Colour {
    /// Red, green and blue. Readable on black and on white.
    pub rgb: [u8; 3],
    /// The number in a terminal's palette, from 0 to 15.
    pub ansi: u8,
}

/// As in `#2e86ab`.
impl fmt::Display for Colour {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [red, green, blue] = self.rgb;
        write!(f, "#{red:02x}{green:02x}{blue:02x}")
    }
}

/// A part of a guest's full size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SizePart {
    /// Memory that programs and the kernel use.
    Used,
    /// Page cache that the guest was seen to need.
    NeededCache,
    /// The rest of its page cache.
    ColdCache,
    /// Memory that is free in the guest.
    Free,
    /// Memory that it has, and of which nobody tells what it is.
    Untold,
    /// Memory that its balloon has given to the host.
    Given,
}

/// A part of what a guest costs the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CostPart {
    /// Its resident memory, with what KSM merged.
    Ram,
    /// The VMM's own memory.
    Vmm,
    /// What its compressed tier takes.
    Tier,
    /// The rest of torn huge pages that it gave back.
    Torn,
    /// Its memory in the host's swap.
    Swapped,
}

/// A part of the host's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum HostPart {
    /// The cost of the guests.
    Guests,
    /// The rest of torn huge pages.
    Torn,
    /// Everything except guests.
    Other,
    /// The remaining memory.
    Free,
    /// Memory kept free of guests.
    Reserve,
}

impl SizePart {
    /// All parts, the least dispensable first.
    pub const ALL: [Self; 6] =
        [Self::Used, Self::NeededCache, Self::ColdCache, Self::Free, Self::Untold, Self::Given];

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Used => "in use",
            Self::NeededCache => "page cache that it needs",
            Self::ColdCache => "cold page cache",
            Self::Free => "free",
            Self::Untold => "kept, its use untold",
            Self::Given => "given away",
        }
    }

    /// Its name where there is little room.
    #[must_use]
    pub const fn short(self) -> &'static str {
        match self {
            Self::Used => "in use",
            Self::NeededCache => "needed cache",
            Self::ColdCache => "cold cache",
            Self::Free => "free",
            Self::Untold => "unknown",
            Self::Given => "given away",
        }
    }

    /// Its name in the metrics. Queries of users rely on it.
    #[must_use]
    pub const fn key(self) -> &'static str {
        match self {
            Self::Used => "used",
            Self::NeededCache => "needed_cache",
            Self::ColdCache => "cold_cache",
            Self::Free => "free",
            Self::Untold => "untold",
            Self::Given => "given",
        }
    }

    /// Its colour.
    #[must_use]
    pub const fn colour(self) -> Colour {
        match self {
            Self::Used => Colour { rgb: [0x2e, 0x86, 0xab], ansi: 6 },
            Self::NeededCache => Colour { rgb: [0x3f, 0x9c, 0x6d], ansi: 2 },
            Self::ColdCache => Colour { rgb: [0xc2, 0x93, 0x3a], ansi: 3 },
            Self::Free => FREE,
            Self::Untold => Colour { rgb: [0xa8, 0x77, 0x66], ansi: 13 },
            Self::Given => Colour { rgb: [0x6f, 0x8f, 0xc9], ansi: 12 },
        }
    }

    /// What a bar is drawn with.
    #[must_use]
    pub const fn mark(self) -> char {
        match self {
            Self::Used => '█',
            Self::NeededCache => '▓',
            Self::ColdCache => '▒',
            Self::Free => '·',
            Self::Untold => '?',
            Self::Given => '░',
        }
    }
}

/// Free memory, in a guest and on the host.
const FREE: Colour = Colour { rgb: [0x8a, 0x97, 0xa5], ansi: 8 };

impl HostPart {
    /// All parts, from the bottom of a graph to its top.
    pub const ALL: [Self; 5] = [Self::Guests, Self::Torn, Self::Other, Self::Free, Self::Reserve];

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Guests => "guests",
            Self::Torn => "torn",
            Self::Other => "other",
            Self::Free => "free",
            Self::Reserve => "reserve",
        }
    }

    /// Its name in the metrics. Queries of users rely on it.
    #[must_use]
    pub const fn key(self) -> &'static str {
        match self {
            Self::Guests => "guests",
            Self::Torn => "torn",
            Self::Other => "other",
            Self::Free => "free",
            Self::Reserve => "reserve",
        }
    }

    /// Its colour. Guests have the colour of memory in use.
    #[must_use]
    pub const fn colour(self) -> Colour {
        match self {
            Self::Guests => SizePart::Used.colour(),
            Self::Torn => Colour { rgb: [0xb5, 0x56, 0x3f], ansi: 1 },
            Self::Other => Colour { rgb: [0x8d, 0x78, 0xa6], ansi: 5 },
            Self::Free => FREE,
            Self::Reserve => Colour { rgb: [0x4f, 0x6d, 0x8f], ansi: 4 },
        }
    }

    /// What a bar is drawn with.
    #[must_use]
    pub const fn mark(self) -> char {
        match self {
            Self::Guests => '█',
            Self::Torn => '▒',
            Self::Other => '▓',
            Self::Free => '·',
            Self::Reserve => '░',
        }
    }
}

impl CostPart {
    /// All parts that add up, before what KSM merged is taken off.
    pub const ALL: [Self; 5] = [Self::Ram, Self::Vmm, Self::Tier, Self::Torn, Self::Swapped];

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ram => "RAM",
            Self::Vmm => "VMM",
            Self::Tier => "tier",
            Self::Torn => "torn",
            Self::Swapped => "swapped",
        }
    }

    /// Its name in the metrics. Queries of users rely on it.
    #[must_use]
    pub const fn key(self) -> &'static str {
        match self {
            Self::Ram => "ram",
            Self::Vmm => "vmm",
            Self::Tier => "tier",
            Self::Torn => "torn",
            Self::Swapped => "swapped",
        }
    }

    /// Its colour. What the host's ledger shows, too, has its colour there.
    #[must_use]
    pub const fn colour(self) -> Colour {
        match self {
            Self::Ram => SizePart::Used.colour(),
            Self::Vmm => HostPart::Other.colour(),
            Self::Tier => Colour { rgb: [0x7a, 0x68, 0xc4], ansi: 5 },
            Self::Torn => HostPart::Torn.colour(),
            Self::Swapped => Colour { rgb: [0xc0, 0x6a, 0x9a], ansi: 13 },
        }
    }
}

impl SizeParts {
    /// The memory of this part.
    #[must_use]
    pub const fn of_part(&self, part: SizePart) -> Bytes {
        match part {
            SizePart::Used => self.used,
            SizePart::NeededCache => self.needed_cache,
            SizePart::ColdCache => self.cold_cache,
            SizePart::Free => self.free,
            SizePart::Untold => self.untold,
            SizePart::Given => self.given,
        }
    }

    /// The parts that are not zero, with their names, the least dispensable first.
    pub fn named(&self) -> impl Iterator<Item = (&'static str, Bytes)> {
        let all = SizePart::ALL.map(|part| (part.name(), self.of_part(part)));
        all.into_iter().filter(|(_, part)| !part.is_zero())
    }
}

impl CostParts {
    /// The memory of this part.
    #[must_use]
    pub const fn of_part(&self, part: CostPart) -> Bytes {
        match part {
            CostPart::Ram => self.ram,
            CostPart::Vmm => self.vmm,
            CostPart::Tier => self.tier,
            CostPart::Torn => self.torn,
            CostPart::Swapped => self.swapped,
        }
    }

    /// The parts that are not zero, with their names. They add up to more than the cost: what KSM merged is to be taken off.
    pub fn named(&self) -> impl Iterator<Item = (&'static str, Bytes)> {
        let all = CostPart::ALL.map(|part| (part.name(), self.of_part(part)));
        all.into_iter().filter(|(_, part)| !part.is_zero())
    }
}

/// The sum and the parts, as in `1 GiB = 300 MiB in use + 724 MiB free`.
impl fmt::Display for SizeParts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} = {}", self.sum(), added(self.named()))
    }
}

/// The sum and the parts, as in `648 MiB = 618 MiB RAM + 40 MiB VMM - 10 MiB merged`; only the sum if it is zero.
impl fmt::Display for CostParts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.sum().is_zero() {
            return write!(f, "{}", self.sum());
        }
        write!(f, "{} = {}", self.sum(), added(self.named()))?;
        if self.merged.is_zero() { Ok(()) } else { write!(f, " - {} merged", self.merged) }
    }
}

fn added(parts: impl Iterator<Item = (&'static str, Bytes)>) -> String {
    parts.map(|(name, part)| format!("{part} {name}")).collect::<Vec<_>>().join(" + ")
}

impl HostReport {
    /// The memory of this part.
    #[must_use]
    pub const fn of_part(&self, part: HostPart) -> Bytes {
        match part {
            HostPart::Guests => self.footprints,
            HostPart::Torn => self.torn,
            HostPart::Other => self.other,
            HostPart::Free => self.free,
            HostPart::Reserve => self.reserve,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn parts_of_one_bar_differ_in_each_colour_and_mark() {
        let sizes = SizePart::ALL.map(|part| (part.colour(), part.mark()));
        let host = HostPart::ALL.map(|part| (part.colour(), part.mark()));
        for bar in [&sizes[..], &host[..]] {
            let rgb: BTreeSet<_> = bar.iter().map(|(colour, _)| colour.rgb).collect();
            let ansi: BTreeSet<_> = bar.iter().map(|(colour, _)| colour.ansi).collect();
            let marks: BTreeSet<_> = bar.iter().map(|(_, mark)| mark).collect();
            assert_eq!((rgb.len(), ansi.len(), marks.len()), (bar.len(), bar.len(), bar.len()));
        }
    }

    #[test]
    fn each_part_of_a_size_has_its_memory() {
        let mib = Bytes::from_mib;
        let parts = SizeParts {
            used: mib(1),
            needed_cache: mib(2),
            cold_cache: mib(4),
            free: mib(8),
            untold: mib(16),
            given: mib(32),
        };
        assert_eq!(Bytes::sum(SizePart::ALL.map(|part| parts.of_part(part))), parts.sum());
    }

    #[test]
    fn the_parts_without_what_is_merged_are_the_cost() {
        let [ram, vmm, tier, torn, swapped, merged] = [16, 2, 32, 4, 8, 1].map(Bytes::from_mib);
        let parts = CostParts { ram, vmm, tier, torn, swapped, merged };
        let all = Bytes::sum(CostPart::ALL.map(|part| parts.of_part(part)));
        assert_eq!(all.saturating_sub(merged), parts.sum());
        for (place, part) in CostPart::ALL.iter().enumerate() {
            assert!(
                CostPart::ALL[..place].iter().all(|other| other.colour() != part.colour()),
                "{}",
                part.name()
            );
        }
    }

    #[test]
    fn parts_are_told_with_their_sum() {
        let mib = Bytes::from_mib;
        let size = SizeParts { used: mib(300), free: mib(724), ..SizeParts::default() };
        assert_eq!(size.to_string(), "1 GiB = 300 MiB in use + 724 MiB free");
        let cost = CostParts { ram: mib(618), vmm: mib(40), merged: mib(10), ..CostParts::default() };
        assert_eq!(cost.to_string(), "648 MiB = 618 MiB RAM + 40 MiB VMM - 10 MiB merged");
        assert_eq!(CostParts::default().to_string(), "0");
    }
}
