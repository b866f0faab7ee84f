//! Readings that may hang, each within a time budget.
//!
//! **Problem.** To read another process can take as long as that process likes: the kernel waits until its mappings are not being changed, and for the file
//! system of its owner. Nothing ends such a wait but the other side.
//!
//! **Rule.** A reading runs on a thread beside its caller. If it overruns, the caller goes on without it, and its thread is left behind until the
//! reading ends. Until then, and for [`PAUSE`] times as long as it took, nobody reads that process again; the pause doubles each time that it overruns again,
//! up to [`LONGEST_PAUSE`]. A user may have many processes: for [`PAUSE`] times as long as these readings took together, nobody reads any of them, unless the user is root.
//! No caller leaves more than [`MOST_BEHIND`] threads behind, and [`MOST_OF_USER`] for one user: then it reads nothing before one of them has ended. Each thread is a caller of
//! its own: a process that holds up the search for guests does not hold up the readings of known ones.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use crate::process;

/// The most threads that one caller leaves behind.
pub const MOST_BEHIND: usize = 16;
/// The most of them for processes of one user.
const MOST_OF_USER: usize = 2;
/// How many times as long as it took a process or a user is left alone after a reading that overran. So each takes a ninth of a thread's time at most.
const PAUSE: u32 = 8;
/// The longest that one process is left alone.
const LONGEST_PAUSE: Duration = Duration::from_secs(3600);

type Job = Box<dyn FnOnce() + Send>;

thread_local! {
    /// The thread beside this one; none before the first reading, and after one that overran.
    static BESIDE: RefCell<Option<Sender<Job>>> = const { RefCell::new(None) };
}

/// The readings that overran.
static LATE: Mutex<Late> = Mutex::new(Late { processes: BTreeMap::new(), users: BTreeMap::new() });

#[derive(Debug)]
struct Late {
    processes: BTreeMap<u32, Overrun>,
    /// The users whose processes are not read until then.
    users: BTreeMap<u32, Instant>,
}

/// The last reading of a process, which overran.
#[derive(Clone, Copy, Debug)]
struct Overrun {
    /// The user, if it is not root.
    user: Option<u32>,
    /// The times that it overran in a row.
    times: u32,
    state: State,
}

#[derive(Clone, Copy, Debug)]
enum State {
    /// Its thread is left behind. The reading began then, for this caller.
    Since(Instant, ThreadId),
    /// It has ended. The process is not read until then, and its next overrun begins anew if it comes as long after that.
    Until(Instant, Duration),
}

impl Late {
    /// Forgets what is over.
    fn tidy(&mut self, now: Instant) {
        let lasts = |overrun: &Overrun| match overrun.state {
            State::Since(..) => true,
            State::Until(until, pause) => now < until + pause,
        };
        self.processes.retain(|_, overrun| lasts(overrun));
        self.users.retain(|_, until| now < *until);
    }

    /// Whether a process is read now.
    fn may_read(&self, pid: u32, now: Instant) -> bool {
        let is_left_alone = match self.processes.get(&pid).map(|overrun| overrun.state) {
            None => false,
            Some(State::Since(..)) => true,
            Some(State::Until(until, _)) => now < until,
        };
        let ours = thread::current().id();
        let behind = || {
            let of_this_caller =
                |overrun: &&Overrun| matches!(overrun.state, State::Since(_, by) if by == ours);
            self.processes.values().filter(of_this_caller)
        };
        if is_left_alone || behind().count() >= MOST_BEHIND {
            return false;
        }
        // Hardly anybody is late: only then the user matters.
        if self.users.is_empty() && behind().all(|overrun| overrun.user.is_none()) {
            return true;
        }
        let Some(user) = user_of(pid) else { return true };
        !self.users.contains_key(&user)
            && behind().filter(|overrun| overrun.user == Some(user)).count() < MOST_OF_USER
    }

    fn overruns(&mut self, pid: u32, begun: Instant) {
        let times = self.processes.get(&pid).map_or(0, |before| before.times) + 1;
        let state = State::Since(begun, thread::current().id());
        self.processes.insert(pid, Overrun { user: user_of(pid), times, state });
    }

