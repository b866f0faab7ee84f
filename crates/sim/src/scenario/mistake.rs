//! Mistakes in a scenario file, and their positions.

use std::fmt;
use std::ops::Range;

use memtide_model::printable;

/// A mistake in a scenario: its line and column, counted from 1, and what to write instead.
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
        write!(f, "{}:{}: {}", self.line, self.column, printable(&self.message))
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
        let known =
            unknown_key(said).or_else(|| missing_key(said)).or_else(|| one_bracket(text, &span, said));
        let message = known.unwrap_or_else(|| {
            let key = key_of_line(text, span.start);
            let found = text.get(span.clone()).unwrap_or_default();
            let said = number(said, found)
                .or_else(|| wrong_type(said, &key, found))
                .unwrap_or_else(|| said.lines().next().unwrap_or_default().to_owned());
            if key.is_empty() { said } else { format!("{key}: {said}") }
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

/// `[guest]` instead of `[[guest]]`.
fn one_bracket(text: &str, span: &Range<usize>, said: &str) -> Option<String> {
    let head = text.get(span.start..)?.strip_prefix('[')?.split(']').next()?;
    let is_wanted = said.starts_with("invalid type: map, expected a sequence");
    is_wanted.then(|| format!("write [[{head}]]: there can be several"))
}

/// What to write instead of the number that was `found`.
fn number(said: &str, found: &str) -> Option<String> {
    let most = match said {
        _ if said.ends_with("u64") => u64::MAX,
        _ if said.ends_with("u32") => u32::MAX.into(),
        _ => return None,
    };
    let is_whole = !found.is_empty() && found.bytes().all(|byte| byte.is_ascii_digit() || byte == b'_');
    Some(match is_whole {
        true => format!("{found} is too large: {most} is the most"),
        false => "write a whole number, 0 or more".to_owned(),
    })
}

/// What to write instead of a value of another type.
fn wrong_type(said: &str, key: &str, found: &str) -> Option<String> {
    if said.starts_with("wanted string or table") {
        return Some(format!("write it in quotes: {key} = \"{found}\""));
    }
    let (is, expected) = said.lines().next()?.strip_prefix("invalid type: ")?.split_once(", expected ")?;
    let is_short = !found.contains('\n') && found.len() <= 40;
    Some(match expected {
        "a sequence" if matches!(key, "guest" | "fault" | "keep") => {
            format!("write [[{key}]] and its keys below it")
        }
        "a sequence" if is_short => format!("write a list: {key} = [{found}]"),
        "a sequence" if is.starts_with("map") => format!("write a list: {key} = [{{ ... }}]"),
        "a sequence" => "write a list in brackets".to_owned(),
        "a string" if is_short => format!("write it in quotes: {key} = \"{found}\""),
        "a string" => "write a text in quotes".to_owned(),
        "f64" => "write a number, 0 or more".to_owned(),
        "a boolean" => "write true or false, without quotes".to_owned(),
        "a map" => format!("write a table: [{key}] and its keys below it"),
        _ => return None,
    })
}

/// The key of the line that the byte `at` is in.
fn key_of_line(text: &str, at: usize) -> String {
    let before = text.get(..at).unwrap_or_default();
    let line = before.rsplit('\n').next().unwrap_or_default();
    let assigned = line.rsplit([',', '{']).next().unwrap_or_default();
    assigned.split_once('=').map_or_else(String::new, |(key, _)| key.trim().to_owned())
}
