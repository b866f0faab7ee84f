//! The loop: observe, decide, check, apply, write down, publish, wait.
//!
//! **Rules.**
//! - An action that would break a promise is not carried out. Its guest stays as it is, and a warning says so. The other actions are carried
//!   out.
//! - In observe mode nothing is applied.
//! - What became of the actions is remembered once their answers are known ([`Policy::hears`]).
//! - No guest and no journal can end the loop; only [`Wake::Stop`] can.

use std::sync::Arc;
use std::time::Duration;

use memtide_model::{
    Action, Answer, Bounds, Config, GuestState, Keeps, Mode, Moment, OnExit, Polling, Reason, Refusal,
    Request, Snapshot, Span, State, Tick, Witness,
};
use tracing::{info, warn};

use crate::again::Again;
use crate::apply::Ground;
use crate::asking::Asking;
use crate::journal::Sink;
use crate::log::Log;
use crate::pace::{LEAST, Pace};
use crate::policy::{Policy, own_policy};
use crate::recorded::note_of_kill;
use crate::recorder::Recorder;
use crate::resume::{lasting_ksm, without_settings};
use crate::step::{Decider, Step};
use crate::{Board, Counters, Killed, LastTick, Published, Wake, World};

/// The longest time between two looks at the statistics of many guests during an interval.
const LOOKS_EVERY: Span = Span::from_millis(350);

/// At most this many refusals of a plan are shown.
const MOST_REFUSALS: usize = 10;

/// Decides for one world, tick after tick, on the caller's thread.
#[derive(Debug)]
pub struct Engine<W> {
    world: W,
    asking: Asking,
    again: Again,
    decider: Decider,
    recorder: Recorder,
    board: Board,
    pace: Pace,
    log: Log,
    counters: Counters,
    /// Warnings that the operator always sees.
    notices: Vec<String>,
    /// Why the last configuration was refused.
    refused: Option<String>,
}

impl<W: World> Engine<W> {
    /// An engine without state and without a journal.
    #[must_use]
    pub fn new(world: W, config: Config) -> Self {
        Self {
            world,
            asking: Asking::default(),
            again: Again::default(),
            board: Board::new(config.clone()),
            decider: Decider::new(own_policy(), config, Default::default()),
            recorder: Recorder::default(),
            pace: Pace::new(),
            log: Log::default(),
            counters: Counters::default(),
            notices: Vec::new(),
            refused: None,
        }
    }

    /// The same engine, with a journal. The engine warns about one that cannot be written while it manages.
    #[must_use]
    pub fn with_journal(mut self, sink: impl Sink + 'static) -> Self {
        self.recorder = Recorder::to(sink);
        self.note_the_beginning();
        self
    }

    /// The same engine, which always shows `notice` among its warnings.
    #[must_use]
    pub fn with_notice(mut self, notice: String) -> Self {
        self.notices.push(notice);
        self
    }

    /// The same engine, which continues from the state of a former run and from what its check had seen.
    #[must_use]
    pub fn with_memory(mut self, (state, witness): (State, Witness)) -> Self {
        (self.decider.state, self.decider.witness) = (state, witness);
        self
    }

    /// The same engine, with another policy.
    #[must_use]
    pub fn with_policy(mut self, policy: Arc<dyn Policy>) -> Self {
        self.decider.policy = policy;
        self
    }

    /// The board from which everybody else reads.
    #[must_use]
    pub fn board(&self) -> Board {
        self.board.clone()
    }

    /// The present state.
    #[must_use]
    pub const fn state(&self) -> &State {
        &self.decider.state
    }

    /// The world, for tests and simulations that change it between ticks.
    pub const fn world_mut(&mut self) -> &mut W {
        &mut self.world
    }

    /// Adds a note to the journal, written with the next tick.
    pub fn note(&mut self, text: &str) {
        self.recorder.note(text);
    }

    fn note_the_beginning(&mut self) {
        self.note(&format!("memtide {} begins to {}", env!("CARGO_PKG_VERSION"), self.decider.config.mode));
    }

    /// Uses a new configuration from the next tick on.
    pub fn reload(&mut self, config: Config) {
        let ends_managing = self.decider.config.mode == Mode::Manage && config.mode == Mode::Observe;
        if ends_managing {
            self.give_back(config.on_exit);
        }
        self.recorder.config_changed();
        self.recorder.note("new configuration");
        self.counters.reloads += 1;
        self.refused = None;
        self.decider.config = config;
    }

    /// The interval before the next tick, unless an event ends it.
    #[must_use]
    pub fn interval(&self) -> Duration {
        self.pace.interval().into()
    }

