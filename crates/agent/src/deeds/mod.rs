//! What the agent does: each deed has a file here.
//!
//! **Rule.** A deed is bounded by what the host asks for and by what the guest's administrator allows ([`Bounds`]). It reports the bytes that
//! became free, by the kernel's counters or its answer, not the bytes that it asked the kernel for.

mod compact;
mod drain;
mod limit;
mod means;
mod pieces;
mod tier;
mod trim;

use std::time::Instant;

use memtide_host::Root;
use memtide_model::{AgentMemory, Bytes};

pub use compact::compact;
pub use limit::CacheLimit;
pub use means::Means;
pub use pieces::{Reporting, report_pieces};
pub use tier::{SwapCalls, TierUse, leave_tier, page_out, use_tier};
pub use trim::{Trim, drop_cache, may_take, trim};

use crate::Bounds;
use crate::facts::Facts;
use crate::wire::{Can, Done};

/// Hot cache is being taken if the working set's refaults are more than one part in this many of what was dropped.
const HOT: u64 = 16;

/// Whether refaults of the working set show that `dropped` was hot.
fn is_hot(refaults: Bytes, dropped: Bytes) -> bool {
    refaults > dropped.mul_div(1, HOT)
}

/// The page cache and slab that are gone.
fn shrunk(before: &AgentMemory, after: &AgentMemory) -> Bytes {
    let held = |memory: &AgentMemory| memory.unmapped_cache.saturating_add(memory.reclaimable_slab);
    held(before).saturating_sub(held(after))
}

/// Everything that a deed works with.
#[derive(Debug)]
pub struct Tools<'a> {
    /// The tree with `/proc` and `/sys`.
    pub root: &'a Root,
    /// The kernel's numbers.
    pub facts: &'a mut Facts,
    /// The administrator's bounds.
    pub bounds: &'a Bounds,
}

/// Why a deed was not done.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    /// The administrator does not allow it.
    #[error("the guest's administrator does not allow {0}")]
    Forbidden(&'static str),
    /// The kernel offers no way.
    #[error("this kernel offers no way: {0}")]
    Unsupported(String),
    /// The guest's present state does not allow it.
    #[error("{0}")]
    NotNow(String),
    /// There is no thread for it.
    #[error("cannot begin: {0}")]
    NoThread(#[from] std::io::Error),
    /// The kernel's numbers cannot be read.
    #[error(transparent)]
    Facts(#[from] memtide_host::HostError),
}

/// What the agent can do here, and why not the rest.
#[must_use]
pub fn abilities(tools: &mut Tools<'_>, reporting: &Reporting) -> (Vec<Can>, Vec<(Can, String)>) {
    let (mut can, mut cannot) = (vec![Can::Report], Vec::new());
    let mut judge = |ability, problem: Option<String>| match problem {
        None => can.push(ability),
        Some(why) => cannot.push((ability, why)),
    };
    judge(Can::Pressure, tools.facts.no_stalls().map(ToString::to_string));
    let counts = tools.facts.counts_refaults();
    judge(Can::Refaults, (!counts).then(|| "this kernel does not count refaults".to_owned()));
    judge(Can::Ages, tools.facts.no_ages().map(str::to_owned));
    let no_means = match (tools.bounds.trim, Means::usable(tools)) {
        (false, _) => Some(Refused::Forbidden("trimming").to_string()),
        (true, means) if means.is_empty() => Some(Refused::Unsupported(Means::missing()).to_string()),
        _ => None,
    };
    judge(Can::Trim, no_means.clone());
    judge(Can::CacheLimit, no_means);
    judge(Can::Compact, compact::problem(tools));
    judge(Can::ReportPieces, reporting.order(tools.bounds).err().map(|why| why.to_string()));
    judge(Can::Tier, tier::problem(tools));
    (can, cannot)
}

/// The result of a deed that began at `begun`.
fn done(bytes: Bytes, means: &str, begun: Instant) -> Done {
    let took = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
    Done { bytes: Some(bytes), means: Some(means.to_owned()), took_ms: Some(took) }
}
