//! The agent in a guest, and the port that leads to it.

use memtide_model::{Absence, Can};

use super::of_guest;
use crate::advice::{self, Change};
use crate::facts::{Facts, GuestFacts};
use crate::finding::{Finding, Severity};

/// The consequence of a guest without an agent.
const BLIND: &str =
    "memtide does not see which page cache it reads again, and its balloon takes hot cache as well as cold";

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
    ]
    .into_iter()
    .filter(|(can, _)| cannot.contains_key(can))
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
