//! `memtide simulate --explain`: why memtide gave a guest its memory, or why there is no such guest at that time.

use std::process::ExitCode;

use anyhow::{Result, bail};
use memtide_api::history::History;
use memtide_api::view::GuestDetail;
use memtide_engine::{Counters, Published};
use memtide_model::{Outsiders, Span, printable};
use memtide_sim::setup::BEGINS;
use memtide_sim::words::seconds;
use memtide_sim::{Explained, Manager, Options, Outcome, Setup, known_as};

use super::{runs, told};
use crate::explain;
use crate::style::Style;

/// Exit code: there is no such guest, or not at that time.
const ABSENT: u8 = 5;
/// A run goes on for this long after the time that is asked about: memtide decides within it.
const DECIDES_WITHIN: u64 = 10_000;

/// Prints what `memtide explain` would have said about the guest `name` at a time, for each manager.
pub fn command(
    setup: &Setup,
    managers: &[Manager],
    options: &Options,
    name: &str,
    at: Span,
) -> Result<ExitCode> {
    let Some(index) = setup.guests.iter().position(|guest| guest.name == name) else {
        let names: Vec<String> = setup.guests.iter().map(|guest| printable(&guest.name)).collect();
        eprintln!("memtide: no guest `{}`; the guests are {}", printable(name), names.join(", "));
        return Ok(ExitCode::from(ABSENT));
    };
    if !managers.iter().any(|manager| matches!(manager, Manager::Memtide(_))) {
        bail!("only memtide gives reasons: take out --policy, or name memtide, strict or elastic");
    }
    if at >= setup.lasts {
        bail!("the scenario ends before {}: it lasts {}", seconds(at), seconds(setup.lasts));
    }
    let ends = Span::from_millis(at.as_millis() + DECIDES_WITHIN);
    let shorter = Setup { lasts: setup.lasts.min(ends), ..setup.clone() };
    let mut code = ExitCode::SUCCESS;
    for run in runs::all(&shorter, managers, options) {
        if !matches!(run.manager, Manager::Memtide(_)) {
            eprintln!("memtide: {} gives no reasons", run.manager);
        } else if let Some((text, decided)) = run.explained.as_deref().and_then(|one| explained(one, name)) {
            told::print(&format!("{}, {} after the start\n{text}", run.manager, seconds(decided)))?;
        } else {
            let (name, at) = (printable(name), seconds(at));
            eprintln!(
                "memtide: {}: {name} is not there at {at}: {}",
                run.manager,
                why_absent(setup, &run, index)
            );
            code = ExitCode::from(ABSENT);
        }
    }
    Ok(code)
}

/// The explanation of a decision about a guest, and when it was made; `None` if the guest was not there.
fn explained(explained: &Explained, name: &str) -> Option<(String, Span)> {
    let history = History::default();
    for (at, wall, action, answer) in &explained.changes {
        history.add(action, *at, *wall, answer);
    }
    let published = Published {
        config: explained.config.clone(),
        counters: Counters::default(),
        warnings: Vec::new(),
        unwritten: None,
        outsiders: Outsiders::default(),
        last: Some(explained.tick.clone()),
    };
    let detail = GuestDetail::find(&published, &history, known_as(name).name())?.with_offers(&published);
    Some((explain::render(&detail, Style::detect()), detail.now.since(BEGINS)))
}

/// Why the guest with this number is not there at the end of a run.
fn why_absent(setup: &Setup, run: &Outcome, index: usize) -> String {
    let plan = &setup.guests[index];
    if let Some(lost) = run.guests[index].lost_at {
        return format!("the host killed it at {}", seconds(Span::from_millis(lost)));
    }
    match plan.leaves {
        Some(leaves) if leaves <= run.lasts => format!("it ended at {}", seconds(leaves)),
        _ if plan.arrives >= run.lasts => format!("it starts at {}", seconds(plan.arrives)),
        _ if run.explained.is_none() => "memtide made no decision after that".to_owned(),
        _ => "a fault keeps it away".to_owned(),
    }
}
