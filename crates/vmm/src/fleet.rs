//! All guests of this host, for the engine's thread.
//!
//! The fleet lets its backends look for guests on a thread of their own ([`Looks`]), gives each guest its own task, and asks all guests at once. No
//! call waits beyond its deadline, and a little for a look. A guest without a way to it, because its backend could not make a control, says why; the backend is asked again later,
//! each time after a longer wait. A guest that does not answer shows its last readings with their growing age, and is not asked again before its task is done.
//! The next call takes a late task's result.
//!
//! The end of a guest's process and the events of its VMM call `wake`, so that the engine looks early. A guest whose process has ended is gone from
//! the next call on. A later call finds new guests, because the backends look for them at most every two seconds.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::mpsc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use memtide_model::{Absence, GuestId, Outsiders, Request, Span, Told};
use tokio::runtime::Handle;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::task::AbortHandle;

use crate::actor::{Actor, Job, Made, Observed, Wake, WakeReason};
use crate::admitted::Admitted;
use crate::back_off::BackOff;
use crate::backend::{Backend, Control, Found, TierDevice, Wish};
use crate::exit::ExitWatch;
use crate::looks::{Looked, Looks, Order};
use crate::round::{self, Round};

/// The time between two looks for guests. A little less than two seconds, for callers that come once a second.
const BETWEEN_LOOKS: Duration = Duration::from_millis(1_900);

/// The longest that a call waits for the first look: without it there are no guests.
const FIRST_LOOK_WITHIN: Duration = Duration::from_secs(5);
/// The first and the longest wait before a backend is asked again for a control that it could not make.
const ASKS_AGAIN: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// The fleet's view of one guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// The guest as its backend found it.
    pub found: Arc<Found>,
    /// The answers of its VMM.
    pub told: Told,
}

/// All guests of this host. The methods block, so they must not be called on the runtime's own thread.
pub struct Fleet {
    handle: Handle,
    looks: Looks,
    warnings: Vec<String>,
    outsiders: Outsiders,
    /// The guests to show, if that has changed since the last look was ordered.
    admits: Option<Admitted>,
    wake: Wake,
    guests: BTreeMap<GuestId, Guest>,
    results: mpsc::Receiver<Observed>,
    results_sender: mpsc::Sender<Observed>,
    looked_at: Option<Instant>,
    news: Arc<Mutex<News>>,
    /// Guests whose processes have ended since the last look was ordered: it may still find them.
    ended: BTreeSet<GuestId>,
}

/// What the guests' tasks have noticed since the last call.
#[derive(Default)]
struct News {
    /// The guests whose processes have ended: the next call looks for guests, however early it comes.
    ended: BTreeSet<GuestId>,
    /// The guests of which events have told.
    told_of: BTreeSet<GuestId>,
}

struct Guest {
    found: Arc<Found>,
    /// The channel to the guest's task, or why memtide leaves the guest alone.
    jobs: Result<UnboundedSender<Job>, Absence>,
    /// When its backend is asked again for a control.
    asks_again: BackOff,
    task: Option<AbortHandle>,
    latest: Told,
    latest_at: Instant,
    /// An observation was asked for and has not returned. It should return before this moment.
    asked_until: Option<Instant>,
}

impl Drop for Guest {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}

impl Fleet {
    /// A fleet whose tasks run on `handle`. It shows only guests that are `admitted`, and configured guests. `wake` is
    /// called on the runtime's thread and must not block.
    #[must_use]
    pub fn start(
        handle: Handle,
        backends: Vec<Box<dyn Backend>>,
        admitted: Admitted,
        wake: impl Fn(WakeReason) + Send + Sync + 'static,
    ) -> Self {
        let news = Arc::<Mutex<News>>::default();
        let noticed = Arc::clone(&news);
        let (results_sender, results) = mpsc::channel();
        let wake: Wake = Arc::new(move |reason| {
            match &reason {
                WakeReason::Vanished { guest } => _ = lock(&noticed).ended.insert(guest.clone()),
                WakeReason::Event { guest } => _ = lock(&noticed).told_of.insert(guest.clone()),
                WakeReason::Looked => {}
            }
            wake(reason);
        });
        Self {
            handle,
            looks: Looks::start(backends, admitted, Arc::clone(&wake)),
            warnings: Vec::new(),
            outsiders: Outsiders::default(),
            admits: None,
            wake,
            guests: BTreeMap::new(),
            results,
            results_sender,
            looked_at: None,
            news,
            ended: BTreeSet::new(),
        }
    }

    /// Looks for guests, asks all of them at once, each with its `wish`, and waits at most `deadline`. Guests that should not be asked
    /// (`None`) show their last readings with their age. The guests are ordered by identity.
    pub fn observe(&mut self, deadline: Duration, wish: impl FnMut(&GuestId) -> Option<Wish>) -> Vec<Seen> {
        self.look_for_guests();
        self.ask(deadline, deadline, wish);
        let now = Instant::now();
        self.guests.values().map(|guest| guest.seen(now)).collect()
    }

