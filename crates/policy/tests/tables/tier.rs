//! Cold memory of programs goes to a compressed tier, a batch at a time, and only from who can spare it.

use super::*;
use crate::common::{but, guest, mib, snapshot};
use memtide_model::{
    Agent, AgentMemory, Commitment, Deed, Moment, Reading, Share, Span, Tier, TierOrder, TierState,
};

/// A guest of 1 GiB whose programs hold 600 MiB of its 650, with an agent that swaps to this tier; and one of 600 MiB that uses 590 MiB and stalls. The host has
/// `spare` MiB beyond what they hold.
fn seen(millis: u64, spare: u64, tier: Option<Tier>) -> Snapshot {
    let stored = tier.map_or(Bytes::ZERO, |tier| tier.stored);
    let total = if tier.is_some_and(|tier| !tier.size.is_zero()) { mib(512) } else { Bytes::ZERO };
    let memory = AgentMemory {
        anon: mib(600).saturating_sub(stored),
        tier_total: total,
        tier_free: total.saturating_sub(stored),
        ..AgentMemory::default()
    };
    let agent = Agent { memory, tiers: true, counts_refaults: true, ..Agent::default() };
    let cold = told(guest("cold", 680, 650), |stats| stats.alloc_stalls = Some(0));
    let cold = but(cold, |guest| {
        guest.told.full = mib(1024);
        guest.told.agent = Reading::now(agent);
        if let Some(tier) = tier {
            guest.cost.tier = Reading::now(tier);
        }
    });
    let busy = told(guest("busy", 600, 590), |stats| stats.alloc_stalls = Some(millis / 10));
    let mut seen = snapshot(millis, 1_420 + spare, vec![busy, cold]);
    seen.host.tiers = true;
    seen
}

/// A tier that its guest swaps to.
fn used(stored: u64, held: u64) -> Option<Tier> {
    let [size, stored, held] = [512, stored, held].map(mib);
    Some(Tier { size, limit: Tier::limit_of(size), stored, held, ..Tier::default() })
}

fn with_tiers() -> Config {
    let mut config = config();
    config.classes.get_mut(Config::DEFAULT_CLASS).unwrap().tier = Share::percent(50);
    config.commitment = Commitment::Elastic;
    config
}

fn about_tiers(decision: &Decision) -> Vec<Request> {
    let is_about = |request: &Request| {
        matches!(request, Request::Tier(_) | Request::Agent(Deed::UseTier(_) | Deed::PageOut(_)))
    };
    decision.plan.actions.iter().map(|action| action.request).filter(is_about).collect()
}

fn after(config: &Config, spare: u64, tier: Option<Tier>) -> Vec<Request> {
    let state = known(config, &seen(1_000, spare, tier));
    about_tiers(&tick(config, &state, &seen(6_000, spare, tier)))
}

#[test]
fn a_guest_gets_a_tier_only_if_its_class_has_one_also_on_a_full_host() {
    let attach = Request::Tier(TierOrder::Attach(mib(512)));
    assert_eq!(after(&with_tiers(), 100, None), [attach]);
    let (mut full, with) = (seen(6_000, 0, None), with_tiers());
    full.host.other = full.host.capacity;
    assert_eq!(about_tiers(&tick(&with, &known(&with, &seen(1_000, 0, None)), &full)), [attach]);
    assert_eq!(after(&config(), 100, None), []);
    let strict = Config { commitment: Commitment::Strict, ..with_tiers() };
    assert_eq!(after(&strict, 600, None), [], "a worst case that does not compress gains nothing");
    let mut cannot = seen(6_000, 100, None);
    cannot.host.tiers = false;
    let config = with_tiers();
    let state = known(&config, &seen(1_000, 100, None));
    assert_eq!(about_tiers(&tick(&config, &state, &cannot)), []);
}

#[test]
fn an_attached_tier_is_used_before_anything_is_written_to_it() {
    let attached = Some(Tier { limit: mib(578), ..Tier::default() });
    assert_eq!(after(&with_tiers(), 100, attached), [Request::Agent(Deed::UseTier(true))]);
}

#[test]
fn a_batch_is_written_and_never_beyond_what_the_class_allows() {
    assert_eq!(after(&with_tiers(), 100, used(0, 0)), [Request::Agent(Deed::PageOut(mib(16)))]);
    // Half of it lies there already.
    assert_eq!(after(&with_tiers(), 100, used(512, 200)), []);
}

