//! The results of a setup's runs, or of several setups' runs together, as a table for people: one row per measure, one column per manager.

use std::fmt::Write as _;

use memtide_model::{Bytes, Span};

use crate::measure::GuestMeasures;
use crate::run::{Manager, Outcome};
use crate::scenario::{a_ten_minutes, part_done, part_saved, percent, work};
use crate::words::seconds;

/// The table of `runs`; `names` are the names of the guests.
#[must_use]
pub fn table(names: &[&str], runs: &[Outcome]) -> String {
    let mut rows: Vec<(String, Vec<String>)> = Vec::new();
    let mut row = |label: &str, cell: &dyn Fn(&Outcome) -> String| {
        rows.push((label.to_owned(), runs.iter().map(cell).collect()));
    };
    row("", &|run| run.manager.to_string());
    row("work done at full speed", &all_work);
    row("  least of any guest", &|run| least_work(names, run));
    row("starved, all guests", &|run| time(sum(run, |guest| guest.starved_ms)));
    row("hungry, all guests", &|run| time(sum(run, |guest| guest.hungry_ms)));
    row("refaults", &|run| size(sum(run, |guest| guest.refaults)));
    row("guests lost", &|run| run.host.killed_guests.to_string());
    row("programs killed", &|run| sum(run, programs_killed).to_string());
    row("targets per guest, 10 min", &|run| rate(run, |guest| guest.targets));
    row("  turns of direction", &|run| rate(run, |guest| guest.turns));
    row("moved by balloons", &|run| size(sum(run, |guest| guest.moved)));
    if runs.iter().any(|run| sum(run, |guest| guest.to_tier) > 0) {
        row("written to tiers", &|run| size(sum(run, |guest| guest.to_tier)));
        row("  read back", &|run| size(sum(run, |guest| guest.from_tier)));
    }
    row("host above capacity", &|run| size(run.host.above_capacity));
    row("  for", &|run| time(run.host.above_ms));
    if runs.iter().any(|run| run.host.most_in_tmpfs > 0) {
        row("most in the tmpfs", &|run| size(run.host.most_in_tmpfs));
    }
    row("most above a fair share", &|run| most_above(names, run));
    row("right again after", &|run| run.right_again.map_or("never".to_owned(), |after| after.to_string()));
    if runs.iter().any(|run| run.host.could_save > 0 || run.host.ksm_cpu_ms > 0) {
        row("saved by KSM, of what it could", &|run| percent(part_saved(&run.host)));
        row("  in processor time", &|run| time(run.host.ksm_cpu_ms));
    }
    if runs.iter().any(|run| run.violation_count > 0) {
        row("actions refused", &|run| run.violation_count.to_string());
    }
    lay_out(&rows)
}

/// A table of one run, with a line for each guest.
#[must_use]
pub fn guests(names: &[&str], run: &Outcome) -> String {
    let heads =
        ["", "work", "starved", "hungry", "refaults", "kills", "targets", "turns", "moved", "above fair"];
    let mut rows =
        vec![(run.manager.to_string(), heads[1..].iter().map(|head| (*head).to_owned()).collect())];
    for (name, guest) in names.iter().zip(&run.guests) {
        let cells = vec![
            done(guest.busy_us, guest.done_us),
            time(guest.starved_ms),
            time(guest.hungry_ms),
            size(guest.refaults),
            programs_killed(guest).to_string(),
            guest.targets.to_string(),
            guest.turns.to_string(),
            size(guest.moved),
            size(guest.above_fair),
        ];
        let lost = guest
            .lost_at
            .map_or_else(String::new, |at| format!(", lost at {}", seconds(Span::from_millis(at))));
        rows.push((format!("  {name}{lost}"), cells));
    }
    lay_out(&rows)
}

/// What one manager reached on several hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Together {
    manager: Manager,
    hosts: u64,
    /// The sum over the hosts of the part of their guests' work that was done, in thousandths.
    work: u64,
    /// The least of these parts.
    least: u64,
    lost: u64,
    killed: u64,
    targets: u64,
    moved: u64,
}

