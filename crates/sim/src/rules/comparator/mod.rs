//! From looks at a host and its guests to targets: the sensors around every rule.
//!
//! **Problem.** The rules need averages, runs and reports. The lab and the simulator can look at a host and its guests, and can write
//! targets. Both need the same sensors in between; otherwise they compare different things.
//!
//! **Terms.** A *look* is a reading of everything at one moment: a [`HostLook`] and a [`Look`] for each guest. A *target* is the memory
//! that a guest is asked to keep.
//!
//! **Use.** Wait until [`Comparator::next_look`], look, pass the looks to [`Comparator::look`], and write the targets that it returns, in
//! their order.
//!
//! | rule | looks | decides |
//! |---|---|---|
//! | `mom` | every 5 s | every 10 s, the first time after 10 s, from averages over the last 10 looks |
//! | `proxmox` | every 10 s | at each look but the first |
//! | `squeezed` | every 10 s; every second during a run | at each look but the first |
//! | `qubes` | every second; every 0.1 s while a round waits | when a guest reports a change of its memory in use, comes or goes |
//! | `fixed` | every second | when a guest comes or goes |
//!
//! **Free memory** of a host means two things. MOM and Proxmox read memory that is free or can be freed at once, [`HostLook::free`]. The
//! rules from Xen and the static partition divide the memory for guests, [`HostLook::room`]: Xen gives a guest its memory when it creates
//! the guest, touched or not.
//!
//! **Properties.** The same looks give the same targets. The order of the guests in a look has no effect. A comparator remembers only
//! guests of its last look, so a guest that comes back is a new one.

mod fixed;
mod mom;
mod proxmox;
mod qubes;
mod squeezed;

use std::collections::BTreeMap;

use memtide_model::{Bytes, GuestId, Moment};

use super::Rule;

/// A host at one look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostLook {
    /// Its memory.
    pub total: Bytes,
    /// Free memory, including page cache that the kernel can drop at once.
    pub free: Bytes,
    /// Memory used by everything that is not guest memory: the host's kernel and programs, and the overheads of the VMMs. No guest can get
    /// it.
    pub other: Bytes,
}

impl HostLook {
    /// The memory for guests: everything except [`Self::other`].
    #[must_use]
    pub const fn room(&self) -> Bytes {
        self.total.saturating_sub(self.other)
    }
}

/// A guest at one look. Booting guests are included: their memory is taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Look {
    /// Its id.
    pub id: GuestId,
    /// The size that it boots with, and the most that it can keep.
    pub full: Bytes,
    /// Its size (`actual` of QEMU's `query-balloon`).
    pub size: Bytes,
    /// Its last target, if the monitor reports it. QEMU's monitor does not; the comparator remembers its own targets.
    pub target: Option<Bytes>,
    /// Whether its balloon driver is running.
    pub driver: bool,
    /// Free memory, as its kernel reports it (`stat-free-memory`); `None` without statistics.
    pub unused: Option<Bytes>,
    /// Memory that its kernel can hand out without swapping (`stat-available-memory`); `None` without statistics.
    pub available: Option<Bytes>,
    /// The least that it keeps, set by its operator.
    pub min: Bytes,
    /// Its weight; Proxmox VE's default is 1000.
    pub shares: u32,
}

/// A rule in use, with its memory between looks.
#[derive(Clone, Debug)]
pub struct Comparator {
    rule: Rule,
    memory: Memory,
}

#[derive(Clone, Debug)]
enum Memory {
    Mom(mom::Memory),
    Proxmox(proxmox::Memory),
    Squeezed(squeezed::Memory),
    Qubes(qubes::Memory),
    Fixed(fixed::Memory),
}

impl Comparator {
    /// A comparator that has seen nothing yet.
    #[must_use]
    pub fn new(rule: Rule) -> Self {
        let memory = match rule {
            Rule::Mom => Memory::Mom(mom::Memory::default()),
            Rule::Proxmox => Memory::Proxmox(proxmox::Memory::default()),
            Rule::Squeezed => Memory::Squeezed(squeezed::Memory::default()),
            Rule::Qubes => Memory::Qubes(qubes::Memory::default()),
            Rule::Fixed => Memory::Fixed(fixed::Memory::default()),
        };
        Self { rule, memory }
    }

    /// Its rule.
    #[must_use]
    pub const fn rule(&self) -> Rule {
        self.rule
    }

    /// The time of its next look; at once before the first look.
    #[must_use]
    pub fn next_look(&self) -> Moment {
        match &self.memory {
            Memory::Mom(memory) => memory.next_look(),
            Memory::Proxmox(memory) => memory.next_look(),
            Memory::Squeezed(memory) => memory.next_look(),
            Memory::Qubes(memory) => memory.next_look(),
            Memory::Fixed(memory) => memory.next_look(),
        }
    }

    /// Looks, and returns the targets to write, in their order. `guests` must contain all guests of the host. A look before
    /// [`Self::next_look`] is ignored.
    pub fn look(&mut self, now: Moment, host: HostLook, guests: &[Look]) -> Vec<(GuestId, Bytes)> {
        if now < self.next_look() {
            return Vec::new();
        }
        let mut sorted = Vec::new();
        let guests = if guests.is_sorted_by(|a, b| a.id <= b.id) {
            guests
        } else {
            sorted.extend_from_slice(guests);
            sorted.sort_by(|a, b| a.id.cmp(&b.id));
            &sorted
        };
        match &mut self.memory {
            Memory::Mom(memory) => memory.look(now, host, guests),
            Memory::Proxmox(memory) => memory.look(now, host, guests),
            Memory::Squeezed(memory) => memory.look(now, host, guests),
            Memory::Qubes(memory) => memory.look(now, host, guests),
            Memory::Fixed(memory) => memory.look(now, host, guests),
        }
    }
}

/// Remembers something about each guest, in the order of the last look.
#[derive(Clone, Debug)]
struct Remembered<T> {
    ids: Vec<GuestId>,
    each: Vec<T>,
}

impl<T> Default for Remembered<T> {
    fn default() -> Self {
        Self { ids: Vec::new(), each: Vec::new() }
    }
}

impl<T> Remembered<T> {
    /// Adapts to the guests of this look, and returns whether a guest has come or gone. `new` creates the memory of a new guest.
    fn follow(&mut self, guests: &[Look], new: impl Fn(&Look) -> T) -> bool {
        if self.ids.iter().eq(guests.iter().map(|guest| &guest.id)) {
            return false;
        }
        let ids = std::mem::take(&mut self.ids);
        let mut known: BTreeMap<GuestId, T> = ids.into_iter().zip(std::mem::take(&mut self.each)).collect();
        self.each =
            guests.iter().map(|guest| known.remove(&guest.id).unwrap_or_else(|| new(guest))).collect();
        self.ids = guests.iter().map(|guest| guest.id.clone()).collect();
        true
    }
}

#[cfg(test)]
mod tests;
