//! The places of everything on the screen, by its size.

use ratatui::layout::{Rect, Size};

/// The size that shows everything.
pub const WHOLE: Size = Size { width: 60, height: 16 };
/// Nothing is shown on a smaller screen.
pub const LEAST: Size = Size { width: 20, height: 5 };

/// What fills the screen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum View {
    /// The graph, the guests and the log.
    #[default]
    All,
    /// The guests, each with its reason.
    Reasons,
    /// The log.
    Log,
}

/// What the places depend on besides the size of the screen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Needs {
    /// What fills the screen.
    pub view: View,
    /// The number of guests in the list.
    pub guests: usize,
    /// The columns of the sentence.
    pub sentence: usize,
    /// Whether there are warnings.
    pub warns: bool,
}

/// The places. A part for which there is no room is empty.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    /// The whole screen.
    pub screen: Rect,
    /// Version, mode and time.
    pub title: Rect,
    /// What goes on, in a sentence.
    pub sentence: Rect,
    /// The ledger in numbers, which explains the graph.
    pub ledger: Rect,
    /// The first warning.
    pub warning: Rect,
    /// The host's memory over time.
    pub graph: Rect,
    /// The times below it.
    pub axis: Rect,
    /// The names of the columns.
    pub heading: Rect,
    /// The guests.
    pub guests: Rect,
    /// The line between guests and log.
    pub rule: Rect,
    /// What happened.
    pub log: Rect,
    /// The keys, or a notice.
    pub keys: Rect,
    /// The lines that a guest takes.
    pub row: u16,
}

impl Layout {
    /// The places on a screen of this size.
    #[must_use]
    pub fn of(size: Size, needs: Needs) -> Self {
        let screen = Rect::new(0, 0, size.width, size.height);
        let is_whole = size.width >= WHOLE.width && size.height >= WHOLE.height;
        let mut left = screen;
        let mut take = |lines: u16| {
            let lines = lines.min(left.height);
            let taken = Rect { height: lines, ..left };
            left.y += lines;
            left.height -= lines;
            taken
        };
        let long = needs.sentence > usize::from(size.width) && size.height >= LEAST.height + 3;
        let (title, sentence) = (take(1), take(if long { 2 } else { 1 }));
        let row = if needs.view == View::Reasons && is_whole { 2 } else { 1 };
        let mut layout = Self { screen, title, sentence, row, ..Self::default() };
        if !is_whole {
            layout.heading = take(1);
            layout.guests = take(size.height.saturating_sub(sentence.height + 3));
            layout.keys = take(1);
            return layout;
        }
        if needs.warns {
            layout.warning = take(1);
        }
        if needs.view == View::All {
            layout.ledger = take(1);
            layout.graph = take((size.height / 6).clamp(3, 8));
            layout.axis = take(1);
            layout.heading = take(1);
        }
        let above =
            [title, sentence, layout.warning, layout.ledger, layout.graph, layout.axis, layout.heading];
        let above: u16 = above.iter().map(|part| part.height).sum();
        let rest = size.height.saturating_sub(above + 1);
        match needs.view {
            View::Reasons => layout.guests = take(rest),
            View::Log => layout.log = take(rest),
            View::All => {
                let log = (size.height / 6).clamp(3, 12);
                let guests = u16::try_from(needs.guests.max(1)).unwrap_or(u16::MAX);
                layout.guests = take(guests.min(rest.saturating_sub(log + 1)));
                layout.rule = take(1);
                layout.log = take(rest.saturating_sub(layout.guests.height + 1));
            }
        }
        layout.keys = take(1);
        layout
    }

    /// The number of guests that are visible at a time.
    #[must_use]
    pub fn visible(&self) -> usize {
        usize::from(self.guests.height / self.row.max(1))
    }

    /// The place of what covers the screen.
    #[must_use]
    pub fn panel(&self) -> Rect {
        let Rect { width, height, .. } = self.screen;
        let wide = width.min(110);
        Rect { x: (width - wide) / 2, y: 1.min(height), width: wide, height: height.saturating_sub(2) }
    }

    /// The lines of text in it.
    #[must_use]
    pub fn panel_lines(&self) -> u16 {
        self.panel().height.saturating_sub(2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_overlaps_and_nothing_lies_outside() {
        for (width, height) in [(1, 1), (20, 5), (40, 10), (60, 16), (80, 24), (120, 40), (300, 100)] {
            for guests in [0, 1, 10, 1000] {
                for (view, warns) in [
                    (View::All, false),
                    (View::All, true),
                    (View::Reasons, false),
                    (View::Reasons, true),
                    (View::Log, true),
                ] {
                    let size = Size { width, height };
                    let l = Layout::of(size, Needs { view, guests, sentence: 90, warns });
                    let parts = [
                        l.title, l.sentence, l.ledger, l.warning, l.graph, l.axis, l.heading, l.guests,
                        l.rule, l.log, l.keys,
                    ];
                    let lines: u16 = parts.iter().map(|part| part.height).sum();
                    assert!(lines <= height, "{size:?} {guests} {l:?}");
                    assert!(parts.iter().all(|part| part.height == 0 || part.bottom() <= height));
                    if size.width >= WHOLE.width && height >= WHOLE.height {
                        assert_eq!(lines, height, "{size:?} {guests} {l:?}");
                        assert!(l.keys.height == 1 && l.visible() + usize::from(l.log.height) > 0);
                    }
                }
            }
        }
    }
}
