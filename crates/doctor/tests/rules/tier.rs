//! Compressed tiers, and swap in both a guest and its host.

use std::collections::BTreeMap;

use memtide_model::{Agent, AgentMemory, Can, Commitment, Config, Reading, Share};

use super::*;

/// All classes have tiers, and the guest's agent can swap to one.
fn with_tiers(facts: &mut Facts) {
    facts.config.commitment = Commitment::Elastic;
    facts.config.classes.get_mut(Config::DEFAULT_CLASS).unwrap().tier = Share::percent(50);
    facts.guests[0].told.agent = Reading::now(Agent { tiers: true, ..able() });
}

/// An agent that can do everything else.
fn able() -> Agent {
    Agent { trims: true, compacts: true, reports_pieces: true, counts_refaults: true, ..Agent::default() }
}

#[test]
fn what_a_tier_needs_is_named_only_where_a_class_has_tiers() {
    assert_eq!(found(|facts| facts.guests[0].equipment.as_mut().unwrap().lacks_port = true), []);
    assert_eq!(found(|facts| facts.host.zram = false), []);
    assert_eq!(found(with_tiers), []);
    gives(WARNING, "tier.port", "-device pcie-root-port,id=hotplug0,chassis=40", |facts| {
        with_tiers(facts);
        facts.guests[0].equipment.as_mut().unwrap().lacks_port = true;
    });
    gives(WARNING, "tier.zram", "modprobe zram num_devices=0", |facts| {
        with_tiers(facts);
        facts.host.zram = false;
    });
    gives(WARNING, "tier.agent", "its agent cannot swap to a tier: Linux 6.1 is too old", |facts| {
        with_tiers(facts);
        let cannot = BTreeMap::from([(Can::Tier, "Linux 6.1 is too old".to_owned())]);
        facts.guests[0].told.agent = Reading::now(Agent { cannot, ..able() });
    });
}

#[test]
fn swap_in_both_is_named_and_a_tier_is_no_disk() {
    let swaps = |own: u64, tier: u64| {
        move |facts: &mut Facts| {
            facts.host.swaps = vec![swap(SwapKind::Zram)];
            let memory =
                AgentMemory { swap_total: mib(own + tier), tier_total: mib(tier), ..AgentMemory::default() };
            facts.guests[0].told.agent = Reading::now(Agent { memory, ..able() });
        }
    };
    gives(HINT, "swap.twice", "swapoff -a", swaps(512, 512));
    assert_eq!(found(swaps(0, 512)), []);
}
