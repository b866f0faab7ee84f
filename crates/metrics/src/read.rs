//! How the values of some metrics are read from what the daemon knows.

use memtide_api::view::GuestStatus;
use memtide_model::{
    AgentCounters, AgentStalls, Bytes, CostParts, GuestSeen, GuestStats, HostState, KsmReport, SizeParts,
    TmpfsReport, Verdict,
};

use crate::metric::{Samples, Value};
use crate::scrape::Scrape;

/// What a guest's memory is, as [`SizeParts`] has it.
pub(crate) const SIZE_PARTS: [&str; 6] = ["used", "needed_cache", "cold_cache", "free", "untold", "given"];
/// What a guest costs, as [`CostParts`] has it.
pub(crate) const COST_PARTS: [&str; 4] = ["ram", "vmm", "torn", "swapped"];
/// What becomes of the host's memory.
pub(crate) const HOST_PARTS: [&str; 5] = ["guests", "torn", "other", "reserve", "free"];
/// The shortage of memory on the host.
pub(crate) const HOST_STATES: [&str; 4] = ["high", "soft", "hard", "low"];
/// What memtide does about a guest.
pub(crate) const GUEST_STATES: [&str; 11] = [
    "growing",
    "shrinking",
    "under_way",
    "steady",
    "waits",
    "backs_off",
    "stuck",
    "held",
    "withheld",
    "left_alone",
    "silent",
];
/// What became of an action.
pub(crate) const RESULTS: [&str; 3] = ["done", "failed", "refused"];
/// Where memory moved.
pub(crate) const DIRECTIONS: [&str; 2] = ["to_host", "to_guests"];
/// Whether some tasks stalled, or all.
pub(crate) const STALLS: [&str; 2] = ["some", "full"];

/// A value of the host: it has none before the first decision.
pub(crate) fn host(scrape: &Scrape<'_>, samples: &mut Samples<'_>, bytes: Bytes) {
    if scrape.status.decided_at.is_some() {
        samples.one(bytes);
    }
}

pub(crate) fn host_parts(scrape: &Scrape<'_>, samples: &mut Samples<'_>) {
    let host = &scrape.status.host;
    let parts = [host.footprints, host.torn, host.other, host.reserve, host.free];
    if scrape.status.decided_at.is_some() {
        HOST_PARTS.iter().zip(parts).for_each(|(part, bytes)| samples.with(&[part], bytes));
    }
}

pub(crate) fn host_state(scrape: &Scrape<'_>, samples: &mut Samples<'_>) {
    let state = match scrape.status.host.state {
        HostState::High => "high",
        HostState::Soft => "soft",
        HostState::Hard => "hard",
        HostState::Low => "low",
    };
    if scrape.status.decided_at.is_some() {
        samples.state(&[], state);
    }
}

pub(crate) fn host_stalls(scrape: &Scrape<'_>, samples: &mut Samples<'_>) {
    if let Some(pressure) = scrape.host().and_then(|host| host.pressure.latest()) {
        samples.with(&["some"], Value::of_micros(pressure.some_us));
        samples.with(&["full"], Value::of_micros(pressure.full_us));
    }
}

/// A value of KSM.
pub(crate) fn ksm<V: Into<Value>>(
    scrape: &Scrape<'_>,
    samples: &mut Samples<'_>,
    of: impl FnOnce(&KsmReport) -> Option<V>,
) {
    if let Some(value) = scrape.status.host.ksm.as_ref().and_then(of) {
        samples.one(value);
    }
}

/// A value of each tmpfs.
pub(crate) fn tmpfs(scrape: &Scrape<'_>, samples: &mut Samples<'_>, of: fn(&TmpfsReport) -> Bytes) {
    for one in &scrape.status.host.tmpfs {
        samples.with(&[&one.at, &one.id.0.to_string()], of(one));
    }
}

/// A value of each guest of which it is known.
pub(crate) fn guests<V: Into<Value>>(
    scrape: &Scrape<'_>,
    samples: &mut Samples<'_>,
    of: impl Fn(&GuestStatus, Option<&GuestSeen>) -> Option<V>,
) {
    for (guest, seen) in scrape.guests() {
        if let Some(value) = of(guest, seen) {
            samples.with(&[&guest.name], value);
        }
    }
}

