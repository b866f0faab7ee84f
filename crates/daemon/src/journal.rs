//! The journal as the daemon writes it: a bounded queue, and a thread that passes what is in it to the [helper](crate::helpers::journal).
//!
//! **Problem.** The engine must not wait for a disk. And what waits for a disk must not grow.
//!
//! **Rule.** The engine puts each tick into a queue and goes on. A queue that is full is dropped whole: a tick without those before it would
//! be worth nothing. After any loss a new segment begins, with the state.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use memtide_config::JournalSettings;
use memtide_engine::host_clock;
use memtide_engine::journal::{Lost, Sink, TRIES_EVERY, beginning, encode, segment_limit, why};
use memtide_model::{Moment, Record};
use tracing::warn;

use crate::helpers::journal::{Answer, Connection, Failure, Left, Place, SOCKET};

/// The most bytes that wait for the helper. A tick of a thousand guests has about one MiB.
const MOST_WAITING: usize = 16 << 20;
/// The longest wait for the journal at the start.
const OPENS_WITHIN: Duration = Duration::from_secs(10);
/// The time between two looks whether the other daemon has given the journal up.
const LOOKS_FOR_OTHER: Duration = Duration::from_secs(2);

/// The journal at the start of a daemon.
#[derive(Debug)]
pub struct Journal {
    place: Place,
    /// systemd's socket for the helper.
    socket: &'static Path,
    helper: Option<Connection>,
    /// The exclusive right to write the journal. The queue gives it up: its thread may wait for the helper when the daemon ends.
    lock: Arc<Mutex<Option<OwnedFd>>>,
    /// Whether the helper has yet to answer.
    is_asked: bool,
    /// Whether it can be written, or why not.
    is_open: Result<(), Failure>,
}

impl Journal {
    /// Starts the helper and lets it open the journal. Must be called before the daemon gives its rights up. Returns what the last run has
    /// left.
    #[must_use]
    pub fn open(settings: &JournalSettings) -> (Self, Left) {
        let socket = Path::new(SOCKET);
        let place = Place { dir: settings.dir.clone(), most: settings.max };
        let is_open = Err(Failure::NotOpened(String::new()));
        let mut journal =
            Self { place, socket, helper: None, lock: Arc::default(), is_asked: false, is_open };
        let by = Instant::now() + OPENS_WITHIN;
        // systemd's helper may not write everywhere: a daemon with a journal elsewhere has its own.
        let ways: [&dyn Fn() -> std::io::Result<Connection>; 2] =
            [&|| Connection::at(socket), &Connection::own];
        let mut left = Left::default();
        for way in ways {
            match way() {
                Ok(helper) => journal.helper = Some(helper),
                Err(error) => {
                    let why = format!("cannot start the helper journal: {error}");
                    journal.is_open = Err(Failure::NotOpened(why));
                    continue;
                }
            }
            left = journal.try_to_open(Some(by));
            if journal.is_asked || !matches!(journal.is_open, Err(Failure::NotOpened(_))) {
                break;
            }
        }
        (journal, left)
    }

    /// Whether the journal can be written, or why not.
    pub const fn is_open(&self) -> &Result<(), Failure> {
        &self.is_open
    }

    /// Waits until the other daemon has given the journal up.
    pub fn wait_for_other(mut self) {
        loop {
            thread::sleep(LOOKS_FOR_OTHER);
            let _left = self.try_to_open(None);
            if !matches!(self.is_open, Err(Failure::InUse(_))) {
                return;
            }
        }
    }

    /// Lets the helper open the journal, and waits for it, at most until `by`.
    fn try_to_open(&mut self, by: Option<Instant>) -> Left {
        let asked = self.helper.as_mut().map(|helper| match self.is_asked {
            true => Ok(()),
            false => helper.ask_to_open(&self.place, host_clock()),
        });
        self.is_asked = matches!(asked, Some(Ok(())));
        if let (true, Some(by), Some(helper)) = (self.is_asked, by, self.helper.as_mut()) {
            let within = by.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
            if matches!(helper.is_answered(Some(within)), Ok(false)) {
                let why = format!("its disk has not answered for {} s", OPENS_WITHIN.as_secs());
                self.is_open = Err(Failure::NotOpened(why));
                return Left::default();
            }
        }
        let (is_open, left) = self.answer();
        self.is_open = is_open;
        left
    }

