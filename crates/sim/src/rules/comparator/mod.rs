//! From samples of a host and its guests to targets: the sensors around every rule.
//!
//! **Problem.** The rules need averages, runs and reports. The lab and the simulator can read a host and its guests, and can write
//! targets. Both need the same sensors in between; otherwise they compare different things.
//!
//! **Terms.** A *sample* is a reading of everything at one moment: a [`HostInput`] and a [`GuestInput`] for each guest. A *target* is the memory
//! that a guest is asked to keep.
//!
//! **Use.** Wait until [`Comparator::next_sample`], take a sample, pass it to [`Comparator::targets`], and write the targets that it returns, in
//! their order.
//!
//! | rule | samples | decides |
//! |---|---|---|
//! | `mom` | every 5 s | every 10 s, the first time after 10 s, from averages over the last 10 samples |
//! | `proxmox` | every 10 s | at each sample but the first |
//! | `squeezed` | every 10 s; every second during a run | at each sample but the first |
//! | `qubes` | every second; every 0.1 s while a round waits | when a guest reports a change of its memory in use, comes or goes |
//! | `fixed` | every second | when a guest comes or goes |
//!
//! **Free memory** of a host means two things. MOM and Proxmox read memory that is free or can be freed at once, [`HostInput::free`]. The
//! rules from Xen and the static partition divide the memory for guests, [`HostInput::for_guests`]: Xen gives a guest its memory when it creates
//! the guest, touched or not.
//!
//! **Properties.** The same samples give the same targets. The order of the guests in a sample has no effect. A comparator remembers only
//! guests of its last sample, so a guest that comes back is a new one.

mod fixed;
mod mom;
mod proxmox;
mod qubes;
mod squeezed;

use std::collections::BTreeMap;

use memtide_model::{Bytes, GuestId, Moment};

use super::Rule;

/// A host at one sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostInput {
    /// Its memory.
    pub total: Bytes,
    /// Free memory, including page cache that the kernel can drop at once.
    pub free: Bytes,
    /// Memory used by everything that is not guest memory: the host's kernel and programs, and the overheads of the VMMs. No guest can get
    /// it.
    pub other: Bytes,
}

impl HostInput {
    /// The memory for guests: everything except [`Self::other`].
    #[must_use]
    pub const fn for_guests(&self) -> Bytes {
        self.total.saturating_sub(self.other)
    }
}

/// A guest at one sample. Booting guests are included: their memory is taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuestInput {
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

/// A rule in use, with its memory between samples.
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

    /// The time of its next sample; at once before the first sample.
    #[must_use]
    pub fn next_sample(&self) -> Moment {
        match &self.memory {
            Memory::Mom(memory) => memory.next_sample(),
            Memory::Proxmox(memory) => memory.next_sample(),
            Memory::Squeezed(memory) => memory.next_sample(),
            Memory::Qubes(memory) => memory.next_sample(),
            Memory::Fixed(memory) => memory.next_sample(),
        }
    }

    /// Takes a sample, and returns the targets to write, in their order. `guests` must contain all guests of the host. A sample before
    /// [`Self::next_sample`] is ignored.
    pub fn targets(&mut self, now: Moment, host: HostInput, guests: &[GuestInput]) -> Vec<(GuestId, Bytes)> {
        if now < self.next_sample() {
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
            Memory::Mom(memory) => memory.targets(now, host, guests),
            Memory::Proxmox(memory) => memory.targets(now, host, guests),
            Memory::Squeezed(memory) => memory.targets(now, host, guests),
            Memory::Qubes(memory) => memory.targets(now, host, guests),
            Memory::Fixed(memory) => memory.targets(now, host, guests),
        }
    }
}

/// Remembers something about each guest, in the order of the last sample.
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
    /// Adapts to the guests of this sample, and returns whether a guest has come or gone. `new` creates the memory of a new guest.
    fn follow(&mut self, guests: &[GuestInput], new: impl Fn(&GuestInput) -> T) -> bool {
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
