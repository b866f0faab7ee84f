//! The guests, a line each: name, cost, size with its parts, stalls and state; or two lines with the reason.

use memtide_model::{Bytes, SizePart, Span};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Modifier, Style};

use super::bars::cells;
use super::theme::Theme;
use super::{Pen, after, line, put};
use crate::app::{App, why};
use crate::frame::{Frame, Matter, Row, Stall};
use crate::layout::{Layout, WHOLE};
use crate::text;

/// The columns of a quantity of memory, as in `1023 MiB`.
const BYTES: usize = 8;
/// Those of the stalls.
const STALLS: usize = 6;

/// The widths of the columns; 0: not shown.
struct Columns {
    name: usize,
    needs: usize,
    bar: usize,
    state: usize,
    reason: usize,
}

impl Columns {
    fn of(width: usize) -> Self {
        // Cost, size and stalls, each with a blank after it.
        let fixed = 2 * (BYTES + 1) + STALLS + 1;
        let needs = if width >= 100 { BYTES } else { 0 };
        let rest = width.saturating_sub(fixed + if needs > 0 { needs + 1 } else { 0 });
        if width < usize::from(WHOLE.width) {
            let name = rest.saturating_sub(9).clamp(6, 14);
            return Self { name, needs, bar: 0, state: rest.saturating_sub(name + 1), reason: 0 };
        }
        let name = (rest / 4).clamp(8, 24);
        let bar = (rest / 3).clamp(10, 40);
        let left = rest.saturating_sub(name + 1 + bar + 1);
        let state = if left > 60 { 24 } else { left };
        Self { name, needs, bar, state, reason: left.saturating_sub(state + 1) }
    }
}

pub(super) fn draw(app: &App, theme: Theme, layout: &Layout, buffer: &mut Buffer) {
    let Some(frame) = &app.shown.frame else { return };
    if layout.guests.is_empty() {
        return;
    }
    let columns = Columns::of(usize::from(layout.guests.width));
    heading(&columns, theme, layout.heading, buffer);
    if app.shown.list.is_empty() {
        let says = match app.filter.is_empty() {
            true if app.link().is_recorded() => "no guests at this moment".to_owned(),
            true => "no guests found (memtide ignores guests that `discover` does not match)".to_owned(),
            false => format!("no guest's name contains `{}`; Esc shows all", app.filter),
        };
        put(buffer, layout.guests, &says, theme.dim());
    }
    let visible = app.shown.list.iter().skip(app.first).take(layout.visible());
    for (nth, row) in (0_u16..).zip(visible) {
        let is_chosen = app.cursor.as_ref() == Some(&row.name);
        let first = line(layout.guests, nth * layout.row);
        let bar = if layout.row == 2 {
            let second = line(layout.guests, nth * 2 + 1);
            with_reason((row, frame), theme, (first, second), buffer)
        } else {
            let before = app.shown.earlier.as_ref().and_then(|frame| Some((frame.row(&row.name)?, frame)));
            let stall = before.and_then(|(before, then)| stall(row, before, frame.at.since(then.at)));
            one_line((row, stall), &columns, theme, first, buffer)
        };
        if is_chosen {
            buffer.set_style(first, Style::new().add_modifier(Modifier::REVERSED));
            // The marks of a bar would change their meaning.
            buffer.set_style(bar, Style::new().remove_modifier(Modifier::REVERSED));
        }
    }
}

fn heading(columns: &Columns, theme: Theme, place: Rect, buffer: &mut Buffer) {
    let mut says = text::left("GUEST", columns.name + 1);
    says += &(text::right("COST", BYTES) + " ");
    says += &(text::right("KEEPS", BYTES) + " ");
    if columns.needs > 0 {
        says += &(text::right("NEEDS", columns.needs) + " ");
    }
    if columns.bar > 0 {
        says += &text::left("OF ITS SIZE", columns.bar + 1);
    }
    says += &(text::right("STALLS", STALLS) + " ");
    says += &text::left("STATE", columns.state);
    if columns.reason > 0 {
        says += " LAST CHANGE";
    }
    put(buffer, place, &says, theme.bold());
}

