//! `memtide web` beside the real daemon: who is refused, and what a person sees in a browser.
//!
//! The guests are stand-ins in their own processes. The browser is Debian's Chromium; without it, the tests of the page are skipped. Pictures of
//! each state are in `tmp/pages` of the target directory.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod browser;
#[path = "../common/mod.rs"]
mod common;
mod crowd;
mod gate;
mod page;
mod server;

use std::path::Path;
use std::process::ExitCode;

use common::{Daemon, MIB, memtide, play_or_run};
use memtide_stand_in::qemu::process::{Actor, Stage};
use memtide_stand_in::qemu::{Behaviour, Workload};
use memtide_testing::trial;

fn main() -> ExitCode {
    play_or_run(2, || {
        vec![
            trial("strangers_other_sites_and_rebound_names_are_refused", gate::strangers_are_refused),
            trial("the_server_has_no_rights_and_outlives_its_daemon", gate::the_server_has_no_rights),
            trial("history_and_explanations_are_for_the_group", gate::history_and_explanations),
            trial("a_person_sees_guests_live_and_gives_orders", page::a_person_gives_orders),
            trial("a_page_keeps_to_itself_and_names_stay_text", page::names_stay_text),
            trial("everybody_can_read_the_page", page::everybody_can_read),
            trial("a_thousand_guests_stay_usable", crowd::a_thousand_guests),
            trial("in_cockpit_the_page_is_the_same", page::in_cockpit),
        ]
    })
}

/// A daemon that manages guests of this prefix.
fn daemon(directory: &Path, prefix: &str) -> Daemon {
    let journal = directory.join("journal");
    let configuration = format!(
        "mode = \"manage\"\nbudget = \"3 GiB\"\ndiscover = [\"{prefix}-*\"]\njournal = {{ dir = {journal:?}, max = \"8 MiB\" }}"
    );
    Daemon::start(memtide(), directory, &configuration, &[])
}

/// A guest with programs and page cache.
fn guest(stage: &Stage, name: &str) -> Actor {
    let workload = Workload { base: 100 * MIB, cache: 40 * MIB, ..Workload::default() };
    stage.start(name, 256, Behaviour::Honest, workload).unwrap()
}