    /// The reading has ended. If its caller had gone on, the process and its user are left alone for a while.
    fn has_ended(&mut self, pid: u32, now: Instant) {
        let Some(overrun) = self.processes.get_mut(&pid) else { return };
        let State::Since(begun, _) = overrun.state else { return };
        let took = now.duration_since(begun);
        let doubled = 1_u32.checked_shl(overrun.times - 1).unwrap_or(u32::MAX);
        let pause = (took * PAUSE).saturating_mul(doubled).min(LONGEST_PAUSE);
        overrun.state = State::Until(now + pause, pause);
        if let Some(user) = overrun.user {
            let until = self.users.entry(user).or_insert(now);
            *until = (*until).max(now) + took * PAUSE;
        }
    }
}

/// The user of a process, if it is not root: root may do everything anyway.
fn user_of(pid: u32) -> Option<u32> {
    process::user_in(&std::fs::read(format!("/proc/{pid}/status")).ok()?).filter(|user| *user != 0)
}

/// Reads something of the process `pid`, and waits for it for `budget` at most. `None` if it takes longer, or if the process is left alone because an
/// earlier reading took longer.
pub fn within<T: Send + 'static>(
    pid: u32,
    budget: Duration,
    read: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    let begun = Instant::now();
    {
        let mut late = late();
        late.tidy(begun);
        if !late.may_read(pid, begun) {
            return None;
        }
    }
    let (result, results) = channel();
    let job: Job = Box::new(move || {
        // The caller may have gone on.
        let _late = result.send(read());
        late().has_ended(pid, Instant::now());
    });
    let beside = BESIDE.take().or_else(start)?;
    beside.send(job).ok()?;
    match results.recv_timeout(budget) {
        Ok(read) => {
            BESIDE.set(Some(beside));
            // It may have overrun before.
            late().processes.remove(&pid);
            return Some(read);
        }
        Err(RecvTimeoutError::Disconnected) => return None,
        Err(RecvTimeoutError::Timeout) => {}
    }
    late().overruns(pid, begun);
    // It may have ended since.
    let at_last = results.try_recv().ok();
    if at_last.is_some() {
        late().processes.remove(&pid);
    }
    at_last
}

fn late() -> MutexGuard<'static, Late> {
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

    /// Nothing is late yet.
    fn nobody() -> Late {
        Late { processes: BTreeMap::new(), users: BTreeMap::new() }
    }

    #[test]
    fn a_process_that_overruns_again_and_again_is_read_ever_more_rarely() {
        let (mut late, mut now, pid) = (nobody(), Instant::now(), u32::MAX);
        let second = Duration::from_secs(1);
        let mut pauses = Vec::new();
        for _ in 0..12 {
            late.overruns(pid, now);
            assert!(!late.may_read(pid, now), "it is being read");
            late.has_ended(pid, now + second);
            let State::Until(until, pause) = late.processes[&pid].state else { panic!("it has ended") };
            pauses.push(pause.as_secs());
            now = until;
            late.tidy(now);
            assert!(late.may_read(pid, now) && !late.may_read(pid, now - second));
        }
        assert_eq!(pauses, [8, 16, 32, 64, 128, 256, 512, 1024, 2048, 3600, 3600, 3600]);
        late.tidy(now + LONGEST_PAUSE);
        assert!(late.processes.is_empty(), "it is forgotten once it has behaved for as long");
    }

    #[test]
    fn many_processes_of_one_user_take_no_more_than_one() {
        let (mut late, now) = (nobody(), Instant::now());
        let here = State::Since(now, thread::current().id());
        let overrun = |user| Overrun { user, times: 1, state: here };
        let (someone, many) = (12_345, u32::try_from(MOST_OF_USER).unwrap());
        for pid in 0..many {
            late.processes.insert(u32::MAX - pid, overrun(Some(someone)));
        }
        late.processes.insert(u32::MAX - 10, overrun(None));
        let me = user_of(std::process::id());
        assert!(late.may_read(std::process::id(), now), "another user");
        let took = Duration::from_secs(2);
        let ended: Vec<u32> = late.processes.keys().copied().collect();
        ended.into_iter().for_each(|pid| late.has_ended(pid, now + took));
        let until = late.users[&someone].duration_since(now + took);
        assert_eq!(until, took * PAUSE * many, "the times of all its processes together");
        assert_eq!(late.users.len(), 1, "root's are not counted");
        // The same for the user of this test, unless that is root.
        if let Some(me) = me {
            late.users.insert(me, now + took * 2);
            assert!(!late.may_read(std::process::id(), now + took));
            late.tidy(now + took * 2);
            assert!(late.may_read(std::process::id(), now + took * 2));
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
