//! The last line, and what covers the screen.

use ratatui::buffer::Buffer;
use ratatui::layout::{Position, Rect};
use ratatui::style::{Modifier, Style};

use super::theme::Theme;
use super::{Pen, line, put};
use crate::app::panel::Panel;
use crate::app::{App, Typed};
use crate::layout::{Layout, WHOLE};

/// The keys that the last line names: first those of every source.
const KEYS: [(&str, &str); 6] =
    [("?", "help"), ("q", "quit"), ("Enter", "explain"), ("w", "why"), ("s", "sort"), ("/", "filter")];
const KEYS_OF_JOURNAL: [(&str, &str); 5] =
    [("space", "play"), ("n", "next event"), ("1432", "go to 14:32"), ("[ ]", "a minute"), ("Esc", "end")];
const KEYS_OF_DAEMON: [(&str, &str); 5] =
    [("h", "hold"), ("l", "let go"), ("m", "resume"), ("c", "reclaim"), ("space", "pause")];

/// The last line: what is typed, a notice, or the keys.
pub(super) fn keys(app: &App, theme: Theme, layout: &Layout, buffer: &mut Buffer) {
    let place = layout.keys;
    match &app.typed {
        Some(Typed::Filter) => {
            put(buffer, place, &format!("/{}▏ Enter: done, Esc: all guests", app.filter), theme.bold());
            return;
        }
        Some(Typed::Time(digits)) => {
            let rest = "····".chars().skip(digits.len()).collect::<String>();
            put(buffer, place, &format!("go to {digits}{rest} (hour and minute)"), theme.bold());
            return;
        }
        None => {}
    }
    if let Some(notice) = &app.notice {
        put(buffer, place, notice, theme.warn().add_modifier(Modifier::BOLD));
        return;
    }
    let mut pen = Pen { place, buffer };
    if app.size.width < WHOLE.width || app.size.height < WHOLE.height {
        pen.say(&format!("small: graph from {}×{}  ", WHOLE.width, WHOLE.height), theme.warn());
    }
    if !app.filter.is_empty() {
        pen.say(&format!("/{} ", app.filter), theme.warn());
    }
    let more = if app.link().is_recorded() { KEYS_OF_JOURNAL } else { KEYS_OF_DAEMON };
    for (key, does) in KEYS.into_iter().chain(more) {
        let columns = crate::text::width(key) + crate::text::width(does) + 2;
        if usize::from(pen.place.width) + 1 < columns {
            break;
        }
        pen.say(key, theme.bold());
        pen.say(&format!(" {does} "), theme.dim());
    }
}

/// What covers the screen, with a frame around it.
pub(super) fn draw(app: &App, theme: Theme, layout: &Layout, buffer: &mut Buffer) {
    let Some((title, lines)) = app.text() else { return };
    let whole = layout.panel();
    let is_question = matches!(app.panel, Some(Panel::Confirm { .. }));
    let place = if is_question { low(whole, lines.len()) } else { whole };
    if place.width < 8 || place.height < 3 {
        return;
    }
    let inner = Rect { x: place.x + 2, y: place.y + 1, width: place.width - 4, height: place.height - 2 };
    let visible = usize::from(inner.height);
    let first = app.scrolled().min(lines.len().saturating_sub(visible));
    clear(place, buffer);
    let border = if is_question { theme.warn() } else { theme.dim() };
    outline(place, border, buffer);
    put(buffer, Rect { width: place.width - 4, ..inner_top(place) }, &format!(" {title} "), theme.bold());
    for (nth, text) in (0..inner.height).zip(lines.iter().skip(first)) {
        let is_heading = !text.starts_with(' ') && !is_question;
        put(buffer, line(inner, nth), text, if is_heading { theme.bold() } else { Style::new() });
    }
    if lines.len() > visible {
        let says = format!(" {}–{} of {} ", first + 1, (first + visible).min(lines.len()), lines.len());
        let bottom = Rect { y: place.bottom() - 1, height: 1, ..inner };
        put(buffer, bottom, &says, theme.dim());
    }
}

/// A lower place of the same width, for this number of lines.
fn low(place: Rect, lines: usize) -> Rect {
    let height = u16::try_from(lines).unwrap_or(u16::MAX).saturating_add(2).min(place.height);
    Rect { y: place.y + (place.height - height) / 2, height, ..place }
}

fn inner_top(place: Rect) -> Rect {
    Rect { x: place.x + 2, height: 1, ..place }
}

fn clear(place: Rect, buffer: &mut Buffer) {
    for position in place.positions() {
        if let Some(cell) = buffer.cell_mut(position) {
            cell.reset();
        }
    }
}

fn outline(place: Rect, style: Style, buffer: &mut Buffer) {
    let (right, bottom) = (place.right() - 1, place.bottom() - 1);
    for position in place.positions() {
        let Position { x, y } = position;
        let symbol = match (x == place.x, x == right, y == place.y, y == bottom) {
            (true, _, true, _) => "┌",
            (_, true, true, _) => "┐",
            (true, _, _, true) => "└",
            (_, true, _, true) => "┘",
            (true, ..) | (_, true, ..) => "│",
            (_, _, true, _) | (.., true) => "─",
            _ => continue,
        };
        if let Some(cell) = buffer.cell_mut(position) {
            cell.set_symbol(symbol).set_style(style);
        }
    }
}
