//! The checks that must pass before a change is pushed. `.ci/run` runs the same list, with `make test` in a bare Debian.
//!
//! The stages run in order, cheapest first, and the first failure ends the run. A stage is skipped, with
//! a message, if this machine lacks its tool (rustfmt, clippy and cargo-deny are separate packages).

use std::io;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::time::Instant;

use crate::golden::{self, GoldenError, Mode};
use crate::licences::{self, LicencesError};
use crate::tidy::{self, TidyError};

/// The extent of the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// The whole list.
    Full,
    /// Without the tests that start real guests.
    Quick,
    /// Without tests, except that of a daemon without confinement and those of the rules for Prometheus.
    Checks,
}

/// The test that a daemon built without the confining libraries says so.
const WITHOUT_CONFINEMENT: &str =
    "test --package memtide-daemon --no-default-features --lib --quiet -- confine::";

/// Why the change should not be pushed yet.
#[derive(Debug, thiserror::Error)]
pub enum PrepushError {
    /// A stage's command failed.
    #[error("{stage} failed with {status}")]
    Failed {
        /// The stage.
        stage: &'static str,
        /// The exit status of its command.
        status: ExitStatus,
    },
    /// A stage's command could not be started.
    #[error("{stage}: cannot start {program}")]
    Start {
        /// The stage.
        stage: &'static str,
        /// The command's program.
        program: String,
        /// The system's error.
        source: io::Error,
    },
    /// The tidy rules found problems.
    #[error("tidy found {0} to be put right")]
    Untidy(usize),
    /// The tidy rules could not be checked.
    #[error("tidy could not run")]
    Tidy(#[from] TidyError),
    /// Crates have licences or sources that are not allowed.
    #[error("{0} dependencies are not allowed")]
    NotAllowed(usize),
    /// The licences could not be checked.
    #[error("the licences could not be checked")]
    Licences(#[from] LicencesError),
    /// The policy's decisions differ from the recorded ones.
    #[error("the policy decides differently on {0} traces; if that is meant: cargo xtask golden")]
    Golden(usize),
    /// The golden texts could not be compared.
    #[error("the golden decisions could not be compared")]
    GoldenRun(#[from] GoldenError),
}

/// One stage of the list.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Stage {
    name: &'static str,
    work: Work,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Work {
    /// `cargo` with these arguments; `tool` is a subcommand that the machine may lack.
    Cargo {
        arguments: Vec<String>,
        environment: Option<(&'static str, &'static str)>,
        tool: Option<&'static str>,
    },
    /// `make` with this target.
    Make(&'static str),
    Tidy,
    Licences,
    Golden,
}

/// Runs the stages on the workspace at `root`.
///
/// # Errors
/// The error of the first stage that fails.
pub fn run(root: &Path, extent: Extent) -> Result<(), PrepushError> {
    let started = Instant::now();
    for stage in stages(extent) {
        let begun = Instant::now();
        println!("== {}", stage.name);
        perform(root, &stage)?;
        println!("== {}: {:.1} s", stage.name, begun.elapsed().as_secs_f64());
    }
    println!("== all: {:.1} s", started.elapsed().as_secs_f64());
    Ok(())
}

fn stages(extent: Extent) -> Vec<Stage> {
    let cargo = |words: &str| Work::Cargo {
        arguments: words.split(' ').map(String::from).collect(),
        environment: None,
        tool: None,
    };
    let with_tool = |tool: &'static str, words: &str| match cargo(words) {
        Work::Cargo { arguments, environment, .. } => {
            Work::Cargo { arguments, environment, tool: Some(tool) }
        }
        other => other,
    };
    let docs = Work::Cargo {
        arguments: ["doc", "--workspace", "--no-deps"].map(String::from).to_vec(),
        environment: Some(("RUSTDOCFLAGS", "-Dwarnings")),
        tool: None,
    };
    let stage = |name, work| Stage { name, work };
    let mut list = vec![
        stage("format", with_tool("fmt", "fmt --all --check")),
        stage("tidy", Work::Tidy),
        stage("clippy", with_tool("clippy", "clippy --workspace --all-targets -- -D warnings")),
        stage("docs", docs),
        stage("licences", Work::Licences),
        stage("cargo deny", with_tool("deny", "deny check licenses bans sources")),
        stage("golden", Work::Golden),
        stage("without confinement", cargo(WITHOUT_CONFINEMENT)),
    ];
    match extent {
        Extent::Full => list.push(stage("tests", Work::Make("test"))),
        Extent::Quick => {
            list.push(stage("tests", cargo("test --workspace --exclude memtide-lab")));
            // The integration tests of this crate start real guests.
            list.push(stage(
                "tests of the lab",
                cargo("test --package memtide-lab --lib --bins --test random"),
            ));
        }
        // The tests of a bare machine have no promtool, `scripts/deps.sh --lint` has.
        Extent::Checks => {
            list.push(stage("rules for Prometheus", cargo("test --package memtide-dashboards --quiet")));
        }
    }
    list
}

fn perform(root: &Path, stage: &Stage) -> Result<(), PrepushError> {
    match &stage.work {
        Work::Cargo { tool: Some(tool), .. } if !has_tool(root, tool) => {
            println!("left out: this machine has no `cargo {tool}`");
            Ok(())
        }
        Work::Cargo { arguments, environment, .. } => {
            let mut command = Command::new(crate::cargo());
            command.args(arguments).envs(environment.iter().copied());
            start(root, stage.name, command)
        }
        Work::Make(target) => {
            let mut command = Command::new("make");
            command.arg(target);
            start(root, stage.name, command)
        }
        Work::Tidy => {
            let findings = tidy::run(root)?;
            for finding in &findings {
                println!("{finding}");
            }
            if findings.is_empty() { Ok(()) } else { Err(PrepushError::Untidy(findings.len())) }
        }
        Work::Licences => {
            let findings = licences::run(root)?;
            findings.iter().for_each(|finding| println!("{finding}"));
            if findings.is_empty() { Ok(()) } else { Err(PrepushError::NotAllowed(findings.len())) }
        }
        Work::Golden => {
            let changes = golden::run(root, Mode::Check)?;
            for change in &changes {
                print!("{}", change.diff);
            }
            if changes.is_empty() { Ok(()) } else { Err(PrepushError::Golden(changes.len())) }
        }
    }
}

fn start(root: &Path, stage: &'static str, mut command: Command) -> Result<(), PrepushError> {
    let program = command.get_program().display().to_string();
    let status = command
        .current_dir(root)
        .stdin(Stdio::null())
        .status()
        .map_err(|source| PrepushError::Start { stage, program, source })?;
    if status.success() { Ok(()) } else { Err(PrepushError::Failed { stage, status }) }
}

/// Whether `cargo TOOL` can run on this machine.
fn has_tool(root: &Path, tool: &str) -> bool {
    Command::new(crate::cargo())
        .args([tool, "--version"])
        .current_dir(root)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(list: &[Stage]) -> Vec<&'static str> {
        list.iter().map(|stage| stage.name).collect()
    }

    #[test]
    fn the_full_list_ends_with_make_test() {
        let list = stages(Extent::Full);
        assert_eq!(
            names(&list),
            [
                "format",
                "tidy",
                "clippy",
                "docs",
                "licences",
                "cargo deny",
                "golden",
                "without confinement",
                "tests"
            ]
        );
        assert_eq!(list.last().unwrap().work, Work::Make("test"));
    }

    #[test]
    fn the_quick_list_runs_all_of_the_labs_tests_but_the_guests() {
        let list = stages(Extent::Quick);
        let Work::Cargo { arguments, .. } = &list.last().unwrap().work else { panic!("no cargo stage") };
        assert_eq!(arguments.join(" "), "test --package memtide-lab --lib --bins --test random");
    }

    #[test]
    fn only_what_is_packaged_apart_may_be_left_out() {
        let optional: Vec<_> = stages(Extent::Full)
            .into_iter()
            .filter(|stage| matches!(stage.work, Work::Cargo { tool: Some(_), .. }))
            .collect();
        assert_eq!(names(&optional), ["format", "clippy", "cargo deny"]);
    }

    #[test]
    fn a_failing_command_names_its_stage() {
        let root = tempfile::tempdir().unwrap();
        let stage = Stage { name: "tests", work: Work::Make("no-such-target") };
        let error = perform(root.path(), &stage).unwrap_err();
        assert!(error.to_string().starts_with("tests "), "{error}");
    }

    #[test]
    fn a_missing_tool_is_left_out() {
        let root = tempfile::tempdir().unwrap();
        let work = Work::Cargo {
            arguments: vec!["no-such-subcommand".to_owned()],
            environment: None,
            tool: Some("no-such-subcommand"),
        };
        perform(root.path(), &Stage { name: "format", work }).unwrap();
    }
}