    /// Hears the answer to the last request. A helper that has ended is gone.
    fn answer(&mut self) -> (Result<(), Failure>, Left) {
        let answered = if self.is_asked { self.helper.as_mut().map(Connection::answer) } else { None };
        self.is_asked = false;
        match answered {
            Some(Ok(Answer { done, left, lock })) => {
                if let Some(lock) = lock {
                    *held(&self.lock) = Some(lock);
                }
                (done, left)
            }
            Some(Err(_)) | None => {
                // Its right was this daemon's, which nobody uses any more.
                self.helper = None;
                held(&self.lock).take();
                let ended = "the helper journal has ended: restart memtide".to_owned();
                (Err(Failure::NotOpened(ended)), Left::default())
            }
        }
    }

    /// Finds a helper that has ended again.
    fn find_again(&mut self) {
        if self.helper.is_none() {
            self.helper = Connection::at(self.socket).or_else(|_| Connection::own()).ok();
        }
    }

    fn why_closed(&self) -> Option<String> {
        self.is_open.clone().err().map(in_words)
    }

    /// A sink that writes this journal.
    ///
    /// # Errors
    /// If the system refuses a thread.
    pub fn into_sink(self) -> std::io::Result<Queue> {
        let shared = Arc::new(Shared::default());
        let tries_at = self.is_asked.then(Instant::now);
        *shared.lock() = Waiting { closed: self.why_closed(), tries_at, ..Waiting::default() };
        let queue = Queue {
            shared: Arc::clone(&shared),
            segment: segment_limit(self.place.most.get()),
            lock: Arc::clone(&self.lock),
        };
        thread::Builder::new().name("journal".to_owned()).spawn(move || self.write_all(&shared))?;
        Ok(queue)
    }

    /// Writes what comes into the queue, until its other end is gone and it is empty.
    fn write_all(mut self, shared: &Shared) {
        while let Some(batch) = shared.next(self.is_open.is_ok()) {
            let Some(Batch { frames, begins, .. }) = batch else {
                self.find_again();
                let is_late = self.is_asked;
                let Left { cut, memory, .. } = self.try_to_open(None);
                cut.iter().for_each(|cut| warn!("{cut}"));
                if is_late && memory.is_some() {
                    warn!(
                        "the journal was read too late: orders before this start are forgotten, such as `memtide hold`"
                    );
                }
                shared.tried(self.why_closed());
                continue;
            };
            let asked = self.helper.as_mut().map(|helper| helper.ask_to_put(&frames, begins));
            self.is_asked = matches!(asked, Some(Ok(())));
            let (done, _) = self.answer();
            if let Err(Failure::NotOpened(_)) = &done {
                self.is_open = done.clone();
            }
            shared.written(done);
        }
    }
}

fn in_words(failure: Failure) -> String {
    match failure {
        Failure::InUse(why) | Failure::NotOpened(why) | Failure::NotWritten(why) => why,
    }
}

/// The end of the queue that takes records.
#[derive(Debug)]
pub struct Queue {
    shared: Arc<Shared>,
    /// The size of a segment beyond which a new one begins.
    segment: u64,
    lock: Arc<Mutex<Option<OwnedFd>>>,
}

/// The right to write, as it is held.
fn held(lock: &Mutex<Option<OwnedFd>>) -> MutexGuard<'_, Option<OwnedFd>> {
    // Nothing panics while it holds this lock.
    lock.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Both ends of the queue.
#[derive(Debug, Default)]
struct Shared {
    waiting: Mutex<Waiting>,
    changed: Condvar,
}

/// The content of the queue, and what became of what was in it.
#[derive(Debug, Default)]
struct Waiting {
    batches: VecDeque<Batch>,
    bytes: usize,
    /// When the batch was taken that is being written.
    under_way: Option<(Instant, u64)>,
    lost: Option<Lost>,
    /// Why nothing can be written.
    closed: Option<String>,
    /// The next attempt to open the journal.
    tries_at: Option<Instant>,
    /// What the present segment has; `None` if the next records begin a new one.
    segment: Option<u64>,
    ends: bool,
}

/// The frames of one write.
#[derive(Debug)]
struct Batch {
    frames: Vec<u8>,
    begins: bool,
    ticks: u64,
    since: Instant,
}

impl Waiting {
    /// Drops all that waits.
    fn lose_all(&mut self, why: String) {
        let waiting: u64 = self.batches.iter().map(|batch| batch.ticks).sum();
        self.lose(waiting, why);
        self.batches.clear();
        (self.bytes, self.segment) = (0, None);
    }

    fn lose(&mut self, ticks: u64, why: String) {
        let before = self.lost.take().map_or(0, |lost| lost.ticks);
        self.lost = Some(Lost { ticks: before + ticks, why });
    }

