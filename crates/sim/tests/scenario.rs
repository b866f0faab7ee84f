//! Scenario files: how their keys become a setup, and how mistakes are reported.

use std::path::Path;

use memtide_model::{Bytes, Config, Span};
use memtide_sim::scenario::{Mistake, write};
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

/// Each key that decisions depend on, with a value that is not its default.
const POLICY: &str = r#"
commitment = "elastic"
reserve = "7%"
self_deflations = 2
self_deflation_within = "whole"
growth_prior = "12.50%"
squeeze_every = "2h"
ksm = { mode = "govern", cpu = "low", worth = "20 MiB" }
states = { soft = "8%", hard = "5%", low = "3%" }
[class.gold]
match = ["a*"]
users = ["system"]
shares = 2000
reservation = "100 MiB"
limit = "512 MiB"
squeeze = false
cache = "10%"
cache_limit = "40%"
tier = "50%"
share = true
manage = false
"#;

#[test]
fn a_scenario_and_the_daemon_read_the_same_keys() {
    for key in memtide_config::policy_keys() {
        let is_set = |line: &str| line.split([' ', '.', ']']).any(|word| word.trim_start_matches('[') == key);
        assert!(POLICY.lines().any(is_set), "{key}");
    }
    let daemon =
        memtide_config::Settings::parse(Path::new("memtide.toml"), POLICY.as_bytes()).unwrap().config;
    let in_scenario = POLICY.replace("[class.", "[memtide.class.");
    let scenario = |text: &str| Scenario::parse(&format!("[memtide]{text}\n[[guest]]\nname = \"a\"\n"));
    let read = scenario(&in_scenario).unwrap();
    assert_eq!(read.commitments, [Manager::ELASTIC]);
    let (budget, commitment) = (daemon.budget, daemon.commitment);
    let written = write("", &read.setup, Some(commitment), &[]).unwrap();
    assert_eq!(Scenario::parse(&written).unwrap().setup.config, read.setup.config, "{written}");
    assert_eq!(Config { budget, commitment, ..read.setup.config }, daemon);
    let told = |text: &str| scenario(text).unwrap_err().to_string();
    assert_eq!(
        told("\nreserve = \"100%\""),
        "2:11: memtide.reserve: it leaves nothing for guests: write less"
    );
    assert!(told("\nmode = \"manage\"").starts_with("2:1: unknown key `memtide.mode`: "), "the daemon's own");
    let shares = told("\nshares = 1");
    assert!(shares.ends_with("write it below a class, as [memtide.class.default]"), "{shares}");
    let reserve = told("\n[memtide.class.default]\nreserve = \"1%\"");
    assert!(reserve.ends_with("write it below [memtide]"), "{reserve}");
    let large = told("\n[memtide.class.default]\nreservation = \"1 TiB\"");
    assert!(large.ends_with("lower it, or raise the host's memory"), "{large}");
    assert!(told("\nresreve = \"1%\"").contains("did you mean `reserve`?"));
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
        "8:9: times: needs an interval: add every = \"1m\""
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

/// What is said about a scenario with one guest, `a`, and these lines before and in it.
fn mistake(top: &str, guest: &str) -> String {
    let text = format!("{top}\n[[guest]]\nname = \"a\"\n{guest}\n");
    Scenario::parse(&text).map(|_| ()).expect_err(&text).to_string()
}

#[test]
fn a_guest_that_cannot_be_is_told() {
    let says = [
        ("uses = \"2 GiB\"", "4:8: uses: it is above the guest's memory, 1 GiB"),
        ("kernel_uses = \"2 GiB\"", "4:15: kernel_uses: it is above the guest's memory, 1 GiB"),
        ("torn = \"101%\"", "4:8: torn: 100% is the most"),
        ("equal = \"2 GiB\"", "4:9: equal: it is above the guest's memory, 1 GiB"),
        ("equal_changes = \"5m\"", "4:17: equal_changes: say how much memory: add equal = \"200 MiB\""),
        ("starts = \"5m\"\nends = \"4m\"", "5:8: ends: it ends before it starts"),
        (
            "overhead = \"9 MiB\"\noverhead_bound = \"8 MiB\"",
            "5:18: overhead_bound: it is below overhead, 9 MiB",
        ),
        ("kernel = 6.1", "4:10: kernel: write it in quotes: kernel = \"6.1\""),
        ("uses = \"5\"", "4:8: uses: \"5\" has no unit: write a size such as \"5 MiB\""),
    ];
    for (keys, message) in says {
        assert_eq!(mistake("", keys), message);
    }
    let name = |name: &str| Scenario::parse(&format!("[[guest]]\nname = {name}\n")).unwrap_err().to_string();
    assert_eq!(name("\" \""), "2:8: name: a guest needs a name, as in name = \"web\"");
    assert!(name("\"a\\u001b[31m\"").contains("characters that a terminal does not show"));
    let none = Scenario::parse("guest = []").unwrap_err().to_string();
    assert_eq!(none, "1:9: guest: there is none: write [[guest]] and below it name = \"a\"");
}

#[test]
fn a_program_or_file_that_cannot_be_is_told() {
    let program = |keys: &str| mistake("", &format!("program = [{{ uses = \"50 MiB\", {keys} }}]"));
    let says = [
        ("grows_to = \"2 GiB\", at = \"1m\"", "grows_to: it is above the guest's memory, 1 GiB"),
        ("grows_to = \"5 MiB\", at = \"1m\"", "grows_to: it is below uses, 50 MiB"),
        ("grows_to = \"500 MiB\"", "grows_to: say when it rises: add at = \"5m\""),
        ("at = \"5m\"", "at: say how far it rises: add grows_to = \"500 MiB\""),
        ("drift = \"5 MiB/s\"", "drift: say how far it drifts: add drifts_to = \"500 MiB\""),
        ("grows_to = \"500 MiB\", at = \"1m\", rate = \"0\"", "rate: at this rate it never rises"),
        (
            "grows_to = \"500 MiB\", at = \"1m\", drifts_to = \"600 MiB\"",
            "drifts_to: a program rises or drifts",
        ),
        ("starts = \"5m\", ends = \"4m\"", "ends: it ends before it starts"),
    ];
    for (keys, message) in says {
        let said = program(keys);
        assert!(said.starts_with("4:") && said.contains(message), "{said}");
    }
    let file = |keys: &str| mistake("", &format!("file = [{{ rate = \"5 MiB/s\", {keys} }}]"));
    assert_eq!(file("reads = \"5m\""), "4:37: reads: say how often: add every = \"10m\"");
    assert_eq!(file("reads = \"5m\", every = \"4m\""), "4:37: reads: it is longer than every, its period");
    assert_eq!(file("every = \"4m\""), "4:37: every: say how long it is read: add reads = \"1m\"");
}

#[test]
fn a_host_class_or_reserve_that_cannot_be_is_told() {
    let says = [
        ("[host]\nother = \"5 GiB\"", "2:9: other: it is above the host's memory, 4 GiB"),
        ("[host]\nother = \"2 GiB\"\nother_up_to = \"1 GiB\"", "3:15: other_up_to: it is below other, 2 GiB"),
        ("[memtide]\nreserve = \"4 GiB\"", "2:11: memtide.reserve: it leaves nothing for guests"),
        ("[memtide]\nreserve = \"5\"", "2:11: memtide.reserve: "),
        ("[memtide.class.gold]\nshares = 2", "1:16: memtide.class.gold: no guest belongs to it"),
    ];
    for (keys, message) in says {
        let said = mistake(keys, "");
        assert!(said.starts_with(message), "{said}");
    }
}

#[test]
fn a_fault_or_bound_that_cannot_be_is_told_at_its_key() {
    let fault = |keys: &str| with_fault(keys).unwrap_err().to_string();
    let says = [
        (
            "at = \"10m\"\nguest = \"vm-1\"\nis = \"reset\"",
            "7:6: at: the scenario is over then: it lasts 10 min",
        ),
        (
            "at = \"1m\"\nevery = \"1m\"\ntimes = 0\nguest = \"vm-1\"\nis = \"reset\"",
            "9:9: times: 1 is the least",
        ),
        (
            "at = \"1m\"\nguest = \"vm-1\"\nis = \"reset\"\ntarget = \"1 GiB\"",
            "10:10: target: only is = \"foreign-target\" has one",
        ),
        (
            "at = \"1m\"\nguest = \"vm-1\"\nis = \"suspended\"",
            "8:9: guest: this happens to the host or the daemon: take it out",
        ),
    ];
    for (keys, message) in says {
        assert_eq!(fault(keys), message);
    }
    let keep = |keys: &str| mistake("", &format!("[[keep]]\npolicy = \"strict\"\n{keys}"));
    assert_eq!(keep(""), "4:1: keep: it bounds nothing: add a bound such as kills = 0");
    assert_eq!(keep("guest = \"b\"\nkills = 0"), "6:9: guest: there is no guest `b`");
    assert_eq!(keep("work = \"101%\""), "6:8: work: 100% is the most");
    assert_eq!(
        keep("saved = \"90%\""),
        "4:1: keep: no guest has equal memory: add equal = \"200 MiB\" to some"
    );
    assert_eq!(keep("turns = -1.0"), "6:9: turns: write a number, 0 or more");
    assert_eq!(keep("moved = \"5\""), "6:9: moved: \"5\" has no unit: write a size such as \"5 MiB\"");
}