    /// One tick, from observing to publishing.
    pub fn tick(&mut self) {
        let began = self.world.now();
        let step = self.step();
        let killed = self.world.killed();
        self.counters.guests_killed += killed.len() as u64;
        for Killed { guest, how } in &killed {
            self.note(&note_of_kill(guest.name(), how));
        }
        self.log.step(&step, &killed);
        let Step { seen, plan, report, refusals, answers } = step;
        let took = self.world.now().since(began);
        let state = self.decider.state.clone();
        self.publish(LastTick { seen, plan, report, state, refusals, answers, took });
    }

    /// One tick, from observing to the journal. This is enough for a simulation: nothing is logged or published, and nothing
    /// is copied if there is no journal.
    #[must_use]
    pub fn step(&mut self) -> Step {
        self.asking.begin(self.world.now());
        let mut seen = self.world.observe(&mut self.asking);
        for guest in self.again.give_orders(&self.decider.state, &mut seen) {
            let text = format!("{guest} has started again, and is held as before");
            info!("{text}");
            self.recorder.note(&text);
        }
        assert!(seen.guests.is_sorted_by(|a, b| a.id < b.id), "a world orders its guests, each once");
        let before = self.decider.state.decided_at;
        assert!(before.is_none_or(|before| before <= seen.taken_at), "the time of a world never goes back");
        self.asking.note(&seen.guests, seen.taken_at);
        let (world, recorder) = (&mut self.world, &mut self.recorder);
        let witness = recorder.is_wanted().then(|| self.decider.witness.clone());
        let (step, before) = self.decider.step(seen, |decider, step| {
            if !decider.may_apply() {
                return Vec::new();
            }
            let before = || (decider.state.clone(), witness.clone().unwrap_or_default());
            let ksm_is_written = recorder.sets_ksm(decider, before, step);
            Ground { decider, step, ksm_is_written }.apply(world)
        });
        let asked = step.plan.actions.iter().zip(&step.answers);
        asked.for_each(|(action, _)| self.asking.changed(action, step.seen.taken_at));
        let (mode, state) = (self.decider.config.mode, &self.decider.state);
        self.pace.after(step.seen.taken_at, mode, &step.answers, &step.report, state);
        self.count(&step);
        let Some(witness) = witness else { return step };
        let Step { seen, plan, report, refusals, answers } = step;
        let (state_crc, witness_crc) = self.decider.crcs();
        let tick = Tick { seen, plan, state_crc, witness_crc: Some(witness_crc), refusals, answers };
        let (tick, lost) = self.recorder.tick(&self.decider, (before, witness), tick);
        self.counters.ticks_not_journalled += lost;
        let Tick { seen, plan, refusals, answers, .. } = tick;
        Step { seen, plan, report, refusals, answers }
    }

    /// Runs tick after tick until the world says stop. Then follows `on_exit`, and returns the world to the caller.
    pub fn run(mut self) -> W {
        loop {
            let began = self.world.now();
            self.tick();
            if !self.wait(began) {
                return self.finish();
            }
        }
    }

    /// Ends the engine. In manage mode, it gives every managed guest its polling back, and with `on_exit = "release"` its limit.
    pub fn finish(mut self) -> W {
        if self.decider.config.mode == Mode::Manage {
            self.give_back(self.decider.config.on_exit);
        }
        if self.world.puts_ksm_back() {
            // The next run then takes settings like these for somebody else's.
            self.decider.state.ksm = Box::new(without_settings(&self.decider.state.ksm));
        }
        if let Some(last) = &self.board.latest().last {
            self.note("memtide ends");
            self.recorder.finish(&self.decider, last.seen.taken_at);
        }
        self.world
    }

    /// Ends the engine like a kill: it releases nothing, and writes nothing more.
    #[must_use]
    pub fn into_world(self) -> W {
        self.world
    }

    /// Waits after a tick that began at `began`. `false`: the engine should end.
    pub fn wait(&mut self, began: Moment) -> bool {
        let mut until = began.after(self.pace.interval());
        let looks_every = self.looks_every(until.since(self.world.now()));
        loop {
            let left = until.since(self.world.now());
            match self.world.wait(left.min(looks_every).into()) {
                Wake::Timeout if left <= looks_every => return true,
                Wake::Timeout if !self.sees_want() => {}
                Wake::Timeout | Wake::Event => until = until.min(began.after(LEAST)),
                Wake::Reload(config) => {
                    self.reload(*config);
                    until = until.min(began.after(LEAST));
                }
                Wake::Refused(why) => {
                    self.refused = Some(why);
                    until = until.min(began.after(LEAST));
                }
                Wake::Stop => return false,
            }
            if self.world.now() >= until {
                return true;
            }
        }
    }

    /// The time between two looks at the statistics during an `interval`. The looks are evenly spaced, and the tick at the end of the interval
    /// is one of them. Few guests need no looks.
    fn looks_every(&self, interval: Span) -> Span {
        if self.decider.config.mode != Mode::Manage || self.asking.are_few() {
            return interval;
        }
        let looks = interval.as_millis().div_ceil(LOOKS_EVERY.as_millis()).max(1);
        Span::from_millis(interval.as_millis() / looks)
    }

