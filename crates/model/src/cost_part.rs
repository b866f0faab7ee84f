//! The name and the colour of each part of a guest's cost, beside those of the [palette](crate::SizePart).

use crate::{Bytes, Colour, CostParts, HostPart, SizePart};

/// A part of what a guest costs the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CostPart {
    /// Its resident memory, with what KSM merged.
    Ram,
    /// The VMM's own memory.
    Vmm,
    /// The rest of torn huge pages that it gave back.
    Torn,
    /// Its memory in the host's swap.
    Swapped,
}

impl CostPart {
    /// All parts that add up, before what KSM merged is taken off.
    pub const ALL: [Self; 4] = [Self::Ram, Self::Vmm, Self::Torn, Self::Swapped];

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ram => "RAM",
            Self::Vmm => "VMM",
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
            Self::Torn => HostPart::Torn.colour(),
            Self::Swapped => Colour { rgb: [0xc0, 0x6a, 0x9a], ansi: 13 },
        }
    }
}

impl CostParts {
    /// The memory of this part.
    #[must_use]
    pub const fn of_part(&self, part: CostPart) -> Bytes {
        match part {
            CostPart::Ram => self.ram,
            CostPart::Vmm => self.vmm,
            CostPart::Torn => self.torn,
            CostPart::Swapped => self.swapped,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_without_what_is_merged_are_the_cost() {
        let [ram, vmm, torn, swapped, merged] = [16, 2, 4, 8, 1].map(Bytes::from_mib);
        let parts = CostParts { ram, vmm, torn, swapped, merged };
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
}
