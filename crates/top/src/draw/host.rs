//! The host's ledger: in numbers, and as a stack that moves with time.

use memtide_model::{Bytes, HostPart, Span};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Modifier, Style};

use super::bars::cells;
use super::theme::Theme;
use super::{Pen, put};
use crate::app::{App, WINDOW};
use crate::frame::Host;
use crate::layout::Layout;

/// The lower eighths of a cell.
const EIGHTHS: [&str; 8] = [" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇"];
/// A gap that is no longer than this, and than a few columns, is drawn as if nothing had changed meanwhile.
const GAP: Span = Span::from_secs(5);

pub(super) fn draw(app: &App, theme: Theme, layout: &Layout, buffer: &mut Buffer) {
    if let Some(frame) = &app.shown.frame {
        ledger(&frame.host, theme, layout.ledger, buffer);
    }
    for column in 0..layout.graph.width {
        let Some(host) = at_column(app, layout.graph.width, column) else { continue };
        stack(host, theme, Rect { x: layout.graph.x + column, width: 1, ..layout.graph }, buffer);
    }
    if let Some(frame) = &app.shown.frame {
        put(
            buffer,
            Rect { height: layout.graph.height.min(1), ..layout.graph },
            &frame.host.capacity.to_string(),
            theme.dim(),
        );
    }
    let mark = mark(app, layout.axis);
    axis(app, mark, theme, layout, buffer);
    if let Some(x) = mark {
        put(buffer, Rect { x, width: 1, ..layout.axis }, "▲", theme.warn());
    }
}

/// Where the frame is in the graph, if the past is looked at.
fn mark(app: &App, axis: Rect) -> Option<u16> {
    let at = app.shown.frame.as_ref().map(|frame| frame.at).filter(|_| app.at.is_some())?;
    let ago = app.shown.end.since(at).as_millis().min(WINDOW.as_millis());
    let back = u64::from(axis.width) * ago / WINDOW.as_millis();
    Some(axis.x + axis.width.saturating_sub(1).saturating_sub(u16::try_from(back).unwrap_or(0)))
}

/// `2 GiB = █ guests 1.44 GiB + …`.
fn ledger(host: &Host, theme: Theme, place: Rect, buffer: &mut Buffer) {
    let shown = |part: HostPart, bytes: Bytes| !(bytes.is_zero() && part == HostPart::Torn);
    let parts: Vec<(HostPart, String)> = HostPart::ALL
        .into_iter()
        .zip(host.parts)
        .filter(|(part, bytes)| shown(*part, *bytes))
        .map(|(part, bytes)| (part, format!(" {} {bytes}", part.name())))
        .collect();
    let columns: usize = parts.iter().map(|(_, says)| says.len() + 4).sum();
    let is_wide = columns + 8 <= usize::from(place.width);
    let mut pen = Pen { place, buffer };
    let mut sign = if is_wide { format!("{} = ", host.capacity) } else { String::new() };
    for (part, says) in parts {
        pen.say(&sign, Style::new());
        pen.say(&part.mark().to_string(), theme.host(part));
        pen.say(&says, Style::new());
        sign = if is_wide { " + " } else { " " }.to_owned();
    }
}

/// The host in the time that a column stands for.
fn at_column(app: &App, width: u16, column: u16) -> Option<&Host> {
    let per_column = WINDOW.as_millis() / u64::from(width.max(1));
    let back = u64::from(width - 1 - column) * WINDOW.as_millis() / u64::from(width);
    let until = app.shown.end.before(Span::from_millis(back));
    let nth = app.shown.course.partition_point(|host| host.at <= until);
    let host = app.shown.course.get(nth.checked_sub(1)?)?;
    let most = Span::from_millis(2 * per_column).plus(GAP);
    (until.since(host.at) <= most).then_some(host)
}

/// One column: the parts above each other.
fn stack(host: &Host, theme: Theme, place: Rect, buffer: &mut Buffer) {
    let eighths = cells(host.parts, host.capacity, u64::from(place.height) * 8);
    for row in 0..place.height {
        let y = place.bottom() - 1 - row;
        let (symbol, style) = cell(&eighths, u64::from(row) * 8, theme);
        buffer.set_stringn(place.x, y, symbol, 1, style);
    }
}

/// The cell that begins at this eighth.
fn cell(eighths: &[u64; 5], from: u64, theme: Theme) -> (String, Style) {
    let (mut within, mut begin) = ([0; 5], 0);
    for (own, part) in within.iter_mut().zip(eighths) {
        let end = begin + part;
        *own = end.min(from + 8).saturating_sub(begin.max(from));
        begin = end;
    }
    let most = |skip: Option<usize>| {
        let parts = HostPart::ALL.into_iter().enumerate().filter(|(nth, _)| Some(*nth) != skip);
        parts.map(|(nth, part)| (within[nth], nth, part)).max_by_key(|(own, nth, _)| (*own, 5 - nth))
    };
    let lowest = HostPart::ALL.into_iter().enumerate().find(|(nth, _)| within[*nth] > 0);
    let (Some((nth, low)), Some((_, _, main))) = (lowest, most(None)) else {
        return (" ".into(), Style::new());
    };
    let own = within[nth];
    if own == 8 || !theme.has_colours() {
        let part = if own == 8 { low } else { main };
        let mark = if part == HostPart::Free { ' ' } else { part.mark() };
        return (mark.to_string(), theme.host(part));
    }
    let high = most(Some(nth)).map_or(low, |(_, _, part)| part);
    let symbol = EIGHTHS[usize::try_from(own).unwrap_or(0).min(7)].to_owned();
    let style = match (low, high) {
        (low, HostPart::Free) => theme.host(low),
        (HostPart::Free, high) => theme.host(high).add_modifier(Modifier::REVERSED),
        (low, high) => theme.host(low).patch(theme.behind(high)),
    };
    (symbol, style)
}

/// The times below the graph, but for one where the mark is.
fn axis(app: &App, mark: Option<u16>, theme: Theme, layout: &Layout, buffer: &mut Buffer) {
    let place = layout.axis;
    if place.is_empty() || app.shown.frame.is_none() {
        return;
    }
    let marks: u16 = if place.width >= 100 { 5 } else { 2 };
    for nth in 0..=marks {
        let back = WINDOW.as_millis() * u64::from(marks - nth) / u64::from(marks);
        let Some(time) = app.time_of(app.shown.end.before(Span::from_millis(back))) else { return };
        let time = &time[..5];
        let x = place.x + (place.width.saturating_sub(5)) * nth / marks;
        if mark.is_some_and(|mark| (x..x + 5).contains(&mark)) {
            continue;
        }
        put(buffer, Rect { x, width: 5.min(place.width), ..place }, time, theme.dim());
    }
}
