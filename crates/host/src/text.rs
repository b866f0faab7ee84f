//! The forms that kernel files share: numbers, `key value` lines, `Key: 123 kB` lines.

use memtide_model::Bytes;

use crate::ParseError;

/// The longest part of a wrong text that an error quotes, in characters.
const MAX_QUOTE: usize = 40;

/// A decimal number without a sign.
pub(crate) fn number(field: &'static str, text: &str) -> Result<u64, ParseError> {
    let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    digits.then(|| text.parse().ok()).flatten().ok_or_else(|| no_number(field, text))
}

/// A number of KiB with the unit that the kernel spells `kB`. The unit is required: it ends the line, so a truncated number is noticed.
pub(crate) fn kib(field: &'static str, text: &str) -> Result<Bytes, ParseError> {
    let digits = text.trim().strip_suffix("kB").ok_or_else(|| no_number(field, text))?;
    number(field, digits.trim_end()).map(Bytes::from_kib)
}

/// A path as `mountinfo` shows it, in plain characters. The kernel writes space, tab, newline and backslash as `\040`, `\011`, `\012` and `\134`.
pub(crate) fn unescape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((plain, escaped)) = rest.split_once('\\') {
        out.push_str(plain);
        let code = escaped.get(..3).and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match code {
            Some(code) if code.is_ascii() => {
                out.push(char::from(code));
                rest = &escaped[3..];
            }
            _ => {
                out.push('\\');
                rest = escaped;
            }
        }
    }
    out.push_str(rest);
    out
}

/// The value of the first `key value` line with this key.
pub(crate) fn value(field: &'static str, text: &str) -> Result<u64, ParseError> {
    optional(field, text)?.ok_or(ParseError::Missing(field))
}

/// The same for a line that only some kernels write.
pub(crate) fn optional(field: &'static str, text: &str) -> Result<Option<u64>, ParseError> {
    text.lines()
        .find_map(|line| line.strip_prefix(field)?.strip_prefix(' '))
        .map(|rest| number(field, rest.trim()))
        .transpose()
}

/// A text that consists of one number.
pub(crate) fn only(field: &'static str, text: &str) -> Result<u64, ParseError> {
    number(field, text.trim())
}

fn no_number(field: &'static str, text: &str) -> ParseError {
    let printable = |c: char| if c.is_control() { '?' } else { c };
    ParseError::NoNumber { field, text: text.trim().chars().take(MAX_QUOTE).map(printable).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_digits_only() {
        assert_eq!(number("x", "18446744073709551615"), Ok(u64::MAX));
        for text in ["", "-1", "+1", " 1", "1.5", "18446744073709551616", "0x10"] {
            assert!(number("x", text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_key_is_matched_as_a_whole() {
        let text = "total_rss_huge 1\ntotal_rss 2\n";
        assert_eq!(value("total_rss", text), Ok(2));
        assert_eq!(optional("rss", text), Ok(None));
        assert_eq!(value("rss", text), Err(ParseError::Missing("rss")));
    }

    #[test]
    fn a_cut_number_of_kib_is_refused() {
        assert_eq!(kib("x", "   24 kB"), Ok(Bytes::from_kib(24)));
        assert!(kib("x", "   24").is_err());
        assert_eq!(kib("x", "18446744073709551615 kB"), Ok(Bytes::MAX));
    }

    #[test]
    fn an_error_quotes_little() {
        let ParseError::NoNumber { text, .. } = number("x", &"y".repeat(500)).unwrap_err() else {
            panic!("another error")
        };
        assert_eq!(text.len(), MAX_QUOTE);
    }

    #[test]
    fn an_error_quotes_nothing_that_a_terminal_would_obey() {
        let error = number("x", "\u{1b}[31m\u{7}5").unwrap_err();
        assert_eq!(error.to_string(), "`x` is not a 64-bit number: `?[31m?5`");
    }
}
