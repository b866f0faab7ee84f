//! What is wrong in a configuration file, and where: line and column, counted from 1.

use toml::de::{DeTable, DeValue};

/// The longest message about a configuration, in characters: it can quote what was written.
const LONGEST_MESSAGE: usize = 500;

/// Values that do not go together, or that mean nothing.
#[derive(Debug)]
pub(super) struct Mistake {
    /// The way to the key, from the top; empty for the whole file.
    keys: Vec<String>,
    message: String,
}

impl Mistake {
    pub(super) fn at(keys: &[&str], message: impl Into<String>) -> Self {
        Self { keys: keys.iter().map(|&key| key.to_owned()).collect(), message: message.into() }
    }

    /// Its line and column in `text`, and the message with the key in front.
    pub(super) fn explain(self, text: &str) -> (usize, usize, String) {
        let (line, column) = position(text, place(text, &self.keys));
        (line, column, format!("{}: {}", self.keys.join("."), self.message))
    }
}

/// The first byte of the key at the end of `keys`, or of the last one on the way that is there. An element of an array is
/// named by its number, from 0.
fn place(text: &str, keys: &[String]) -> usize {
    let Ok(table) = DeTable::parse(text) else { return 0 };
    let mut begins = 0;
    let mut value = DeValue::Table(table.into_inner());
    for key in keys {
        let next = match value {
            DeValue::Table(table) => table
                .into_iter()
                .find(|(name, _)| name.get_ref() == key)
                .map(|(name, value)| (name.span().start, value.into_inner())),
            DeValue::Array(array) => key
                .parse()
                .ok()
                .and_then(|index: usize| array.into_iter().nth(index))
                .map(|value| (value.span().start, value.into_inner())),
            _ => None,
        };
        let Some((start, inner)) = next else { break };
        (begins, value) = (start, inner);
    }
    begins
}

/// Line and column of a byte.
pub(super) fn position(text: &str, byte: usize) -> (usize, usize) {
    let before = text.get(..byte).unwrap_or(text);
    let line = before.matches('\n').count() + 1;
    let column = before.rsplit('\n').next().map_or(0, |last| last.chars().count()) + 1;
    (line, column)
}

/// The message of the parser, with the nearest known name in front of all that are expected.
pub(super) fn explain(message: &str) -> String {
    let quoted: Vec<&str> = message.split('`').skip(1).step_by(2).collect();
    let what = match message {
        _ if message.starts_with("unknown field") => "key",
        _ if message.starts_with("unknown variant") => "value",
        _ => return message.to_owned(),
    };
    match quoted.split_first() {
        Some((unknown, known)) if !known.is_empty() => {
            let nearest = known.iter().min_by_key(|key| strsim::damerau_levenshtein(unknown, key));
            let nearest = nearest.copied().unwrap_or_default();
            format!("unknown {what} `{unknown}`: did you mean `{nearest}`? (known: {})", known.join(", "))
        }
        _ => message.to_owned(),
    }
}

/// A message that a terminal shows as it is, whatever it quotes.
pub(super) fn one_line(message: &str) -> String {
    let mut chars = message.chars().map(|c| if c.is_control() { ' ' } else { c });
    let mut line: String = chars.by_ref().take(LONGEST_MESSAGE).collect();
    if chars.next().is_some() {
        line.push('…');
    }
    line
}
