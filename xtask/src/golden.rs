//! Golden decisions: for each recorded trace, the policy's decisions as text.
//!
//! A trace is a journal, `traces/NAME.mtj`. Its golden text, `traces/NAME.golden.txt`, is the output of `memtide journal
//! --golden` for it: one line per action, with its reason. An intended change of the policy shows as a diff of these texts,
//! to be reviewed like code. An unintended change fails the check.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use similar::TextDiff;

/// The reaction to a text that differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Write the new text.
    Record,
    /// Keep the old text; the caller reports the change.
    Check,
}

/// A golden text that differs from the policy's present decisions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The golden file.
    pub golden: PathBuf,
    /// From the recorded text to the new one, as a unified diff.
    pub diff: String,
}

/// Why the golden texts could not be made or read.
#[derive(Debug, thiserror::Error)]
pub enum GoldenError {
    /// A file or directory could not be read or written.
    #[error("{}", path.display())]
    File {
        /// The file or directory.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The program could not be started.
    #[error("cannot start cargo for {}", trace.display())]
    Start {
        /// The trace to be printed.
        trace: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The program printed no golden text.
    #[error("no golden text for {}: memtide journal ended with {status}", trace.display())]
    Refused {
        /// The trace to be printed.
        trace: PathBuf,
        /// The program's exit status.
        status: std::process::ExitStatus,
    },
    /// The golden text is not UTF-8.
    #[error("the golden text for {} is not UTF-8", trace.display())]
    Text {
        /// The trace to be printed.
        trace: PathBuf,
        /// The place at which it stops being UTF-8.
        source: std::string::FromUtf8Error,
    },
}

/// Prints the golden text of every trace of the workspace at `root` with the program built from it, and compares.
///
/// # Errors
/// If a trace cannot be read, or if the program does not print its text.
pub fn run(root: &Path, mode: Mode) -> Result<Vec<Change>, GoldenError> {
    let traces = root.join("traces");
    let changes = compare(&traces, mode, &|trace| print(root, trace))?;
    // The state may have changed where the texts have not.
    if mode == Mode::Record {
        list(&traces)?.iter().try_for_each(|trace| redecide(root, trace))?;
    }
    Ok(changes)
}

/// Replaces the decisions in a trace by the policy's present ones, so that a strict replay repeats them.
fn redecide(root: &Path, trace: &Path) -> Result<(), GoldenError> {
    let new = trace.with_extension("mtj.new");
    let start = |source| GoldenError::Start { trace: trace.to_path_buf(), source };
    let status = Command::new(crate::cargo())
        .args(["run", "--quiet", "--package", "memtide", "--", "journal", "--redecide"])
        .arg(&new)
        .arg(trace)
        .current_dir(root)
        .stdin(Stdio::null())
        .status()
        .map_err(start)?;
    if !status.success() {
        return Err(GoldenError::Refused { trace: trace.to_path_buf(), status });
    }
    fs::rename(&new, trace).map_err(|source| GoldenError::File { path: trace.to_path_buf(), source })
}

/// The golden texts that differ from the output of `print` for their trace, ordered by name.
///
/// # Errors
/// If a file cannot be read or written, or if `print` fails.
pub fn compare(
    traces: &Path,
    mode: Mode,
    print: &dyn Fn(&Path) -> Result<String, GoldenError>,
) -> Result<Vec<Change>, GoldenError> {
    let mut changes = Vec::new();
    for trace in list(traces)? {
        let golden = trace.with_extension("golden.txt");
        let old = match fs::read_to_string(&golden) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            Err(source) => return Err(GoldenError::File { path: golden, source }),
        };
        let new = print(&trace)?;
        if old == new && golden.exists() {
            continue;
        }
        if mode == Mode::Record {
            fs::write(&golden, &new).map_err(|source| GoldenError::File { path: golden.clone(), source })?;
        }
        let name = golden.display().to_string();
        let diff = TextDiff::from_lines(&old, &new).unified_diff().header(&name, &name).to_string();
        changes.push(Change { golden, diff });
    }
    Ok(changes)
}

/// The traces in a directory, sorted; none if there is no such directory.
fn list(traces: &Path) -> Result<Vec<PathBuf>, GoldenError> {
    let failed = |source| GoldenError::File { path: traces.to_path_buf(), source };
    let entries = match fs::read_dir(traces) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(failed(error)),
    };
    let mut found = Vec::new();
    for entry in entries {
        let path = entry.map_err(failed)?.path();
        if path.extension().is_some_and(|extension| extension == "mtj") {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

fn print(root: &Path, trace: &Path) -> Result<String, GoldenError> {
    let output = Command::new(crate::cargo())
        .args(["run", "--quiet", "--package", "memtide", "--", "journal", "--golden"])
        .arg(trace)
        .current_dir(root)
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .map_err(|source| GoldenError::Start { trace: trace.to_path_buf(), source })?;
    if !output.status.success() {
        return Err(GoldenError::Refused { trace: trace.to_path_buf(), status: output.status });
    }
    String::from_utf8(output.stdout)
        .map_err(|source| GoldenError::Text { trace: trace.to_path_buf(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn traces(names: &[&str]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for name in names {
            fs::write(dir.path().join(name), "").unwrap();
        }
        dir
    }

    #[test]
    fn records_once_and_is_then_quiet() {
        let dir = traces(&["b.mtj", "a.mtj", "notes.md"]);
        let print = |trace: &Path| Ok(format!("decided on {}\n", trace.file_stem().unwrap().display()));
        let first = compare(dir.path(), Mode::Record, &print).unwrap();
        let names: Vec<_> = first.iter().map(|change| change.golden.file_name().unwrap()).collect();
        assert_eq!(names, ["a.golden.txt", "b.golden.txt"]);
        assert_eq!(fs::read_to_string(dir.path().join("a.golden.txt")).unwrap(), "decided on a\n");
        assert_eq!(compare(dir.path(), Mode::Check, &print).unwrap(), []);
    }

    #[test]
    fn check_shows_the_changed_line_and_writes_nothing() {
        let dir = traces(&["a.mtj"]);
        let golden = dir.path().join("a.golden.txt");
        fs::write(&golden, "web1 512 MiB\nweb2 256 MiB\n").unwrap();
        let print = |_: &Path| Ok("web1 512 MiB\nweb2 300 MiB\n".to_owned());
        let changes = compare(dir.path(), Mode::Check, &print).unwrap();
        assert!(changes[0].diff.contains("-web2 256 MiB\n+web2 300 MiB\n"), "{}", changes[0].diff);
        assert_eq!(fs::read_to_string(&golden).unwrap(), "web1 512 MiB\nweb2 256 MiB\n");
    }

    #[test]
    fn a_trace_without_a_golden_text_is_a_change_even_if_nothing_is_decided() {
        let dir = traces(&["a.mtj"]);
        let changes = compare(dir.path(), Mode::Check, &|_| Ok(String::new())).unwrap();
        assert_eq!(changes.len(), 1);
        assert!(!dir.path().join("a.golden.txt").exists());
    }

    #[test]
    fn no_traces_no_changes() {
        let dir = tempfile::tempdir().unwrap();
        let changes = compare(&dir.path().join("traces"), Mode::Check, &|_| Ok(String::new())).unwrap();
        assert_eq!(changes, []);
    }

    #[test]
    fn a_failing_print_names_the_trace() {
        let dir = traces(&["a.mtj"]);
        let refuse = |trace: &Path| {
            Err(GoldenError::Start { trace: trace.to_path_buf(), source: io::ErrorKind::NotFound.into() })
        };
        let error = compare(dir.path(), Mode::Check, &refuse).unwrap_err();
        assert!(error.to_string().ends_with("a.mtj"), "{error}");
    }
}
