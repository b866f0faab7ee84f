//! Values in a scenario: sizes (`"150 MiB"`), rates (`"20 MiB/s"`), times (`"90s"`, `"2h"`) and shares (`"20%"`).

use std::time::Duration;

use memtide_model::{Bytes, ParseBytesError, Span};
use serde::{Deserialize, Deserializer, de::Error};

/// A size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Size(pub(crate) Bytes);

/// A rate, in bytes a second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rate(pub(crate) u64);

/// A time from the beginning, or a length of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Time(pub(crate) Span);

/// Thousandths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PerMille(pub(crate) u64);

/// How many times as large as something else, in thousandths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Times(pub(crate) u64);

/// A size, or `"full"`: all memory that there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SizeOrFull {
    Size(Bytes),
    Full,
}

/// The longest time in a scenario: a year.
const LONGEST: Duration = Duration::from_secs(366 * 24 * 3_600);
/// The shortest run. Shorter ones show nothing.
const SHORTEST_RUN: Span = Span::from_secs(1);
/// The least memory of a host or a guest: a kernel needs this much.
const LEAST_MEMORY: Bytes = Bytes::from_mib(64);
/// Memory compresses at most this well: a page of zeros takes no more than a word.
const MOST_TIMES: f64 = 512.0;
/// The largest size and rate: 1 PiB.
const LARGEST: u64 = 1 << 50;

/// A quoted text. A common slip is a number without quotes.
fn text<'de, D: Deserializer<'de>>(deserializer: D, example: &str) -> Result<String, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Value {
        Text(String),
        Number(i64),
        Fraction(f64),
        Other(serde::de::IgnoredAny),
    }
    match Value::deserialize(deserializer)? {
        Value::Text(text) => Ok(text),
        Value::Number(0) => Ok("0".to_owned()),
        Value::Number(number) => Err(Error::custom(format!("{number} has no unit: write {example}"))),
        Value::Fraction(number) => Err(Error::custom(format!("{number} has no unit: write {example}"))),
        Value::Other(_) => Err(Error::custom(format!("write {example}"))),
    }
}

/// A size with its unit.
pub(super) fn size(text: &str) -> Result<Bytes, String> {
    match Bytes::with_unit(text) {
        Ok(bytes) if bytes.get() <= LARGEST => Ok(bytes),
        Ok(_) => Err(format!("\"{text}\" is too large: write at most 1 PiB")),
        Err(ParseBytesError::NoUnit(number)) => {
            Err(format!("\"{number}\" has no unit: write a size such as \"{number} MiB\""))
        }
        Err(error) => Err(error.to_string()),
    }
}

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = text(deserializer, "a size such as \"150 MiB\"")?;
        size(&text).map(Self).map_err(Error::custom)
    }
}

/// The memory of a host or a guest.
pub(crate) fn memory<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Size>, D::Error> {
    let Size(bytes) = Size::deserialize(deserializer)?;
    if bytes < LEAST_MEMORY {
        return Err(Error::custom(format!("{bytes} is too small: write at least {LEAST_MEMORY}")));
    }
    Ok(Some(Size(bytes)))
}

/// The length of a run.
pub(crate) fn length<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Time, D::Error> {
    let Time(span) = Time::deserialize(deserializer)?;
    if span < SHORTEST_RUN {
        return Err(Error::custom(format!("{span} is too short: write at least {SHORTEST_RUN}")));
    }
    Ok(Time(span))
}

impl<'de> Deserialize<'de> for SizeOrFull {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = text(deserializer, "a size such as \"150 MiB\", or \"full\"")?;
        match text.as_str() {
            "full" => Ok(Self::Full),
            _ => size(&text).map(Self::Size).map_err(Error::custom),
        }
    }
}

impl<'de> Deserialize<'de> for Rate {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = text(deserializer, "a rate such as \"20 MiB/s\"")?;
        let per_second = text.strip_suffix("/s").map(str::trim_end);
        match per_second {
            Some(bytes) => size(bytes).map(|bytes| Self(bytes.get())).map_err(Error::custom),
            None if text == "0" => Ok(Self(0)),
            None => Err(Error::custom(format!("\"{text}\" is not a rate: write \"20 MiB/s\""))),
        }
    }
}

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = text(deserializer, "a time such as \"90s\", \"10m\" or \"2h\"")?;
        let duration = match text.as_str() {
            "0" => Duration::ZERO,
            _ => humantime::parse_duration(&text).map_err(|_| {
                Error::custom(format!("\"{text}\" is not a time: write \"90s\", \"10m\" or \"2h\""))
            })?,
        };
        if duration > LONGEST {
            return Err(Error::custom(format!("\"{text}\" is too long: write at most a year")));
        }
        Ok(Self(duration.into()))
    }
}

impl<'de> Deserialize<'de> for Times {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "1 to 512, in thousandths")]
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let times = f64::deserialize(deserializer)?;
        if !(1.0..=MOST_TIMES).contains(&times) {
            return Err(Error::custom(format!("write a number from 1 to {MOST_TIMES}, as in 2.5")));
        }
        Ok(Self((times * 1_000.0).round() as u64))
    }
}

impl<'de> Deserialize<'de> for PerMille {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = text(deserializer, "a share such as \"98%\"")?;
        let wrong = || Error::custom(format!("\"{text}\" is not a share: write \"98%\" or \"97.5%\""));
        let percent = text.strip_suffix('%').ok_or_else(wrong)?.trim_end();
        let (whole, tenth) = percent.split_once('.').unwrap_or((percent, "0"));
        let digits = |text: &str| text.len() <= 4 && text.bytes().all(|byte| byte.is_ascii_digit());
        if !digits(whole) || !digits(tenth) || tenth.len() != 1 {
            return Err(wrong());
        }
        let whole: u64 = whole.parse().map_err(|_| wrong())?;
        let tenth: u64 = tenth.parse().map_err(|_| wrong())?;
        Ok(Self(whole * 10 + tenth))
    }
}
