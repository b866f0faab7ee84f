//! Readings that may hang, each within a time budget.
//!
//! **Problem.** To read another process can take as long as that process likes: the kernel waits until its mappings are not being changed, and for the file
//! system of its owner. Nothing ends such a wait but the other side.
//!
//! **Rule.** A reading runs on a thread beside its caller. If it overruns, the caller goes on without it, and its thread is left behind until the
//! reading ends. Until then, and for [`PAUSE`] times as long as it took, nobody reads that process again. No caller leaves more than [`MOST_BEHIND`]
//! threads behind: then it reads nothing before one of them has ended. Each thread is a caller of its own: a process that holds up the search for guests does not hold up
//! the readings of known ones.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

/// The most threads that one caller leaves behind.
pub const MOST_BEHIND: usize = 16;
/// How many times as long as it took a process is left alone after a reading that overran. So one process takes a ninth of a thread's time at most.
const PAUSE: u32 = 8;

type Job = Box<dyn FnOnce() + Send>;

thread_local! {
    /// The thread beside this one; none before the first reading, and after one that overran.
    static BESIDE: RefCell<Option<Sender<Job>>> = const { RefCell::new(None) };
}

/// The processes whose readings overran: since when, and until when nobody reads them.
static LATE: Mutex<BTreeMap<u32, Late>> = Mutex::new(BTreeMap::new());

#[derive(Clone, Copy, Debug)]
enum Late {
    /// Its thread is left behind. The reading began then, for this caller.
    Since(Instant, ThreadId),
    /// It has ended. The process is not read until then.
    Until(Instant),
}

/// Reads something of the process `pid`, and waits for it for `budget` at most. `None` if it takes longer, or if the process is left alone because an
/// earlier reading took longer.
pub fn within<T: Send + 'static>(
    pid: u32,
    budget: Duration,
    read: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    let begun = Instant::now();
    if !is_read(pid, begun) {
        return None;
    }
    let (result, results) = channel();
    let job: Job = Box::new(move || {
        // The caller may have gone on.
        let _late = result.send(read());
        has_ended(pid);
    });
    let beside = BESIDE.take().or_else(start)?;
    beside.send(job).ok()?;
    match results.recv_timeout(budget) {
        Ok(read) => {
            BESIDE.set(Some(beside));
            return Some(read);
        }
        Err(RecvTimeoutError::Disconnected) => return None,
        Err(RecvTimeoutError::Timeout) => {}
    }
    late().insert(pid, Late::Since(begun, thread::current().id()));
    // It may have ended since.
    let at_last = results.try_recv().ok();
    if at_last.is_some() {
        late().remove(&pid);
    }
    at_last
}

/// Whether a process is read now.
fn is_read(pid: u32, now: Instant) -> bool {
    let mut late = late();
    late.retain(|_, late| !matches!(late, Late::Until(until) if *until <= now));
    let ours = thread::current().id();
    let behind = late.values().filter(|late| matches!(late, Late::Since(_, by) if *by == ours)).count();
    behind < MOST_BEHIND && !late.contains_key(&pid)
}

/// A reading has ended. If its caller had gone on, the process is left alone for a while.
fn has_ended(pid: u32) {
    let now = Instant::now();
    if let Some(late) = late().get_mut(&pid)
        && let Late::Since(begun, _) = *late
    {
        *late = Late::Until(now + now.duration_since(begun) * PAUSE);
    }
}

fn late() -> MutexGuard<'static, BTreeMap<u32, Late>> {
    LATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts a thread that ends when nobody can give it jobs.
fn start() -> Option<Sender<Job>> {
    let (jobs, given): (Sender<Job>, Receiver<Job>) = channel();
    let started =
        thread::Builder::new().name("read".to_owned()).spawn(move || given.into_iter().for_each(|job| job()));
    started.is_ok().then_some(jobs)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Longer than any test takes.
    const PLENTY: Duration = Duration::from_secs(60);

    #[test]
    fn a_reading_that_hangs_delays_nobody_and_its_process_is_left_alone() {
        let (go, wait) = channel::<()>();
        let (stuck, other) = (u32::MAX, u32::MAX - 1);
        assert_eq!(within(stuck, Duration::from_millis(10), move || wait.recv()), None);
        assert_eq!(within(other, PLENTY, || 7), Some(7), "the others are read");
        assert_eq!(within(stuck, PLENTY, || 7), None, "its first reading has not ended");
        go.send(()).unwrap();
        let deadline = Instant::now() + PLENTY;
        while within(stuck, PLENTY, || 7).is_none() {
            assert!(Instant::now() < deadline, "its pause never ends");
            thread::yield_now();
        }
    }

    #[test]
    fn readings_share_a_thread() {
        let on = || within(u32::MAX - 2, PLENTY, || thread::current().id()).unwrap();
        assert_eq!(on(), on());
        assert_ne!(on(), thread::current().id());
    }

    #[test]
    fn one_caller_that_is_held_up_does_not_hold_up_another() {
        let (go, wait) = channel::<()>();
        let wait = std::sync::Arc::new(Mutex::new(wait));
        let holds_up = move || {
            for pid in 0..u32::try_from(MOST_BEHIND).unwrap() {
                let wait = std::sync::Arc::clone(&wait);
                let read = move || wait.lock().is_ok_and(|wait| wait.recv().is_ok());
                assert!(within(u32::MAX - 100 - pid, Duration::ZERO, read).is_none());
            }
            assert_eq!(within(u32::MAX - 99, PLENTY, || 7), None, "it has left too many behind");
        };
        thread::spawn(holds_up).join().unwrap();
        assert_eq!(within(u32::MAX - 99, PLENTY, || 7), Some(7));
        drop(go);
    }
}
