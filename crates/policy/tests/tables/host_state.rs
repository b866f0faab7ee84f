//! The host's shortage: by free memory, with hysteresis, and a second opinion.

use memtide_model::HostState::{self, Hard, High, Low, Soft};
use memtide_model::{Moment, Pressure, Reading, Snapshot, State, SwapCounters};

use super::tick;
use crate::common::{config, mib, snapshot};

/// A host of 10,000 MiB with `mib_free` free: the lines are at 600, 400 and 200.
fn free(millis: u64, mib_free: u64) -> Snapshot {
    let mut seen = snapshot(millis, 10_000, Vec::new());
    seen.host.other = mib(10_000 - mib_free);
    seen
}

fn judged(before: HostState, seen: &Snapshot) -> HostState {
    let state = State { host: before, decided_at: Some(Moment::from_millis(0)), ..State::default() };
    tick(&config(), &state, seen).report.host.state
}

#[test]
fn a_state_begins_below_its_line() {
    for (mib_free, state) in [(600, High), (599, Soft), (400, Soft), (399, Hard), (200, Hard), (199, Low)] {
        assert_eq!(judged(High, &free(1000, mib_free)), state, "{mib_free} MiB free");
    }
}

#[test]
fn a_state_ends_a_quarter_above_its_line() {
    // 600 × 5/4 = 750; 400 × 5/4 = 500; 200 × 5/4 = 250.
    for (before, mib_free, after) in [
        (Soft, 749, Soft),
        (Soft, 750, High),
        (Hard, 499, Hard),
        (Hard, 500, Soft),
        (Hard, 750, High),
        (Low, 249, Low),
        (Low, 250, Hard),
        (Low, 500, Soft),
    ] {
        assert_eq!(judged(before, &free(1000, mib_free)), after, "{before:?}, {mib_free} MiB free");
    }
}

/// The state when the host stalled for `some_us` within the last second.
fn stalled(mib_free: u64, some_us: u64) -> HostState {
    let before = Pressure { some_us: 5_000_000, full_us: 0 };
    let state =
        State { decided_at: Some(Moment::from_millis(0)), pressure: Some(before), ..State::default() };
    let mut seen = free(1000, mib_free);
    seen.host.pressure = Reading::now(Pressure { some_us: before.some_us + some_us, full_us: 0 });
    tick(&config(), &state, &seen).report.host.state
}

#[test]
fn stalls_of_a_tenth_of_the_time_make_the_state_one_harder() {
    assert_eq!(stalled(1000, 99_999), High);
    assert_eq!(stalled(1000, 100_000), Soft);
    assert_eq!(stalled(500, 100_000), Hard);
}

#[test]
fn no_pressure_alone_makes_an_emergency() {
    assert_eq!(stalled(300, 1_000_000), Hard);
    assert_eq!(stalled(100, 1_000_000), Low);
}

#[test]
fn swapping_in_makes_the_state_one_harder_and_swapping_out_does_not() {
    let swapped =
        |swapped_in, swapped_out| SwapCounters { swapped_in: mib(swapped_in), swapped_out: mib(swapped_out) };
    let state = State { swap: Some(swapped(7, 7)), ..State::default() };
    for (now, expected) in [(swapped(7, 9), High), (swapped(8, 7), Soft)] {
        let mut seen = free(1000, 1000);
        seen.host.swap = Reading::now(now);
        assert_eq!(tick(&config(), &state, &seen).report.host.state, expected);
    }
}

#[test]
fn the_first_decision_has_nothing_to_compare_with() {
    let mut seen = free(1000, 1000);
    seen.host.swap = Reading::now(SwapCounters { swapped_in: mib(500), ..SwapCounters::default() });
    seen.host.pressure = Reading::now(Pressure { some_us: u64::MAX, full_us: u64::MAX });
    assert_eq!(tick(&config(), &State::default(), &seen).report.host.state, High);
}
