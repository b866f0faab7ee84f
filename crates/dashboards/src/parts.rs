//! The parts of memory, as the palette names and colours them.

use memtide_model::{Colour, CostPart, HostPart, SizePart};

/// The parts of one sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Parts {
    /// Of the host's memory.
    Host,
    /// Of the sizes of guests.
    Size,
    /// Of the costs of guests.
    Cost,
}

/// A part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    /// Its name in the metrics.
    pub(crate) key: &'static str,
    /// Its name for people.
    pub(crate) name: &'static str,
    pub(crate) colour: Colour,
}

impl Parts {
    /// All of them, from the bottom of a graph to its top.
    pub(crate) fn list(self) -> Vec<Part> {
        match self {
            Self::Host => {
                HostPart::ALL.map(|p| Part { key: p.key(), name: p.name(), colour: p.colour() }).to_vec()
            }
            Self::Size => {
                SizePart::ALL.map(|p| Part { key: p.key(), name: p.short(), colour: p.colour() }).to_vec()
            }
            Self::Cost => {
                CostPart::ALL.map(|p| Part { key: p.key(), name: p.name(), colour: p.colour() }).to_vec()
            }
        }
    }
}
