//! The results of a simulation as text.

use std::fmt::Write as _;
use std::io::Write as _;

use anyhow::Result;
use memtide_api::history::History;
use memtide_api::view::GuestDetail;
use memtide_engine::{Counters, Published};
use memtide_sim::{Explained, Outcome, Scenario, table};

use crate::explain;
use crate::style::Style;

/// With at most this many guests, each gets a line.
const FEW: usize = 16;

/// Prints `text` to standard output.
pub fn print(text: &str) -> Result<()> {
    std::io::stdout().lock().write_all(text.as_bytes())?;
    Ok(())
}

/// Prints the tables and the result of each bound. Returns whether a result is unexpected.
pub fn all(title: &str, scenario: &Scenario, names: &[&str], runs: &[Outcome]) -> Result<bool> {
    let setup = &scenario.setup;
    let mut text = format!("{title}\n");
    if !scenario.about.is_empty() {
        let _ = writeln!(text, "{}", scenario.about);
    }
    let guests = if names.len() == 1 { "guest" } else { "guests" };
    let _ = writeln!(
        text,
        "{} {guests} on {} for {}, seed {}\n",
        names.len(),
        setup.host.memory,
        setup.lasts,
        setup.seed
    );
    text.push_str(&table::table(names, runs));
    if names.len() <= FEW {
        for run in runs {
            text.push('\n');
            text.push_str(&table::guests(names, run));
        }
    }
    for run in runs {
        for (at, violation) in &run.violations {
            let _ = writeln!(text, "{} refused its own plan {at} after the start: {violation}", run.manager);
        }
    }
    let (lines, unexpected) = bounds(scenario, names, runs);
    if !lines.is_empty() {
        text.push_str("\nbounds\n");
        text.push_str(&lines);
    }
    print(&text)?;
    Ok(unexpected)
}

/// At most this many guests that break a bound are listed; the rest are counted.
const SHOWN: usize = 10;

/// The results of the scenario's bounds, one line each, and whether one differs from the scenario's word.
pub fn bounds(scenario: &Scenario, names: &[&str], runs: &[Outcome]) -> (String, bool) {
    let (mut text, mut unexpected) = (String::new(), false);
    for run in runs {
        for bound in scenario.bounds.iter().filter(|bound| bound.is_about(run.manager)) {
            let (needs_nobody, needs_all) = bound.needs_others();
            let has_nobody = runs.iter().any(|other| other.manager == memtide_sim::Manager::Nobody);
            if (needs_nobody && !has_nobody) || (needs_all && runs.len() < 8) {
                let _ = writeln!(text, "  line {}, {}: needs --policy all", bound.line, run.manager);
                continue;
            }
            let broken = bound.judge(names, run, runs);
            match (&bound.fails, broken.is_empty()) {
                (None, true) => _ = writeln!(text, "  line {}, {}: kept", bound.line, run.manager),
                (Some(why), true) => {
                    unexpected = true;
                    let _ = writeln!(
                        text,
                        "  line {}, {}: KEPT, but marked as failing: {why}",
                        bound.line, run.manager
                    );
                }
                (fails, false) => {
                    unexpected |= fails.is_none();
                    let word = if fails.is_some() { "fails as expected" } else { "BROKEN" };
                    let head = format!("  line {}, {}: {word}", bound.line, run.manager);
                    for broken in broken.iter().take(SHOWN) {
                        let _ = writeln!(text, "{head}: {}", broken.what);
                    }
                    if let Some(more @ 1..) = broken.len().checked_sub(SHOWN) {
                        let _ = writeln!(text, "{head}: and {more} more");
                    }
                }
            }
        }
    }
    (text, unexpected)
}

/// The explanation of a decision about a guest; `None` if the guest did not run.
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
