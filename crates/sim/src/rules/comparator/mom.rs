//! MOM's monitors: samples of the host and of each guest, and averages over the latest samples.

use std::collections::VecDeque;

use memtide_model::{Bytes, GuestId, Moment};

use super::{GuestInput, HostInput, Remembered};
use crate::rules::mom::{self, DECIDE_EVERY, MONITOR_EVERY, SAMPLES};

/// MOM's memory.
#[derive(Clone, Debug, Default)]
pub(super) struct Memory {
    /// The times of the last sample and of the last decision (or the start).
    last: Option<(Moment, Moment)>,
    /// The host's free memory in the last samples.
    free: VecDeque<Bytes>,
    guests: Remembered<Samples>,
}

/// A guest's last samples: its size, and its unused memory.
#[derive(Clone, Debug, Default)]
struct Samples {
    /// Whether the last sample was complete. If not, older ones stay.
    ready: bool,
    sizes: VecDeque<Bytes>,
    unused: VecDeque<Bytes>,
}

impl Samples {
    fn take(&mut self, input: &GuestInput) {
        self.ready = input.unused.is_some();
        if let Some(unused) = input.unused {
            keep(&mut self.sizes, input.size);
            keep(&mut self.unused, unused);
        }
    }

    /// The input of a decision: the last size, and averages of everything else.
    fn summary(&self, input: &GuestInput) -> Option<mom::Guest> {
        let size = *self.sizes.back().filter(|_| self.ready)?;
        let used = mean(&self.sizes).saturating_sub(mean(&self.unused));
        Some(mom::Guest { size, used, min: input.min, max: input.full })
    }
}

impl Memory {
    pub(super) fn next_sample(&self) -> Moment {
        let Some((sampled, decided)) = self.last else { return Moment::default() };
        sampled.after(MONITOR_EVERY).min(decided.after(DECIDE_EVERY))
    }

    pub(super) fn targets(
        &mut self,
        now: Moment,
        host: HostInput,
        guests: &[GuestInput],
    ) -> Vec<(GuestId, Bytes)> {
        self.guests.follow(guests, |_| Samples::default());
        let (mut sampled, mut decided) = self.last.unwrap_or((Moment::default(), now));
        if self.last.is_none() || now >= sampled.after(MONITOR_EVERY) {
            sampled = now;
            keep(&mut self.free, host.free);
            for (samples, input) in self.guests.each.iter_mut().zip(guests) {
                samples.take(input);
            }
        }
        let due = now >= decided.after(DECIDE_EVERY);
        if due {
            decided = now;
        }
        self.last = Some((sampled, decided));
        if due { self.decide(host, guests) } else { Vec::new() }
    }

    fn decide(&self, host: HostInput, guests: &[GuestInput]) -> Vec<(GuestId, Bytes)> {
        let seen = guests.iter().zip(&self.guests.each);
        let seen = seen.filter_map(|(input, samples)| Some((&input.id, samples.summary(input)?)));
        let (ids, seen): (Vec<&GuestId>, Vec<mom::Guest>) = seen.unzip();
        let sizes = mom::decide(mean(&self.free), host.total, &seen);
        ids.into_iter().zip(sizes).filter_map(|(id, size)| Some((id.clone(), size?))).collect()
    }
}

fn keep(samples: &mut VecDeque<Bytes>, new: Bytes) {
    samples.push_back(new);
    if samples.len() > SAMPLES {
        samples.pop_front();
    }
}

fn mean(samples: &VecDeque<Bytes>) -> Bytes {
    let count = u64::try_from(samples.len()).unwrap_or(u64::MAX).max(1);
    Bytes::sum(samples.iter().copied()).mul_div(1, count)
}
