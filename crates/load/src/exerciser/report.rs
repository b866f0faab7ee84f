//! The exerciser's output: a line each second, and a summary.

use std::fmt::Write as _;
use std::io::{self, Write};
use std::time::Duration;

use memtide_model::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::content::Mismatch;
use super::latency::Latency;
use super::options::Output;

/// If more than one in this many due bytes is missing, the rate was not reached.
const MISSED_ONE_IN: u64 = 1000;

/// The work of one second.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Second {
    /// Seconds since the first touch.
    pub at: f64,
    /// Bytes that can be touched.
    pub filled_bytes: u64,
    /// Bytes touched since the first touch.
    pub touched_bytes: u64,
    /// Bytes that were due in this second; `None` without a rate.
    pub asked_bytes_per_s: Option<u64>,
    /// Bytes touched.
    pub reached_bytes_per_s: u64,
    /// Bytes written, as a part of the bytes touched.
    pub written_bytes_per_s: u64,
    /// The duration of touches, in nanoseconds.
    pub latency_ns: Latency,
    /// Faults that had to read from a device.
    pub major_faults: u64,
    /// Microseconds in which some task of the machine stalled for memory; `None` without PSI.
    pub psi_some_us: Option<u64>,
}

/// Why the run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ended {
    /// It is still running.
    Running,
    /// Everything requested is done.
    Done,
    /// By a signal.
    Interrupted,
    /// By the command `stop`, or because the commands ended.
    Stopped,
}

/// All work of a run. Bytes count touches; see `--stride`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// The version of this object's format: 1.
    pub schema: u32,
    /// The version of the program.
    pub version: String,
    /// Why the run ended.
    pub ended: Ended,
    /// The size of the memory at the end.
    pub size_bytes: u64,
    /// The bytes that one touch counts as.
    pub stride_bytes: u64,
    /// The number of threads.
    pub threads: u64,
    /// The seed of the content.
    pub seed: u64,
    /// The instance of the content.
    pub instance: u64,
    /// The time from the first touch to the last one that was due.
    pub seconds: f64,
    /// The time for filling the memory before the first touch.
    pub fill_seconds: f64,
    /// Bytes that were due; `None` without a rate.
    pub asked_bytes: Option<u64>,
    /// Bytes touched.
    pub touched_bytes: u64,
    /// Bytes written, as a part of the bytes touched.
    pub written_bytes: u64,
    /// The average rate of touches.
    pub reached_bytes_per_s: u64,
    /// Bytes that were due and were not touched.
    pub missed_bytes: u64,
    /// The duration of touches, in nanoseconds.
    pub latency_ns: Latency,
    /// Faults that had to read from a device.
    pub major_faults: u64,
    /// CPU time of all threads, without filling.
    pub cpu_seconds: f64,
    /// Microseconds in which some task of the machine stalled for memory; `None` without PSI.
    pub psi_some_us: Option<u64>,
    /// Bytes compared with their expected content, and read for it; `None` without `--verify`.
    pub checked_bytes: Option<u64>,
    /// Depends on all checked bytes. For pages that were never written, it follows from the seed
    /// ([`super::content::Content::checksum`]).
    pub checksum: Option<u64>,
    /// Words that differ from their expected value.
    pub errors: u64,
    /// The first of these words.
    pub described: Vec<Mismatch>,
}

impl Summary {
    /// Whether the run reached the requested rate.
    #[must_use]
    pub const fn reached(&self) -> bool {
        match self.asked_bytes {
            Some(asked) => self.missed_bytes <= asked / MISSED_ONE_IN,
            None => true,
        }
    }
}

/// Writes the output in the requested form.
#[derive(Debug)]
pub struct Reporter<W> {
    output: Output,
    out: W,
    /// The filled bytes in the last message.
    filled: u64,
}

impl<W: Write> Reporter<W> {
    /// A reporter that writes to `out`.
    pub const fn new(output: Output, out: W) -> Self {
        Self { output, out, filled: 0 }
    }

    /// Reports progress in filling.
    ///
    /// # Errors
    /// If nobody reads the output.
    pub fn filling(&mut self, filled: Bytes, of: Bytes) -> io::Result<()> {
        match self.output {
            Output::Text => writeln!(self.out, "   fills  {filled} of {of}"),
            Output::Lines => self.line(&json!({ "filling": { "bytes": filled.get() } })),
            Output::Quiet | Output::Json => Ok(()),
        }
    }

    /// Reports that the memory is filled.
    ///
    /// # Errors
    /// If nobody reads the output.
    pub fn filled(&mut self, bytes: Bytes, took: Duration) -> io::Result<()> {
        self.filled = bytes.get();
        match self.output {
            Output::Text => writeln!(self.out, "   holds  {bytes}, filled in {:.1} s", took.as_secs_f64()),
            Output::Lines => {
                self.line(&json!({ "filled": { "bytes": bytes.get(), "seconds": took.as_secs_f64() } }))
            }
            Output::Quiet | Output::Json => Ok(()),
        }
    }

