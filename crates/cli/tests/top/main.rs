//! `memtide top` in a terminal of its own beside the real daemon: keys in, screens out, orders that reach the daemon.
//!
//! The guests are stand-ins in their own processes. The terminal is a pseudoterminal, and `vt100` reads what the program writes to it.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../common/mod.rs"]
mod common;
mod terminal;

use std::process::ExitCode;

use common::{Daemon, MIB, has_ended, memtide, play_or_run, until};
use memtide_api::view::Status;
use memtide_model::{Keeps, Verdict};
use memtide_stand_in::qemu::process::{Actor, Stage};
use memtide_stand_in::qemu::{Behaviour, Workload};
use memtide_testing::trial;
use rustix::process::Signal;
use terminal::Terminal;

fn main() -> ExitCode {
    play_or_run(3, || {
        vec![
            trial("keys_show_guests_and_give_orders", keys_show_guests_and_give_orders),
            trial("a_signal_gives_the_terminal_back", a_signal_gives_the_terminal_back),
            trial("a_lost_daemon_is_awaited", a_lost_daemon_is_awaited),
            trial("a_journal_is_played", a_journal_is_played),
        ]
    })
}

/// A daemon that manages guests of this prefix.
fn daemon(directory: &std::path::Path, prefix: &str) -> Daemon {
    let journal = directory.join("journal");
    let configuration = format!(
        "mode = \"manage\"\nbudget = \"3 GiB\"\ndiscover = [\"{prefix}-*\"]\njournal = {{ dir = {journal:?}, max = \"8 MiB\" }}"
    );
    Daemon::start(memtide(), directory, &configuration, &[])
}

/// `memtide top` for a daemon.
fn beside(daemon: &Daemon, variables: &[(&str, &str)]) -> Terminal {
    Terminal::start(&["--socket", daemon.socket().to_str().unwrap()], variables)
}

fn guests(stage: &Stage, prefix: &str) -> Vec<Actor> {
    let workload = Workload { base: 100 * MIB, cache: 40 * MIB, ..Workload::default() };
    let start = |nth| stage.start(&format!("{prefix}-{nth}"), 256, Behaviour::Honest, workload).unwrap();
    (1..=3).map(start).collect()
}

fn is_held(status: &Status, name: &str) -> bool {
    let is_it = |verdict: &Verdict| matches!(verdict, Verdict::Held(hold) if hold.keeps == Keeps::Size);
    status.guests.iter().any(|guest| guest.name == name && is_it(&guest.report.verdict))
}

fn keys_show_guests_and_give_orders() {
    let directory = tempfile::tempdir().unwrap();
    let prefix = format!("keys{}", std::process::id());
    let stage = Stage::new(directory.path()).unwrap();
    let _guests = guests(&stage, &prefix);
    let daemon = daemon(directory.path(), &prefix);
    daemon.until("three guests", |status| status.guests.len() == 3);
    let mut top = beside(&daemon, &[]);
    let second = format!("{prefix}-2");
    top.until("all guests, live", |screen| screen.contains(&second) && screen.contains(" live"));
    // A filter chooses the guest for what follows.
    top.keys("/");
    top.keys("-2\r");
    top.until("one guest", |screen| screen.contains(&second) && !screen.contains(&format!("{prefix}-1  ")));
    top.keys("\r");
    top.until("an explanation", |screen| screen.contains("why ") && screen.contains("entitlement"));
    top.keys("q");
    top.until("the list", |screen| screen.contains("STATE"));
    top.resize(120, 40);
    top.until("more columns", |screen| screen.contains("NEEDS"));

    top.keys("h");
    top.until("a question", |screen| screen.contains("hold ") && screen.contains("y or Enter: yes"));
    assert!(!is_held(&daemon.status(), &second), "a question is no order");
    top.keys("y");
    daemon.until("a held guest", |status| is_held(status, &second));
    top.until("its state", |screen| screen.contains("held"));
    top.keys("m");
    top.until("a question", |screen| screen.contains("resume ") && screen.contains("y or Enter: yes"));
    top.keys("\r");
    daemon.until("a managed guest", |status| status.guests.len() == 3 && !is_held(status, &second));
    top.keys("q");
    assert_eq!(top.end(), Some(0));
}

fn a_signal_gives_the_terminal_back() {
    let directory = tempfile::tempdir().unwrap();
    let daemon = daemon(directory.path(), &format!("nobody{}", std::process::id()));
    for (signal, code) in [(Some(Signal::TERM), 0), (None, 0)] {
        let mut top = beside(&daemon, &[("NO_COLOR", "1")]);
        top.until("no guests", |screen| screen.contains("no guests found"));
        assert!(top.is_taken());
        match signal {
            Some(signal) => top.signal(signal),
            None => top.keys("\u{3}"),
        }
        assert_eq!(top.end(), Some(code), "{signal:?}");
    }
}

fn a_lost_daemon_is_awaited() {
    let directory = tempfile::tempdir().unwrap();
    let prefix = format!("lost{}", std::process::id());
    let first = daemon(directory.path(), &prefix);
    let mut top = beside(&first, &[]);
    top.until("a live screen", |screen| screen.contains(" live"));
    let pid = first.pid();
    first.kill();
    until("its end", || has_ended(pid), String::new);
    top.until("a lost daemon", |screen| screen.contains("NO DAEMON"));
    top.keys("h");
    top.until("a refusal", |screen| screen.contains("no daemon answers"));
    let _second = daemon(directory.path(), &prefix);
    top.until("a live screen again", |screen| screen.contains(" live"));
    top.keys("q");
    assert_eq!(top.end(), Some(0));
}

fn a_journal_is_played() {
    let trace = concat!(env!("CARGO_MANIFEST_DIR"), "/../../traces/demo-elastic.mtj");
    let mut top = Terminal::start(&["--from", trace, "--at", "+10s"], &[]);
    top.until("a moment", |screen| screen.contains("2026-11-23 00:06:53") && screen.contains("journal"));
    top.keys("\r");
    top.until("an explanation", |screen| screen.contains("why demo-") && screen.contains("entitlement"));
    top.keys("q");
    top.keys("++++++++ ");
    top.until("the end", |screen| screen.contains("2026-11-23 00:08:57 journal"));
    top.keys("hq");
    assert_eq!(top.end(), Some(0));
}
