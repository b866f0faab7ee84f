//! The host's end of the control channel to the helper in a guest.

use std::collections::BTreeMap;
use std::io::{BufReader, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use memtide_load::exerciser::report::Second;
use memtide_load::helper::wire::{self, Answer, Ask, Reply, Request};
use serde_json::Value;

use crate::error::LabError;

/// The longest wait for the port to accept a request (it accepts once the guest has opened its end).
const WRITE: Duration = Duration::from_secs(5);

/// The state of a job.
#[derive(Clone, Debug, PartialEq)]
pub enum Standing {
    /// It is running.
    Running {
        /// Bytes done, as last reported.
        bytes: u64,
        /// The touches of a load in the last second that it reported.
        second: Option<Box<Second>>,
    },
    /// It has succeeded, with this outcome.
    Done(Value),
    /// It has failed, for this reason.
    Failed(String),
}

impl Standing {
    const START: Self = Self::Running { bytes: 0, second: None };
}

#[derive(Debug, Default)]
struct Shared {
    jobs: BTreeMap<u64, Standing>,
    lost: Vec<String>,
    closed: bool,
}

/// A connection to the helper of one guest.
#[derive(Debug)]
pub struct Channel {
    guest: String,
    stream: UnixStream,
    next: u64,
    shared: Arc<Mutex<Shared>>,
}

/// A job in a guest: its id on the channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Job(u64);

impl Job {
    /// Its id on the channel, for use in other requests.
    #[must_use]
    pub const fn id(self) -> u64 {
        self.0
    }
}

impl Channel {
    /// Connects to the port of `guest` through the socket at `path` on the host.
    ///
    /// # Errors
    /// If there is no such socket.
    pub fn connect(guest: &str, path: &Path) -> Result<Self, LabError> {
        Self::over(guest, UnixStream::connect(path).map_err(LabError::file(path))?, path)
    }

    /// The channel of `guest` over a stream; `path` names it in errors.
    ///
    /// # Errors
    /// If the stream is broken.
    pub fn over(guest: &str, stream: UnixStream, path: &Path) -> Result<Self, LabError> {
        stream.set_write_timeout(Some(WRITE)).map_err(LabError::file(path))?;
        let reader = stream.try_clone().map_err(LabError::file(path))?;
        let shared = Arc::new(Mutex::new(Shared::default()));
        let filled = Arc::clone(&shared);
        thread::spawn(move || listen(reader, &filled));
        Ok(Self { guest: guest.to_owned(), stream, next: 1, shared })
    }

    /// Starts a job.
    ///
    /// # Errors
    /// If the request cannot be written.
    pub fn begin(&mut self, ask: Ask) -> Result<Job, LabError> {
        let id = self.next;
        self.next += 1;
        let error = |why: String| LabError::Load { guest: self.guest.clone(), why };
        let mut line = serde_json::to_vec(&Request { id, ask }).map_err(|e| error(e.to_string()))?;
        line.push(b'\n');
        lock(&self.shared).jobs.insert(id, Standing::START);
        self.stream.write_all(&line).map_err(|e| error(e.to_string()))?;
        Ok(Job(id))
    }

    /// The state of a job. When the channel closes, running jobs have failed.
    #[must_use]
    pub fn standing(&self, job: Job) -> Standing {
        let shared = lock(&self.shared);
        match shared.jobs.get(&job.0) {
            Some(Standing::Running { .. }) if shared.closed => {
                Standing::Failed("the channel was closed".to_owned())
            }
            Some(standing) => standing.clone(),
            None => Standing::Failed(format!("there is no job {}", job.0)),
        }
    }

    /// Loads that vanished although nobody ended them: one line each.
    #[must_use]
    pub fn lost(&self) -> Vec<String> {
        lock(&self.shared).lost.clone()
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // Ends the reader's thread. If the guest ended first, there is nothing to shut down.
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

fn listen(stream: UnixStream, shared: &Mutex<Shared>) {
    let mut stream = BufReader::new(stream);
    while let Ok(Some(line)) = wire::read_line(&mut stream) {
        // A guest that is just being reset can leave a broken answer behind.
        if let Ok(reply) = serde_json::from_slice::<Reply>(&line) {
            note(&mut lock(shared), reply);
        }
    }
    lock(shared).closed = true;
}

fn note(shared: &mut Shared, Reply { id, answer }: Reply) {
    // The guest can send anything. Only answers to known jobs are kept, so memory is bounded.
    let Some(standing) = shared.jobs.get_mut(&id) else { return };
    match answer {
        Answer::Progress { bytes, second } => {
            if matches!(standing, Standing::Running { .. }) {
                *standing = Standing::Running { bytes, second };
            }
        }
        Answer::Done(value) => *standing = Standing::Done(value),
        Answer::Error(why) => *standing = Standing::Failed(why),
        Answer::Lost(why) if shared.lost.len() < 100 => shared.lost.push(why),
        Answer::Lost(_) => {}
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_find_their_jobs_and_others_are_dropped() {
        let mut shared = Shared::default();
        shared.jobs.insert(1, Standing::START);
        shared.jobs.insert(2, Standing::START);
        note(&mut shared, Reply { id: 1, answer: Answer::Progress { bytes: 7, second: None } });
        note(&mut shared, Reply { id: 2, answer: Answer::Error("no".to_owned()) });
        note(&mut shared, Reply { id: 3, answer: Answer::Progress { bytes: 7, second: None } });
        note(&mut shared, Reply { id: 2, answer: Answer::Lost("gone".to_owned()) });
        assert_eq!(shared.jobs[&1], Standing::Running { bytes: 7, second: None });
        assert_eq!(shared.jobs[&2], Standing::Failed("no".to_owned()));
        assert_eq!((shared.jobs.len(), shared.lost.len()), (2, 1));
    }
}
