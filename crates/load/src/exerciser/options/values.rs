//! The values of options, and of commands.

use std::time::Duration;

use memtide_model::{Bytes, Share};

use super::super::content::{Form, PAGE, WORDS};
use super::super::schedule::{Rate, Shape, Step};
use super::{UsageError, wrong};

/// More threads than any machine has CPUs.
const MAX_THREADS: u64 = 1024;
/// The ratio of a heap if nobody says another one, in thousandths: measured heaps have 2.2 to 2.7 with LZO.
const HEAP: usize = 2_500;

/// A size of at least one page.
///
/// # Errors
/// If `text` is not such a size.
pub fn size(option: &'static str, text: &str) -> Result<Bytes, UsageError> {
    match text.parse::<Bytes>() {
        Ok(size) if size.get() < PAGE as u64 => Err(wrong(option, "write 4 KiB or more")),
        Ok(size) => Ok(size),
        Err(error) => Err(wrong(option, error)),
    }
}

/// A rate; `max` means as fast as possible.
///
/// # Errors
/// If `text` is not a rate.
pub fn rate(option: &'static str, text: &str) -> Result<Rate, UsageError> {
    if text == "max" { Ok(Rate::Unpaced) } else { per_second(option, text).map(Rate::PerSecond) }
}

fn per_second(option: &'static str, text: &str) -> Result<Bytes, UsageError> {
    text.strip_suffix("/s").unwrap_or(text).parse().map_err(|error| wrong(option, error))
}

/// A share; the percent sign is optional.
///
/// # Errors
/// If `text` is not a share.
pub fn share(option: &'static str, text: &str) -> Result<Share, UsageError> {
    let percent = if text.ends_with('%') { text.to_owned() } else { format!("{text}%") };
    percent.parse().map_err(|_| wrong(option, format!("`{text}` is no share: write 30%")))
}

fn number(option: &'static str, text: &str) -> Result<u64, UsageError> {
    whole(option, text).and_then(|n| if n == 0 { Err(wrong(option, "write at least 1")) } else { Ok(n) })
}

pub(super) fn threads(text: &str) -> Result<u64, UsageError> {
    match number("--threads", text)? {
        count if count > MAX_THREADS => Err(wrong("--threads", format!("at most {MAX_THREADS}"))),
        count => Ok(count),
    }
}

pub(super) fn whole(option: &'static str, text: &str) -> Result<u64, UsageError> {
    text.parse().map_err(|_| wrong(option, format!("`{text}` is no whole number")))
}

pub(super) fn stride(text: &str) -> Result<u64, UsageError> {
    let bytes = text.parse::<Bytes>().map_err(|error| wrong("--stride", error))?.get();
    if bytes.is_power_of_two() && (8..=PAGE as u64).contains(&bytes) {
        Ok(bytes)
    } else {
        Err(wrong("--stride", "write a power of two from 8 to 4096"))
    }
}

