//! `memtide-dashboards ROOT`: writes the files for Prometheus and Grafana below `ROOT/packaging/prometheus`, and the table of metrics in
//! `ROOT/docs/api.md`.
//!
//! All names come from the list of metrics: a query that names a metric, a label or a state that is not in the list is a mistake, and nothing is
//! written. A test compares the files with what this program writes.
#![forbid(unsafe_code)]

mod dashboard;
mod parts;
mod query;
mod rules;
mod table;

use std::ffi::OsString;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};

const DASHBOARD: &str = "packaging/prometheus/memtide-dashboard.json";
const RULES: &str = "packaging/prometheus/memtide.rules.yml";
const DOCUMENT: &str = "docs/api.md";

fn main() -> Result<()> {
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    let [root] = arguments.as_slice() else { bail!("usage: memtide-dashboards ROOT") };
    let root = Path::new(root);
    for (path, text) in files(root)? {
        let path = root.join(path);
        fs::write(&path, text).with_context(|| format!("{}", path.display()))?;
    }
    Ok(())
}

/// The files as they should be.
fn files(root: &Path) -> Result<Vec<(&'static str, String)>> {
    let document = root.join(DOCUMENT);
    let text = fs::read_to_string(&document).with_context(|| format!("{}", document.display()))?;
    Ok(vec![
        (RULES, rules::yaml()?),
        (DASHBOARD, dashboard::json()?),
        (DOCUMENT, table::within(&text).with_context(|| DOCUMENT.to_owned())?),
    ])
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::process::{Command, Output};

    use memtide_testing::skipped;

    use super::*;

    fn root() -> &'static Path {
        Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
    }

    /// The promtool of this machine, or the one that scripts/deps.sh has unpacked in the build directory.
    fn promtools() -> [PathBuf; 2] {
        let test = std::env::current_exe().unwrap();
        let target = test.ancestors().nth(3).unwrap();
        ["promtool".into(), target.join("tools/promtool")]
    }

    /// What promtool says of these files; `None` if there is none.
    fn promtool(words: &[&str], files: &[&Path]) -> Option<Output> {
        let said = promtools().iter().find_map(|it| Command::new(it).args(words).args(files).output().ok());
        if said.is_none() {
            skipped("promtool is missing: scripts/deps.sh --lint unpacks it");
        }
        said
    }

    fn assert_agrees(words: &[&str], files: &[&Path]) {
        let Some(output) = promtool(words, files) else { return };
        let said = [output.stdout, output.stderr].concat();
        assert!(output.status.success(), "promtool {words:?}: {}", String::from_utf8_lossy(&said));
    }

    #[test]
    fn the_files_are_up_to_date() {
        for (path, text) in files(root()).unwrap() {
            let present = fs::read_to_string(root().join(path)).unwrap_or_default();
            assert!(present == text, "{path} is old: cargo xtask dashboards");
        }
    }

    #[test]
    fn promtool_accepts_the_rules_and_their_tests_pass() {
        assert_agrees(&["check", "rules"], &[&root().join(RULES)]);
        assert_agrees(&["test", "rules"], &[&root().join("crates/dashboards/tests/rules.yml")]);
    }

    #[test]
    fn the_tests_of_the_rules_name_metrics_of_the_list() {
        let text = include_str!("../tests/rules.yml");
        for line in text.lines().filter(|line| line.contains("series:") || line.contains("expr:")) {
            query::check(line, &rules::recorded()).unwrap();
        }
    }

    #[test]
    fn each_alert_has_a_test() {
        let tests = include_str!("../tests/rules.yml");
        for alert in rules::ALERTS {
            assert!(tests.contains(&format!("{{alertname=\"{}\"}}", alert.name)), "{}", alert.name);
        }
    }

    #[test]
    fn promtool_reads_each_query_of_the_dashboard() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("queries.yml");
        let mut text = String::from("groups:\n- name: queries\n  rules:\n");
        for (number, query) in dashboard::queries().into_iter().enumerate() {
            // What Grafana puts in.
            let query = query.replace("$__rate_interval", "5m").replace("$__range", "1h");
            text.push_str(&format!("  - record: query{number}\n    expr: {query:?}\n"));
        }
        fs::write(&path, text).unwrap();
        assert_agrees(&["check", "rules"], &[&path]);
    }
}