    /// Asks known guests at once, each with its `wish` and within `deadline`, and waits for `at_most`. The next call takes answers
    /// that come later.
    pub fn ask(
        &mut self,
        deadline: Duration,
        at_most: Duration,
        mut wish: impl FnMut(&GuestId) -> Option<Wish>,
    ) {
        let begun = Instant::now();
        self.take_results();
        let (waiting, patience) = round::patience();
        let round = Arc::new(Round::default());
        let mut given = Vec::new();
        for (id, guest) in &mut self.guests {
            if guest.asked_until.is_some() {
                continue;
            }
            let jobs = guest.jobs.as_ref().ok().filter(|jobs| !jobs.is_closed());
            let (Some(jobs), Some(wish)) = (jobs.cloned(), wish(id)) else { continue };
            // A little less, so that a guest without an answer can still report that in time.
            let deadline = deadline.saturating_sub(begun.elapsed()) * 9 / 10;
            let (patience, round) = (patience.clone(), Arc::clone(&round));
            given.push((jobs, Job::Observe { wish, deadline, patience, round }));
            guest.asked_until = Some(Instant::now() + deadline);
        }
        let awaited = given.len();
        if awaited == 0 {
            return;
        }
        // On the runtime's own thread. From this thread, each job would wake the runtime.
        self.handle.spawn(async move {
            for (jobs, job) in given {
                // A task that has just ended has no answer.
                let _ended = jobs.send(job);
            }
            waiting.await;
        });
        round.wait_for(awaited, begun + at_most);
        self.take_results();
    }

    /// The guests of which events have told since the last call.
    #[must_use]
    pub fn told_of(&self) -> BTreeSet<GuestId> {
        std::mem::take(&mut lock(&self.news).told_of)
    }

    /// The last view of one guest, with the age of its readings.
    #[must_use]
    pub fn seen(&self, id: &GuestId) -> Option<Seen> {
        self.guests.get(id).map(|guest| guest.seen(Instant::now()))
    }

    /// Makes requests to many guests at once, and waits at most `deadline`. The results come in the order of the requests.
    ///
    /// A guest that is gone answers [`Absence::Gone`], and one whose task was not done in time [`Absence::Timeout`]. The task does not begin
    /// the request after the deadline.
    pub fn apply(&self, requests: &[(GuestId, Request)], deadline: Duration) -> Vec<Result<(), Absence>> {
        let by = Instant::now() + deadline;
        let (reply, replies) = mpsc::channel();
        let mut results = Vec::with_capacity(requests.len());
        let mut awaited = 0;
        for (number, (id, request)) in requests.iter().enumerate() {
            let sent = self.send(id, Job::Make { request: *request, number, by, reply: reply.clone() });
            awaited += usize::from(sent.is_ok());
            // Valid until the task reports something else.
            results.push(sent.and(Err(Absence::Timeout)));
        }
        drop(reply);
        while awaited > 0 {
            let left = by.saturating_duration_since(Instant::now());
            let Ok(Made { number, result }) = replies.recv_timeout(left) else { break };
            awaited -= 1;
            if let Some(slot) = results.get_mut(number) {
                *slot = result;
            }
        }
        results
    }

    /// Makes one request, and waits at most `deadline`.
    ///
    /// # Errors
    /// If the guest is unknown, left alone or silent, or if its VMM refuses.
    pub fn request(&self, id: &GuestId, request: Request, deadline: Duration) -> Result<(), Absence> {
        self.apply(&[(id.clone(), request)], deadline).pop().unwrap_or(Err(Absence::Timeout))
    }

    /// Attaches a tier to a guest, and waits at most `deadline`.
    ///
    /// # Errors
    /// As [`request`](Self::request).
    pub fn attach(&self, id: &GuestId, tier: TierDevice, deadline: Duration) -> Result<(), Absence> {
        let (reply, replies) = mpsc::channel();
        self.send(id, Job::Attach { tier, by: Instant::now() + deadline, reply })?;
        replies.recv_timeout(deadline).map_or(Err(Absence::Timeout), |made| made.result)
    }

    /// Everything that is wrong with the backends' own configuration, as of the last look, one line each.
    #[must_use]
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// The guests that only their users keep out, as of the last look.
    #[must_use]
    pub const fn outsiders(&self) -> &Outsiders {
        &self.outsiders
    }

    /// Shows these guests from the next look on. It forgets those that are not among them any more; they keep their memory.
    pub fn admit(&mut self, admitted: Admitted) {
        self.admits = Some(admitted);
    }

    fn send(&self, id: &GuestId, job: Job) -> Result<(), Absence> {
        let jobs = self.guests.get(id).ok_or(Absence::Gone)?.jobs.as_ref().map_err(Clone::clone)?;
        jobs.send(job).map_err(|_| Absence::Timeout)
    }

