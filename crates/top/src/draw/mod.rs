//! Draws the screen. What the same state draws is always the same.

mod bars;
mod guests;
mod head;
mod host;
mod log;
mod pane;
pub mod theme;

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;

use crate::app::App;
use crate::layout::LEAST;
use crate::text;
use theme::Theme;

/// Draws the screen into `buffer`.
pub fn draw(app: &App, theme: Theme, buffer: &mut Buffer) {
    let layout = app.layout();
    if app.size.width < LEAST.width || app.size.height < LEAST.height {
        put(buffer, layout.screen, "too small", Style::new());
        return;
    }
    head::draw(app, theme, &layout, buffer);
    host::draw(app, theme, &layout, buffer);
    guests::draw(app, theme, &layout, buffer);
    log::draw(app, theme, &layout, buffer);
    pane::keys(app, theme, &layout, buffer);
    pane::draw(app, theme, &layout, buffer);
}

/// Writes a text into the first line of a place, and cuts off what does not fit. Returns the number of columns.
fn put(buffer: &mut Buffer, place: Rect, says: &str, style: Style) -> u16 {
    if place.is_empty() {
        return 0;
    }
    let says = text::fit(says, usize::from(place.width));
    let (end, _) = buffer.set_stringn(place.x, place.y, &says, usize::from(place.width), style);
    end - place.x
}

/// The rest of a place after some columns.
fn after(place: Rect, columns: u16) -> Rect {
    let columns = columns.min(place.width);
    Rect { x: place.x + columns, width: place.width - columns, ..place }
}

/// One line of a place.
fn line(place: Rect, nth: u16) -> Rect {
    if nth < place.height { Rect { y: place.y + nth, height: 1, ..place } } else { Rect::ZERO }
}

/// Writes one text after the other into a line.
struct Pen<'b> {
    /// What is left of the line.
    place: Rect,
    buffer: &'b mut Buffer,
}

impl Pen<'_> {
    fn say(&mut self, says: &str, style: Style) {
        self.place = after(self.place, put(self.buffer, self.place, says, style));
    }
}
