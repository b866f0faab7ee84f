//! A metric, and its samples as text.

use std::fmt;

use memtide_model::{Bytes, Span};

use crate::scrape::Scrape;
use crate::tally::Waits;

/// The kind of a metric, as Prometheus calls it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A value that only rises, until what counts starts anew. Its name ends in `_total`.
    Counter,
    /// A value that rises and falls.
    Gauge,
    /// How many values were at most as large as each bound.
    Histogram,
}

impl Kind {
    /// The word in a `TYPE` line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

/// A label of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Label {
    /// Its name.
    pub name: &'static str,
    /// All values that it can have; empty if they come from outside, as a guest's name does.
    pub values: &'static [&'static str],
}

/// One metric.
#[derive(Clone, Copy, Debug)]
pub struct Metric {
    /// Its whole name, as queries use it.
    pub name: &'static str,
    /// Its kind.
    pub kind: Kind,
    /// Its labels.
    pub labels: &'static [Label],
    /// What it is, in one line.
    pub help: &'static str,
    /// Where its value comes from.
    pub source: &'static str,
    pub(crate) read: fn(&Scrape<'_>, &mut Samples<'_>),
}

impl Metric {
    /// The base unit in its name; `None` if it counts things.
    #[must_use]
    pub fn unit(&self) -> Option<&'static str> {
        let stem = self.name.strip_suffix("_total").unwrap_or(self.name);
        ["bytes", "seconds"].into_iter().find(|unit| stem.ends_with(&format!("_{unit}")))
    }
}

/// A value of a sample.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Value {
    Count(u64),
    Signed(i64),
    Seconds(f64),
}

impl From<u64> for Value {
    fn from(count: u64) -> Self {
        Self::Count(count)
    }
}

impl From<usize> for Value {
    fn from(count: usize) -> Self {
        Self::Count(count as u64)
    }
}

impl From<i64> for Value {
    fn from(value: i64) -> Self {
        Self::Signed(value)
    }
}

impl From<bool> for Value {
    fn from(is_so: bool) -> Self {
        Self::Count(u64::from(is_so))
    }
}

impl From<Bytes> for Value {
    fn from(bytes: Bytes) -> Self {
        Self::Count(bytes.get())
    }
}

impl From<Span> for Value {
    fn from(span: Span) -> Self {
        Self::Seconds(std::time::Duration::from(span).as_secs_f64())
    }
}

impl Value {
    /// A time that the kernel counts in microseconds.
    pub(crate) const fn of_micros(micros: u64) -> Self {
        Self::Seconds(std::time::Duration::from_micros(micros).as_secs_f64())
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Count(count) => count.fmt(f),
            Self::Signed(value) => value.fmt(f),
            Self::Seconds(seconds) => seconds.fmt(f),
        }
    }
}

/// Writes the samples of one metric. Without a sample, nothing is written.
pub(crate) struct Samples<'t> {
    metric: &'static Metric,
    text: &'t mut String,
    begun: bool,
}

impl<'t> Samples<'t> {
    pub(crate) const fn of(metric: &'static Metric, text: &'t mut String) -> Self {
        Self { metric, text, begun: false }
    }

    /// The sample of a metric without labels.
    pub(crate) fn one(&mut self, value: impl Into<Value>) {
        self.with(&[], value);
    }

    /// A sample with these values of the labels, in the order of the list.
    pub(crate) fn with(&mut self, values: &[&str], value: impl Into<Value>) {
        debug_assert_eq!(values.len(), self.metric.labels.len(), "{}", self.metric.name);
        self.begin();
        self.text.push_str(self.metric.name);
        for (at, (label, value)) in self.metric.labels.iter().zip(values).enumerate() {
            self.text.push(if at == 0 { '{' } else { ',' });
            self.text.push_str(label.name);
            self.text.push_str("=\"");
            escape(self.text, value);
            self.text.push('"');
        }
        let end = if values.is_empty() { "" } else { "}" };
        self.text.push_str(&format!("{end} {}\n", value.into()));
    }

    /// A sample for each state: 1 for the one that holds.
    pub(crate) fn state(&mut self, before: &[&str], holds: &str) {
        let label = self.metric.labels.last();
        for state in label.map_or(&[][..], |label| label.values) {
            self.with(&[before, &[state]].concat(), *state == holds);
        }
    }

    /// The samples of a histogram of waits.
    pub(crate) fn histogram(&mut self, waits: &Waits) {
        self.begin();
        let name = self.metric.name;
        for (bound, count) in waits.cumulated() {
            self.text.push_str(&format!("{name}_bucket{{le=\"{bound:?}\"}} {count}\n"));
        }
        let (sum, count) = (Value::from(waits.sum()), waits.count());
        self.text.push_str(&format!(
            "{name}_bucket{{le=\"+Inf\"}} {count}\n{name}_sum {sum}\n{name}_count {count}\n"
        ));
    }

    fn begin(&mut self) {
        if self.begun {
            return;
        }
        self.begun = true;
        let Metric { name, help, kind, .. } = self.metric;
        self.text.push_str(&format!("# HELP {name} {help}\n# TYPE {name} {}\n", kind.name()));
    }
}

/// Adds the value of a label, escaped as the format wants it.
fn escape(text: &mut String, value: &str) {
    for c in value.chars() {
        match c {
            '\\' => text.push_str("\\\\"),
            '"' => text.push_str("\\\""),
            '\n' => text.push_str("\\n"),
            c => text.push(c),
        }
    }
}
