//! The first lines: what memtide does, what goes on, and the first warning.

use memtide_model::HostState;
use ratatui::buffer::Buffer;

use super::theme::Theme;
use super::{after, line, put};
use crate::app::App;
use crate::clock;
use crate::layout::Layout;
use crate::source::Link;
use crate::text;

pub(super) fn draw(app: &App, theme: Theme, layout: &Layout, buffer: &mut Buffer) {
    title(app, theme, layout, buffer);
    let Some(frame) = &app.shown.frame else {
        let says = match app.link() {
            Link::Lost(why) => why,
            Link::Recorded { .. } => "the journal cannot be read at this moment".to_owned(),
            _ => "waiting for the daemon's first decision …".to_owned(),
        };
        put(buffer, layout.sentence, &says, theme.warn());
        return;
    };
    let says = frame.sentence.clone().unwrap_or_else(|| {
        if frame.rows.is_empty() { "no guests".to_owned() } else { "the last decision is old".to_owned() }
    });
    for (nth, says) in (0..).zip(text::wrap(&says, usize::from(layout.sentence.width))) {
        put(buffer, line(layout.sentence, nth), says.trim_start(), theme.bold());
    }
    if let Some(warning) = frame.warnings.first() {
        let more = match frame.warnings.len() - 1 {
            0 => String::new(),
            more => format!(" (and {more} more: press !)"),
        };
        let columns = usize::from(layout.warning.width).saturating_sub(text::width(&more));
        let says = text::fit(&format!("! {warning}"), columns);
        put(buffer, layout.warning, &format!("{says}{more}"), theme.bad());
    }
}

fn title(app: &App, theme: Theme, layout: &Layout, buffer: &mut Buffer) {
    let place = layout.title;
    let (when, style) = when(app, theme);
    let columns = u16::try_from(text::width(&when)).unwrap_or(u16::MAX).min(place.width);
    put(buffer, after(place, place.width - columns), &when, style);
    let mut rest = place;
    rest.width -= columns.saturating_add(1).min(place.width);
    let Some(frame) = &app.shown.frame else {
        put(buffer, rest, "memtide", theme.bold());
        return;
    };
    let mut say = |says: &str, style| rest = after(rest, put(buffer, rest, says, style));
    say(&format!("memtide {}  ", frame.version), theme.bold());
    let (mode, commitment) = (frame.mode.in_words(), frame.commitment);
    say(&format!("{mode}, {commitment}, host "), theme.dim());
    let state = match frame.host.state {
        HostState::High => theme.good(),
        HostState::Soft => theme.warn(),
        HostState::Hard | HostState::Low => theme.bad(),
    };
    say(&frame.host.state.to_string(), state);
    if let Some(stall) = host_stall(app).filter(|stall| stall != "0") {
        say(&format!(", stalls {stall}"), theme.dim());
    }
}

/// For how much of the last seconds programs of the host waited for memory.
fn host_stall(app: &App) -> Option<String> {
    let (now, before) = (&app.shown.frame.as_ref()?.host, &app.shown.earlier.as_ref()?.host);
    let micros = now.pressure?.some_us.saturating_sub(before.pressure?.some_us);
    super::guests::share(micros, now.at.since(before.at))
}

/// The time, and whether it is the present.
fn when(app: &App, theme: Theme) -> (String, ratatui::style::Style) {
    let time = app.shown.frame.as_ref().map_or_else(String::new, |frame| clock::time(frame.wall, &app.zone));
    let date = app.shown.frame.as_ref().map_or_else(String::new, |frame| clock::date(frame.wall, &app.zone));
    match (app.link(), app.at) {
        (Link::Recorded { .. }, _) if app.plays => {
            (format!("{date}{time} playing {}×", app.speed), theme.good())
        }
        (Link::Recorded { .. }, _) => (format!("{date}{time} journal"), theme.warn()),
        (Link::Lost(_), _) => (format!("{time} NO DAEMON, asking again"), theme.bad()),
        (_, Some(_)) => (format!("{time} PAUSED (Esc: now)"), theme.warn()),
        (Link::Live, None) => (format!("{time} live"), theme.good()),
        (Link::Awaited, None) => ("connecting".to_owned(), theme.dim()),
    }
}
