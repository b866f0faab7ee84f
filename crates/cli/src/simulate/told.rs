//! The results of a simulation as text.

use std::fmt::Write as _;
use std::io::Write as _;

use anyhow::Result;
use memtide_model::{counted, printable};
use memtide_sim::scenario::Judged;
use memtide_sim::words::seconds;
use memtide_sim::{Outcome, Scenario, Setup, table};

/// With at most this many guests, each gets a line.
const FEW: usize = 16;

/// Prints `text` to standard output.
pub fn print(text: &str) -> Result<()> {
    std::io::stdout().lock().write_all(text.as_bytes())?;
    Ok(())
}

/// What is simulated: the host, the guests and the time.
pub fn what(setup: &Setup) -> String {
    let guests = counted(setup.guests.len() as u64, "guest");
    let tmpfs = setup.host.tmpfs.map_or_else(String::new, |size| format!(" with a tmpfs of {size}"));
    format!("{guests} on {}{tmpfs} for {}, seed {}", setup.host.memory, setup.lasts, setup.seed)
}

/// Prints the tables and how the bounds were kept.
pub fn all(
    title: &str,
    scenario: &Scenario,
    names: &[&str],
    runs: &[Outcome],
    judged: &[Judged],
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
    if names.len() > FEW {
        let _ = writeln!(text, "\nthe rows of {} guests are left out: --json has them all", names.len());
    }
    for run in runs {
        for (at, violation) in &run.violations {
            let _ = writeln!(
                text,
                "{} refused an action of its own at {}: {violation}",
                run.manager,
                seconds(*at)
            );
        }
    }
    if !judged.is_empty() {
        text.push_str("\nbounds\n");
    }
    for line in judged.iter().flat_map(Judged::lines) {
        let _ = writeln!(text, "  {}", printable(&line));
    }
    print(&text)
}
