//! One guest alone on an ample host: its cost at its peak and idle, and the time of its work.

use std::time::{Duration, Instant};

use memtide_model::Bytes;
use serde::Serialize;

use super::Scale;
use super::guest::guest;
use crate::error::LabError;
use crate::guest::{BOOT, Guest};
use crate::machine::lab::Run;
use crate::machine::small_host::SmallHost;
use crate::output::statistics::median;
use crate::wait::until;
use crate::work::exercise::cold_heap;
use crate::work::turn::{self, Load, Turn};

/// How far a cold heap compresses with LZO: as measured heaps.
pub(super) const COLD_RATIO: &str = "2.5";

/// A guest is idle if its cost has not dropped for this long: free page reporting runs every two seconds.
const QUIET: Duration = Duration::from_secs(5);
/// Changes of the cost up to this do not count.
const NOISE: Bytes = Bytes::from_mib(2);

/// The measured needs of one guest alone.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Alone {
    /// Its highest cost, including the kernel's share.
    #[serde(rename = "peak_bytes")]
    pub peak: Bytes,
    /// Its cost when idle, after its work, with free page reporting.
    #[serde(rename = "idle_bytes")]
    pub idle: Bytes,
    /// The median time of its work, in seconds.
    pub turn_seconds: f64,
}

impl Alone {
    /// Measures a guest of this scale in a host of `ample` memory, which holds a cold heap if that is not zero.
    ///
    /// # Errors
    /// If the guest does not do its work.
    pub fn measure(
        scale: Scale,
        load: &Load,
        cold_mib: u64,
        ample: Bytes,
        run: &Run,
    ) -> Result<Self, LabError> {
        let host = SmallHost::create("alone", ample, Bytes::ZERO)?;
        let guest = guest("alone", scale, load, true).start(run, Some(&host))?;
        guest.wait_up(BOOT)?;
        if cold_mib > 0 {
            guest.run(cold_heap(0, cold_mib, COLD_RATIO), turn::LONGEST_ALONE)?;
        }
        let mut turns = Vec::new();
        let mut idle = Bytes::ZERO;
        for nth in 0..scale.turns_alone {
            turns.push(work(load, &guest, nth, || ())?.as_secs_f64());
            // Each turn begins when the memory is back at the host.
            idle = self::idle(&host)?;
        }
        let turn_seconds = median(turns).ok_or_else(|| LabError::Usage("no turn of one alone".to_owned()))?;
        Ok(Self { peak: host.peak()?, idle, turn_seconds })
    }
}

/// One turn of a guest alone, with `meanwhile` at each look at it. Returns the time of its work.
///
/// # Errors
/// If it does not do its work.
pub(super) fn work(
    load: &Load,
    guest: &Guest,
    seed: u64,
    mut meanwhile: impl FnMut(),
) -> Result<Duration, LabError> {
    let mut turn = Turn::new(0, seed);
    until("the work of a guest alone", turn::LONGEST_ALONE, || {
        turn.step(load, guest, true);
        meanwhile();
        Ok(turn.is_over().then_some(()))
    })?;
    match turn.took() {
        Some(took) if turn.has_finished() => Ok(took),
        _ => {
            let why = turn.failure().unwrap_or("its work was not done").to_owned();
            Err(LabError::Load { guest: guest.name().to_owned(), why })
        }
    }
}

fn idle(host: &SmallHost) -> Result<Bytes, LabError> {
    let mut least = (host.usage()?, Instant::now());
    until("an idle guest", turn::LONGEST_ALONE, || {
        let usage = host.usage()?;
        if usage.saturating_add(NOISE) < least.0 {
            least = (usage, Instant::now());
        }
        Ok((least.1.elapsed() >= QUIET).then_some(usage))
    })
}
