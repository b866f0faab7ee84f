//! What the daemon answers, and where it is shown.

use memtide_model::printable;

use super::App;
use super::orders::{Answer, What};
use super::panel::Panel;
use crate::text::printable_lines;

impl App {
    pub(super) fn answered(&mut self, answer: Answer) {
        match answer {
            Answer::Explained { guest, text } => {
                if let Some(Panel::Explain { guest: shown, text: old, .. }) = &mut self.panel
                    && *shown == guest
                {
                    *old = Some(printable_lines(&text.unwrap_or_else(|why| why)));
                }
            }
            Answer::Previewed { guest, text } => {
                if let Some(Panel::Confirm { order, preview, .. }) = &mut self.panel
                    && order.guest == guest
                    && order.what == What::Reclaim
                {
                    *preview = Some(printable_lines(&text.unwrap_or_else(|why| why)));
                }
            }
            Answer::Done { order, text } => {
                let failed = text.is_err();
                let text = printable_lines(&text.unwrap_or_else(|why| why));
                // A short answer needs no panel, and must not cover what somebody reads.
                if text.lines().count() <= 1 && !failed {
                    self.notice = Some(text);
                } else if self.panel.is_none() {
                    let title = format!("{} {}", order.what.verb(), printable(&order.guest));
                    self.panel = Some(Panel::Text { title, text, scroll: 0 });
                } else {
                    self.notice = text.lines().next().map(str::to_owned);
                }
            }
        }
    }
}
