//! Compressed tiers of guests whose class asks for them, and swap in both a guest and its host.

use memtide_model::{Absence, Can};

use super::of_guest;
use crate::advice::{self, Change};
use crate::facts::{Facts, GuestFacts};
use crate::finding::{Finding, Severity};

/// What a guest costs without its tier.
const COSTS: &str = "its class has `tier`, and memtide cannot keep its cold memory compressed";

/// There is no port that a tier can be plugged into.
pub(super) fn port(facts: &Facts, guest: &GuestFacts) -> Option<Finding> {
    let equipment = guest.equipment.as_ref().filter(|_| wants_tier(facts, guest))?;
    if !equipment.lacks_port {
        return None;
    }
    let fact = "no port for a tier: a q35 takes devices while it runs only at a pcie-root-port";
    let finding = of_guest(guest, "tier.port", Severity::Warning, fact).costs(COSTS);
    Some(finding.with(advice::fix(guest, Change::RootPort)))
}

/// Nobody in the guest can swap to a tier.
pub(super) fn agent(facts: &Facts, guest: &GuestFacts) -> Option<Finding> {
    if !wants_tier(facts, guest) {
        return None;
    }
    let fact = match &guest.told.agent {
        agent if agent.fresh().is_some_and(|agent| agent.tiers) => return None,
        agent => match (agent.fresh(), agent.why_not()) {
            (Some(agent), _) => {
                let why = agent.cannot.get(&Can::Tier).map_or("it is too old", String::as_str);
                format!("its agent cannot swap to a tier: {why}")
            }
            // Nobody asked yet, or another rule says that there is no agent.
            (None, Some(Absence::NotYet | Absence::Unsupported) | None) => return None,
            (None, Some(why)) => format!("its agent does not say whether it can swap to a tier: {why}"),
        },
    };
    let finding = of_guest(guest, "tier.agent", Severity::Warning, fact).costs(COSTS);
    Some(finding.fix("in the guest", ["memtide-agent status"]))
}

/// The guest swaps to a disk of its own, and its host may swap it out, too.
pub(super) fn twice(facts: &Facts, guest: &GuestFacts) -> Option<Finding> {
    let memory = guest.told.agent.fresh()?.memory;
    let own = memory.swap_total.saturating_sub(memory.tier_total);
    if own.is_zero() || facts.host.swaps.is_empty() {
        return None;
    }
    let fact = format!("it has {own} of swap, and its host swaps as well");
    let finding = of_guest(guest, "swap.twice", Severity::Hint, fact).costs(
        "what the host has swapped out is read back only to be written to the guest's swap: each page moves twice, at the worst moment",
    );
    Some(finding.fix("a shell on the host, as `swap.disk` says, or in the guest", ["swapoff -a"]))
}

/// Whether the guest's class asks for a tier that memtide would attach.
fn wants_tier(facts: &Facts, guest: &GuestFacts) -> bool {
    guest.managed
        && guest.why_withheld().is_none()
        && facts.config.class_of(&guest.name, guest.user).1.tier.is_some()
}
