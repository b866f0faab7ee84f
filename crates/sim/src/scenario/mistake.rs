//! Mistakes in a scenario file, and their places.

use std::fmt;
use std::ops::Range;

/// A mistake in a scenario: its line and column, counted from 1, and the correction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistake {
    /// The line.
    pub line: usize,
    /// The column.
    pub column: usize,
    /// The mistake and its correction, in one line.
    pub message: String,
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.line, self.column, self.message)
    }
}

impl Mistake {
    /// A mistake at `span` in `text`, with this `message`.
    pub(crate) fn at(text: &str, span: &Range<usize>, message: impl Into<String>) -> Self {
        let before = text.get(..span.start).unwrap_or(text);
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().map_or(0, |last| last.chars().count()) + 1;
        Self { line, column, message: message.into() }
    }

    /// The parser's error in our words.
    pub(crate) fn of(text: &str, error: &toml::de::Error) -> Self {
        let span = error.span().unwrap_or(0..0);
        let said = error.message();
        let message = unknown_key(said).or_else(|| missing_key(said)).unwrap_or_else(|| {
            let key = key_of_line(text, span.start);
            let is_number = ["u64", "u32", "usize"].iter().any(|kind| said.ends_with(kind));
            let said = if is_number { "write a whole number, 0 or more" } else { said };
            let said = said.lines().next().unwrap_or_default();
            if key.is_empty() { said.to_owned() } else { format!("{key}: {said}") }
        });
        Self::at(text, &span, message)
    }
}

/// "unknown field `x`, expected one of `a`, `b`" in plain words.
fn unknown_key(said: &str) -> Option<String> {
    let is_kind = said.starts_with("unknown variant");
    let rest = said.strip_prefix("unknown field `").or_else(|| said.strip_prefix("unknown variant `"))?;
    let (found, expected) = rest.split_once('`')?;
    let known: Vec<&str> = expected.split('`').skip(1).step_by(2).collect();
    let what = if is_kind { "value" } else { "key" };
    let nearest = known.iter().map(|key| (strsim::jaro_winkler(key, found), *key));
    let nearest = nearest.max_by(|a, b| a.0.total_cmp(&b.0)).filter(|(near, _)| *near > 0.75);
    Some(match nearest {
        Some((_, key)) => format!("unknown {what} `{found}`: did you mean `{key}`?"),
        None => format!("unknown {what} `{found}`: write one of {}", known.join(", ")),
    })
}

fn missing_key(said: &str) -> Option<String> {
    let key = said.strip_prefix("missing field `")?.strip_suffix('`')?;
    Some(format!("the key `{key}` is missing"))
}

/// The key in the line that contains the byte `at`.
fn key_of_line(text: &str, at: usize) -> String {
    let before = text.get(..at).unwrap_or_default();
    let line = before.rsplit('\n').next().unwrap_or_default();
    let assigned = line.rsplit([',', '{']).next().unwrap_or_default();
    assigned.split_once('=').map_or_else(String::new, |(key, _)| key.trim().to_owned())
}
