//! What memtide tells Prometheus.
//!
//! - [`METRICS`] is the one list of metrics: name, kind, labels, help, source and value of each. `/metrics`, the table in docs/api.md, the dashboard
//!   and the rules take their names from it.
//! - [`encode`] writes the list as Prometheus's text, version 0.0.4.
//! - [`Tally`] adds up what no single decision knows: memory moved, time spent deciding, how long guests waited.
//!
//! **Rules.** A value that nobody knows has no sample: missing is never zero. The parts of a sum are one metric with the label `part` (or `direction`,
//! `result`), so that `sum` over it is exact. A state is a metric with the label `state`, 1 for the state that holds and 0 for the others.
#![forbid(unsafe_code)]

mod list;
mod metric;
mod read;
mod scrape;
mod tally;
mod text;

pub use list::METRICS;
pub use metric::{Kind, Label, Metric};
pub use scrape::Scrape;
pub use tally::{Sums, Tally};
pub use text::{CONTENT_TYPE, encode};