/// A guest in a line. Returns the place of its bar.
fn one_line(
    (row, stall): (&Row, Option<String>),
    columns: &Columns,
    theme: Theme,
    place: Rect,
    buffer: &mut Buffer,
) -> Rect {
    let style = style(row.matter, theme);
    let plain = Style::new();
    let or_dash = |bytes: Option<Bytes>| bytes.map_or_else(|| "-".to_owned(), |bytes| bytes.to_string());
    let mut pen = Pen { place, buffer };
    pen.say(&text::left(&row.shown, columns.name + 1), style.add_modifier(Modifier::BOLD));
    pen.say(&text::right(&or_dash(row.cost.map(|cost| cost.sum())), BYTES), plain);
    pen.say(&text::right(&row.actual.to_string(), BYTES + 1), plain);
    if columns.needs > 0 {
        pen.say(&text::right(&or_dash(row.needs), columns.needs + 1), plain);
    }
    pen.say(" ", plain);
    let mut its_bar = Rect::default();
    if columns.bar > 0 {
        its_bar = bar(row, theme, columns.bar, &mut pen);
        pen.say(" ", plain);
    }
    pen.say(&text::right(stall.as_deref().unwrap_or("-"), STALLS), plain);
    pen.say(" ", plain);
    pen.say(&text::left(&row.state, columns.state), style);
    if columns.reason > 0 {
        pen.say(" ", plain);
        pen.say(row.reason.as_deref().unwrap_or_default(), theme.dim());
    }
    its_bar
}

/// The parts of a guest's size. Returns their place.
fn bar(row: &Row, theme: Theme, columns: usize, pen: &mut Pen<'_>) -> Rect {
    let begin = pen.place;
    let parts = SizePart::ALL.map(|part| row.size.of_part(part));
    let columns = u64::try_from(columns).unwrap_or(0).min(pen.place.width.into());
    for (part, cells) in SizePart::ALL.into_iter().zip(cells(parts, row.size.sum(), columns)) {
        pen.say(&part.mark().to_string().repeat(usize::try_from(cells).unwrap_or(0)), theme.size(part));
    }
    Rect { width: begin.width.saturating_sub(pen.place.width), ..begin }
}

/// The reason in a sentence, below the name. Returns the place of the guest's bar.
fn with_reason(
    (row, frame): (&Row, &Frame),
    theme: Theme,
    (first, second): (Rect, Rect),
    buffer: &mut Buffer,
) -> Rect {
    let style = style(row.matter, theme);
    let mut pen = Pen { place: first, buffer };
    pen.say(&text::left(&row.shown, 17), style.add_modifier(Modifier::BOLD));
    let columns = if first.width >= 100 { first.width / 5 } else { first.width / 8 };
    let its_bar = bar(row, theme, usize::from(columns), &mut pen);
    pen.say(&format!(" {}: ", why::size(row)), Style::new());
    pen.say(&row.state, style);
    put(
        buffer,
        after(second, 2),
        &why::in_a_sentence(row, frame, usize::from(second.width) >= 110),
        Style::new(),
    );
    its_bar
}

/// The colour of a guest's state.
fn style(matter: Matter, theme: Theme) -> Style {
    match matter {
        Matter::Waits | Matter::Stuck => theme.bad(),
        Matter::Gets | Matter::Gives | Matter::Unusual => theme.warn(),
        Matter::Steady => Style::new(),
        Matter::Apart => theme.dim(),
    }
}

/// How much a guest's programs waited for memory since an earlier row, in a few columns.
fn stall(row: &Row, before: &Row, over: Span) -> Option<String> {
    match row.stalled_since(before)? {
        Stall::Micros(micros) => share(micros, over),
        Stall::Times(0) => Some("0".to_owned()),
        Stall::Times(times) => Some(format!("{times}×")),
    }
}

/// This part of a span, in percent.
pub(super) fn share(micros: u64, over: Span) -> Option<String> {
    let tenths = micros.checked_div(over.as_millis())?.min(1000);
    Some(match tenths {
        0 => "0".to_owned(),
        tenths if tenths < 100 => format!("{}.{} %", tenths / 10, tenths % 10),
        tenths => format!("{} %", tenths / 10),
    })
}
