//! The host's processors, where they are few.

use memtide_sim::{Manager, Options, Outcome, Scenario, run};

/// The work of each guest, in percent of its work at full speed.
fn work(outcome: &Outcome) -> Vec<u64> {
    outcome.guests.iter().map(|guest| guest.done_us * 100 / guest.busy_us).collect()
}

#[test]
fn each_gets_the_same_share_of_what_it_wants() {
    let with = |host: &str| {
        let text = format!(
            "lasts = \"5m\"\n[host]\n{host}\n[[guest]]\nname = \"a\"\nuses = \"50 MiB\"\n[[guest]]\nname = \"b\"\n\
             program = [{{ uses = \"50 MiB\" }}, {{ uses = \"50 MiB\" }}, {{ uses = \"50 MiB\" }}]\n"
        );
        let setup = Scenario::parse(&text).unwrap().setup;
        work(&run(&setup, Manager::Nobody, &Options::default(), &mut |_| ()))
    };
    assert_eq!(with(""), [100, 100]);
    assert_eq!(with("processors = 5"), [100, 100]);
    // Four programs, and others that want four.
    let half = with("processors = 4\nprocessors_busy = 4");
    assert!(half.iter().all(|work| (49..=51).contains(work)), "{half:?}");
}

#[test]
fn busy_ones_of_an_unknown_number_are_a_mistake() {
    let text = "[host]\nprocessors_busy = 1\n[[guest]]\nname = \"a\"\n";
    let message = Scenario::parse(text).unwrap_err().to_string();
    assert_eq!(message, "2:19: processors_busy: say how many there are: processors = 2");
}