impl Together {
    /// Nothing so far.
    #[must_use]
    pub const fn new(manager: Manager) -> Self {
        Self { manager, hosts: 0, work: 0, least: 1_000, lost: 0, killed: 0, targets: 0, moved: 0 }
    }

    /// The manager.
    #[must_use]
    pub const fn manager(&self) -> Manager {
        self.manager
    }

    /// Adds a host.
    pub fn add(&mut self, run: &Outcome) {
        let part = part_done(sum(run, |guest| guest.busy_us), sum(run, |guest| guest.done_us));
        self.hosts += 1;
        self.work += part;
        self.least = self.least.min(part);
        self.lost += run.host.killed_guests;
        self.killed += sum(run, programs_killed);
        self.targets += sum(run, |guest| guest.targets);
        self.moved += sum(run, |guest| guest.moved);
    }
}

/// The table of several hosts: each host counts as much as any other.
#[must_use]
pub fn together(columns: &[Together]) -> String {
    let row = |label: &str, cell: &dyn Fn(&Together) -> String| {
        (label.to_owned(), columns.iter().map(cell).collect::<Vec<_>>())
    };
    lay_out(&[
        row("", &|column| column.manager.to_string()),
        row("hosts", &|column| column.hosts.to_string()),
        row("work done at full speed, mean", &|column| percent(column.work / column.hosts.max(1))),
        row("  least of any host", &|column| percent(column.least)),
        row("guests lost", &|column| column.lost.to_string()),
        row("programs killed", &|column| column.killed.to_string()),
        row("targets", &|column| column.targets.to_string()),
        row("moved by balloons", &|column| size(column.moved)),
    ])
}

fn lay_out(rows: &[(String, Vec<String>)]) -> String {
    let columns = rows.first().map_or(0, |(_, cells)| cells.len());
    let label = rows.iter().map(|(label, _)| label.chars().count()).max().unwrap_or(0);
    let width =
        |column: usize| rows.iter().map(|(_, cells)| cells[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for (name, cells) in rows {
        let _ = write!(text, "{name:label$}");
        for (cell, width) in cells.iter().zip(&widths) {
            let _ = write!(text, "  {cell:>width$}");
        }
        let end = text.trim_end().len();
        text.truncate(end);
        text.push('\n');
    }
    text
}

fn sum(run: &Outcome, of: impl Fn(&GuestMeasures) -> u64) -> u64 {
    run.guests.iter().map(of).sum()
}

/// Kills without the one of the guest itself, if the host killed it.
fn programs_killed(guest: &GuestMeasures) -> u64 {
    guest.kills.saturating_sub(u64::from(guest.lost_at.is_some()))
}

fn all_work(run: &Outcome) -> String {
    done(sum(run, |guest| guest.busy_us), sum(run, |guest| guest.done_us))
}

/// The part of the work that was done; not 100 % if there was none to do.
fn done(busy: u64, done: u64) -> String {
    if busy == 0 { "n/a".to_owned() } else { percent(part_done(busy, done)) }
}

fn least_work(names: &[&str], run: &Outcome) -> String {
    let busy = names.iter().zip(&run.guests).filter(|(_, guest)| guest.busy_us > 0);
    busy.min_by_key(|(_, guest)| work(guest))
        .map_or("n/a".to_owned(), |(name, guest)| format!("{name} {}", percent(work(guest))))
}

fn most_above(names: &[&str], run: &Outcome) -> String {
    let most = names.iter().zip(&run.guests).max_by_key(|(_, guest)| guest.above_fair);
    match most {
        Some((name, guest)) if guest.above_fair > 0 => format!("{name} {}", size(guest.above_fair)),
        _ => "0".to_owned(),
    }
}

#[expect(clippy::cast_precision_loss, reason = "a mean for people")]
fn rate(run: &Outcome, of: impl Fn(&GuestMeasures) -> u64) -> String {
    let count = a_ten_minutes(sum(run, of), run.lasts) / run.guests.len().max(1) as f64;
    format!("{count:.1}")
}

fn time(millis: u64) -> String {
    if millis == 0 { "0".to_owned() } else { Span::from_millis(millis).to_string() }
}

fn size(bytes: u64) -> String {
    if bytes == 0 { "0".to_owned() } else { Bytes::new(bytes).to_string() }
}
