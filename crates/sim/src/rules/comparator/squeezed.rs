//! squeezed's thread: it checks the balance, and steps until the host is balanced.

use memtide_model::{Bytes, GuestId, Moment};

use super::{GuestInput, HostInput, Remembered};
use crate::rules::squeezed::{CHECK_EVERY, Conclusion, Guest, Progress, STEP, step};

/// squeezed's memory.
#[derive(Clone, Debug, Default)]
pub(super) struct Memory {
    /// `None` before the first sample, which only starts the thread, as in the original.
    next: Option<Moment>,
    /// Whether a run is under way.
    runs: bool,
    guests: Remembered<Known>,
}

#[derive(Clone, Copy, Debug)]
struct Known {
    target: Bytes,
    /// Its progress in this run.
    progress: Option<Progress>,
}

impl Memory {
    pub(super) fn next_sample(&self) -> Moment {
        self.next.unwrap_or_default()
    }

    pub(super) fn targets(
        &mut self,
        now: Moment,
        host: HostInput,
        guests: &[GuestInput],
    ) -> Vec<(GuestId, Bytes)> {
        let new = |input: &GuestInput| Known { target: input.target.unwrap_or(input.size), progress: None };
        self.guests.follow(guests, new);
        let known = &mut self.guests.each;
        for (known, input) in known.iter_mut().zip(guests) {
            known.target = input.target.unwrap_or(known.target);
        }
        let first = self.next.is_none();
        self.next = Some(now.after(CHECK_EVERY));
        if first {
            return Vec::new();
        }
        let seen: Vec<Guest> = guests.iter().zip(&*known).map(|(input, known)| seen(input, known)).collect();
        let before: Vec<Option<Progress>> =
            known.iter().map(|known| known.progress.filter(|_| self.runs)).collect();
        let step = step(now, host.for_guests(), &seen, &before);
        // A check that finds no target to change starts no run, even if guests are still moving.
        self.runs =
            step.conclusion == Conclusion::Moving && (self.runs || step.targets.iter().any(Option::is_some));
        if self.runs {
            self.next = Some(now.after(STEP));
        }
        let mut written = Vec::new();
        for (i, (target, progress)) in step.targets.into_iter().zip(step.progress).enumerate() {
            known[i].progress = Some(progress);
            if let Some(target) = target {
                known[i].target = target;
                written.push((guests[i].id.clone(), target));
            }
        }
        written
    }
}

fn seen(input: &GuestInput, known: &Known) -> Guest {
    Guest { driver: input.driver, min: input.min, max: input.full, target: known.target, actual: input.size }
}
