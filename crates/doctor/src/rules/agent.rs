//! The agent in a guest, and the port that leads to it.

use memtide_model::{Absence, Agent, Bytes, Can, Span};

use super::of_guest;
use crate::advice::{self, Change};
use crate::facts::{Facts, GuestFacts};
use crate::finding::{Finding, Severity};

/// The consequence of a guest without an agent.
const BLIND: &str =
    "memtide does not see which page cache it reads again, and its balloon takes hot cache as well as cold";

/// Less free memory that has not returned is not worth a word: the VMM's own memory looks like it.
const LEAST_KEPT: Bytes = Bytes::from_mib(128);
/// And less than one part in this many of the guest's size.
const KEPT_PART: u64 = 8;
/// Reporting needs some passes after a boot.
const SETTLED: Span = Span::from_secs(60);

/// There is no port for an agent. The balloon and its statistics come first.
pub(super) fn port(_: &Facts, guest: &GuestFacts) -> Option<Finding> {
    let works = guest.managed && guest.told.stats.fresh().is_some();
    // An agent serves a guest that gives.
    if !works || guest.agent.is_some() || guest.equipment.is_none() || guest.why_withheld().is_some() {
        return None;
    }
    let finding = of_guest(guest, "agent.none", Severity::Hint, "no port for memtide-agent").costs(BLIND);
    let finding = finding.with(advice::fix(guest, Change::AgentPort));
    Some(finding.fix(
        "in the guest",
        ["apt install ./memtide-agent_*.deb   # made by `make deb-agent`; docs/agent.md has other ways"],
    ))
}

/// There is a port, and nobody answers at its other end.
pub(super) fn silent(_: &Facts, guest: &GuestFacts) -> Option<Finding> {
    guest.agent.as_ref().filter(|_| guest.managed)?;
    let why = guest.told.agent.why_not()?;
    // Nobody asked: only the daemon that manages connects to the port.
    if matches!(why, Absence::Unsupported | Absence::NotYet) {
        return None;
    }
    let fact = format!("the agent does not answer: {why}");
    let finding = of_guest(guest, "agent.silent", Severity::Warning, &fact).costs(BLIND);
    Some(finding.fix("in the guest", ["systemctl enable --now memtide-agent", "memtide-agent status"]))
}

/// An agent answers, but its kernel or its administrator keeps it from what memtide asks agents for.
pub(super) fn limited(_: &Facts, guest: &GuestFacts) -> Option<Finding> {
    guest.agent.as_ref().filter(|_| guest.managed)?;
    let cannot = &guest.told.agent.fresh()?.cannot;
    let lacks: Vec<(Can, &str)> = [
        (Can::Trim, "the balloon takes page cache, hot or cold"),
        (Can::Refaults, "memtide does not see which page cache it reads again"),
        (Can::Pressure, "memtide hears of its stalls later, from its balloon"),
        (Can::Compact, "its free memory in small pieces does not return"),
        (Can::ReportPieces, "free memory in pieces below 2 MiB stays with it"),
    ]
    .into_iter()
    // Without reporting at all, another rule speaks.
    .filter(|(can, _)| cannot.contains_key(can) && (*can != Can::ReportPieces || reports(guest)))
    .collect();
    if lacks.is_empty() {
        return None;
    }
    let what: Vec<String> =
        lacks.iter().map(|(can, _)| format!("{} ({})", can.word(), cannot[can])).collect();
    let costs: Vec<&str> = lacks.iter().map(|(_, cost)| *cost).collect();
    let fact = format!("its agent cannot {}", what.join(", "));
    let finding = of_guest(guest, "agent.limited", Severity::Hint, &fact).costs(costs.join("; "));
    Some(finding.fix(
        "in the guest: a newer kernel (docs/agent.md says which), or more rights for its agent in /etc/memtide-agent.toml",
        ["memtide-agent status"],
    ))
}

fn reports(guest: &GuestFacts) -> bool {
    guest.told.balloon.fresh().is_some_and(|balloon| balloon.free_page_reporting)
}

/// Free memory has not returned although free page reporting works, and there is no agent to see to it.
pub(super) fn pieces(_: &Facts, guest: &GuestFacts) -> Option<Finding> {
    // One that cannot has said why: another rule speaks.
    let says_why = |agent: &Agent| agent.reports_pieces || agent.cannot.contains_key(&Can::ReportPieces);
    let has_agent = guest.told.agent.fresh().is_some_and(says_why);
    let is_young = guest.age.is_none_or(|age| age < SETTLED);
    if has_agent || is_young || !reports(guest) || guest.why_withheld().is_some() {
        return None;
    }
    let (balloon, stats) = (guest.told.balloon.fresh()?, guest.told.stats.fresh()?);
    let in_use = balloon.actual.saturating_sub(stats.free?);
    let kept = guest.status.as_ref()?.resident.saturating_sub(in_use);
    if kept < LEAST_KEPT.max(balloon.actual.mul_div(1, KEPT_PART)) {
        return None;
    }
    let fact =
        format!("free page reporting is on, but its VMM still holds up to {kept} that the guest has freed");
    let finding = of_guest(guest, "agent.pieces", Severity::Hint, fact).costs(
        "unless programs have only just freed this memory, it lies in pieces smaller than 2 MiB. The kernel does not report those, so fewer \
         guests fit. Reporting small pieces costs the guest a few percent of a CPU, and tears huge pages of the host",
    );
    let finding = finding.fix(
        "add to the guest's kernel command line, so that pieces of 64 KiB and more return (Linux 6.2 or newer)",
        ["page_reporting.page_reporting_order=4"],
    );
    let finding = finding.fix(
        "or inside the guest, until it boots again (Linux 5.14 or newer)",
        ["echo 4 > /sys/module/page_reporting/parameters/page_reporting_order"],
    );
    Some(finding.fix("or let memtide-agent do it, only while the host needs memory", ["docs/agent.md"]))
}
