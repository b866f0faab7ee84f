//! Names in queries, compared with the list of metrics.

use anyhow::{Result, ensure};
use memtide_metrics::{Kind, METRICS, Metric};

/// The labels that Prometheus adds.
const ADDED: [&str; 2] = ["job", "instance"];

/// Checks that `query` names only metrics of the list and rules in `recorded`, and of each metric only its labels and their values.
pub(crate) fn check(query: &str, recorded: &[&str]) -> Result<()> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
    let mut rest = query;
    while let Some(start) = rest.find(is_part) {
        let word = rest[start..].split(|c| !is_part(c)).next().unwrap_or_default();
        let after = &rest[start + word.len()..];
        if word.contains("memtide:") || word.contains(":memtide_") {
            ensure!(recorded.contains(&word), "{query}: no rule records {word}");
        } else if word.starts_with("memtide_") {
            let metric = metric(word);
            ensure!(metric.is_some(), "{query}: {word} is not in the list of metrics");
            let selector = after.strip_prefix('{').and_then(|after| after.split('}').next());
            for matcher in selector.into_iter().flat_map(|selector| selector.split(',')) {
                metric.map_or(Ok(()), |metric| check_matcher(query, metric, matcher))?;
            }
        }
        rest = after;
    }
    Ok(())
}

/// The metric behind a name in a query, which can be a sample of a histogram.
fn metric(name: &str) -> Option<&'static Metric> {
    let is_it = |metric: &&Metric| {
        let end = name.strip_prefix(metric.name);
        let is_sample = metric.kind == Kind::Histogram
            && end.is_some_and(|end| ["_bucket", "_sum", "_count"].contains(&end));
        end == Some("") && metric.kind != Kind::Histogram || is_sample
    };
    METRICS.iter().find(is_it)
}

/// Checks one matcher, such as `state=~"hard|low"`.
fn check_matcher(query: &str, metric: &Metric, matcher: &str) -> Result<()> {
    let (name, value) = matcher.split_once('=').unwrap_or((matcher, ""));
    let name = name.trim_end_matches('!').trim();
    let label = metric.labels.iter().find(|label| label.name == name);
    let is_bound = name == "le" && metric.kind == Kind::Histogram;
    ensure!(
        label.is_some() || is_bound || ADDED.contains(&name),
        "{query}: {} has no label {name}",
        metric.name
    );
    let values = label.map_or(&[][..], |label| label.values);
    let given = value.trim_start_matches('~').replace(['\\', '"', '\''], "");
    for value in given.split('|').filter(|_| !values.is_empty()) {
        ensure!(values.contains(&value), "{query}: {name} of {} is never {value}", metric.name);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_the_list_pass() {
        for (query, is_right) in [
            ("sum by (guest) (memtide_guest_size_bytes)", true),
            ("memtide_guest_size_bytes{part=\"used\",job=\"a\"} / 2", true),
            ("memtide_guest_size_bytes{part=~\"used|free\"}", true),
            ("memtide_guest_size_bytes{part=\"user\"}", false),
            ("memtide_guest_size_bytes{state=\"used\"}", false),
            ("memtide_guest_size", false),
            ("rate(memtide_guest_wait_seconds_bucket{le=\"1.0\"}[5m])", true),
            ("memtide_guest_wait_seconds", false),
            ("memtide_managing_sum", false),
            ("instance:memtide_guests_waiting:sum > 0", true),
            ("instance:memtide_guests_awaiting:sum > 0", false),
        ] {
            assert_eq!(check(query, &["instance:memtide_guests_waiting:sum"]).is_ok(), is_right, "{query}");
        }
    }
}
