//! Proxmox VE's status daemon: it reads everything at once, and decides from that reading alone.

use memtide_model::{Bytes, GuestId, Moment};

use super::{GuestInput, HostInput};
use crate::rules::proxmox::{self, DECIDE_EVERY};

/// Proxmox VE's memory.
#[derive(Clone, Debug, Default)]
pub(super) struct Memory {
    /// The last sample. The first sample only starts the daemon, as in the original.
    looked: Option<Moment>,
}

impl Memory {
    pub(super) fn next_sample(&self) -> Moment {
        self.looked.map_or(Moment::default(), |looked| looked.after(DECIDE_EVERY))
    }

    pub(super) fn targets(
        &mut self,
        now: Moment,
        host: HostInput,
        guests: &[GuestInput],
    ) -> Vec<(GuestId, Bytes)> {
        if self.looked.replace(now).is_none() {
            return Vec::new();
        }
        let seen: Vec<proxmox::Guest> = guests.iter().map(seen).collect();
        let sizes = proxmox::decide(host.total.saturating_sub(host.free), host.total, &seen);
        let changed = guests.iter().zip(sizes).filter(|(input, size)| input.driver && *size != input.size);
        changed.map(|(input, size)| (input.id.clone(), size)).collect()
    }
}

fn seen(input: &GuestInput) -> proxmox::Guest {
    proxmox::Guest {
        // Without a driver, Proxmox VE's monitor reports no size.
        size: if input.driver { input.size } else { Bytes::ZERO },
        free: input.unused,
        min: input.min,
        max: input.full,
        shares: u64::from(input.shares),
    }
}
