//! The parts of outside texts that may be shown.

use std::fmt::Write as _;

/// Whether a terminal shows this character within its line and does not obey it. Control characters, ends of lines and
/// paragraphs, and characters that change the writing direction do not qualify.
#[must_use]
pub fn stays_in_line(c: char) -> bool {
    !c.is_control()
        && !matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// The text without anything that a terminal obeys or hides. Control characters, invisible characters and changes of the writing
/// direction are written as `\u{…}`.
#[must_use]
pub fn printable(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() || is_hidden(c) {
            let _infallible = write!(out, "{}", c.escape_unicode());
        } else {
            out.push(c);
        }
    }
    out
}

/// The characters that Unicode calls default ignorable (`DerivedCoreProperties.txt`), and all blanks but the space: two names that differ in one of
/// these look the same.
fn is_hidden(c: char) -> bool {
    let is_ignorable = matches!(c, '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}'..='\u{1160}' | '\u{17b4}'..='\u{17b5}'
        | '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{3164}'
        | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{ffa0}' | '\u{fff0}'..='\u{fffb}' | '\u{1bca0}'..='\u{1bca3}'
        | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e0fff}');
    is_ignorable || (c.is_whitespace() && c != ' ') || c == '\u{2800}'
}

/// `count` things, as in `1 kill` and `2 kills`.
#[must_use]
pub fn counted(count: u64, thing: &str) -> String {
    if count == 1 { format!("1 {thing}") } else { format!("{count} {thing}s") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_obeys_and_hides_nothing() {
        assert_eq!(printable("a\u{1b}[31mb\nc\u{202e}d é"), "a\\u{1b}[31mb\\u{a}c\\u{202e}d é");
    }

    #[test]
    fn names_that_look_the_same_are_told_apart() {
        for hidden in [
            '\u{200b}',
            '\u{34f}',
            '\u{fe0f}',
            '\u{e0041}',
            '\u{a0}',
            '\u{2003}',
            '\u{3000}',
            '\u{3164}',
            '\u{2800}',
        ] {
            let shown = printable(&format!("web{hidden}1"));
            assert_eq!(shown, format!("web\\u{{{:x}}}1", u32::from(hidden)));
        }
        assert_eq!(printable("Gast 7 «ö» 客 🐧"), "Gast 7 «ö» 客 🐧");
    }

    #[test]
    fn what_a_terminal_would_obey_is_told_from_text() {
        assert!("Gast 7 «ö» 客".chars().all(stays_in_line));
        let obeyed = "\u{1b}\u{7}\n\r\t\u{7f}\u{9b}\u{85}\u{2028}\u{2029}\u{202a}\u{202e}\u{2066}\u{2069}\u{200e}\u{200f}\u{61c}";
        assert!(!obeyed.chars().any(stays_in_line));
    }

    #[test]
    fn one_thing_has_no_plural() {
        assert_eq!([0, 1, 2].map(|count| counted(count, "kill")), ["0 kills", "1 kill", "2 kills"]);
    }
}
