//! Other managers' rules as managers of an arm: the lab's own monitor is their sensor and their actuator.
//!
//! They see what their originals see: the balloon's statistics at their originals' interval, and the memory of the host,
//! here that of the small host. A guest keeps at least [`LEAST_PERCENT`] of its memory, which an operator would set for
//! them; the rules are as published. Proxmox VE itself starts its guests with that least size, and with balloons that do not deflate
//! for a guest in need; here they begin whole, and with the same balloons as all.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use memtide_model::Bytes;
use serde_json::{Value, json};

use crate::error::LabError;
use crate::guest::{BALLOON, Guest};
use crate::manager::{Manager, Measured, Place};
use crate::rules::{mom, proxmox};

/// The least that a guest keeps under a peer, in percent of its memory.
pub const LEAST_PERCENT: u64 = 25;
/// Proxmox VE polls the statistics at this interval (`guest-stats-polling-interval` in `PVE::QemuServer`).
const PROXMOX_POLLS: Duration = Duration::from_secs(2);

/// Whose rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// oVirt's MOM.
    Mom,
    /// Proxmox VE's autoballoon.
    Proxmox,
}

impl Rule {
    /// How often guests' statistics are polled and everything is looked at.
    const fn looks_every(self) -> Duration {
        match self {
            Self::Mom => mom::MONITOR_EVERY,
            Self::Proxmox => PROXMOX_POLLS,
        }
    }

    const fn decides_every(self) -> Duration {
        match self {
            Self::Mom => mom::DECIDE_EVERY,
            Self::Proxmox => proxmox::DECIDE_EVERY,
        }
    }

    /// Over how many looks is averaged.
    const fn samples(self) -> usize {
        match self {
            Self::Mom => mom::SAMPLES,
            Self::Proxmox => 1,
        }
    }

    /// The sizes that it asks for, `None` for guests that stay as they are.
    fn decide(self, total: Bytes, free: Bytes, guests: &[Look]) -> Vec<Option<Bytes>> {
        match self {
            Self::Mom => {
                let guest = |look: &Look| mom::Guest {
                    size: look.size,
                    used: look.used,
                    min: look.full.mul_div(LEAST_PERCENT, 100),
                    max: look.full,
                };
                mom::decide(free, total, &guests.iter().map(guest).collect::<Vec<_>>())
            }
            Self::Proxmox => {
                let guest = |look: &Look| proxmox::Guest {
                    size: look.size,
                    free: look.unused,
                    min: look.full.mul_div(LEAST_PERCENT, 100),
                    max: look.full,
                    shares: 1000,
                };
                let seen: Vec<proxmox::Guest> = guests.iter().map(guest).collect();
                let sizes = proxmox::decide(total.saturating_sub(free), total, &seen);
                (sizes.into_iter().zip(&seen)).map(|(to, guest)| (to != guest.size).then_some(to)).collect()
            }
        }
    }
}

/// A guest at one look; for a decision, with what it used on average.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Look {
    full: Bytes,
    size: Bytes,
    unused: Bytes,
    used: Bytes,
}

impl Look {
    /// What a decision is made from: the last look, and the average of what was in use.
    fn summary(looks: &VecDeque<Self>) -> Option<Self> {
        let used = mean(looks, |look| look.size).saturating_sub(mean(looks, |look| look.unused));
        looks.back().map(|last| Self { used, ..*last })
    }
}

/// A peer's rule at work.
#[derive(Debug)]
pub struct Peer {
    rule: Rule,
    looked: Option<Instant>,
    decided: Instant,
    /// The host's free memory at the last looks.
    free: VecDeque<Bytes>,
    /// The last looks at each guest, in their order.
    guests: Vec<VecDeque<Look>>,
}

impl Peer {
    /// A manager that follows `rule`.
    #[must_use]
    pub fn new(rule: Rule) -> Self {
        Self { rule, looked: None, decided: Instant::now(), free: VecDeque::new(), guests: Vec::new() }
    }

    fn look(&mut self, place: Place<'_>) -> Result<(), LabError> {
        let samples = self.rule.samples();
        let usage = place.host.usage()?.saturating_sub(place.host.cache()?);
        keep(&mut self.free, place.host.capacity().saturating_sub(usage), samples);
        self.guests.resize_with(place.guests.len(), VecDeque::new);
        for (seen, guest) in self.guests.iter_mut().zip(place.guests) {
            match look_at(guest, self.rule.looks_every()) {
                Some(look) => keep(seen, look, samples),
                // It is gone, or its driver is not there yet.
                None => seen.clear(),
            }
        }
        Ok(())
    }