/// How a counter is found in what a balloon's driver tells.
type OfDriver = fn(&GuestStats) -> Option<u64>;
/// The same in what an agent tells.
type OfAgent = fn(&AgentCounters) -> u64;

/// A counter of the guest's kernel: its balloon's driver tells it, or its agent.
pub(crate) fn guest_counter(
    scrape: &Scrape<'_>,
    samples: &mut Samples<'_>,
    (driver, agent): (OfDriver, OfAgent),
) {
    guests(scrape, samples, |_, seen| {
        let told = &seen?.told;
        let drivers = told.stats.latest().and_then(driver);
        drivers.or_else(|| told.agent.latest().map(|told| agent(&told.counters)))
    });
}

pub(crate) fn guest_stalls(scrape: &Scrape<'_>, samples: &mut Samples<'_>) {
    for (guest, seen) in scrape.guests() {
        let stalls = seen.and_then(|seen| seen.told.agent.latest()?.stalls);
        if let Some(AgentStalls { memory_some_us, memory_full_us, .. }) = stalls {
            samples.with(&[&guest.name, "some"], Value::of_micros(memory_some_us));
            samples.with(&[&guest.name, "full"], Value::of_micros(memory_full_us));
        }
    }
}

/// The parts of each guest's size. If nobody tells what the memory is that the guest keeps, all of it is `untold`, and the other parts have no sample.
pub(crate) fn size_parts(scrape: &Scrape<'_>, samples: &mut Samples<'_>) {
    for (guest, _) in scrape.guests() {
        let Some(parts) = guest.parts else { continue };
        let SizeParts { used, needed_cache, cold_cache, free, untold, given } = parts.size;
        let is_told = guest.report.used.is_some();
        let told = |part| is_told.then_some(part);
        let parts = [told(used), told(needed_cache), told(cold_cache), told(free), Some(untold), Some(given)];
        for (part, bytes) in SIZE_PARTS.iter().zip(parts) {
            if let Some(bytes) = bytes {
                samples.with(&[&guest.name, part], bytes);
            }
        }
    }
}

/// The parts of each guest's cost. What KSM merged is taken off the RAM, so the parts add up to the cost.
pub(crate) fn cost_parts(scrape: &Scrape<'_>, samples: &mut Samples<'_>) {
    for (guest, seen) in scrape.guests() {
        let Some((parts, seen)) = guest.parts.and_then(|parts| parts.cost).zip(seen) else { continue };
        let CostParts { ram, vmm, torn, swapped, merged } = parts;
        let torn = seen.cost.torn.latest().map(|_| torn);
        let swapped = seen.cost.swapped.latest().map(|_| swapped);
        let parts = [Some(ram.saturating_sub(merged)), Some(vmm), torn, swapped];
        for (part, bytes) in COST_PARTS.iter().zip(parts) {
            if let Some(bytes) = bytes {
                samples.with(&[&guest.name, part], bytes);
            }
        }
    }
}

pub(crate) fn guest_states(scrape: &Scrape<'_>, samples: &mut Samples<'_>) {
    for (guest, _) in scrape.guests() {
        samples.state(&[&guest.name], state(&guest.report.verdict));
    }
}

/// The state of a guest, one of [`GUEST_STATES`].
const fn state(verdict: &Verdict) -> &'static str {
    match verdict {
        Verdict::Grown => "growing",
        Verdict::Shrunk => "shrinking",
        Verdict::UnderWay => "under_way",
        Verdict::Steady | Verdict::PollingStarted | Verdict::HoldEnds { .. } => "steady",
        Verdict::WaitsForMemory { .. } => "waits",
        Verdict::BackingOff { .. } => "backs_off",
        Verdict::Stuck { .. } => "stuck",
        Verdict::Held(_) => "held",
        Verdict::Withheld(_) => "withheld",
        Verdict::Observed | Verdict::NotManaged | Verdict::Fenced(_) => "left_alone",
        Verdict::Reset | Verdict::NoBalloon(_) | Verdict::NoStats(_) => "silent",
    }
}
