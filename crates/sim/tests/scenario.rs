//! Scenario files: how their keys become a setup, and how mistakes are reported.

use memtide_model::{Bytes, Span};
use memtide_sim::scenario::Mistake;
use memtide_sim::setup::FaultKind;
use memtide_sim::{Manager, Options, Scenario, run};

/// A scenario of 10 minutes with two guests, and a fault with these keys.
fn with_fault(keys: &str) -> Result<Scenario, Mistake> {
    Scenario::parse(&format!(
        "lasts = \"10m\"\n[[guest]]\nname = \"vm\"\ncount = 2\nuses = \"150 MiB\"\n[[fault]]\n{keys}\n"
    ))
}

fn begins(scenario: &Scenario) -> Vec<u64> {
    scenario.setup.faults.iter().map(|fault| fault.at.as_millis() / 1_000).collect()
}

#[test]
fn a_fault_happens_once_or_again_and_again() {
    let once = with_fault("at = \"1m\"\nguest = \"vm-1\"\nis = \"silent\"\nlasts = \"10s\"").unwrap();
    assert_eq!(begins(&once), [60]);
    // Until the end: the fault at 10 minutes would begin exactly there.
    let again = with_fault("at = \"1m\"\nevery = \"3m\"\nguest = \"vm-1\"\nis = \"silent\"\nlasts = \"10s\"")
        .unwrap();
    assert_eq!(begins(&again), [60, 240, 420]);
    let twice =
        with_fault("at = \"1m\"\nevery = \"3m\"\ntimes = 2\nguest = \"vm-*\"\nis = \"silent\"").unwrap();
    assert_eq!(begins(&twice), [60, 240, 60, 240]);
    assert_eq!(twice.setup.faults.iter().filter(|fault| fault.guest == Some(1)).count(), 2);
    let host = with_fault("at = \"0\"\nevery = \"5m\"\nis = \"clock-jumps\"\nlasts = \"1m\"").unwrap();
    assert_eq!(begins(&host), [0, 300]);
}

#[test]
fn absurd_numbers_are_told() {
    let message =
        |keys: &str| Scenario::parse(&format!("{keys}\n[[guest]]\nname = \"a\"")).unwrap_err().to_string();
    assert_eq!(message("lasts = \"0s\""), "1:9: lasts: 0 ms is too short: write at least 1.0 s");
    assert_eq!(message("seed = -1"), "1:8: seed: write a whole number, 0 or more");
    assert_eq!(message("[host]\nmemory = \"0\""), "2:10: memory: 0 is too small: write at least 64 MiB");
    assert_eq!(
        message("[host]\nmemory = \"-1 GiB\""),
        "2:10: memory: `-1 GiB` is not a size: write a number and a unit, as in 512 MiB or 2G"
    );
}

#[test]
fn a_fault_that_cannot_repeat_is_told() {
    let message = |keys: &str| with_fault(keys).unwrap_err().to_string();
    assert_eq!(
        message("at = \"0\"\nevery = \"10s\"\nlasts = \"10s\"\nguest = \"vm-1\"\nis = \"silent\""),
        "8:9: every: the fault would start again before it ends"
    );
    assert_eq!(
        message("at = \"0\"\nevery = \"10ms\"\nguest = \"vm-1\"\nis = \"silent\""),
        "8:9: every: the fault would happen 60000 times; at most 10000"
    );
    assert_eq!(
        message("at = \"0\"\ntimes = 3\nguest = \"vm-1\"\nis = \"silent\""),
        "10:6: times: needs an interval: add every = \"1m\""
    );
}

#[test]
fn a_guest_can_start_with_a_small_balloon() {
    let scenario =
        with_fault("at = \"0\"\nguest = \"vm-1\"\nis = \"foreign-target\"\ntarget = \"400 MiB\"").unwrap();
    assert_eq!(scenario.setup.faults[0].kind, FaultKind::Foreign(Bytes::from_mib(400)));
    let outcome = run(&scenario.setup, Manager::Nobody, &Options::default(), &mut |_| ());
    let last = outcome.samples.last().unwrap();
    let actual = |guest: usize| last.guests[guest].unwrap().actual >> 20;
    assert_eq!((actual(0), actual(1)), (400, 1024));
    assert_eq!(outcome.lasts, Span::from_secs(600));
}