#[test]
fn memory_that_is_read_back_was_in_use() {
    let config = with_tiers();
    let tier = used(0, 0);
    let state = known(&config, &seen(1_000, 100, tier));
    let state = tick(&config, &state, &seen(6_000, 100, tier)).state;
    let back = used(60, 24).map(|tier| Tier { read: mib(8), ..tier });
    let after = tick(&config, &state, &seen(8_000, 100, back)).state;
    let TierState { watched, back_off, .. } = after.guests[&id("cold")].tier;
    assert_eq!((watched, back_off.span), (None, Span::from_secs(10)));
}

#[test]
fn a_tier_that_its_guest_cannot_use_is_detached_and_replaced() {
    let config = with_tiers();
    let attached = Some(Tier { limit: mib(578), ..Tier::default() });
    let state = known(&config, &seen(1_000, 100, attached));
    // The agent answers each request, and swaps to nothing.
    let mut asked: Vec<(u64, Request)> = Vec::new();
    let (mut state, mut ended) = (state, 0);
    for millis in (6_000..120_000).step_by(1_000) {
        let mut seen = seen(millis, 100, attached);
        if let Reading::Fresh { value, .. } =
            &mut seen.guests.iter_mut().find(|guest| guest.id == id("cold")).unwrap().told.agent
        {
            value.ended = ended;
        }
        let decision = tick(&config, &state, &seen);
        let orders = about_tiers(&decision);
        ended += orders.iter().filter(|order| matches!(order, Request::Agent(_))).count() as u64;
        asked.extend(orders.into_iter().map(|order| (millis, order)));
        state = decision.state;
        if asked.last().is_some_and(|(_, order)| *order == Request::Tier(TierOrder::Detach)) {
            break;
        }
    }
    let tries = asked.iter().filter(|(_, order)| *order == Request::Agent(Deed::UseTier(true))).count();
    assert_eq!((tries, asked.len()), (3, 4), "{asked:?}");
}

#[test]
fn what_does_not_compress_is_let_go() {
    let bad = used(64, 64).map(|tier| Tier { incompressible: mib(40), ..tier });
    let config = with_tiers();
    let state = known(&config, &seen(1_000, 600, bad));
    let decision = tick(&config, &state, &seen(6_000, 600, bad));
    assert!(decision.state.guests[&id("cold")].tier.vain.lasts(Moment::from_millis(7_000)));
    let written =
        about_tiers(&decision).into_iter().any(|request| matches!(request, Request::Agent(Deed::PageOut(_))));
    assert!(!written, "{:#?}", decision.plan);
    // Once the guest has let it go.
    let unused = Some(Tier { limit: mib(578), ..Tier::default() });
    let after = tick(&config, &decision.state, &seen(9_000, 600, unused));
    assert_eq!(about_tiers(&after), [Request::Tier(TierOrder::Detach)]);
}

#[test]
fn batches_that_stay_there_grow_and_what_was_squeezed_out_counts_as_used() {
    let config = with_tiers();
    // Each batch stays there.
    let (mut state, mut stored, mut ended, mut batches) =
        (known(&config, &seen(1_000, 100, used(0, 0))), 0, 0, Vec::new());
    for millis in (6_000..60_000).step_by(1_000) {
        let mut seen = seen(millis, 100, used(stored, stored * 2 / 5));
        if let Reading::Fresh { value, .. } =
            &mut seen.guests.iter_mut().find(|guest| guest.id == id("cold")).unwrap().told.agent
        {
            (value.ended, value.freed) = (ended, mib(stored));
        }
        let decision = tick(&config, &state, &seen);
        for request in about_tiers(&decision) {
            if let Request::Agent(Deed::PageOut(bytes)) = request {
                batches.push(bytes.whole_mib());
                (stored, ended) = (stored + bytes.whole_mib(), ended + 1);
            }
        }
        state = decision.state;
    }
    assert_eq!(batches[..4], [16, 32, 64, 81], "{batches:?}");
    // Nobody asked for these 100 MiB.
    let by_itself =
        |millis, read| seen(millis, 100, used(100, 40).map(|tier| Tier { read: mib(read), ..tier }));
    let needs = |decision: &Decision| {
        let report = decision.report.guests.iter().find(|report| report.id == id("cold")).unwrap();
        report.demand
    };
    let state = known(&config, &by_itself(1_000, 0));
    let before = tick(&config, &state, &by_itself(6_000, 0));
    let cold = tick(&config, &before.state, &by_itself(17_000, 0));
    let after = tick(&config, &cold.state, &by_itself(18_000, 0));
    assert!(needs(&before) >= needs(&after).saturating_add(mib(99)), "{} {}", needs(&before), needs(&after));
    let hot = tick(&config, &before.state, &by_itself(17_000, 20));
    let after = tick(&config, &hot.state, &by_itself(18_000, 20));
    assert!(needs(&after) >= needs(&before).saturating_sub(mib(16)), "{} {}", needs(&before), needs(&after));
}
