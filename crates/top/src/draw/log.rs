//! The running log, the newest at the bottom, and the line above it.

use memtide_model::SizePart;
use ratatui::buffer::Buffer;
use ratatui::style::Style;

use super::theme::Theme;
use super::{Pen, line, put};
use crate::app::App;
use crate::clock;
use crate::layout::Layout;
use crate::source::{Entry, Kind};

pub(super) fn draw(app: &App, theme: Theme, layout: &Layout, buffer: &mut Buffer) {
    rule(app, theme, layout, buffer);
    if app.shown.frame.is_some() && app.shown.log.is_empty() && app.shown.later.is_empty() {
        put(buffer, layout.log, "nothing has happened since this screen was opened", theme.dim());
    }
    let lines = usize::from(layout.log.height);
    // While the past is looked at, what came then stands below.
    let below = app.shown.later.len().min(lines / 2);
    let above = app.shown.log.len().min(lines - below);
    let before = app.shown.log.iter().skip(app.shown.log.len() - above).map(|entry| (entry, false));
    let after = app.shown.later.iter().take(lines - above).map(|entry| (entry, true));
    for (nth, (entry, is_later)) in (0..).zip(before.chain(after)) {
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
        pen.say(&entry.says, style);
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
