//! A small blocking client for the lab's own monitor of a guest. (The daemon has its own client in `memtide-vmm`, and the lab
//! must be able to contradict it.)

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use memtide_model::Bytes;
use serde_json::{Value, json};

use crate::error::LabError;

/// The longest wait for an answer of the monitor.
const ANSWER: Duration = Duration::from_secs(10);
/// The longest line read, in bytes.
const LONGEST: u64 = 1 << 20;
/// The most events before an answer.
const MOST_EVENTS: usize = 10_000;

/// A connection to a monitor.
#[derive(Debug)]
pub struct Qmp {
    guest: String,
    stream: BufReader<UnixStream>,
}

impl Qmp {
    /// Connects to the monitor of `guest` at `path` and negotiates.
    ///
    /// # Errors
    /// If there is no monitor, or it sends no greeting (another client holds it).
    pub fn connect(guest: &str, path: &Path) -> Result<Self, LabError> {
        let stream = UnixStream::connect(path).map_err(LabError::file(path))?;
        stream.set_read_timeout(Some(ANSWER)).map_err(LabError::file(path))?;
        stream.set_write_timeout(Some(ANSWER)).map_err(LabError::file(path))?;
        let mut qmp = Self { guest: guest.to_owned(), stream: BufReader::new(stream) };
        let greeting = qmp.read()?;
        if greeting.get("QMP").is_none() {
            return Err(qmp.error("no greeting"));
        }
        qmp.execute("qmp_capabilities", &json!({}))?;
        Ok(qmp)
    }

    /// Runs a command and returns its result.
    ///
    /// # Errors
    /// If the monitor is gone or answers with an error.
    pub fn execute(&mut self, command: &str, arguments: &Value) -> Result<Value, LabError> {
        let line = format!("{}\n", json!({ "execute": command, "arguments": arguments }));
        let written = self.stream.get_mut().write_all(line.as_bytes());
        written.map_err(|e| self.error(&format!("{command}: {e}")))?;
        for _ in 0..MOST_EVENTS {
            let mut answer = self.read()?;
            if let Some(returned) = answer.get_mut("return") {
                return Ok(returned.take());
            }
            if let Some(error) = answer.get("error") {
                let why = error.get("desc").and_then(Value::as_str).unwrap_or("an error without a text");
                return Err(self.error(&format!("{command}: {why}")));
            }
        }
        Err(self.error("only events, no answer"))
    }

    /// The memory that the guest keeps, as the balloon device reports it.
    ///
    /// # Errors
    /// If the monitor is gone, or the balloon has no driver yet.
    pub fn actual(&mut self) -> Result<Bytes, LabError> {
        let answer = self.execute("query-balloon", &json!({}))?;
        let actual = answer.get("actual").and_then(Value::as_u64);
        actual.map(Bytes::new).ok_or_else(|| self.error("query-balloon without `actual`"))
    }

    /// Asks the guest to keep `target`.
    ///
    /// # Errors
    /// If the monitor is gone, or the balloon has no driver yet.
    pub fn set_target(&mut self, target: Bytes) -> Result<(), LabError> {
        self.execute("balloon", &json!({ "value": target.get() })).map(|_| ())
    }

    fn read(&mut self) -> Result<Value, LabError> {
        let mut line = Vec::new();
        match (&mut self.stream).take(LONGEST).read_until(b'\n', &mut line) {
            Ok(0) => Err(self.error("closed")),
            Ok(_) => serde_json::from_slice(&line).map_err(|e| self.error(&format!("no QMP: {e}"))),
            Err(e) => Err(self.error(&e.to_string())),
        }
    }

    fn error(&self, why: &str) -> LabError {
        LabError::Monitor { guest: self.guest.clone(), why: why.to_owned() }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;
    use std::thread;

    use super::*;

    #[test]
    fn events_between_a_command_and_its_answer_are_passed_over() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("qmp");
        let listener = UnixListener::bind(&path).unwrap();
        let monitor = thread::spawn(move || {
            let mut stream = BufReader::new(listener.accept().unwrap().0);
            stream.get_mut().write_all(b"{\"QMP\": {}}\n").unwrap();
            for answer in [
                "{\"return\": {}}\n",
                "{\"event\": \"BALLOON_CHANGE\"}\n{\"return\": {\"actual\": 1048576}}\n",
                "{\"error\": {\"class\": \"DeviceNotActive\", \"desc\": \"no driver\"}}\n",
            ] {
                stream.read_line(&mut String::new()).unwrap();
                stream.get_mut().write_all(answer.as_bytes()).unwrap();
            }
        });
        let mut qmp = Qmp::connect("g", &path).unwrap();
        assert_eq!(qmp.actual().unwrap(), Bytes::from_mib(1));
        assert!(qmp.set_target(Bytes::from_mib(1)).unwrap_err().to_string().contains("no driver"));
        monitor.join().unwrap();
        assert!(qmp.actual().is_err());
    }
}