    fn oldest(&self) -> Option<Instant> {
        self.under_way.map(|(since, _)| since).or_else(|| self.batches.front().map(|batch| batch.since))
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        // Nothing panics while it holds this lock.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the next batch; the inner `None`: the journal is to be opened now. `None`: the other end is gone, and nothing is left.
    fn next(&self, is_open: bool) -> Option<Option<Batch>> {
        let mut waiting = self.lock();
        loop {
            let now = Instant::now();
            if is_open && let Some(batch) = waiting.batches.pop_front() {
                waiting.bytes -= batch.frames.len();
                waiting.under_way = Some((batch.since, batch.ticks));
                return Some(Some(batch));
            }
            if waiting.ends {
                return None;
            }
            let left = if is_open {
                None
            } else {
                let tries_at = *waiting.tries_at.get_or_insert(now + Duration::from(TRIES_EVERY));
                if tries_at <= now {
                    return Some(None);
                }
                Some(tries_at - now)
            };
            waiting = match left {
                Some(left) => {
                    self.changed.wait_timeout(waiting, left).unwrap_or_else(PoisonError::into_inner).0
                }
                None => self.changed.wait(waiting).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }

    /// Notes why the journal could not be opened, if it could not.
    fn tried(&self, closed: Option<String>) {
        let mut waiting = self.lock();
        (waiting.closed, waiting.tries_at, waiting.segment) = (closed, None, None);
        self.changed.notify_all();
    }

    /// Notes what became of the batch under way.
    fn written(&self, done: Result<(), Failure>) {
        let mut waiting = self.lock();
        let ticks = waiting.under_way.take().map_or(0, |(_, ticks)| ticks);
        if let Err(failure) = done {
            if let Failure::NotOpened(why) = &failure {
                waiting.closed = Some(why.clone());
            }
            let why = in_words(failure);
            waiting.lose(ticks, why.clone());
            // They go on where this batch is missing.
            waiting.lose_all(why);
        }
        self.changed.notify_all();
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        self.shared.lock().ends = true;
        self.shared.changed.notify_all();
        held(&self.lock).take();
    }
}

impl Sink for Queue {
    fn ready(&mut self, _now: Moment) -> Result<(), String> {
        self.shared.lock().closed.clone().map_or(Ok(()), Err)
    }

    fn write(&mut self, start: &mut dyn FnMut() -> Record, records: &[Record]) -> Result<(), String> {
        let mut frames = Vec::new();
        let encoded = records.iter().try_for_each(|record| encode(record, &mut frames));
        let segment = self.shared.lock().segment;
        let goes_on = segment.map(|size| size + frames.len() as u64).filter(|size| *size <= self.segment);
        let frames = match goes_on {
            _ if encoded.is_err() => encoded.map(|()| frames),
            Some(_) => Ok(frames),
            None => beginning(start, records, frames),
        };
        let mut waiting = self.shared.lock();
        // Meanwhile, what it would go on from may have been lost.
        let is_lost = goes_on.is_some() && waiting.segment.is_none();
        let frames = match frames {
            Ok(_) if is_lost => return Err("a tick before this one was lost".to_owned()),
            Ok(frames) => frames,
            Err(error) => {
                waiting.segment = None;
                return Err(why(&error));
            }
        };
        if waiting.bytes + frames.len() > MOST_WAITING && !waiting.batches.is_empty() {
            let why = format!("its disk has not taken {} MiB that wait (check the disk)", MOST_WAITING >> 20);
            waiting.lose_all(why.clone());
            return Err(why);
        }
        waiting.bytes += frames.len();
        waiting.segment = Some(goes_on.unwrap_or(frames.len() as u64));
        let ticks = records.iter().filter(|record| matches!(record, Record::Tick(_))).count() as u64;
        waiting.batches.push_back(Batch { frames, begins: goes_on.is_none(), ticks, since: Instant::now() });
        self.shared.changed.notify_all();
        Ok(())
    }

    fn lost(&mut self) -> Option<Lost> {
        self.shared.lock().lost.take()
    }

    fn behind(&mut self, within: Duration) -> Option<Duration> {
        let by = Instant::now() + within;
        let mut waiting = self.shared.lock();
        loop {
            let (now, oldest) = (Instant::now(), waiting.oldest()?);
            if now >= by {
                return Some(now.saturating_duration_since(oldest));
            }
            waiting =
                self.shared.changed.wait_timeout(waiting, by - now).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use memtide_engine::journal::Reader;
    use memtide_model::Bytes;
    use memtide_testing::start;
    use std::os::unix::net::UnixStream;
    use std::sync::mpsc::{Receiver, Sender, channel};

    fn note(text: &str) -> Record {
        Record::Note { at: Moment::default(), text: text.to_owned() }
    }

    /// A tick of a recorded run.
    fn a_tick() -> Record {
        let trace = concat!(env!("CARGO_MANIFEST_DIR"), "/../../traces/uml-expensive-and-cheap.mtj");
        let mut records = Reader::open(Path::new(trace)).unwrap().map(Result::unwrap);
        records.find(|record| matches!(record, Record::Tick(_))).unwrap()
    }

    type Done = Result<(), Failure>;

    /// A queue whose other end writes a batch each time that it is told to, as a slow disk does, and what it has written.
    fn slow() -> (Queue, Sender<Done>, Receiver<(usize, bool)>) {
        let shared = Arc::new(Shared::default());
        let queue = Queue { shared: Arc::clone(&shared), segment: 1 << 20, lock: Arc::default() };
        let ((go, gone), (wrote, written)) = (channel(), channel());
        thread::spawn(move || {
            while let Some(Some(Batch { frames, begins, .. })) = shared.next(true) {
                let Ok(done) = gone.recv() else { break };
                wrote.send((frames.len(), begins)).unwrap();
                shared.written(done);
            }
        });
        (queue, go, written)
    }

    fn put(queue: &mut Queue, records: &[Record]) -> Result<(), String> {
        queue.write(&mut start, records)
    }

    #[test]
    fn a_full_queue_is_dropped_whole_and_a_new_segment_begins() {
        let (mut queue, go, written) = slow();
        let large = || [note(&"x".repeat(3 << 20)), a_tick()];
        let mut taken = 0;
        let why = loop {
            match put(&mut queue, &large()) {
                Ok(()) => taken += 1,
                Err(why) => break why,
            }
            assert!(taken < 100, "the queue has a bound");
        };
        assert!(why.contains("16 MiB"), "{why}");
        // One of them is being written; the one that was refused is not counted here.
        let lost = queue.lost().unwrap();
        assert!(lost.ticks == taken - 1 || lost.ticks == taken, "{lost:?} of {taken}");
        assert!(queue.behind(Duration::ZERO).is_some() || lost.ticks == taken);
        put(&mut queue, &[a_tick()]).unwrap();
        put(&mut queue, &[a_tick()]).unwrap();
        let batches = taken - lost.ticks + 2;
        (0..batches).for_each(|_| go.send(Ok(())).unwrap());
        assert_eq!(queue.behind(Duration::from_secs(60)), None);
        let all: Vec<(usize, bool)> = written.try_iter().collect();
        let begins: Vec<bool> = all[all.len() - 2..].iter().map(|(_, begins)| *begins).collect();
        assert_eq!(begins, [true, false], "a new segment begins, and goes on: {all:?}");
        assert_eq!(queue.lost(), None);
    }

    #[test]
    fn what_follows_a_failed_write_is_lost_with_it() {
        let (mut queue, go, written) = slow();
        for _ in 0..3 {
            put(&mut queue, &[a_tick()]).unwrap();
        }
        let full = || Err(Failure::NotWritten("the disk is full".to_owned()));
        go.send(full()).unwrap();
        assert_eq!(queue.behind(Duration::from_secs(60)), None);
        assert_eq!(queue.lost(), Some(Lost { ticks: 3, why: "the disk is full".to_owned() }));
        put(&mut queue, &[a_tick()]).unwrap();
        go.send(Ok(())).unwrap();
        assert_eq!(queue.behind(Duration::from_secs(60)), None);
        assert_eq!(written.try_iter().map(|(_, begins)| begins).collect::<Vec<_>>(), [true, true]);
        assert_eq!(queue.lost(), None);
    }

    #[test]
    fn a_journal_whose_helper_has_ended_is_closed() {
        let (ours, its) = UnixStream::pair().unwrap();
        drop(its);
        let journal = Journal {
            place: Place { dir: "/nowhere".into(), most: Bytes::from_mib(8) },
            socket: Path::new("/nowhere/socket"),
            helper: Some(Connection::new(ours, None)),
            lock: Arc::default(),
            is_asked: false,
            is_open: Ok(()),
        };
        let mut queue = journal.into_sink().unwrap();
        assert_eq!(queue.ready(Moment::default()), Ok(()));
        put(&mut queue, &[a_tick()]).unwrap();
        assert_eq!(queue.behind(Duration::from_secs(60)), None);
        let lost = queue.lost().unwrap();
        assert!(lost.ticks == 1 && lost.why.contains("restart memtide"), "{lost:?}");
        assert!(queue.ready(Moment::default()).unwrap_err().contains("restart memtide"));
    }
}
