//! Free memory in small pieces: a balloon takes it first, free page reporting does not return it by itself.

use memtide_model::{Agent, AgentMemory, Bytes, Config, Decision, GuestSeen, Reading, Reason};

use super::{deflating, known, memory, targets, tick, told};
use crate::common::{OVERHEAD, but, elastic, guest, mib, snapshot, stats};

/// It keeps 1024 and may deflate its own balloon. Its kernel has `free` of them free and calls 70 less available.
fn idle(free: u64, touched: u64) -> GuestSeen {
    let seen = told(deflating(guest("idle", 1024, 0)), |s| {
        *s = stats(mib(1024), mib(1094 - free), Bytes::ZERO);
        s.free = Some(mib(free));
    });
    but(seen, |guest| guest.cost.footprint = Reading::now(mib(touched).saturating_add(OVERHEAD)))
}

/// A decision on a host of which `free` is left beside "idle".
fn beside(config: &Config, idle: &GuestSeen, free: u64) -> Decision {
    let seen = |millis| {
        let cost = idle.cost.footprint.latest().unwrap().whole_mib();
        snapshot(millis, cost + free, vec![idle.clone()])
    };
    tick(config, &known(config, &seen(1000)), &seen(60_000))
}

#[test]
fn a_balloon_fetches_them_when_memory_is_urgently_wanted() {
    // 124 are not free, 180 touched: at least 56 in pieces. An inflation by a 16th of its size fetches them.
    let decision = beside(&elastic(), &idle(900, 180), 1);
    assert_eq!(targets(&decision), [("idle", 960)]);
    let is_for_pieces = |reason| matches!(reason, Reason::FreePieces { pieces, .. } if pieces == mib(64));
    assert!(decision.plan.actions.iter().any(|action| is_for_pieces(action.reason)), "{:?}", decision.plan);
}

#[test]
fn nobody_is_asked_for_them_otherwise() {
    let pieces = idle(900, 180);
    assert_eq!(targets(&beside(&elastic(), &pieces, 400)), [], "the host has room");
    assert_eq!(targets(&beside(&elastic(), &idle(900, 130), 1)), [], "6 are not worth a change");
    let cannot_deflate = but(pieces, |guest| {
        let Reading::Fresh { value, .. } = &mut guest.told.balloon else { unreachable!("it is fresh") };
        value.deflate_on_oom = false;
    });
    assert_eq!(targets(&beside(&elastic(), &cannot_deflate, 1)), [], "its growth could not wait");
}

#[test]
fn an_agent_counts_them() {
    let counted = |blocks| {
        let memory = AgentMemory { free: mib(900), free_blocks: mib(blocks), ..AgentMemory::default() };
        let agent = Agent { memory, ..Agent::default() };
        // The host sees 6 of them: what a kernel has reserved and not touched hides the others.
        but(idle(900, 130), |guest| guest.told.agent = Reading::now(agent))
    };
    assert_eq!(targets(&beside(&elastic(), &counted(850), 1)), [("idle", 960)]);
    assert_eq!(targets(&beside(&elastic(), &counted(895), 1)), []);
}

#[test]
fn what_reporting_has_returned_of_them_is_not_fetched() {
    // The kernel has them in small pieces, also once they are the host's.
    let told = |returns| {
        let memory =
            AgentMemory { free: mib(900), free_blocks: mib(800), pieces: mib(90), ..AgentMemory::default() };
        let agent = Agent { memory, reports_pieces: true, pieces_return: returns, ..Agent::default() };
        but(idle(900, 130), |guest| guest.told.agent = Reading::now(agent))
    };
    let seen = |millis, returns| snapshot(millis, 131 + OVERHEAD.whole_mib(), vec![told(returns)]);
    let mut state = known(&elastic(), &seen(1_000, true));
    for (millis, returns) in [(60_000, true), (61_000, false), (62_000, false)] {
        let decision = tick(&elastic(), &state, &seen(millis, returns));
        assert_eq!(targets(&decision), [], "after {millis} ms");
        state = decision.state;
    }
    let fetched = tick(&elastic(), &known(&elastic(), &seen(1_000, false)), &seen(60_000, false));
    assert_eq!(targets(&fetched), [("idle", 960)], "what reporting has not returned");
}

#[test]
fn what_an_inflation_left_is_not_asked_for_again() {
    let seen = |millis, guest: &GuestSeen| snapshot(millis, 241, vec![guest.clone()]);
    let first = idle(900, 180);
    let asked = tick(&elastic(), &known(&elastic(), &seen(1000, &first)), &seen(60_000, &first));
    assert_eq!(targets(&asked), [("idle", 960)]);
    // The balloon arrived with 64 of the free memory, and the host has none of it.
    let arrived = but(idle(836, 180), |guest| {
        let Reading::Fresh { value, .. } = &mut guest.told.balloon else { unreachable!("it is fresh") };
        value.actual = mib(960);
    });
    let moved = tick(&elastic(), &asked.state, &seen(61_000, &arrived));
    assert_eq!(targets(&moved), [], "the statistics may be older than the balloon's size");
    let next = tick(&elastic(), &moved.state, &seen(62_000, &arrived));
    assert_eq!(targets(&next), []);
    let mut state = next.state;
    assert_eq!(memory(&mut state, "idle").pieces_stay, mib(56));
}
