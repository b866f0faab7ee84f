//! How the values of some metrics are read from what the daemon knows.

use memtide_api::view::GuestStatus;
use memtide_model::{
    AgentCounters, AgentStalls, Bytes, CostPart, GuestSeen, GuestStats, HostPart, HostState, KsmReport,
    Pressure, SizePart, TmpfsReport, Verdict,
};

use crate::metric::{Samples, Value};
use crate::scrape::Scrape;

/// The keys of all parts of a kind.
macro_rules! keys {
    ($parts:ident) => {{
        let mut keys = [""; $parts::ALL.len()];
        let mut at = 0;
        while at < keys.len() {
            keys[at] = $parts::ALL[at].key();
            at += 1;
        }
        keys
    }};
}

/// The parts of a guest's size.
pub(crate) const SIZE_PARTS: [&str; SizePart::ALL.len()] = keys!(SizePart);
/// The parts of a guest's cost.
pub(crate) const COST_PARTS: [&str; CostPart::ALL.len()] = keys!(CostPart);
/// The parts of the host's memory.
pub(crate) const HOST_PARTS: [&str; HostPart::ALL.len()] = keys!(HostPart);
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

/// A value of the host: it has none before the first decision.
pub(crate) fn host(scrape: &Scrape<'_>, samples: &mut Samples<'_>, bytes: Bytes) {
    if scrape.status.decided_at.is_some() {
        samples.one(bytes);
    }
}

pub(crate) fn host_parts(scrape: &Scrape<'_>, samples: &mut Samples<'_>) {
    if scrape.status.decided_at.is_some() {
        HostPart::ALL.iter().for_each(|part| samples.with(&[part.key()], scrape.status.host.of_part(*part)));
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

/// A time of the host's pressure, in microseconds.
pub(crate) fn host_pressure(scrape: &Scrape<'_>, samples: &mut Samples<'_>, of: fn(&Pressure) -> u64) {
    if let Some(pressure) = scrape.host().and_then(|host| host.pressure.latest()) {
        samples.one(Value::of_micros(of(pressure)));
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

/// A time of each guest's pressure, in microseconds.
pub(crate) fn guest_pressure(scrape: &Scrape<'_>, samples: &mut Samples<'_>, of: fn(&AgentStalls) -> u64) {
    guests(scrape, samples, |_, seen| {
        let stalls = seen?.told.agent.latest()?.stalls?;
        Some(Value::of_micros(of(&stalls)))
    });
}

/// The parts of each guest's size. If nobody tells what the memory is that the guest keeps, all of it is untold, and the other parts have no sample.
pub(crate) fn size_parts(scrape: &Scrape<'_>, samples: &mut Samples<'_>) {
    for (guest, _) in scrape.guests() {
        let Some(parts) = guest.parts else { continue };
        for part in SizePart::ALL {
            if guest.report.used.is_some() || matches!(part, SizePart::Untold | SizePart::Given) {
                samples.with(&[&guest.name, part.key()], parts.size.of_part(part));
            }
        }
    }
}

/// The parts of each guest's cost. What KSM merged is taken off the RAM, so the parts add up to the cost.
pub(crate) fn cost_parts(scrape: &Scrape<'_>, samples: &mut Samples<'_>) {
    for (guest, seen) in scrape.guests() {
        let Some((parts, seen)) = guest.parts.and_then(|parts| parts.cost).zip(seen) else { continue };
        for part in CostPart::ALL {
            let bytes = parts.of_part(part);
            let known = match part {
                CostPart::Ram => Some(bytes.saturating_sub(parts.merged)),
                CostPart::Vmm => Some(bytes),
                CostPart::Torn => seen.cost.torn.latest().map(|_| bytes),
                CostPart::Swapped => seen.cost.swapped.latest().map(|_| bytes),
            };
            if let Some(known) = known {
                samples.with(&[&guest.name, part.key()], known);
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
