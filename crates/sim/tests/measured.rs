//! The counts of a run.

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
