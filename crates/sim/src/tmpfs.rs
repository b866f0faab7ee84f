//! A tmpfs of the host that holds some guests' memory, as that of UML instances.
//!
//! **Rule.** It holds its guests' own memory, not that of their VMMs. When it is full, a guest that touches more is killed, although the host
//! has free memory: the one that has grown most since the last look.

use memtide_model::{Bytes, Reading, Space, Tmpfs};

use crate::resident::Resident;
use crate::setup::TMPFS;

/// A tmpfs with a limit.
#[derive(Debug)]
pub(crate) struct SmallTmpfs {
    size: Bytes,
    /// What each guest had in it at the last look.
    before: Vec<Bytes>,
}

impl SmallTmpfs {
    pub(crate) const fn new(size: Bytes) -> Self {
        Self { size, before: Vec::new() }
    }

    /// Kills guests that have grown until the others fit. Returns the memory that it then holds.
    pub(crate) fn settle(&mut self, guests: &mut [Resident]) -> Bytes {
        self.before.resize(guests.len(), Bytes::ZERO);
        while held(guests) > self.size {
            let growth = |index: usize| own(&guests[index]).checked_sub(self.before[index]);
            let grown = (0..guests.len()).filter(|&index| !own(&guests[index]).is_zero());
            let Some(most) = grown.max_by_key(|&index| growth(index)) else { break };
            guests[most].lose();
        }
        self.before = guests.iter().map(own).collect();
        held(guests)
    }

    /// What a daemon sees of it; `None` while nobody's memory is in it.
    pub(crate) fn seen(&self, guests: &[Resident]) -> Option<Tmpfs> {
        let is_used = guests.iter().any(|resident| resident.plan.in_tmpfs && resident.guest.is_some());
        let space = Space { size: self.size, free: self.size.saturating_sub(held(guests)) };
        is_used.then(|| Tmpfs { id: TMPFS, at: "/dev/shm".to_owned(), space: Reading::now(space) })
    }
}

/// What a guest has in it.
fn own(resident: &Resident) -> Bytes {
    let Some(size) = resident.size().filter(|_| resident.plan.in_tmpfs) else { return Bytes::ZERO };
    let tier = resident.guest.as_ref().and_then(memtide_guest::Guest::tier).unwrap_or_default();
    size.footprint.saturating_sub(resident.plan.spec.overhead).saturating_sub(tier.held)
}

fn held(guests: &[Resident]) -> Bytes {
    Bytes::sum(guests.iter().map(own))
}
