//! The counts of a run.

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