    /// Takes the results that tasks have sent.
    fn take_results(&mut self) {
        while let Ok(Observed { guest, told, at }) = self.results.try_recv() {
            if let Some(guest) = self.guests.get_mut(&guest) {
                guest.latest = told;
                guest.latest_at = at;
                guest.asked_until = None;
            }
        }
    }

    fn look_for_guests(&mut self) {
        let ended = std::mem::take(&mut lock(&self.news).ended);
        self.guests.retain(|id, _| !ended.contains(id));
        self.ended.extend(ended);
        if let Some(looked) = self.looks.result_within(Duration::ZERO) {
            self.take_look(looked);
        }
        let is_due = self.admits.is_some() || !self.ended.is_empty() || is_due(self.looked_at);
        if self.looks.are_under_way() || !is_due {
            return;
        }
        let is_first = self.looked_at.replace(Instant::now()).is_none();
        let ended = !std::mem::take(&mut self.ended).is_empty();
        let asks_again = |guest: &Guest| guest.jobs.is_err() && guest.asks_again.is_over();
        let without_control = self.guests.values().filter(|guest| asks_again(guest));
        let without_control = without_control.map(|guest| guest.found.id.clone()).collect();
        self.looks.order(Order { ended, without_control, admitted: self.admits.take() });
        // Strangers can make a look slow. Once it has found something new, it wakes.
        if is_first && let Some(looked) = self.looks.result_within(FIRST_LOOK_WITHIN) {
            self.take_look(looked);
        }
    }

    /// Begins to watch new guests, and forgets those that are gone.
    fn take_look(&mut self, Looked { guests, controls, warnings }: Looked) {
        self.warnings = warnings;
        if let Some((guests, outsiders)) = guests {
            self.outsiders = outsiders;
            let there: BTreeSet<&GuestId> = guests.iter().map(|found| &found.id).collect();
            self.guests.retain(|id, _| there.contains(id));
            for found in guests {
                if !self.ended.contains(&found.id) {
                    self.guests.entry(found.id.clone()).or_insert_with(|| Guest::new(found));
                }
            }
        }
        let tasks = self.tasks();
        for (id, control) in controls {
            if let Some(guest) = self.guests.get_mut(&id) {
                guest.take(control, &tasks);
            }
        }
    }

    fn tasks(&self) -> Tasks {
        let (handle, results, wake) = (&self.handle, &self.results_sender, &self.wake);
        Tasks { handle: handle.clone(), results: results.clone(), wake: Arc::clone(wake) }
    }
}

fn lock(news: &Mutex<News>) -> MutexGuard<'_, News> {
    news.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Everything that the guests' tasks share.
struct Tasks {
    handle: Handle,
    results: mpsc::Sender<Observed>,
    wake: Wake,
}

impl Guest {
    /// A guest without a way to it.
    fn new(found: Arc<Found>) -> Self {
        let (first, longest) = ASKS_AGAIN;
        Self {
            latest: Told::claimed(found.full, Absence::NotYet),
            found,
            jobs: Err(Absence::NotYet),
            asks_again: BackOff::new(first, longest),
            task: None,
            latest_at: Instant::now(),
            asked_until: None,
        }
    }

    /// Takes the control that its backend made, or the reason why there is none.
    fn take(&mut self, control: Result<Box<dyn Control>, Absence>, tasks: &Tasks) {
        self.latest_at = Instant::now();
        match control {
            Ok(control) => {
                let (jobs_sender, jobs) = unbounded_channel();
                let _within_the_runtime = tasks.handle.enter();
                let actor = Actor {
                    guest: self.found.id.clone(),
                    control,
                    jobs,
                    results: tasks.results.clone(),
                    wake: Arc::clone(&tasks.wake),
                    exit: ExitWatch::new(self.found.process.pid, self.found.id.start()).ok(),
                };
                self.task = Some(tasks.handle.spawn(actor.run()).abort_handle());
                self.latest = Told::claimed(self.found.full, Absence::NotYet);
                self.jobs = Ok(jobs_sender);
            }
            // A guest that is left alone needs a task only to notice its end. The next look notices it, too.
            Err(why) => {
                self.latest = Told::claimed(self.found.full, why.clone());
                self.asks_again.failed(why.clone());
                self.jobs = Err(why);
            }
        }
    }

    fn seen(&self, now: Instant) -> Seen {
        let since = Span::from(now.saturating_duration_since(self.latest_at));
        let told = match self.asked_until.is_some_and(|until| until <= now) {
            true => self.latest.clone().aged(since, &Absence::Timeout),
            false => self.latest.clone().later(since),
        };
        Seen { found: Arc::clone(&self.found), told }
    }
}

fn is_due(last: Option<Instant>) -> bool {
    last.is_none_or(|at| at.elapsed() >= BETWEEN_LOOKS)
}
