//! The text of what covers the screen, in lines that fit.

use memtide_model::printable;

use super::panel::Panel;
use super::{App, why};
use crate::help;
use crate::text::wrap;

impl App {
    /// Its title and its lines; `None` if nothing covers the screen.
    #[must_use]
    pub fn text(&self) -> Option<(String, Vec<String>)> {
        let columns = usize::from(self.layout().panel().width.saturating_sub(4));
        let (title, text) = match self.panel.as_ref()? {
            Panel::Help { .. } => ("keys".to_owned(), help::TEXT.to_owned()),
            Panel::Text { title, text, .. } => (title.clone(), text.clone()),
            Panel::Explain { guest, text, .. } => {
                let told = text.as_ref().filter(|_| self.is_live() || self.link().is_recorded());
                let text = told.cloned().unwrap_or_else(|| self.why(guest));
                (format!("why {} has its memory", printable(guest)), text)
            }
            Panel::Confirm { order, says, preview } => {
                let title = format!("{} {}?", order.what.verb(), printable(&order.guest));
                (title, self.question(says, order.what == super::orders::What::Reclaim, preview.as_deref()))
            }
        };
        Some((title, wrap(&text, columns)))
    }

    /// The first visible line.
    #[must_use]
    pub fn scrolled(&self) -> usize {
        match &self.panel {
            Some(Panel::Help { scroll } | Panel::Explain { scroll, .. } | Panel::Text { scroll, .. }) => {
                *scroll
            }
            Some(Panel::Confirm { .. }) | None => 0,
        }
    }

    /// Keeps the end of the text at the bottom at most.
    pub(super) fn keep_text_in_view(&mut self) {
        let lines = self.text().map_or(0, |(_, lines)| lines.len());
        let most = lines.saturating_sub(usize::from(self.layout().panel_lines()));
        let over = self.scrolled().saturating_sub(most);
        if let Some(panel) = &mut self.panel {
            panel.scroll_by(-isize::try_from(over).unwrap_or(0));
        }
    }

    fn why(&self, guest: &str) -> String {
        let Some(frame) = &self.shown.frame else { return "nothing is known yet".to_owned() };
        match frame.row(guest) {
            Some(row) => why::in_words(row, frame, &self.shown.log, &self.zone),
            None => format!("{} is not there at this moment", printable(guest)),
        }
    }

    fn question(&self, says: &str, previews: bool, preview: Option<&str>) -> String {
        match (previews, preview) {
            (true, None) => format!("{says}\n\nasking the guest what it can spare …\n\nEsc: no"),
            (_, Some(preview)) => format!("{says}\n\n{preview}\n\ny or Enter: yes     n or Esc: no"),
            (false, None) => format!("{says}\n\ny or Enter: yes     n or Esc: no"),
        }
    }
}
