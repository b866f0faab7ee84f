//! Texts from outside, in lines that a person reads or copies into a shell or a file.
//!
//! Names of guests, paths and messages come from the people who start guests. A terminal must not obey them, and a copied
//! line must mean what it shows.

use std::fmt::Write as _;

/// The text as one word of a shell.
pub(crate) fn shell(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:@%+=,".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        return text.to_owned();
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// The text as a string of TOML or JSON.
pub(crate) fn string(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            // All control characters have at most four digits.
            c if c.is_control() => {
                let _infallible = write!(out, "\\u{:04x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// The text as a part of a file's name.
pub(crate) fn file_name(text: &str) -> String {
    let kept = |c: char| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '_' };
    text.chars().map(kept).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_stays_one_word_of_a_shell() {
        assert_eq!(shell("web1.example"), "web1.example");
        assert_eq!(shell("a b; rm -rf $HOME"), "'a b; rm -rf $HOME'");
        assert_eq!(shell("it's"), r"'it'\''s'");
        assert_eq!(shell(""), "''");
        assert_eq!(string("a\"b\\c\n"), r#""a\"b\\c\u000a""#);
        assert_eq!(file_name("../a b"), ".._a_b");
    }
}
