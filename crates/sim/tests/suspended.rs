//! While a host is suspended, time passes, but nothing runs or decides, or catches up later.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::sync::Arc;

use memtide_guest::{Program, Spec};
use memtide_model::{Bytes, Span};
use memtide_sim::setup::{Fault, FaultKind};
use memtide_sim::{Manager, Options, Scenario, Setup, run};

fn setup(faults: Vec<Fault>) -> Setup {
    let text =
        "lasts = \"10m\"\n[host]\nmemory = \"2 GiB\"\nother_up_to = \"100 MiB\"\n[[guest]]\nname = \"web\"\n";
    let mut setup = Scenario::parse(text).unwrap().setup;
    let programs = vec![Program::constant(Bytes::from_mib(200))];
    setup.guests[0].spec = Arc::new(Spec { programs, ..Spec::default() });
    setup.faults = faults;
    setup
}

fn suspended_for(secs: u64) -> Vec<Fault> {
    let (at, lasts) = (Span::from_secs(100), Span::from_secs(secs));
    vec![Fault { at, lasts, guest: None, kind: FaultKind::Suspended }]
}

#[test]
fn a_suspended_host_does_no_work_and_makes_no_decision() {
    for manager in [Manager::STRICT, Manager::Nobody] {
        let outcome = |faults| run(&setup(faults), manager, &Options::default(), &mut |_| ());
        let (awake, asleep) = (outcome(Vec::new()), outcome(suspended_for(300)));
        assert_eq!(awake.guests[0].busy_us, 600_000_000);
        assert_eq!(asleep.guests[0].busy_us, 300_000_000);
        assert!(asleep.decisions <= awake.decisions * 6 / 10, "{} of {}", asleep.decisions, awake.decisions);
    }
}

#[test]
fn everything_is_calm_once_the_last_guest_has_come_and_a_clock_jumps_at_once() {
    let mut setup = setup(suspended_for(10));
    let jump =
        Fault { lasts: Span::from_secs(3_600), kind: FaultKind::ClockJumps, ..setup.faults[0].clone() };
    setup.faults.push(jump);
    assert_eq!(setup.calm_from(), Span::from_secs(110));
    setup.guests[0].arrives = Span::from_secs(200);
    assert_eq!(setup.calm_from(), Span::from_secs(200));
    setup.guests[0].leaves = Some(Span::from_secs(300));
    assert_eq!(setup.calm_from(), Span::from_secs(300));
    // It never leaves: the run ends before.
    setup.guests[0].leaves = Some(Span::from_secs(3_000));
    assert_eq!(setup.calm_from(), Span::from_secs(200));
}
