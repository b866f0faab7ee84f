//! The running log, the newest at the bottom, and the line above it.

use std::borrow::Cow;
use std::sync::Arc;

use jiff::tz::TimeZone;
use memtide_model::{SizePart, Span};
use ratatui::buffer::Buffer;
use ratatui::style::Style;

use super::theme::Theme;
use super::{Pen, line, put};
use crate::app::App;
use crate::clock;
use crate::layout::Layout;
use crate::source::{Entry, Kind};

/// The beginning of a new size.
const KEEPS: &str = "is to keep ";
/// Steps of one move follow each other within this time.
const NEXT_STEP: Span = Span::from_secs(5);

/// A line of the log: an event, or the last step of a move.
struct Line<'a> {
    entry: &'a Entry,
    first: &'a Entry,
    /// How many entries it stands for.
    steps: u64,
}

impl Line<'_> {
    fn says(&self, zone: &TimeZone) -> Cow<'_, str> {
        let ((what, why), (first, _)) = (parts(self.entry), parts(self.first));
        let since = clock::time(self.first.wall, zone);
        match first.strip_prefix(KEEPS) {
            _ if self.steps == 1 => (&*self.entry.says).into(),
            Some(from) if what != first => {
                format!("{what}, in {} steps from {from} since {since}: {why}", self.steps).into()
            }
            _ => format!("{what}, {} times since {since}: {why}", self.steps).into(),
        }
    }
}

/// What happened, and why.
fn parts(entry: &Entry) -> (&str, &str) {
    entry.says.split_once(": ").unwrap_or((&entry.says, ""))
}

/// The lines of these entries: a move that took many steps is one line, in the place of its last step.
fn lines(entries: &[Arc<Entry>]) -> Vec<Line<'_>> {
    let mut lines: Vec<Line<'_>> = Vec::new();
    for entry in entries {
        // The last change of this kind that the guest had.
        let nth = lines.iter().rposition(|line| is_same_deed(line.entry, entry));
        let before = nth.filter(|nth| is_next_step(lines[*nth].entry, entry)).map(|nth| lines.remove(nth));
        let (first, steps) = before.map_or((&**entry, 1), |line| (line.first, line.steps + 1));
        lines.push(Line { entry, first, steps });
    }
    lines
}

/// The words that are no quantities.
fn words(says: &str) -> impl Iterator<Item = &str> {
    let is_unit = |word: &str| {
        ["B", "KiB", "MiB", "GiB", "TiB"].contains(&word.trim_matches(['(', ')', ',', ':', ';']))
    };
    says.split(' ').filter(move |word| !word.contains(|c: char| c.is_ascii_digit()) && !is_unit(word))
}

/// Whether both are changes of the same kind, of the same guest.
fn is_same_deed(before: &Entry, entry: &Entry) -> bool {
    let are_changes = before.kind == Kind::Change && entry.kind == Kind::Change && entry.guest.is_some();
    are_changes && before.guest == entry.guest && words(parts(before).0).eq(words(parts(entry).0))
}

/// Whether the change is the next step of a move, or the same change again, for the same reason. Other quantities would have to be added up.
fn is_next_step(before: &Entry, entry: &Entry) -> bool {
    let ((what, why), (did, therefore)) = (parts(before), parts(entry));
    let is_soon = entry.at.since(before.at) <= NEXT_STEP;
    is_soon && (what == did || what.starts_with(KEEPS)) && words(why).eq(words(therefore))
}

pub(super) fn draw(app: &App, theme: Theme, layout: &Layout, buffer: &mut Buffer) {
    rule(app, theme, layout, buffer);
    if app.shown.frame.is_some() && app.shown.log.is_empty() && app.shown.later.is_empty() {
        put(buffer, layout.log, "nothing has happened since this screen was opened", theme.dim());
    }
    let height = usize::from(layout.log.height);
    let (before, after) = (lines(&app.shown.log), lines(&app.shown.later));
    // While the past is looked at, what came then stands below.
    let below = after.len().min(height / 2);
    let above = before.len().min(height - below);
    let before = before.iter().skip(before.len() - above).map(|entry| (entry, false));
    let after = after.iter().take(height - above).map(|entry| (entry, true));
    for (nth, (logged, is_later)) in (0..).zip(before.chain(after)) {
        let entry = logged.entry;
        let mut pen = Pen { place: line(layout.log, nth), buffer };
        let style = if is_later { theme.dim() } else { style(entry, theme) };
        let mark = match app.at {
            Some(_) if usize::from(nth) + 1 == above => "▶",
            _ => " ",
        };
        pen.say(&format!("{}{mark}", clock::time(entry.wall, &app.zone)), theme.dim());
        if let Some(guest) = &entry.guest {
            pen.say(&format!("{guest} "), if is_later { style } else { theme.bold() });
        }
        pen.say(&logged.says(&app.zone), style);
    }
}

