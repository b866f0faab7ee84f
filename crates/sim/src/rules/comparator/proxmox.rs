//! Proxmox VE's status daemon: it reads everything at once, and decides from that reading alone.

use memtide_model::{Bytes, GuestId, Moment};

use super::{HostLook, Look};
use crate::rules::proxmox::{self, DECIDE_EVERY};

/// Proxmox VE's memory.
#[derive(Clone, Debug, Default)]
pub(super) struct Memory {
    /// The last look. The first look only starts the daemon, as in the original.
    looked: Option<Moment>,
}

impl Memory {
    pub(super) fn next_look(&self) -> Moment {
        self.looked.map_or(Moment::default(), |looked| looked.after(DECIDE_EVERY))
    }

    pub(super) fn look(&mut self, now: Moment, host: HostLook, guests: &[Look]) -> Vec<(GuestId, Bytes)> {
        if self.looked.replace(now).is_none() {
            return Vec::new();
        }
        let seen: Vec<proxmox::Guest> = guests.iter().map(seen).collect();
        let sizes = proxmox::decide(host.total.saturating_sub(host.free), host.total, &seen);
        let changed = guests.iter().zip(sizes).filter(|(look, size)| look.driver && *size != look.size);
        changed.map(|(look, size)| (look.id.clone(), size)).collect()
    }
}

fn seen(look: &Look) -> proxmox::Guest {
    proxmox::Guest {
        // Without a driver, Proxmox VE's monitor reports no size.
        size: if look.driver { look.size } else { Bytes::ZERO },
        free: look.unused,
        min: look.min,
        max: look.full,
        shares: u64::from(look.shares),
    }
}
