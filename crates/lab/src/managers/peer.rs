//! Other managers' rules as managers of an arm. The lab's own monitor is their sensor and their actuator.
//!
//! A [`Comparator`] has the rule and its memory. This module adds the real readings (balloon statistics at the original's
//! interval, and the memory of the small host) and writes the targets. A guest keeps at least [`LEAST_PERCENT`] of its
//! memory, as an operator would configure it; the rules are as published. Proxmox VE itself starts its guests at this minimum
//! size, with balloons that do not deflate for a guest in need. Here, guests start at full size, with the same balloons as in
//! all arms.

use std::time::{Duration, Instant};

use memtide_model::{Bytes, GuestId, Moment, Span};
use memtide_sim::rules::{Comparator, GuestInput, HostInput};
pub use memtide_sim::rules::{LEAST_PERCENT, Rule};
use serde_json::{Value, json};

use crate::error::LabError;
use crate::guest::{BALLOON, Guest};
use crate::machine::small_host::SmallHost;
use crate::managers::{Managed, Manager, Measured};

/// The weight of each guest: Proxmox VE's default.
const SHARES: u32 = 1000;

/// Another manager's rule at work.
#[derive(Debug)]
pub struct Peer {
    begun: Instant,
    comparator: Comparator,
    /// When statistics were last requested.
    asked: Option<Instant>,
    /// Whether each guest, in order, has reported statistics: then its balloon driver works.
    told: Vec<bool>,
}

impl Peer {
    /// A manager that follows `rule`.
    #[must_use]
    pub fn new(rule: Rule) -> Self {
        Self { begun: Instant::now(), comparator: Comparator::new(rule), asked: None, told: Vec::new() }
    }

    fn sample(&mut self, now: Moment, managed: Managed<'_>) -> Result<(), LabError> {
        self.told.resize(managed.guests.len(), false);
        let host = host_input(managed.host, managed.guests)?;
        let (mut guests, mut inputs) = (Vec::new(), Vec::new());
        for (guest, told) in managed.guests.iter().zip(&mut self.told).filter(|(guest, _)| guest.alive()) {
            let input = guest_input(guest, told);
            guests.push((input.id.clone(), guest));
            inputs.push(input);
        }
        for (id, target) in self.comparator.targets(now, host, &inputs) {
            if let Some((_, guest)) = guests.iter().find(|(guest, _)| *guest == id) {
                // A guest that is about to end may refuse it.
                let _ = guest.set_target(target);
            }
        }
        Ok(())
    }

    /// Makes QEMU poll the statistics of guests that have not reported any yet.
    fn ask(&mut self, managed: Managed<'_>) {
        let every = Duration::from(self.comparator.rule().polls_every());
        if self.asked.is_some_and(|at| at.elapsed() < every) {
            return;
        }
        self.asked = Some(Instant::now());
        let silent = managed.guests.iter().zip(&self.told).filter(|(guest, told)| !**told && guest.alive());
        for (guest, _) in silent {
            let polling = "guest-stats-polling-interval";
            let set = json!({ "path": BALLOON, "property": polling, "value": every.as_secs() });
            // The next call tries again.
            let _ = guest.qmp("qom-set", &set);
        }
    }
}

impl Manager for Peer {
    fn start(&mut self, _: Managed<'_>) -> Result<(), LabError> {
        let rule = self.comparator.rule();
        *self = Self::new(rule);
        Ok(())
    }

    fn tick(&mut self, managed: Managed<'_>) -> Result<(), LabError> {
        let now = Moment::default().after(Span::from(self.begun.elapsed()));
        if now >= self.comparator.next_sample() {
            self.sample(now, managed)?;
        }
        self.ask(managed);
        Ok(())
    }

    fn stop(&mut self, _: Managed<'_>) -> Result<Measured, LabError> {
        Ok(Measured::default())
    }
}

fn host_input(host: &SmallHost, guests: &[Guest]) -> Result<HostInput, LabError> {
    let (total, used) = (host.capacity(), host.usage()?.saturating_sub(host.cache()?));
    // No counter separates guest memory from the rest of a VMM's process. Up to the guest's full size, the whole process
    // counts as guest memory, so `other` is a lower bound.
    let guests = Bytes::sum(guests.iter().map(|guest| guest.private().min(guest.memory())));
    Ok(HostInput { total, free: total.saturating_sub(used), other: used.saturating_sub(guests) })
}

/// Reads a guest's balloon and its statistics. Its first statistics show that its driver works.
fn guest_input(guest: &Guest, told: &mut bool) -> GuestInput {
    let size = guest.actual().ok();
    let statistics = guest.qmp("qom-get", &json!({ "path": BALLOON, "property": "guest-stats" })).ok();
    let statistic = |name| size.and(statistic(statistics.as_ref()?, name));
    let (unused, available) = (statistic("stat-free-memory"), statistic("stat-available-memory"));
    *told |= unused.is_some();
    GuestInput {
        id: GuestId::new(guest.name(), u64::from(guest.pid()), "lab"),
        full: guest.memory(),
        size: size.unwrap_or(guest.memory()),
        target: None,
        driver: *told && size.is_some(),
        unused,
        available,
        min: guest.memory().mul_div(LEAST_PERCENT, 100),
        shares: SHARES,
    }
}

/// One of a balloon's statistics. QEMU reports 2⁶⁴ − 1 for values that the guest has not sent.
fn statistic(answer: &Value, name: &str) -> Option<Bytes> {
    let value = answer.get("stats")?.get(name)?.as_u64()?;
    (value != u64::MAX).then(|| Bytes::new(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_statistic_that_the_guest_has_not_told_is_none() {
        let answer = json!({ "last-update": 1, "stats": { "stat-free-memory": 4096, "stat-available-memory": u64::MAX } });
        assert_eq!(statistic(&answer, "stat-free-memory"), Some(Bytes::new(4096)));
        assert_eq!(statistic(&answer, "stat-available-memory"), None);
        assert_eq!(statistic(&answer, "stat-disk-caches"), None);
        assert_eq!(statistic(&json!({}), "stat-free-memory"), None);
    }
}
