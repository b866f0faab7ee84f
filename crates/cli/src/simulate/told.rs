//! What came out of a simulation, in words.

use std::fmt::Write as _;
use std::io::Write as _;

use anyhow::Result;
use memtide_api::history::History;
use memtide_api::view::GuestDetail;
use memtide_engine::{Counters, Published};
use memtide_model::printable;
use memtide_sim::scenario::Verdict;
use memtide_sim::words::counted;
use memtide_sim::{Explained, Outcome, Scenario, Setup, table};

use crate::explain;
use crate::style::Style;

/// Guests of which each gets a line.
const FEW: usize = 16;

/// Prints `text` to standard output.
pub fn print(text: &str) -> Result<()> {
    std::io::stdout().lock().write_all(text.as_bytes())?;
    Ok(())
}

/// What is simulated: the host, the guests and the time.
pub fn what(setup: &Setup) -> String {
    let guests = counted(setup.guests.len() as u64, "guest");
    format!("{guests} on {} for {}, seed {}", setup.host.memory, setup.lasts, setup.seed)
}

/// Prints the tables and how the bounds were kept.
pub fn all(
    title: &str,
    scenario: &Scenario,
    names: &[&str],
    runs: &[Outcome],
    verdicts: &[Verdict],
) -> Result<()> {
    let mut text = format!("{}\n", printable(title));
    for line in scenario.about.lines() {
        let _ = writeln!(text, "{}", printable(line));
    }
    let shown: Vec<String> = names.iter().map(|name| printable(name)).collect();
    let names: Vec<&str> = shown.iter().map(String::as_str).collect();
    let _ = writeln!(text, "{}\n", what(&scenario.setup));
    text.push_str(&table::table(&names, runs));
    if names.len() <= FEW {
        for run in runs {
            text.push('\n');
            text.push_str(&table::guests(&names, run));
        }
    }
    for run in runs {
        for (at, violation) in &run.violations {
            let _ =
                writeln!(text, "{} refused its own plan {at} after the beginning: {violation}", run.manager);
        }
    }
    if !verdicts.is_empty() {
        text.push_str("\nbounds\n");
    }
    for line in verdicts.iter().flat_map(Verdict::lines) {
        let _ = writeln!(text, "  {}", printable(&line));
    }
    print(&text)
}

/// The explanation of a decision about a guest; `None` if it was not there.
pub fn explained(explained: &Explained, guest: &str) -> Option<String> {
    let history = History::default();
    for (at, wall, action, failed) in &explained.changes {
        history.add(action, *at, *wall, failed.clone());
    }
    let published = Published {
        config: explained.config.clone(),
        counters: Counters::default(),
        warnings: Vec::new(),
        last: Some(explained.tick.clone()),
    };
    let detail = GuestDetail::find(&published, &history, guest)?;
    Some(explain::render(&detail, Style::detect()))
}