/// A time, such as `500ms`, `10s`, `5m` or `1h`; a number alone means seconds.
///
/// # Errors
/// If `text` is not a time.
pub fn time(option: &'static str, text: &str) -> Result<Duration, UsageError> {
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let millis = match unit {
        "ms" => 1,
        "" | "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => return Err(wrong(option, format!("`{text}` is no time: write 500ms, 10s, 5m or 1h"))),
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let no_time = || wrong(option, format!("`{text}` is no time: write 500ms, 10s, 5m or 1h"));
    if whole.is_empty() || fraction.len() > 9 || fraction.contains('.') {
        return Err(no_time());
    }
    let whole: u64 = whole.parse().map_err(|_| no_time())?;
    let fraction: u64 = format!("{fraction:0<9}").parse().map_err(|_| no_time())?;
    let nanos = u128::from(whole) * 1_000_000_000 + u128::from(fraction);
    let nanos = u64::try_from(nanos * millis / 1000).map_err(|_| no_time())?;
    Ok(Duration::from_nanos(nanos))
}

/// `PART:TOUCHES`.
///
/// # Errors
/// If `text` does not have this form.
pub fn hot(option: &'static str, text: &str) -> Result<(Share, Share), UsageError> {
    let (part, touches) = text.split_once(':').ok_or_else(|| wrong(option, "write it as in 20%:80%"))?;
    let (part, touches) = (share(option, part)?, share(option, touches)?);
    if part == Share::default() {
        return Err(wrong(option, "the hot part must be more than nothing"));
    }
    Ok((part, touches))
}

/// A shape, in the form that `--shape` takes.
///
/// # Errors
/// If `text` is not a shape, or its file cannot be read.
pub fn shape(option: &'static str, text: &str) -> Result<Shape, UsageError> {
    let parts: Vec<&str> = text.split(':').collect();
    match *parts.as_slice() {
        ["constant"] => Ok(Shape::Constant),
        ["square", busy, idle] => square(option, busy, idle, "0"),
        ["square", busy, idle, offset] => square(option, busy, idle, offset),
        ["ramp", over] => Ok(Shape::Ramp { over: time(option, over)? }),
        ["file", ..] => steps(option, &text["file:".len()..]),
        _ => Err(wrong(
            option,
            format!("`{text}` is none of constant, square:BUSY:IDLE[:OFFSET], ramp:TIME, file:PATH"),
        )),
    }
}

fn square(option: &'static str, busy: &str, idle: &str, offset: &str) -> Result<Shape, UsageError> {
    let (busy, idle, offset) = (time(option, busy)?, time(option, idle)?, time(option, offset)?);
    if busy.is_zero() || idle.is_zero() {
        return Err(wrong(option, "both parts of a square last for some time"));
    }
    Ok(Shape::Square { busy, idle, offset })
}

fn steps(option: &'static str, path: &str) -> Result<Shape, UsageError> {
    let text = std::fs::read_to_string(path).map_err(|error| wrong(option, format!("{path}: {error}")))?;
    let mut steps = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.split('#').next().unwrap_or_default().trim();
        if line.is_empty() {
            continue;
        }
        let at = |why: String| wrong(option, format!("{path}:{number}: {why}"));
        let [lasts, rate, size] = *line.split_whitespace().collect::<Vec<_>>().as_slice() else {
            return Err(at("write `seconds rate size`, as in `10 1GiB 512M`".to_owned()));
        };
        let step = Step {
            lasts: time(option, lasts).map_err(|error| at(error.to_string()))?,
            rate: per_second(option, rate).map_err(|error| at(error.to_string()))?,
            size: size.parse().map_err(|error: memtide_model::ParseBytesError| at(error.to_string()))?,
        };
        if step.lasts.is_zero() {
            return Err(at("it lasts for no time".to_owned()));
        }
        steps.push(step);
    }
    if steps.is_empty() {
        Err(wrong(option, format!("{path}: no line `seconds rate size`")))
    } else {
        Ok(Shape::Steps(steps))
    }
}

/// What the pages look like, from the values of `--content` and `--compress`.
pub(super) fn form(content: &str, compress: Option<&str>) -> Result<Form, UsageError> {
    let ratio = compress.map(thousandths).transpose()?;
    match content {
        "random" => {
            Ok(ratio
                .map_or(Form::RANDOM, |ratio| Form::Random { filled: (WORDS * 1000 + ratio / 2) / ratio }))
        }
        "zero" if ratio.is_none() => Ok(Form::ZERO),
        "zero" => Err(wrong("--compress", "it goes with --content random or heap")),
        "heap" => Form::heap(ratio.unwrap_or(HEAP))
            .ok_or_else(|| wrong("--compress", "a heap can have a ratio from 1.25 to 6: write 2.5")),
        _ => Err(wrong("--content", format!("`{content}` is none of random, zero, heap"))),
    }
}

/// A ratio in thousandths.
fn thousandths(text: &str) -> Result<usize, UsageError> {
    let why = || wrong("--compress", format!("`{text}` is no ratio from 1 to 64: write 2.5"));
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    if whole.is_empty() || fraction.len() > 3 {
        return Err(why());
    }
    let whole: usize = whole.parse().map_err(|_| why())?;
    let thousandths: usize = format!("{fraction:0<3}").parse().map_err(|_| why())?;
    let ratio = whole.saturating_mul(1000).saturating_add(thousandths);
    if (1_000..=64_000).contains(&ratio) { Ok(ratio) } else { Err(why()) }
}
