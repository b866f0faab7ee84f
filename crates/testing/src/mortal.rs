//! A child process that ends with its test.

use std::io::{self, Read};
use std::ops::{Deref, DerefMut};
use std::process::{Child, Command, Output};
use std::thread;
use std::time::{Duration, Instant};

/// The interval between two looks at a child.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// A child process. Dropping it kills it and waits for it, also if the test panics.
#[derive(Debug)]
pub struct Mortal(Child);

impl Mortal {
    /// Starts `command`.
    ///
    /// # Panics
    /// If it cannot be started.
    #[must_use]
    #[track_caller]
    pub fn start(command: &mut Command) -> Self {
        match command.spawn() {
            Ok(child) => Self(child),
            Err(error) => panic!("{command:?} cannot be started: {error}"),
        }
    }

    /// Waits for its end, and returns what it wrote to its pipes meanwhile.
    ///
    /// # Panics
    /// If it does not end `within` this time, or cannot be read.
    #[must_use]
    #[track_caller]
    pub fn output(mut self, within: Duration) -> Output {
        let (stdout, stderr) = (reader(self.0.stdout.take()), reader(self.0.stderr.take()));
        let begun = Instant::now();
        let status = loop {
            match self.0.try_wait() {
                Ok(Some(status)) => break status,
                Ok(None) => assert!(begun.elapsed() < within, "the child has not ended within {within:?}"),
                Err(error) => panic!("the child cannot be waited for: {error}"),
            }
            thread::sleep(LOOK_EVERY);
        };
        let read = |reader: thread::JoinHandle<io::Result<Vec<u8>>>| match reader.join() {
            Ok(Ok(bytes)) => bytes,
            other => panic!("the child's output cannot be read: {other:?}"),
        };
        Output { status, stdout: read(stdout), stderr: read(stderr) }
    }
}

/// Reads a pipe to its end, on a thread of its own.
fn reader(pipe: Option<impl Read + Send + 'static>) -> thread::JoinHandle<io::Result<Vec<u8>>> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        pipe.map_or(Ok(0), |mut pipe| pipe.read_to_end(&mut bytes))?;
        Ok(bytes)
    })
}

impl Deref for Mortal {
    type Target = Child;

    fn deref(&self) -> &Child {
        &self.0
    }
}

impl DerefMut for Mortal {
    fn deref_mut(&mut self) -> &mut Child {
        &mut self.0
    }
}

impl Drop for Mortal {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::process::Stdio;

    use super::*;

    fn sleeping() -> Mortal {
        Mortal::start(Command::new("sleep").arg("1000"))
    }

    fn entry(of: &Mortal) -> PathBuf {
        PathBuf::from(format!("/proc/{}", of.id()))
    }

    #[test]
    fn a_panic_takes_the_child_with_it() {
        let (told, pid) = std::sync::mpsc::channel();
        let panicked = thread::spawn(move || {
            let child = sleeping();
            told.send(entry(&child)).expect("a listener");
            panic!("on purpose");
        });
        let entry = pid.recv().expect("a child");
        assert!(panicked.join().is_err());
        assert!(!entry.exists());
    }

    #[test]
    fn a_child_that_does_not_end_in_time_is_killed() {
        let child = sleeping();
        let entry = entry(&child);
        let waiting = thread::spawn(|| child.output(Duration::from_millis(20)));
        assert!(waiting.join().is_err());
        assert!(!entry.exists());
    }

    #[test]
    fn the_output_is_all_that_it_wrote() {
        let mut command = Command::new("sh");
        command.args(["-c", "head -c 300000 /dev/zero; echo bad >&2; exit 3"]);
        let output = Mortal::start(command.stdout(Stdio::piped()).stderr(Stdio::piped()))
            .output(Duration::from_secs(60));
        assert_eq!((output.status.code(), output.stdout.len()), (Some(3), 300_000));
        assert_eq!(output.stderr, b"bad\n");
    }
}