    fn decide(&self, place: Place<'_>) {
        let seen = self.guests.iter().zip(place.guests);
        let seen = seen.filter_map(|(looks, guest)| Some((guest, Look::summary(looks)?)));
        let (guests, looks): (Vec<&Guest>, Vec<Look>) = seen.unzip();
        let free = mean(&self.free, |free| *free);
        let sizes = self.rule.decide(place.host.capacity(), free, &looks);
        for (guest, size) in guests.into_iter().zip(sizes) {
            // A guest that is just going away does not take it.
            let _ = size.map(|size| guest.set_target(size));
        }
    }
}

impl Manager for Peer {
    fn start(&mut self, _: Place<'_>) -> Result<(), LabError> {
        self.decided = Instant::now();
        Ok(())
    }

    fn tick(&mut self, place: Place<'_>) -> Result<(), LabError> {
        if self.looked.is_none_or(|at| at.elapsed() >= self.rule.looks_every()) {
            self.looked = Some(Instant::now());
            self.look(place)?;
        }
        if self.decided.elapsed() >= self.rule.decides_every() {
            self.decided = Instant::now();
            self.decide(place);
        }
        Ok(())
    }

    fn stop(&mut self, _: Place<'_>) -> Result<Measured, LabError> {
        Ok(Measured::default())
    }
}

fn keep<T>(all: &mut VecDeque<T>, new: T, most: usize) {
    all.push_back(new);
    while all.len() > most {
        all.pop_front();
    }
}

fn mean<T>(all: &VecDeque<T>, value: impl Fn(&T) -> Bytes) -> Bytes {
    let count = u64::try_from(all.len()).unwrap_or(u64::MAX).max(1);
    Bytes::sum(all.iter().map(value)).mul_div(1, count)
}

/// Reads a guest's balloon and its statistics, and has them polled from now on.
fn look_at(guest: &Guest, every: Duration) -> Option<Look> {
    if !guest.alive() {
        return None;
    }
    let size = guest.actual().ok()?;
    let answer = guest.qmp("qom-get", &json!({ "path": BALLOON, "property": "guest-stats" })).ok()?;
    let unused = answer.pointer("/stats/stat-free-memory").and_then(Value::as_u64);
    match unused.filter(|&bytes| bytes != u64::MAX) {
        Some(unused) => {
            let unused = Bytes::new(unused);
            Some(Look { full: guest.memory(), size, unused, used: size.saturating_sub(unused) })
        }
        None => {
            let polling = "guest-stats-polling-interval";
            let value = every.as_secs();
            let set = json!({ "path": BALLOON, "property": polling, "value": value });
            // It is tried again with the next look.
            let _ = guest.qmp("qom-set", &set);
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mib(mib: u64) -> Bytes {
        Bytes::from_mib(mib)
    }

    #[test]
    fn what_a_rule_sees_is_the_mean_of_its_last_looks() {
        let mut looks = VecDeque::new();
        (1..=12).for_each(|nth| keep(&mut looks, mib(nth), mom::SAMPLES));
        // 3 to 12.
        assert_eq!(mean(&looks, |look| *look), mib(75).mul_div(1, 10));
        assert_eq!(mean(&VecDeque::new(), |look: &Bytes| *look), Bytes::ZERO);
    }

    #[test]
    fn a_decision_starts_from_the_last_size_and_the_average_use() {
        let look = |size, unused| Look {
            full: mib(1000),
            size: mib(size),
            unused: mib(unused),
            used: mib(size - unused),
        };
        // 500 and 400 kept, 300 and 200 unused: 450 − 250 = 200 used on average.
        let summary = Look::summary(&[look(500, 300), look(400, 200)].into()).unwrap();
        assert_eq!((summary.size, summary.used), (mib(400), mib(200)));
        assert_eq!(Look::summary(&VecDeque::new()), None);
    }

    #[test]
    fn both_rules_are_asked_in_their_own_terms() {
        let look = Look { full: mib(1000), size: mib(400), unused: mib(200), used: mib(200) };
        // As in the rules' own tests: a twentieth more, and a hundred more (the goal is 300).
        assert_eq!(Rule::Mom.decide(mib(1000), mib(200), &[look]), [Some(mib(420))]);
        assert_eq!(Rule::Proxmox.decide(mib(1000), mib(500), &[look]), [Some(mib(500))]);
        assert_eq!(Rule::Proxmox.decide(mib(1000), mib(205), &[look]), [None]);
    }
}
