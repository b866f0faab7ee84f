//! The colours of this terminal.

use memtide_model::{Colour, HostPart, SizePart};
use ratatui::style::{Color, Modifier, Style};

/// The colours that a terminal shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Theme {
    /// None; bold and reversed texts stay.
    Plain,
    /// The terminal's own sixteen.
    Sixteen,
    /// Any.
    True,
}

impl Theme {
    /// The theme for the environment: `no_color` (`NO_COLOR`), `color_term` (`COLORTERM`) and `term` (`TERM`).
    #[must_use]
    pub fn of(no_color: Option<&str>, color_term: Option<&str>, term: Option<&str>) -> Self {
        if no_color.is_some_and(|value| !value.is_empty()) || term == Some("dumb") {
            return Self::Plain;
        }
        match color_term {
            Some("truecolor" | "24bit") => Self::True,
            _ => Self::Sixteen,
        }
    }

    /// Whether it has colours.
    #[must_use]
    pub fn has_colours(self) -> bool {
        self != Self::Plain
    }

    /// This colour on this terminal; `None` without colours.
    #[must_use]
    pub fn colour(self, colour: Colour) -> Option<Color> {
        let [red, green, blue] = colour.rgb;
        match self {
            Self::Plain => None,
            Self::Sixteen => Some(ANSI[usize::from(colour.ansi & 15)]),
            Self::True => Some(Color::Rgb(red, green, blue)),
        }
    }

    fn paint(self, colour: Colour) -> Style {
        self.colour(colour).map_or_else(Style::new, |colour| Style::new().fg(colour))
    }

    /// For a part of a guest's size.
    pub(super) fn size(self, part: SizePart) -> Style {
        self.paint(part.colour())
    }

    /// For a part of the host's memory.
    pub(super) fn host(self, part: HostPart) -> Style {
        self.paint(part.colour())
    }

    /// The same as a background.
    pub(super) fn behind(self, part: HostPart) -> Style {
        self.colour(part.colour()).map_or_else(Style::new, |colour| Style::new().bg(colour))
    }

    fn ansi(self, colour: Color) -> Style {
        if self.has_colours() { Style::new().fg(colour) } else { Style::new() }
    }

    /// For problems.
    pub(super) fn bad(self) -> Style {
        self.ansi(Color::Red).add_modifier(Modifier::BOLD)
    }

    /// For things that need a look.
    pub(super) fn warn(self) -> Style {
        self.ansi(Color::Yellow)
    }

    /// For a good state.
    pub(super) fn good(self) -> Style {
        self.ansi(Color::Green)
    }

    /// For minor details.
    pub(super) fn dim(self) -> Style {
        if self.has_colours() { Style::new().add_modifier(Modifier::DIM) } else { Style::new() }
    }

    /// For headings.
    pub(super) fn bold(self) -> Style {
        Style::new().add_modifier(Modifier::BOLD)
    }
}

/// A terminal's sixteen colours, by number.
const ANSI: [Color; 16] = [
    Color::Black,
    Color::Red,
    Color::Green,
    Color::Yellow,
    Color::Blue,
    Color::Magenta,
    Color::Cyan,
    Color::Gray,
    Color::DarkGray,
    Color::LightRed,
    Color::LightGreen,
    Color::LightYellow,
    Color::LightBlue,
    Color::LightMagenta,
    Color::LightCyan,
    Color::White,
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_follow_the_terminal() {
        assert_eq!(Theme::of(Some("1"), Some("truecolor"), None), Theme::Plain);
        assert_eq!(Theme::of(Some(""), Some("truecolor"), None), Theme::True);
        assert_eq!(Theme::of(None, None, Some("xterm")), Theme::Sixteen);
        assert_eq!(Theme::of(None, None, Some("dumb")), Theme::Plain);
        assert_eq!(Theme::Plain.size(SizePart::Used), Style::new());
        assert_eq!(Theme::Sixteen.size(SizePart::Used).fg, Some(Color::Cyan));
    }
}
