//! Elastic: the host makes room for a rise that comes again.

use memtide_model::{Decision, GuestSeen, Reading, State};

use super::{memory, targets, tick};
use crate::common::{but, elastic, guest, mib, snapshot};

/// Holds all of its 900, uses 150, costs `footprint`.
fn holding(name: &str, footprint: u64) -> GuestSeen {
    but(guest(name, 900, 150), |guest| {
        guest.told.full = mib(900);
        guest.cost.footprint = Reading::now(mib(footprint));
    })
}

/// "a" and "b" have a baseline of 200 on a host of 1300. "a" rises to 900, by 20 every two seconds, and falls to 260. Then `others` appear,
/// too.
fn after_a_tide(others: &[GuestSeen]) -> Decision {
    let mut state = State::default();
    let mut now = 1000;
    for footprint in (200..=900).step_by(20).chain([260; 10]) {
        let seen = snapshot(now, 1300, vec![holding("a", footprint), holding("b", 200)]);
        let decision = tick(&elastic(), &state, &seen);
        assert_eq!(targets(&decision), [], "1100 and the soft line, 98, fit");
        state = decision.state;
        now += 2000;
    }
    memory(&mut state, "a").pressed = Some(mib(260));
    memory(&mut state, "b").pressed = Some(mib(200));
    let guests = [holding("a", 260), holding("b", 200)].into_iter().chain(others.iter().cloned());
    tick(&elastic(), &state, &snapshot(now, 1300, guests.collect()))
}

#[test]
fn a_rise_is_expected_again() {
    // 700 above the baseline at the peak. The baseline has risen by about 40 meanwhile, so 660 are remembered, and a little is forgotten in
    // 22 s; 20 of them are there.
    let tide = after_a_tide(&[]).report.host.tide;
    assert!((mib(590)..=mib(640)).contains(&tide), "{tide}");
}

#[test]
fn room_for_it_comes_from_who_touched_more_than_it_needs() {
    assert_eq!(targets(&after_a_tide(&[])), []);
    // "c" costs 200: when "a" rises again, about 80 will be missing. Nobody is short now. "b" has touched 140, and "c" is new;
    // they would give memory that costs nothing. "a" has touched 200 and needs 150 and 28 of headroom. To give 22, it must become
    // 44 smaller.
    let decision = after_a_tide(&[holding("c", 200)]);
    assert!(!decision.report.host.room.is_zero());
    assert_eq!(targets(&decision), [("a", 856)]);
}
