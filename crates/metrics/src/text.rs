//! The list as Prometheus's text.

use crate::list::METRICS;
use crate::metric::Samples;
use crate::scrape::Scrape;

/// The type of the text, for HTTP.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// All metrics as Prometheus's text, version 0.0.4: every Prometheus reads it, and so does promtool.
#[must_use]
pub fn encode(scrape: &Scrape<'_>) -> String {
    let mut text = String::new();
    for metric in METRICS {
        (metric.read)(scrape, &mut Samples::of(metric, &mut text));
    }
    text
}