fn style(entry: &Entry, theme: Theme) -> Style {
    match entry.kind {
        Kind::Failure => theme.bad(),
        Kind::Wait | Kind::Order | Kind::Host => theme.warn(),
        Kind::Change | Kind::Guests => Style::new(),
    }
}

/// The line between guests and log: how many guests are out of sight, and what the bars are made of.
fn rule(app: &App, theme: Theme, layout: &Layout, buffer: &mut Buffer) {
    if layout.rule.is_empty() {
        return;
    }
    let (all, first) = (app.shown.list.len(), app.first);
    let last = (first + layout.visible()).min(all);
    let seen = match all {
        0 => String::new(),
        all if last - first == all => String::new(),
        all => format!("{}–{last} of {all} ", first + 1),
    };
    let mut pen = Pen { place: layout.rule, buffer };
    pen.say(&format!("── {seen}"), theme.dim());
    for part in SizePart::ALL.into_iter().filter(|part| *part != SizePart::Untold) {
        pen.say(&format!("{} ", part.mark()), theme.size(part));
        pen.say(&format!("{} ", part.short()), theme.dim());
    }
    let rest = usize::from(pen.place.width);
    pen.say(&"─".repeat(rest), theme.dim());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;

    #[test]
    fn a_move_in_many_steps_is_one_line() {
        let entry = |second, guest: &str, kind, says: &str| {
            let (at, wall) = (sample::moment(second), sample::wall(second));
            Arc::new(Entry { at, wall, kind, guest: Some(guest.into()), says: says.to_owned() })
        };
        let says = |entries: &[Arc<Entry>]| -> Vec<String> {
            lines(entries).iter().map(|line| line.says(&TimeZone::UTC).into_owned()).collect()
        };
        let grows = |second, guest, mib| {
            let says = format!("is to keep {mib} MiB: needs {mib} MiB (uses 1.02 GiB), entitled to 1 GiB");
            entry(second, guest, Kind::Change, &says)
        };
        let two = [grows(0, "a", 300), grows(1, "b", 400), grows(3, "a", 310), grows(8, "a", 1020)];
        assert_eq!(
            says(&two),
            [
                "is to keep 400 MiB: needs 400 MiB (uses 1.02 GiB), entitled to 1 GiB",
                "is to keep 1020 MiB, in 3 steps from 300 MiB since 14:32:00: needs 1020 MiB (uses 1.02 GiB), entitled to 1 GiB",
            ]
        );
        let again = |second, says: &str| entry(second, "a", Kind::Change, says);
        assert_eq!(
            says(&[
                again(0, "has it split: 3 MiB torn"),
                grows(1, "a", 300),
                again(2, "has it split: 4 MiB torn")
            ]),
            [
                "is to keep 300 MiB: needs 300 MiB (uses 1.02 GiB), entitled to 1 GiB",
                "has it split, 2 times since 14:32:00: 4 MiB torn",
            ]
        );
        // Later, for another reason, after something else, another quantity, or no change.
        let gives = entry(4, "a", Kind::Change, "is to keep 200 MiB: 110 MiB idle (needs 190 MiB)");
        let waits = |second| entry(second, "a", Kind::Wait, "stalled for lack of memory at 300 MiB");
        for apart in [
            vec![grows(0, "a", 300), grows(6, "a", 310)],
            vec![grows(3, "a", 300), gives.clone()],
            vec![grows(3, "a", 300), gives, grows(5, "a", 310)],
            vec![waits(1), waits(2)],
            vec![again(0, "is to give 3 MiB: cold"), again(1, "is to give 4 MiB: cold")],
        ] {
            assert_eq!(lines(&apart).len(), apart.len(), "{:?}", says(&apart));
        }
    }
}
