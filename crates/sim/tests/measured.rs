//! The counts of a run.

use memtide_model::Commitment;
use memtide_sim::rules::Rule;
use memtide_sim::table::{guests, table};
use memtide_sim::{Manager, Options, Scenario, run};

#[test]
fn a_guest_that_the_host_kills_at_once_counts_as_killed_like_any_other() {
    for at in ["0s", "60s"] {
        let text = format!(
            "lasts = \"5m\"\n[host]\nmemory = \"600 MiB\"\n[[guest]]\nname = \"large\"\nstarts = \"{at}\"\ncold_cache = \"full\"\n"
        );
        let scenario = Scenario::parse(&text).unwrap();
        let outcome = run(&scenario.setup, Manager::Nobody, &Options::default(), &mut |_| ());
        assert_eq!((outcome.host.killed_guests, outcome.guests[0].kills), (1, 1), "it starts at {at}");
    }
}

#[test]
fn a_run_that_loses_a_guest_is_never_right_again() {
    let text = "lasts = \"5m\"\n[host]\nmemory = \"600 MiB\"\n[[guest]]\nname = \"large\"\nstarts = \"60s\"\ncold_cache = \"full\"\n";
    let scenario = Scenario::parse(text).unwrap();
    let outcome = run(&scenario.setup, Manager::Nobody, &Options::default(), &mut |_| ());
    assert_eq!(outcome.right_again, None);
    assert_eq!(outcome.guests[0].lost_at, Some(60_250));
    let (table, guests) = (table(&["large"], std::slice::from_ref(&outcome)), guests(&["large"], &outcome));
    let row = |start: &str| table.lines().find(|line| line.starts_with(start)).unwrap().to_owned();
    assert!(row("guests lost").ends_with(" 1"), "{table}");
    assert!(row("programs killed").ends_with(" 0"), "{table}");
    assert!(row("right again after").ends_with("never"), "{table}");
    assert!(guests.contains("large, lost at 60.25 s"), "{guests}");
}

#[test]
fn a_rule_is_not_the_best_by_the_work_of_guests_that_it_kills() {
    let text = "lasts = \"2m\"\n[[guest]]\nname = \"a\"\ncount = 2\nuses = \"50 MiB\"\n[[keep]]\nwork_of_best = \"98%\"\n";
    let scenario = Scenario::parse(text).unwrap();
    let outcome = |manager| run(&scenario.setup, manager, &Options::default(), &mut |_| ());
    let mut ours = outcome(Manager::Memtide(Commitment::Strict));
    let mut rule = outcome(Manager::Rule(Rule::Mom));
    for guest in ours.guests.iter_mut().chain(&mut rule.guests) {
        guest.done_us = 100;
    }
    rule.guests[0].done_us = 150;
    let broken =
        |rule: &_| scenario.bounds[0].judge(&["a-1", "a-2"], &ours, std::slice::from_ref(rule)).len();
    assert_eq!(broken(&rule), 1, "200 of 250");
    rule.guests[0].kills = 1;
    assert_eq!(broken(&rule), 0, "200 of 100");
}

#[test]
fn work_that_nobody_had_to_do_is_no_percentage() {
    for guest in ["", "starts = \"10m\"\nuses = \"50 MiB\"\n"] {
        let text = format!("lasts = \"5m\"\n[[guest]]\nname = \"absent\"\n{guest}");
        let scenario = Scenario::parse(&text).unwrap();
        let outcome = run(&scenario.setup, Manager::Nobody, &Options::default(), &mut |_| ());
        let table = table(&["absent"], std::slice::from_ref(&outcome));
        assert!(table.lines().skip(1).take(2).all(|line| line.ends_with(" n/a")), "{table}");
        assert!(guests(&["absent"], &outcome).contains("n/a"));
    }
}