    /// Reports a second.
    ///
    /// # Errors
    /// If nobody reads the output.
    pub fn second(&mut self, second: &Second) -> io::Result<()> {
        match self.output {
            Output::Text => {
                let before = std::mem::replace(&mut self.filled, second.filled_bytes);
                writeln!(self.out, "{}", text_of(second, before != second.filled_bytes))
            }
            Output::Lines => self.line(&json!({ "second": second })),
            Output::Quiet | Output::Json => Ok(()),
        }
    }

    /// Reports that all touches are done.
    ///
    /// # Errors
    /// If nobody reads the output.
    pub fn summary(&mut self, summary: &Summary) -> io::Result<()> {
        match self.output {
            Output::Text | Output::Quiet => write!(self.out, "{}", summary_text(summary)),
            Output::Lines => self.line(&json!({ "done": summary })),
            Output::Json => {
                let text = serde_json::to_string_pretty(summary)?;
                writeln!(self.out, "{text}")
            }
        }
    }

    fn line(&mut self, value: &Value) -> io::Result<()> {
        writeln!(self.out, "{value}")?;
        self.out.flush()
    }
}

fn text_of(second: &Second, size_changed: bool) -> String {
    let per_s = |bytes| format!("{}/s", Bytes::new(bytes));
    let mut text = format!("{:>6.0} s  ", second.at);
    if size_changed {
        let _ = write!(text, "holds {}; ", Bytes::new(second.filled_bytes));
    }
    let _ = match second.asked_bytes_per_s {
        Some(asked) => write!(text, "{} of {}", per_s(second.reached_bytes_per_s), per_s(asked)),
        None => write!(text, "{}", per_s(second.reached_bytes_per_s)),
    };
    let writes = share(second.written_bytes_per_s, second.reached_bytes_per_s);
    let _ = write!(text, ", writes {writes}; {}", latency_text(second.latency_ns));
    let _ = write!(text, "; major faults {}", second.major_faults);
    if let Some(us) = second.psi_some_us {
        let _ = write!(text, "; stalled {} %", us / 10_000);
    }
    text
}

fn latency_text(latency: Latency) -> String {
    if latency.samples == 0 {
        return "no touch".to_owned();
    }
    format!("touch p50 {}, p99 {}, max {}", time(latency.p50), time(latency.p99), time(latency.max))
}

fn time(nanos: u64) -> String {
    match nanos {
        0..10_000 => format!("{nanos} ns"),
        10_000..10_000_000 => format!("{} µs", nanos / 1_000),
        10_000_000..10_000_000_000 => format!("{} ms", nanos / 1_000_000),
        _ => format!("{} s", nanos / 1_000_000_000),
    }
}

/// A part in percent, rounded to a tenth.
fn share(part: u64, whole: u64) -> String {
    if whole == 0 {
        return "-".to_owned();
    }
    let tenths = (u128::from(part) * 1000 + u128::from(whole) / 2) / u128::from(whole);
    format!("{}.{} %", tenths / 10, tenths % 10)
}

fn summary_text(summary: &Summary) -> String {
    let mut text = String::new();
    let bytes = Bytes::new;
    let _ = writeln!(
        text,
        "touched {} in {:.3} s: {}/s, writes {}",
        bytes(summary.touched_bytes),
        summary.seconds,
        bytes(summary.reached_bytes_per_s),
        share(summary.written_bytes, summary.touched_bytes),
    );
    let _ = writeln!(text, "{}", latency_text(summary.latency_ns));
    let _ =
        writeln!(text, "processor time {:.3} s, major faults {}", summary.cpu_seconds, summary.major_faults);
    if !summary.reached() {
        let asked = summary.asked_bytes.unwrap_or_default();
        let _ = writeln!(
            text,
            "the rate was not reached: {} of {} were missed ({})",
            bytes(summary.missed_bytes),
            bytes(asked),
            share(summary.missed_bytes, asked)
        );
    }
    let _ = match (summary.checked_bytes, summary.errors) {
        (None, _) => Ok(()),
        (Some(0), _) => writeln!(text, "verified nothing: no page was touched"),
        (Some(checked), 0) => writeln!(text, "verified {}: all as it was written", bytes(checked)),
        (Some(checked), _) => writeln!(text, "verified {}: not all as it was written", bytes(checked)),
    };
    if summary.errors > 0 {
        let _ = writeln!(text, "{} words are not what was written there:", summary.errors);
        for wrong in &summary.described {
            let _ = writeln!(
                text,
                "  at {:#x}, after {} writes: expected {:016x}, found {:016x}",
                wrong.offset, wrong.sequence, wrong.expected, wrong.found
            );
        }
    }
    text
}
