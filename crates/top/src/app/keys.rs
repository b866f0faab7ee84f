//! The keys. `draw/help` has the list that people see.

use std::sync::Arc;

use memtide_api::view::Wanted;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use super::orders::{Order, What, Wish};
use super::panel::Panel;
use super::{App, Typed};
use crate::layout::View;
use crate::source::{Direction, Link};

/// The longest filter.
const MOST_TYPED: usize = 64;

impl App {
    pub(super) fn key(&mut self, key: KeyEvent) {
        if key.kind == KeyEventKind::Release {
            return;
        }
        self.notice = None;
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            match key.code {
                KeyCode::Char('c' | 'q') => self.wishes.push(Wish::Quit),
                KeyCode::Char('l') => self.wishes.push(Wish::Redraw),
                KeyCode::Char('d' | 'f') => self.scroll(self.page()),
                KeyCode::Char('u' | 'b') => self.scroll(-self.page()),
                _ => {}
            }
            return;
        }
        match (&self.typed, &self.panel) {
            (Some(Typed::Filter), _) => self.type_filter(key.code),
            (_, Some(Panel::Confirm { .. })) => self.confirm(key.code),
            (_, Some(_)) => self.read(key.code),
            (_, None) => self.main(key.code),
        }
    }

    fn main(&mut self, code: KeyCode) {
        if let KeyCode::Char(digit @ '0'..='9') = code {
            return self.digit(digit);
        }
        if matches!(self.typed, Some(Typed::Time(_))) && code != KeyCode::Char(':') {
            self.typed = None;
            if code == KeyCode::Esc {
                return;
            }
        }
        if self.movement(code) || self.time(code) {
            return;
        }
        match code {
            KeyCode::Char('q') => self.wishes.push(Wish::Quit),
            KeyCode::Esc => self.back(),
            KeyCode::Char('?') | KeyCode::F(1) => self.panel = Some(Panel::Help { scroll: 0 }),
            KeyCode::Char('s') => {
                self.sort = self.sort.next();
                self.first = 0;
                self.notice = Some(format!("sorted by {}", self.sort.name()));
            }
            KeyCode::Char('/') => self.typed = Some(Typed::Filter),
            KeyCode::Char('w') => self.toggle(View::Reasons),
            KeyCode::Char('v') => self.toggle(View::Log),
            KeyCode::Char('!') => self.warnings(),
            KeyCode::Enter | KeyCode::Char('e') => self.explain(),
            KeyCode::Char('h') => self.ask(What::Hold(Wanted::Hold)),
            KeyCode::Char('l') => self.ask(What::Hold(Wanted::Release)),
            KeyCode::Char('m') => self.ask(What::Hold(Wanted::Resume)),
            KeyCode::Char('c') => self.ask(What::Reclaim),
            _ => {}
        }
    }

    /// Keys that move the cursor; whether this is one.
    fn movement(&mut self, code: KeyCode) -> bool {
        match code {
            KeyCode::Up | KeyCode::Char('k') => self.move_by(-1),
            KeyCode::Down | KeyCode::Char('j') => self.move_by(1),
            KeyCode::PageUp => self.move_by(-self.page()),
            KeyCode::PageDown => self.move_by(self.page()),
            KeyCode::Home => self.move_to(0),
            KeyCode::End => self.move_to(self.shown.list.len().saturating_sub(1)),
            _ => return false,
        }
        true
    }

    /// Keys that move through time; whether this is one.
    fn time(&mut self, code: KeyCode) -> bool {
        match code {
            KeyCode::Char(' ') => self.pause(),
            KeyCode::Left => self.step(Direction::Earlier),
            KeyCode::Right => self.step(Direction::Later),
            KeyCode::Char('[') => self.leap(Direction::Earlier, 60),
            KeyCode::Char(']') => self.leap(Direction::Later, 60),
            KeyCode::Char('n') => self.jump(Direction::Later),
            KeyCode::Char('N') => self.jump(Direction::Earlier),
            KeyCode::Char('t') => self.next_kind(),
            KeyCode::Char('+') => self.change_speed(Direction::Later),
            KeyCode::Char('-') => self.change_speed(Direction::Earlier),
            _ => return false,
        }
        true
    }

    /// Undoes the last thing that hides something: the filter, the reasons, the past.
    fn back(&mut self) {
        if !self.filter.is_empty() {
            self.filter.clear();
        } else if self.view != View::All {
            self.view = View::All;
        } else {
            // The newest moment: of a journal, its end.
            self.at = None;
        }
    }

    fn toggle(&mut self, view: View) {
        self.view = if self.view == view { View::All } else { view };
    }

    fn page(&self) -> isize {
        let layout = self.layout();
        let lines = if self.panel.is_some() { usize::from(layout.panel_lines()) } else { layout.visible() };
        isize::try_from(lines.max(2) - 1).unwrap_or(1)
    }

    fn scroll(&mut self, lines: isize) {
        match &mut self.panel {
            Some(panel) => panel.scroll_by(lines),
            None => self.move_by(lines),
        }
    }

    fn type_filter(&mut self, code: KeyCode) {
        match code {
            KeyCode::Enter | KeyCode::Up | KeyCode::Down => self.typed = None,
            KeyCode::Esc => {
                self.filter.clear();
                self.typed = None;
            }
            KeyCode::Backspace => drop(self.filter.pop()),
            KeyCode::Char(c)
                if self.filter.chars().count() < MOST_TYPED && memtide_model::stays_in_line(c) =>
            {
                self.filter.push(c);
            }
            _ => {}
        }
    }

    /// Keys while a text is read.
    fn read(&mut self, code: KeyCode) {
        let page = self.page();
        let Some(panel) = &mut self.panel else { return };
        match code {
            KeyCode::Esc | KeyCode::Char('q' | '?') | KeyCode::F(1) => self.panel = None,
            KeyCode::Enter | KeyCode::Char('e') => self.panel = None,
            KeyCode::Up | KeyCode::Char('k') => panel.scroll_by(-1),
            KeyCode::Down | KeyCode::Char('j') => panel.scroll_by(1),
            KeyCode::PageUp => panel.scroll_by(-page),
            KeyCode::PageDown | KeyCode::Char(' ') => panel.scroll_by(page),
            KeyCode::Home => panel.scroll_home(),
            _ => {}
        }
        self.keep_text_in_view();
    }

    fn confirm(&mut self, code: KeyCode) {
        let Some(Panel::Confirm { order, preview, .. }) = &self.panel else { return };
        let is_ready = order.what != What::Reclaim || preview.is_some();
        match code {
            KeyCode::Enter | KeyCode::Char('y') if is_ready => {
                let order = order.clone();
                self.notice = Some(format!(
                    "asked memtide to {} {}",
                    order.what.verb(),
                    memtide_model::printable(&order.guest)
                ));
                self.panel = None;
                self.wishes.push(Wish::Order(order));
            }
            KeyCode::Esc | KeyCode::Char('n' | 'q') => self.panel = None,
            _ => {}
        }
    }

    /// Explains the guest under the cursor.
    pub(super) fn explain(&mut self) {
        let Some(row) = self.chosen().cloned() else { return };
        let guest = Arc::clone(&row.name);
        if self.is_live() {
            self.wishes.push(Wish::Explain(Arc::clone(&guest)));
        }
        self.panel = Some(Panel::Explain { guest, text: None, scroll: 0 });
    }

    fn warnings(&mut self) {
        let Some(frame) = &self.shown.frame else { return };
        if frame.warnings.is_empty() {
            self.notice = Some("there are no warnings".to_owned());
            return;
        }
        let text = frame.warnings.join("\n\n");
        self.panel = Some(Panel::Text { title: "warnings".to_owned(), text, scroll: 0 });
    }

    /// Asks before an order, or says why none can be given.
    fn ask(&mut self, what: What) {
        let refusal = match self.link() {
            Link::Recorded { .. } => Some("a journal takes no orders: this is the past"),
            Link::Lost(_) | Link::Awaited => Some("no daemon answers, so none takes orders"),
            Link::Live if self.at.is_some() => Some("orders change the present: press Esc first"),
            Link::Live => None,
        };
        if let Some(why) = refusal {
            self.notice = Some(why.to_owned());
            return;
        }
        let (Some(frame), Some(row)) = (&self.shown.frame, self.chosen()) else {
            self.notice = Some("there is no guest under the cursor".to_owned());
            return;
        };
        let order = Order { guest: Arc::clone(&row.name), what };
        let says = what.in_words(row, frame);
        if what == What::Reclaim {
            self.wishes.push(Wish::Preview(Arc::clone(&order.guest)));
        }
        self.panel = Some(Panel::Confirm { order, says, preview: None });
    }
}
