//! Colours, only on a terminal, and not if `NO_COLOR` is set.

use std::io::IsTerminal;

/// Whether to write colours.
#[derive(Clone, Copy, Debug)]
pub struct Style {
    colour: bool,
}

impl Style {
    /// Colours if standard output is a terminal and `NO_COLOR` is not set.
    pub fn detect() -> Self {
        let wanted = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        Self { colour: wanted && std::io::stdout().is_terminal() }
    }

    /// No colours.
    pub const fn plain() -> Self {
        Self { colour: false }
    }

    fn paint(self, code: &str, text: &str) -> String {
        if self.colour { format!("\u{1b}[{code}m{text}\u{1b}[0m") } else { text.to_owned() }
    }

    /// For headings.
    pub fn bold(self, text: &str) -> String {
        self.paint("1", text)
    }

    /// For minor details.
    pub fn dim(self, text: &str) -> String {
        self.paint("2", text)
    }

    /// For a good state.
    pub fn good(self, text: &str) -> String {
        self.paint("32", text)
    }

    /// For things that need a look.
    pub fn warn(self, text: &str) -> String {
        self.paint("33", text)
    }

    /// For problems.
    pub fn bad(self, text: &str) -> String {
        self.paint("31", text)
    }

    /// For guest memory.
    pub fn guests(self, text: &str) -> String {
        self.paint("36", text)
    }
}
