//! Mistakes in a configuration file: each message is in our own words, at a byte of the text.

use std::fmt::{self, Display, Write as _};

use memtide_model::stays_in_line;
use toml::de::{DeTable, DeValue};

/// The longest message about a configuration, in characters.
const LONGEST_MESSAGE: usize = 300;
/// The longest quote from the file in a message, in characters.
const LONGEST_QUOTE: usize = 40;

/// A mistake at a place.
#[derive(Debug)]
pub(crate) struct Mistake {
    at: usize,
    message: String,
}

impl Mistake {
    /// A mistake with `message` at the byte `at`.
    pub(crate) fn new(at: usize, message: impl Into<String>) -> Self {
        Self { at, message: message.into() }
    }

    /// The mistake for a parser error of a text that is not TOML.
    pub(crate) fn of_toml(text: &str, error: &toml::de::Error) -> Self {
        if let Some(at) = open_quotes(text, error) {
            return Self::new(at, "these quotes are not closed on their line: write \" after the text");
        }
        let span = error.span().unwrap_or(0..0);
        let message = match error.message() {
            "duplicate key" => twice(text, span.start, text.get(span.clone()).unwrap_or_default()),
            said if said.starts_with("string values must be quoted") => no_value(&text[span.start..]),
            said if said.starts_with("key with no value") => {
                "this line sets nothing: write KEY = VALUE, as in mode = \"manage\"".to_owned()
            }
            said => format!("not valid TOML: {said}"),
        };
        Self::new(span.start, message)
    }

    /// Its line and column in `text`, counted from 1, and the message on one line.
    pub(crate) fn explain(self, text: &str) -> (usize, usize, String) {
        let (line, column) = position(text, self.at);
        (line, column, shown(&self.message, LONGEST_MESSAGE))
    }
}

/// Line and column of a byte.
fn position(text: &str, byte: usize) -> (usize, usize) {
    let before = text.get(..byte).unwrap_or(text);
    let line = before.matches('\n').count() + 1;
    let column = before.rsplit('\n').next().map_or(0, |last| last.chars().count()) + 1;
    (line, column)
}

/// The end of the line with an unclosed text. The parser may first report an error in the lines after it.
fn open_quotes(text: &str, error: &toml::de::Error) -> Option<usize> {
    let is_open = |error: &toml::de::Error| {
        ["invalid basic string", "invalid literal string"]
            .iter()
            .any(|what| error.message().starts_with(what))
    };
    let at = error.span()?.start;
    if is_open(error) {
        return Some(at);
    }
    let (before, _) = text.get(..at)?.rsplit_once('\n')?;
    let earlier = DeTable::parse(before).err().filter(is_open)?;
    earlier.span().map(|span| span.start)
}

/// The message for `rest`, which stands where a value should be.
fn no_value(rest: &str) -> String {
    let word = rest.split(['\n', '#', ',', ']', '}']).next().unwrap_or_default().trim();
    let bare = word.trim_matches(['"', '\'', '“', '”', '„', '‘', '’', '«', '»']);
    match bare {
        "" => "a value is missing: write one, as in mode = \"manage\"".to_owned(),
        "yes" | "no" | "on" | "off" => format!("{bare} is not a value: write true or false"),
        _ => format!("{} is not a value: put text in quotes: write {}", short(word), Quoted(bare)),
    }
}

/// The message for `key`, which appears a second time at the byte `at`.
fn twice(text: &str, at: usize, key: &str) -> String {
    let line_begins = text[..at].rfind('\n').map_or(0, |end| end + 1);
    let header = text[line_begins..].lines().next().unwrap_or_default().trim();
    let (what, before) = match header.starts_with('[') {
        true => (short(header), line_begins),
        false => (format!("`{}`", short(key)), at),
    };
    let fix = match header.trim_matches(['[', ']']) {
        "guest" => "write [[guest]] with two brackets on each side before the keys of each guest",
        "libvirt" => "write [[libvirt]] with two brackets on each side before the keys of each daemon",
        name if name.starts_with("class") => "put the keys of both below one, or use another name",
        _ if header.starts_with('[') => "put the keys of both below one",
        _ => "keep one of the two",
    };
    let (whole, _) = DeTable::parse_recoverable(&text[..before]);
    let name = key.trim_matches(['"', '\'']);
    let first = last_key(whole.get_ref(), name).map(|byte| position(text, byte).0);
    let first = first.map_or_else(String::new, |line| format!(", first on line {line}"));
    format!("{what} appears twice{first}: {fix}")
}

/// The first byte of the last key `name` in `table` and all tables in it.
fn last_key(table: &DeTable<'_>, name: &str) -> Option<usize> {
    let in_value = |value: &DeValue<'_>| match value {
        DeValue::Table(table) => last_key(table, name),
        DeValue::Array(array) => {
            array.iter().filter_map(|value| last_key(value.get_ref().as_table()?, name)).max()
        }
        _ => None,
    };
    let found = table.iter().filter_map(|(key, value)| {
        let here = (key.get_ref() == name).then(|| key.span().start);
        here.max(in_value(value.get_ref()))
    });
    found.max()
}

/// The word of `known` that was probably meant: at most every third letter of it differs.
pub(crate) fn meant<'k>(written: &str, known: &[&'k str]) -> Option<&'k str> {
    let written = written.to_lowercase().replace('-', "_");
    let distance = |word: &str| strsim::damerau_levenshtein(&written, word);
    let near = known.iter().filter(|word| distance(word) <= (word.chars().count() / 3).max(1));
    near.min_by_key(|word| distance(word)).copied()
}

/// A quote from the file in a message: in quotes, short, on one line.
pub(crate) struct Quoted<'t>(pub(crate) &'t str);

impl Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", short(self.0))
    }
}

/// The first characters of a text of the file, on one line.
pub(crate) fn short(text: &str) -> String {
    shown(text, LONGEST_QUOTE)
}

/// A key in TOML: bare, or in quotes if it needs them.
pub(crate) fn key(name: &str) -> String {
    let is_bare = !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || "-_".contains(c));
    if is_bare { short(name) } else { Quoted(name).to_string() }
}

/// At most `most` characters; a character that a terminal would obey is escaped.
fn shown(text: &str, most: usize) -> String {
    let mut out = String::new();
    for (number, c) in text.chars().enumerate() {
        if number == most {
            out.push('…');
            break;
        }
        if stays_in_line(c) {
            out.push(c);
        } else {
            let _infallible = write!(out, "{}", c.escape_unicode());
        }
    }
    out
}
