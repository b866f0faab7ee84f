//! How large the experiment is.

use memtide_model::Bytes;

use super::job::Job;
use crate::guest::Vmm;

/// The part of a guest's memory that its cold heap has.
const COLD_FIFTHS: u64 = 2;

/// The size of the guests, and the number of guests tried.
#[derive(Clone, Copy, Debug)]
pub struct Scale {
    /// The prefix of the guests' names. A memtide in another lab on the same machine must not find them.
    pub names: &'static str,
    /// What runs the guests.
    pub vmm: Vmm,
    /// Whether each guest has memtide's agent.
    pub agents: bool,
    /// The memory that each guest boots with.
    pub guest_memory: Bytes,
    /// The most guests tried without swap.
    pub most_guests: usize,
    /// The number of times that the work of a guest alone is measured.
    pub turns_alone: u64,
}

impl Scale {
    /// Until a guest fails.
    pub const WHOLE: Self = Self {
        names: "density-",
        vmm: Vmm::Qemu,
        agents: false,
        guest_memory: Bytes::from_mib(1024),
        most_guests: 24,
        turns_alone: 5,
    };
    /// As many as ten minutes allow.
    pub const QUICK: Self = Self { most_guests: 12, ..Self::WHOLE };
    /// For tests: just more guests than an unmanaged host holds.
    pub const LEAST: Self =
        Self { guest_memory: Bytes::from_mib(512), most_guests: 4, turns_alone: 1, ..Self::WHOLE };

    /// The memory that each guest fills at its turn. Four fifths, as in the patch set; a guest that also needs its page cache fills three fifths, and one
    /// with a cold heap as much as this heap has.
    #[must_use]
    pub(super) const fn anon_mib(self, job: Job) -> u64 {
        let fifths = match job {
            Job::Memory => 4,
            Job::PageCache => 3,
            Job::ColdHeap => COLD_FIFTHS,
        };
        self.guest_memory.whole_mib() * fifths / 5
    }

    /// The cold heap of each guest, in MiB; zero if the job has none.
    pub(super) const fn cold_mib(self, job: Job) -> u64 {
        match job {
            Job::ColdHeap => self.guest_memory.whole_mib() * COLD_FIFTHS / 5,
            Job::Memory | Job::PageCache => 0,
        }
    }
}