    /// Reads the statistics that are due between two ticks. Returns whether one of their guests shows want.
    fn sees_want(&mut self) -> bool {
        let due = self.asking.due(self.world.now());
        let told = self.world.look(&due);
        let now = self.world.now();
        told.iter().fold(false, |wants, (id, told)| self.asking.heard(id, told, now) || wants)
    }

    /// Restores the former polling interval of the statistics of managed guests of the last tick. If they are to be released, gives them their limit back if they have
    /// less, or if they had a target. Skips guests that memtide must leave alone. A guest can have less than its limit because of a former run that was killed.
    fn give_back(&mut self, on_exit: OnExit) {
        let published = self.board.latest();
        let Some(last) = &published.last else { return };
        let names = last.seen.names();
        for guest in &last.seen.guests {
            let (_, class) = self.decider.config.class_of_seen(guest);
            let Some(remembered) = self.decider.state.guests.get(&guest.id) else { continue };
            let is_held = remembered.hold.is_some_and(|hold| hold.keeps != Keeps::Limit);
            if !class.manage || guest.told.fence.is_some() || is_held {
                continue;
            }
            let limit = Bounds::of(&class, guest.told.full).limit();
            let is_released = on_exit == OnExit::Release;
            let has_less = guest.actual() < limit || remembered.target.is_some();
            let target = (is_released && has_less).then_some(Request::SetTarget(limit));
            let polling = match remembered.polled_before {
                Some(Polling::Off) => Some(Request::PollStats(Span::ZERO)),
                Some(Polling::Every(span)) => Some(Request::PollStats(span)),
                Some(Polling::Unknown) | None => None,
            };
            let name = names.name(&guest.id);
            for request in target.into_iter().chain(polling) {
                let action = Action::of(guest.id.clone(), request, Reason::Release);
                self.asking.changed(&action, last.seen.taken_at);
                let how = match self.world.apply(&action) {
                    Ok(_) => {
                        info!(guest = name, %request, "given back");
                        "done".to_owned()
                    }
                    Err(error) => {
                        warn!(guest = name, %request, why = %error.why, "not given back");
                        format!("failed: {}", error.why)
                    }
                };
                self.recorder.note(&format!("{name}: {request}, given back: {how}"));
            }
        }
        if on_exit == OnExit::Keep {
            return;
        }
        // memtide is not responsible for released guests, so a later run begins anew. The operator's orders stay valid, and KSM is put back.
        let held = self.decider.state.guests.iter().filter_map(|(id, guest)| Some((id.clone(), guest.hold?)));
        let held =
            held.map(|(id, hold)| (id, Box::new(GuestState { hold: Some(hold), ..GuestState::default() })));
        let ksm = Box::new(lasting_ksm(&self.decider.state.ksm));
        self.decider.state = State { guests: held.collect(), ksm, ..State::default() };
        self.decider.witness = Witness::from(&self.decider.state);
    }

    fn count(&mut self, step: &Step) {
        let done = step.answers.iter().filter(|answer| answer.is_accepted()).count();
        self.counters.ticks += 1;
        self.counters.actions_done += done as u64;
        let refused = step.answers.iter().filter(|answer| **answer == Answer::Refused).count();
        self.counters.actions_failed += (step.answers.len() - done - refused) as u64;
        self.counters.actions_refused += refused as u64;
    }

    fn publish(&mut self, last: LastTick) {
        let mut warnings = self.notices.clone();
        warnings.extend(self.refused.clone());
        // Who has given an order waits for the answer whether a restart would forget it.
        let unwritten = self.recorder.waits(!last.seen.orders.is_empty());
        warnings.extend(self.recorder.warning(self.decider.config.mode));
        warnings.extend(missed_warning(&last.seen));
        warnings.extend(self.world.warnings());
        warnings.extend(refusal_warnings(&last.refusals));
        let (config, counters) = (self.decider.config.clone(), self.counters);
        let outsiders = self.world.outsiders();
        self.board.publish(Published { config, counters, warnings, unwritten, outsiders, last: Some(last) });
    }
}

/// The warning about a host that could not be read.
pub(crate) fn missed_warning(seen: &Snapshot) -> Option<String> {
    let missed = seen.host.missed.as_ref()?;
    Some(format!("no target is changed: the host's memory cannot be read: {missed}"))
}

/// The warnings about refused actions.
pub(crate) fn refusal_warnings(refusals: &[Refusal]) -> impl Iterator<Item = String> {
    let refused = refusals.iter().take(MOST_REFUSALS);
    refused.map(|refusal| format!("a change was refused, its guest stays as it is: {}", refusal.why))
}
