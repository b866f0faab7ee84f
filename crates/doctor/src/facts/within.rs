//! Reads of processes that belong to strangers, each within a time limit.
//!
//! **Problem.** The kernel reads some files of a process through that process: its mappings, its arguments, paths in its root. A process can
//! make such a read last as long as it likes.
//!
//! **Rule.** Each read is a job on one of a few threads. A job that overruns gets no result, and another thread takes its place. The thread of
//! such a job may never end; it ends with this program.

use std::collections::{BTreeMap, VecDeque};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The time of all reads together.
pub(super) const ALL: Duration = Duration::from_secs(10);
/// The time of one read of one process.
pub(super) const EACH: Duration = Duration::from_secs(2);
/// The time of a search through all processes.
pub(super) const SEARCH: Duration = Duration::from_secs(4);
/// A job that stops itself at its deadline has this long to deliver what it has.
const GRACE: Duration = Duration::from_millis(250);
/// The number of jobs at once.
const LANES: usize = 4;

/// A read. It is told its deadline.
pub(super) type Job<T> = Box<dyn FnOnce(Instant) -> T + Send>;

type Queue<T> = Arc<Mutex<VecDeque<(usize, Job<T>)>>>;

/// What a thread tells about the job of this number.
enum Said<T> {
    /// It began, and has until then.
    Begun(usize, Instant),
    /// It ended.
    Done(usize, T),
}

/// The results of the jobs in their order; `None` for a job that did not end within `each` of its start, or not by the moment `by`.
pub(super) fn within<T: Send + 'static>(jobs: Vec<Job<T>>, each: Duration, by: Instant) -> Vec<Option<T>> {
    let mut results: Vec<Option<T>> = jobs.iter().map(|_| None).collect();
    let mut open = jobs.len();
    let queue: Queue<T> = Arc::new(Mutex::new(jobs.into_iter().enumerate().collect()));
    let (tell, told) = mpsc::channel();
    let lane = || {
        let (queue, tell) = (Arc::clone(&queue), tell.clone());
        std::thread::spawn(move || run(&queue, &tell, each, by));
    };
    (0..LANES.min(open)).for_each(|_| lane());
    let mut running: BTreeMap<usize, Instant> = BTreeMap::new();
    while open > 0 {
        let first = running.values().min().copied().unwrap_or(by).min(by) + GRACE;
        match told.recv_timeout(first.saturating_duration_since(Instant::now())) {
            Ok(Said::Begun(job, until)) => {
                running.insert(job, until);
            }
            Ok(Said::Done(job, result)) => {
                // Without an entry, it was given up before.
                if running.remove(&job).is_some() {
                    results[job] = Some(result);
                    open -= 1;
                }
            }
            Err(RecvTimeoutError::Timeout) if Instant::now() < by + GRACE => {
                let before = running.len();
                running.retain(|_, until| *until + GRACE > Instant::now());
                let overrun = before - running.len();
                open -= overrun;
                (0..overrun).for_each(|_| lane());
            }
            Err(_) => break,
        }
    }
    lock(&queue).clear();
    results
}

/// Runs jobs until there are none, or nobody listens.
fn run<T>(queue: &Queue<T>, tell: &Sender<Said<T>>, each: Duration, by: Instant) {
    loop {
        let Some((number, job)) = lock(queue).pop_front() else { return };
        let until = by.min(Instant::now() + each);
        if tell.send(Said::Begun(number, until)).is_err()
            || tell.send(Said::Done(number, job(until))).is_err()
        {
            return;
        }
    }
}

fn lock<T>(queue: &Queue<T>) -> std::sync::MutexGuard<'_, VecDeque<(usize, Job<T>)>> {
    queue.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A job that never ends.
    fn stuck(_: Instant) -> u32 {
        loop {
            std::thread::park();
        }
    }

    #[test]
    fn stuck_jobs_delay_nobody_else() {
        let begun = Instant::now();
        let mut jobs: Vec<Job<u32>> = (0..2 * LANES).map(|_| Box::new(stuck) as Job<u32>).collect();
        jobs.extend((0..20_u32).map(|number| Box::new(move |_| number) as Job<u32>));
        let results = within(jobs, Duration::from_millis(20), begun + Duration::from_secs(60));
        let (stuck, good) = results.split_at(2 * LANES);
        assert!(stuck.iter().all(Option::is_none));
        assert_eq!(good, (0..20_u32).map(Some).collect::<Vec<_>>());
    }

    #[test]
    fn all_of_them_end_by_the_deadline_and_what_stops_itself_delivers() {
        let by = Instant::now() + Duration::from_millis(50);
        let patient = |until: Instant| {
            while Instant::now() < until {
                std::thread::yield_now();
            }
            7
        };
        let mut jobs: Vec<Job<u32>> = vec![Box::new(patient)];
        jobs.extend((0..50).map(|_| Box::new(stuck) as Job<u32>));
        let results = within(jobs, Duration::from_secs(60), by);
        assert!(Instant::now() < by + Duration::from_secs(30));
        assert_eq!(results[0], Some(7));
        assert!(results[1..].iter().all(Option::is_none));
        assert!(within(Vec::<Job<u32>>::new(), EACH, by).is_empty());
    }
}
