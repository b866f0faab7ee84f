//! Makes texts from outside fit for one line of a log or a journal.

use std::error::Error;

use memtide_model::stays_in_line;

/// The longest text that is kept, in characters.
const LONGEST: usize = 300;

/// `text` in one line of at most 300 characters. Characters that would not stay in the line become spaces; the rest is cut.
pub(crate) fn one_line(text: &str) -> String {
    text.chars().map(|c| if stays_in_line(c) { c } else { ' ' }).take(LONGEST).collect()
}

/// An error and its causes in one line.
#[must_use]
pub fn with_causes(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    one_line(&text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_becomes_one_bounded_line() {
        assert_eq!(one_line("a\nb\u{1b}[0m"), "a b [0m");
        assert_eq!(one_line(&"ö".repeat(1000)).chars().count(), LONGEST);
    }
}
