//! Tries many seeds, on several threads.

use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use memtide_model::{Commitment, Span, counted};
use serde::Serialize;

use super::{Wrong, faulty, judge};
use memtide_sim::{Manager, Options, run};

/// The result of a sweep over seeds. It does not depend on the number of threads.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Sweep {
    /// The first seed.
    pub first: u64,
    /// The number of seeds.
    pub seeds: u64,
    /// Virtual time, in milliseconds.
    pub simulated_ms: u64,
    /// Decisions made.
    pub decisions: u64,
    /// Faults that happened.
    pub faults: u64,
    /// The failures, in the order of the seeds.
    pub failures: Vec<Failure>,
}

/// A seed in which something was wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Failure {
    /// The seed.
    pub seed: u64,
    /// The commitment of the run.
    pub commitment: Commitment,
    /// The broken promises.
    pub wrong: Vec<Wrong>,
}

/// The result of one seed.
struct One {
    seed: u64,
    lasts: Span,
    decisions: u64,
    faults: u64,
    failure: Option<Failure>,
}

/// Simulates the faulty setups of `seeds` on `threads` threads, and judges them. `go_on` hears the number of seeds that are done, and
/// ends the sweep early by `false`.
pub fn sweep(seeds: Range<u64>, threads: usize, go_on: &(dyn Fn(u64) -> bool + Sync)) -> Sweep {
    let (next, done) = (AtomicU64::new(seeds.start), AtomicU64::new(0));
    let all = Mutex::new(Vec::new());
    let work = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end {
                return;
            }
            let one = one(seed);
            all.lock().unwrap_or_else(PoisonError::into_inner).push(one);
            if !go_on(done.fetch_add(1, Ordering::Relaxed) + 1) {
                return;
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(work);
        }
    });
    let mut all = all.into_inner().unwrap_or_else(PoisonError::into_inner);
    all.sort_by_key(|one| one.seed);
    Sweep {
        first: seeds.start,
        seeds: all.len() as u64,
        simulated_ms: all.iter().map(|one| one.lasts.as_millis()).sum(),
        decisions: all.iter().map(|one| one.decisions).sum(),
        faults: all.iter().map(|one| one.faults).sum(),
        failures: all.into_iter().filter_map(|one| one.failure).collect(),
    }
}

fn one(seed: u64) -> One {
    let setup = faulty(seed);
    let commitment = setup.config.commitment;
    let outcome = run(&setup, Manager::Memtide(commitment), &Options::default(), &mut |_| ());
    let wrong = judge(&setup, &outcome);
    let failure = (!wrong.is_empty()).then_some(Failure { seed, commitment, wrong });
    let faults = setup.faults.len() as u64;
    One { seed, lasts: setup.lasts, decisions: outcome.decisions, faults, failure }
}

impl fmt::Display for Sweep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for Failure { seed, commitment, wrong } in &self.failures {
            writeln!(f, "seed {seed} ({}):", Manager::Memtide(*commitment))?;
            wrong.iter().try_for_each(|wrong| writeln!(f, "  {}", wrong.text))?;
        }
        let (time, failed) = (Span::from_millis(self.simulated_ms), self.failures.len());
        let (seeds, faults) = (counted(self.seeds, "seed"), counted(self.faults, "fault"));
        let decisions = counted(self.decisions, "decision");
        write!(f, "{seeds}, {time} of virtual time, {faults}, {decisions}: ")?;
        match failed {
            0 => writeln!(f, "nothing went wrong"),
            1 => writeln!(f, "1 seed failed"),
            _ => writeln!(f, "{failed} seeds failed"),
        }
    }
}
