//! What the host asked for, for the guest's administrator: one line each on standard error, and the last ones in a file.

use std::collections::VecDeque;
use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// The file that `memtide-agent status` shows.
pub const STATUS: &str = "/run/memtide-agent/status.json";
/// The lines that are kept.
const KEPT: usize = 32;

/// The content of the file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// What the agent is doing.
    pub state: String,
    /// What the host asked for, and what became of it, the last first.
    pub lines: VecDeque<Noted>,
}

/// A line.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Noted {
    /// Milliseconds of the guest's monotonic clock.
    pub at_ms: u64,
    /// The line.
    pub text: String,
}

/// Writes both.
#[derive(Debug)]
pub struct Log {
    path: Option<PathBuf>,
    status: Status,
}

impl Log {
    /// A log that keeps its last lines in `path`, if that can be written.
    #[must_use]
    pub fn new(path: Option<PathBuf>) -> Self {
        if let Some(parent) = path.as_deref().and_then(Path::parent) {
            // Without it, only the log on standard error is left.
            let _ = fs::create_dir_all(parent);
        }
        Self { path, status: Status::default() }
    }

    /// The folder of its file.
    #[must_use]
    pub fn folder(&self) -> Option<&Path> {
        self.path.as_deref().and_then(Path::parent)
    }

    /// Says what the agent is doing.
    pub fn is(&mut self, state: &str) {
        if self.status.state != state {
            eprintln!("memtide-agent: {state}");
            state.clone_into(&mut self.status.state);
            self.write();
        }
    }

    /// Notes what the host asked for, and what became of it.
    pub fn note(&mut self, at_ms: u64, text: String) {
        eprintln!("memtide-agent: {text}");
        self.status.lines.truncate(KEPT - 1);
        self.status.lines.push_front(Noted { at_ms, text });
        self.write();
    }

    fn write(&mut self) {
        let Some(path) = &self.path else { return };
        let new = path.with_extension("new");
        let json = serde_json::to_vec(&self.status).unwrap_or_default();
        if fs::write(&new, json).and_then(|()| fs::rename(&new, path)).is_err() {
            eprintln!("memtide-agent: cannot write {}: status shows nothing", path.display());
            self.path = None;
        }
    }
}

impl Status {
    /// The status as text, at a moment in milliseconds of the monotonic clock.
    #[must_use]
    pub fn in_words(&self, now_ms: u64) -> String {
        let mut text = format!("{}\n", self.state);
        for line in &self.lines {
            let seconds = now_ms.saturating_sub(line.at_ms) / 1000;
            text.push_str(&format!("{seconds:>8} s ago  {}\n", line.text));
        }
        if self.lines.is_empty() {
            text.push_str("the host has asked for nothing so far\n");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_lines_are_kept_the_newest_first() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run/status.json");
        let mut log = Log::new(Some(path.clone()));
        log.is("connected");
        for n in 0..40 {
            log.note(n * 1000, format!("line {n}"));
        }
        let status: Status = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
        assert_eq!((status.lines.len(), status.lines[0].text.as_str()), (KEPT, "line 39"));
        let words = status.in_words(40_000);
        assert!(words.starts_with("connected\n       1 s ago  line 39\n"), "{words}");
    }
}
