//! The table of metrics in a document, between two marks.

use anyhow::{Context, Result};
use memtide_metrics::METRICS;

const BEGIN: &str = "<!-- The list of metrics, written by cargo xtask dashboards -->\n";
const END: &str = "<!-- The end of the list -->\n";

/// `document` with the present table.
pub(crate) fn within(document: &str) -> Result<String> {
    let (before, rest) = document.split_once(BEGIN).with_context(|| format!("has no line {BEGIN}"))?;
    let (_, after) = rest.split_once(END).with_context(|| format!("has no line {END}"))?;
    Ok(format!("{before}{BEGIN}\n{}\n{END}{after}", table()))
}

fn table() -> String {
    let mut text = String::from("| metric | kind | labels | meaning | source |\n|---|---|---|---|---|\n");
    for metric in METRICS {
        let labels = metric.labels.iter().map(|label| match label.values {
            [] => format!("`{}`", label.name),
            values => format!("`{}` ({})", label.name, values.join(", ")),
        });
        let labels = labels.collect::<Vec<_>>().join(", ");
        let (name, kind) = (metric.name, metric.kind.name());
        text.push_str(&format!("| `{name}` | {kind} | {labels} | {} | {} |\n", metric.help, metric.source));
    }
    text
}
