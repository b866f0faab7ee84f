//! The connection to one guest's monitor: which socket to use, and when to try again.
//!
//! Several sockets are tried in turn; the one that worked last comes first. After a failure, nothing is tried for 250 ms. This wait
//! doubles to 30 s with each failure, so memtide does not knock every second at a monitor that somebody else holds, and does not wait
//! at every poll for a monitor that does not answer. Only a successful exchange ends the doubling; a connection alone does not.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::qmp::{Qmp, QmpError};
use super::socket::Peer;
use crate::back_off::BackOff;
use memtide_model::Absence;

/// The first wait after a failure.
const FIRST_WAIT: Duration = Duration::from_millis(250);
/// The longest wait.
const LONGEST_WAIT: Duration = Duration::from_secs(30);
/// The longest wait for a greeting. A free monitor greets within milliseconds.
const GREETING: Duration = Duration::from_secs(1);

/// The connection to one guest's monitor.
#[derive(Debug)]
pub(super) struct Link {
    paths: Vec<PathBuf>,
    /// The process that must listen at the socket.
    peer: Option<Peer>,
    qmp: Option<Qmp>,
    /// The socket that worked last.
    favourite: usize,
    back_off: BackOff,
    has_worked: bool,
    /// Why the last attempt failed.
    failure: Option<Absence>,
}

impl Link {
    pub(super) fn new(paths: Vec<PathBuf>, peer: Option<Peer>) -> Self {
        let back_off = BackOff::new(FIRST_WAIT, LONGEST_WAIT);
        Self { paths, peer, qmp: None, favourite: 0, back_off, has_worked: false, failure: None }
    }

    /// Whether the last connection is still usable.
    pub(super) fn is_open(&self) -> bool {
        self.qmp.as_ref().is_some_and(Qmp::is_usable)
    }

    /// The open connection, if any.
    pub(super) fn connection(&mut self) -> Option<&mut Qmp> {
        self.qmp.as_mut()
    }

    /// The time of the next attempt to connect, if it is not allowed yet.
    pub(super) fn backs_off_until(&self) -> Option<Instant> {
        self.back_off.until().filter(|_| self.qmp.is_none())
    }

    /// The connection, opened if necessary; [`QmpError::BackingOff`] during a wait. The wait ends early if the awaited answers have
    /// come.
    pub(super) async fn open(&mut self, deadline: Instant) -> Result<&mut Qmp, QmpError> {
        let answered = self.qmp.as_ref().is_some_and(|qmp| qmp.is_usable() && !qmp.owes_an_answer());
        if let Some(why) = self.back_off.why().filter(|_| !answered) {
            return Err(QmpError::BackingOff(why));
        }
        self.open_now(deadline).await
    }

    /// The connection, opened if necessary, even during a wait: somebody waits for a command.
    pub(super) async fn open_now(&mut self, deadline: Instant) -> Result<&mut Qmp, QmpError> {
        if !self.is_open() {
            self.qmp = None;
            match self.try_all(deadline).await {
                Ok(qmp) => self.qmp = Some(qmp),
                Err(error) => {
                    self.failed(&error);
                    return Err(error);
                }
            }
        }
        self.qmp.as_mut().ok_or(QmpError::Closed)
    }

    /// Tries each socket. Returns the first error, because it comes from the socket that worked last.
    async fn try_all(&mut self, deadline: Instant) -> Result<Qmp, QmpError> {
        let mut first_error = None;
        let count = self.paths.len();
        for attempt in 0..count {
            let index = (self.favourite + attempt) % count;
            let left = deadline.saturating_duration_since(Instant::now());
            let share = left / u32::try_from(count - attempt).unwrap_or(u32::MAX);
            let by = Instant::now() + share.min(GREETING);
            match Qmp::greeted(&self.paths[index], self.peer, by).await {
                Ok(qmp) => {
                    self.favourite = index;
                    return Ok(qmp);
                }
                Err(error) => first_error = first_error.or(Some(error)),
            }
        }
        Err(first_error.unwrap_or(QmpError::NoControl))
    }

    /// Why there is no connection that works: it was not tried yet, or it failed last time.
    pub(super) fn why_not_connected(&self) -> Option<Absence> {
        match &self.failure {
            _ if self.is_open() => None,
            None if self.has_worked => None,
            None => Some(Absence::NotYet),
            failure => failure.clone(),
        }
    }

    /// Whether any exchange has ever worked.
    pub(super) const fn has_worked(&self) -> bool {
        self.has_worked
    }

    /// An exchange worked.
    pub(super) fn worked(&mut self) {
        self.has_worked = true;
        self.failure = None;
        self.back_off.worked();
    }

    /// An exchange failed, so a wait begins. A connection that may still answer is kept. So memtide sends nothing to a monitor that
    /// hangs, and does not wait for it at each poll.
    pub(super) fn failed(&mut self, error: &QmpError) {
        if matches!(error, QmpError::BackingOff(_) | QmpError::Refused(_)) {
            return;
        }
        if !matches!(error, QmpError::Timeout) || self.qmp.as_ref().is_some_and(|qmp| !qmp.is_usable()) {
            self.qmp = None;
        }
        self.back_off.failed(error.absence());
        self.failure = Some(error.absence());
    }

    /// Closes the connection.
    pub(super) fn close(&mut self) {
        self.qmp = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(flavor = "current_thread")]
    async fn waits_double_until_an_exchange_works() {
        let mut link = Link::new(vec!["/nonexistent/qmp".into()], None);
        let soon = || Instant::now() + Duration::from_secs(5);
        let mut waits = Vec::new();
        for _ in 0..10 {
            let before = Instant::now();
            assert!(matches!(link.open_now(soon()).await, Err(QmpError::Connect { .. })));
            waits.push(link.backs_off_until().unwrap().duration_since(before).as_millis() / 250);
            assert!(matches!(link.open(soon()).await, Err(QmpError::BackingOff(Absence::Disconnected))));
        }
        assert_eq!(waits, [1, 2, 4, 8, 16, 32, 64, 120, 120, 120]);
        link.worked();
        assert_eq!(link.backs_off_until(), None);
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_guest_without_sockets_says_so() {
        let mut link = Link::new(Vec::new(), None);
        let error = link.open(Instant::now() + Duration::from_secs(1)).await.unwrap_err();
        assert_eq!(error.absence(), Absence::NoControl);
    }
}
