//! The mouse: the wheel moves, a click chooses a guest, a second click explains it, a click on the graph goes to that moment.

use memtide_model::Span;
use ratatui::crossterm::event::{MouseButton, MouseEvent, MouseEventKind};
use ratatui::layout::{Position, Rect};

use super::{App, WINDOW};
use crate::layout::Layout;

/// How far a turn of the wheel goes.
const WHEEL: isize = 3;

impl App {
    pub(super) fn mouse(&mut self, mouse: MouseEvent) {
        let lines = match mouse.kind {
            MouseEventKind::ScrollUp => -WHEEL,
            MouseEventKind::ScrollDown => WHEEL,
            MouseEventKind::Down(MouseButton::Left) => {
                return self.click(Position::new(mouse.column, mouse.row));
            }
            _ => return,
        };
        match &mut self.panel {
            Some(panel) => panel.scroll_by(lines),
            None => self.move_by(lines),
        }
    }

    fn click(&mut self, at: Position) {
        let layout = self.layout();
        if self.panel.is_some() {
            return;
        }
        if layout.graph.contains(at) {
            return self.click_on_graph(at, layout.graph);
        }
        let Some(place) = guest_at(&layout, at) else { return };
        let place = self.first + place;
        let again = self.cursor_at() == Some(place);
        self.move_to(place);
        if again && self.chosen().is_some() {
            self.explain();
        }
    }

    fn click_on_graph(&mut self, at: Position, graph: Rect) {
        let right = u64::from(graph.right() - 1 - at.x);
        let ago = WINDOW.as_millis() * right / u64::from(graph.width.max(1));
        self.at =
            Some(self.shown.end.before(Span::from_millis(ago))).filter(|_| right > 0 || !self.is_newest());
    }

    /// Whether the graph ends with the newest frame.
    fn is_newest(&self) -> bool {
        self.source.moments().is_some_and(|(_, last)| last == self.shown.end)
    }
}

/// The place in the visible list of the guest at this position.
fn guest_at(layout: &Layout, at: Position) -> Option<usize> {
    let inside = layout.guests.contains(at);
    inside.then(|| usize::from((at.y - layout.guests.y) / layout.row))
}
