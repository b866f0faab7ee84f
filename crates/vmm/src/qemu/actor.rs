//! The task of one guest: it carries out one job after the other, and listens to events in between.
//!
//! A guest that hangs keeps only its own task busy. The engine's thread never waits for a task: it sends jobs and takes
//! results from channels.

use std::collections::BTreeSet;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use memtide_model::{GuestId, Request, Told};
use tokio::sync::mpsc::UnboundedReceiver;

use super::exit::ExitWatch;
use super::monitor::{Monitor, MonitorError, PollWish};
use super::round::{Patience, Round};
use super::signal::Signal;

/// The least time between two wakes by one guest. A guest that floods its monitor with events must not keep the engine awake.
const BETWEEN_WAKES: Duration = Duration::from_millis(100);

/// Why the engine should look early.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WakeReason {
    /// The guest's process ended.
    Vanished {
        /// The guest.
        guest: GuestId,
    },
    /// A held monitor sent an event.
    Signal {
        /// The guest.
        guest: GuestId,
        /// The event.
        signal: Signal,
    },
}

/// Wakes the engine's thread.
pub(super) type Wake = Arc<dyn Fn(WakeReason) + Send + Sync>;

/// A job for a task.
#[derive(Debug)]
pub(super) enum Job {
    /// Ask the guest's monitor and send the answers.
    Poll { wish: PollWish, deadline: Duration, patience: Patience, round: Arc<Round> },
    /// Change something, if there is still time for it.
    Change { change: Request, number: usize, by: Instant, reply: mpsc::Sender<Changed> },
}

/// The result of a poll.
#[derive(Debug)]
pub(super) struct PollResult {
    pub(super) guest: GuestId,
    pub(super) polled: Told,
    pub(super) at: Instant,
}

/// The result of the change with this number.
#[derive(Debug)]
pub(super) struct Changed {
    pub(super) number: usize,
    pub(super) result: Result<(), MonitorError>,
}

/// One guest's task.
pub(super) struct Actor {
    pub(super) guest: GuestId,
    pub(super) monitor: Monitor,
    pub(super) jobs: UnboundedReceiver<Job>,
    pub(super) results: mpsc::Sender<PollResult>,
    pub(super) wake: Wake,
    pub(super) exit: Option<ExitWatch>,
}

impl Actor {
    /// Runs until nobody can send jobs.
    pub(super) async fn run(mut self) {
        let mut untold = BTreeSet::new();
        let mut quiet_until = tokio::time::Instant::now();
        loop {
            tokio::select! {
                job = self.jobs.recv() => match job {
                    Some(job) => self.carry_out(job).await,
                    None => return,
                },
                signal = self.monitor.next_event() => {
                    untold.insert(signal);
                }
                () = tokio::time::sleep_until(quiet_until), if !untold.is_empty() => {
                    self.tell(std::mem::take(&mut untold));
                    quiet_until = tokio::time::Instant::now() + BETWEEN_WAKES;
                }
                () = ended(self.exit.as_ref()), if self.exit.is_some() => {
                    self.exit = None;
                    (self.wake)(WakeReason::Vanished { guest: self.guest.clone() });
                }
            }
        }
    }

    fn tell(&self, signals: BTreeSet<Signal>) {
        for signal in signals {
            (self.wake)(WakeReason::Signal { guest: self.guest.clone(), signal });
        }
    }

    async fn carry_out(&mut self, job: Job) {
        match job {
            Job::Poll { wish, deadline, patience, round } => {
                self.monitor.be_patient(patience);
                let polled = self.monitor.poll(wish, deadline).await;
                // If the fleet is gone, nobody needs the result.
                let result = PollResult { guest: self.guest.clone(), polled, at: Instant::now() };
                let _ = self.results.send(result);
                round.one_is_done();
            }
            Job::Change { change, number, by, reply } => {
                let left = by.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return;
                }
                let result = match change {
                    Request::SetTarget(target) => self.monitor.set_target(target, left).await,
                    Request::PollStats(every) => self.monitor.set_polling(every, left).await,
                    Request::Reclaim(_) => return,
                };
                let _ = reply.send(Changed { number, result });
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
