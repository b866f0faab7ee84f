//! The task of one guest: it carries out one job after the other, and listens to events in between.
//!
//! A guest that hangs keeps only its own task busy. The engine's thread never waits for a task: it sends jobs and takes
//! results from channels.

use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use memtide_model::{Absence, GuestId, Request, Told};
use tokio::sync::mpsc::UnboundedReceiver;

use crate::backend::{Control, TierDevice, Wish};
use crate::exit::ExitWatch;
use crate::round::{Patience, Round};

/// The least time between two wakes by one guest. A guest that floods its VMM with events must not keep the engine awake.
const BETWEEN_WAKES: Duration = Duration::from_millis(100);

/// Why the engine should look early.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WakeReason {
    /// The guest's process ended.
    Vanished {
        /// The guest.
        guest: GuestId,
    },
    /// A look for guests has found something new.
    Looked,
    /// Something happened to the guest.
    Event {
        /// The guest.
        guest: GuestId,
    },
}

/// Wakes the engine's thread.
pub(crate) type Wake = Arc<dyn Fn(WakeReason) + Send + Sync>;

/// A job for a task.
pub(crate) enum Job {
    /// Ask the guest's VMM and send the answers.
    Observe { wish: Wish, deadline: Duration, patience: Patience, round: Arc<Round> },
    /// Make a request, if there is still time for it.
    Make { request: Request, number: usize, by: Instant, reply: mpsc::Sender<Made> },
    /// Attach a tier, if there is still time for it.
    Attach { tier: TierDevice, by: Instant, reply: mpsc::Sender<Made> },
}

/// The result of an observation.
pub(crate) struct Observed {
    pub(crate) guest: GuestId,
    pub(crate) told: Told,
    pub(crate) at: Instant,
}

/// The result of the request with this number.
pub(crate) struct Made {
    pub(crate) number: usize,
    pub(crate) result: Result<(), Absence>,
}

/// One guest's task.
pub(crate) struct Actor {
    pub(crate) guest: GuestId,
    pub(crate) control: Box<dyn Control>,
    pub(crate) jobs: UnboundedReceiver<Job>,
    pub(crate) results: mpsc::Sender<Observed>,
    pub(crate) wake: Wake,
    pub(crate) exit: Option<ExitWatch>,
}

impl Actor {
    /// Runs until nobody can send jobs.
    pub(crate) async fn run(mut self) {
        let mut has_event = false;
        let mut quiet_until = tokio::time::Instant::now();
        loop {
            tokio::select! {
                job = self.jobs.recv() => match job {
                    Some(job) => self.carry_out(job).await,
                    None => return,
                },
                () = self.control.next_event() => has_event = true,
                () = tokio::time::sleep_until(quiet_until), if has_event => {
                    has_event = false;
                    (self.wake)(WakeReason::Event { guest: self.guest.clone() });
                    quiet_until = tokio::time::Instant::now() + BETWEEN_WAKES;
                }
                () = ended(self.exit.as_ref()), if self.exit.is_some() => {
                    self.exit = None;
                    (self.wake)(WakeReason::Vanished { guest: self.guest.clone() });
                }
            }
        }
    }

    async fn carry_out(&mut self, job: Job) {
        match job {
            Job::Observe { wish, deadline, patience, round } => {
                self.control.be_patient(patience);
                let told = self.control.observe(wish, deadline).await;
                // If the fleet is gone, nobody needs the result.
                let observed = Observed { guest: self.guest.clone(), told, at: Instant::now() };
                let _ = self.results.send(observed);
                round.one_is_done();
            }
            Job::Make { request, number, by, reply } => {
                let left = by.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return;
                }
                let result = self.control.apply(request, left).await;
                let _ = reply.send(Made { number, result });
            }
            Job::Attach { tier, by, reply } => {
                let left = by.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return;
                }
                let result = self.control.attach(tier, left).await;
                let _ = reply.send(Made { number: 0, result });
            }
        }
    }
}

async fn ended(watch: Option<&ExitWatch>) {
    match watch {
        Some(watch) => watch.ended().await,
        None => std::future::pending().await,
    }
}
