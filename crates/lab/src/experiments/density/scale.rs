//! How large the experiment is.

use memtide_model::Bytes;

/// How large the guests are, and how many are tried.
#[derive(Clone, Copy, Debug)]
pub struct Scale {
    /// The memory that each guest boots with.
    pub guest_memory: Bytes,
    /// More are not tried where there is no swap.
    pub most_guests: usize,
    /// How often the work of a guest alone is measured.
    pub turns_alone: u64,
}

impl Scale {
    /// As far as it goes.
    pub const WHOLE: Self = Self { guest_memory: Bytes::from_mib(1024), most_guests: 24, turns_alone: 5 };
    /// As far as it goes in ten minutes.
    pub const QUICK: Self = Self { most_guests: 12, ..Self::WHOLE };
    /// For tests: just more guests than a host holds that nobody manages.
    pub const LEAST: Self = Self { guest_memory: Bytes::from_mib(512), most_guests: 4, turns_alone: 1 };

    /// What each guest fills: four fifths, as in the patch set.
    #[must_use]
    pub const fn anon_mib(self) -> u64 {
        self.guest_memory.whole_mib() * 4 / 5
    }
}
