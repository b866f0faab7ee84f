//! The loop: observe, decide, check, apply, write down, publish, rest.
//!
//! **Rules.**
//! - A plan with a violation is not applied: the guests stay as they are, and it is said so.
//! - In observe mode nothing is applied.
//! - What was not carried out is not believed ([`settle`]).
//! - Neither a guest nor the journal can end the loop; only [`Wake::Stop`] does.

use std::path::PathBuf;
use std::time::Duration;

use memtide_model::{
    Action, ApplyOutcome, Bounds, Bytes, Change, Config, Decision, GuestState, Keeps, Mode, Moment, OnExit,
    Plan, Reason, Report, Snapshot, Span, State, StatsPolling, Tick,
};
use tracing::{info, warn};

use crate::apply::Ground;
use crate::journal::{JournalError, Writer};
use crate::log::Log;
use crate::pace::{LEAST, Pace};
use crate::recorder::Recorder;
use crate::settle::{settle, state_crc};
use crate::{Board, Counters, LastTick, Published, Rules, Wake, World};

/// What one decision saw, decided and did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// What was seen.
    pub seen: Snapshot,
    /// What was decided.
    pub plan: Plan,
    /// Why. Its targets are those that were carried out.
    pub report: Report,
    /// What `check` found wrong; the plan was not applied unless this is empty.
    pub violations: Vec<String>,
    /// How the plan's actions went, in their order; empty if none was applied.
    pub outcomes: Vec<ApplyOutcome>,
}

/// Decides for one world, tick after tick, on the thread of its caller.
#[derive(Debug)]
pub struct Engine<W> {
    world: W,
    rules: Rules,
    config: Config,
    state: State,
    recorder: Recorder,
    board: Board,
    pace: Pace,
    log: Log,
    counters: Counters,
    /// What an operator should know all the time.
    notices: Vec<String>,
    /// Why the last configuration was refused.
    refused: Option<String>,
}

impl<W: World> Engine<W> {
    /// An engine that remembers nothing yet and writes no journal.
    #[must_use]
    pub fn new(world: W, config: Config) -> Self {
        Self {
            world,
            rules: Rules::default(),
            board: Board::new(config.clone()),
            config,
            state: State::default(),
            recorder: Recorder::default(),
            pace: Pace::new(),
            log: Log::default(),
            counters: Counters::default(),
            notices: Vec::new(),
            refused: None,
        }
    }

    /// The same engine with a journal.
    #[must_use]
    pub fn with_journal(mut self, writer: Writer) -> Self {
        self.recorder = Recorder::to(writer);
        self.note_the_beginning();
        self
    }

    /// The same engine, whose journal in `dir`, of at most `most` bytes, could not be opened because of `error`: that is shown as
    /// long as it manages, and tried again from time to time.
    #[must_use]
    pub fn with_journal_later(mut self, dir: PathBuf, most: Bytes, error: &JournalError) -> Self {
        self.recorder = Recorder::later(dir, most, error);
        self.note_the_beginning();
        self
    }

    /// The same engine, which shows `notice` among its warnings all the time.
    #[must_use]
    pub fn with_notice(mut self, notice: String) -> Self {
        self.notices.push(notice);
        self
    }

    /// The same engine, which goes on from what it remembers of a former run.
    #[must_use]
    pub fn with_state(mut self, state: State) -> Self {
        self.state = state;
        self
    }

    /// The same engine with another policy.
    #[must_use]
    pub const fn with_rules(mut self, rules: Rules) -> Self {
        self.rules = rules;
        self
    }

    /// Where everybody else reads what this engine does.
    #[must_use]
    pub fn board(&self) -> Board {
        self.board.clone()
    }

    /// What is remembered now.
    #[must_use]
    pub const fn state(&self) -> &State {
        &self.state
    }

    /// The world, for tests and simulations that change it between ticks.
    pub const fn world_mut(&mut self) -> &mut W {
        &mut self.world
    }

    /// A line for the journal, written with the next tick.
    pub fn note(&mut self, text: &str) {
        self.recorder.note(text);
    }

    fn note_the_beginning(&mut self) {
        self.note(&format!("memtide {} begins, mode {}", env!("CARGO_PKG_VERSION"), self.config.mode));
    }

    /// Takes over a new configuration from the next tick on.
    pub fn reload(&mut self, config: Config) {
        let ends_managing = self.config.mode == Mode::Manage && config.mode == Mode::Observe;
        if ends_managing && config.on_exit == OnExit::Release {
            self.release();
        }
        self.recorder.config_changed();
        self.recorder.note("new configuration");
        self.counters.reloads += 1;
        self.refused = None;
        self.config = config;
    }

    /// How long to rest before the next tick, unless something happens.
    #[must_use]
    pub fn pause(&self) -> Duration {
        self.pace.rest().into()
    }

    /// One decision, from observing to publishing.
    pub fn tick(&mut self) {
        let began = self.world.now();
        let step = self.step();
        self.log.step(&step);
        let Step { seen, plan, report, violations, outcomes } = step;
        let took = self.world.now().since(began);
        let state = self.state.clone();
        self.publish(LastTick { seen, plan, report, state, violations, outcomes, took });
    }

    /// One decision, from observing to writing it down. A simulation needs no more than this: nothing is logged, nothing is
    /// published, and without a journal nothing is copied for one.
    #[must_use]
    pub fn step(&mut self) -> Step {
        let seen = self.world.observe();
        let Decision { plan, state: decided, mut report } =
            (self.rules.decide)(&self.config, &self.state, &seen);
        let violations = (self.rules.check)(&self.config, &self.state, &seen, &plan);
        let outcomes = if self.config.mode == Mode::Manage && violations.is_empty() {
            let ground = Ground { rules: self.rules, config: &self.config, state: &self.state, seen: &seen };
            ground.apply(&mut self.world, &plan)
        } else {
            Vec::new()
        };
        let settled = settle(&self.state, decided, &plan, &outcomes);
        let before = std::mem::replace(&mut self.state, settled);
        correct(&mut report, &self.state, &plan, &outcomes);
        self.pace.after(seen.taken_at, self.config.mode, &outcomes, &report, &self.state);
        self.count(&outcomes, &violations);
        if !self.recorder.is_wanted() {
            return Step { seen, plan, report, violations, outcomes };
        }
        let tick = Tick { seen, plan, state_crc: state_crc(&self.state), violations, outcomes };
        let (tick, written) = self.recorder.tick(&self.config, before, tick);
        self.counters.ticks_not_journalled += u64::from(!written);
        let Tick { seen, plan, violations, outcomes, .. } = tick;
        Step { seen, plan, report, violations, outcomes }
    }

    /// Ticks until the world says stop, then gives the guests back what `on_exit` says, and the world to the caller.
    pub fn run(mut self) -> W {
        loop {
            let began = self.world.now();
            self.tick();
            if !self.rest(began) {
                return self.finish();
            }
        }
    }

    /// Ends the engine: with `on_exit = "release"`, in manage mode, every guest that was given a target gets its limit
    /// back.
    pub fn finish(mut self) -> W {
        if self.config.mode == Mode::Manage && self.config.on_exit == OnExit::Release {
            self.release();
        }
        if let Some(last) = &self.board.latest().last {
            self.note("memtide ends");
            self.recorder.finish(&self.config, self.state, last.seen.taken_at);
        }
        self.world
    }

    /// Ends the engine as a kill does: nothing is released, nothing more is written.
    #[must_use]
    pub fn into_world(self) -> W {
        self.world
    }

    /// Rests after a tick that began at `began`. `false`: the engine is to end.
    pub fn rest(&mut self, began: Moment) -> bool {
        let mut until = began.after(self.pace.rest());
        loop {
            let left = until.since(self.world.now());
            match self.world.wait(left.into()) {
                Wake::Timeout => return true,
                Wake::Event => until = until.min(began.after(LEAST)),
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

    /// Gives every managed guest of the last tick that has less than its limit, or was given a target, its limit back, and
    /// the statistics the interval that they had; those that must be left alone stay as they are. A guest can have less
    /// from a run that was killed.
    fn release(&mut self) {
        let published = self.board.latest();
        let Some(last) = &published.last else { return };
        for guest in &last.seen.guests {
            let (_, class) = self.config.class_of(guest.id.name());
            let Some(remembered) = self.state.guests.get(&guest.id) else { continue };
            let is_held = remembered.hold.is_some_and(|hold| hold.keeps != Keeps::Limit);
            if !class.manage || guest.fence.is_some() || is_held {
                continue;
            }
            let limit = Bounds::of(class, guest.full).limit();
            let target =
                (guest.actual() < limit || remembered.target.is_some()).then_some(Change::SetTarget(limit));
            let polling = match remembered.polled_before {
                Some(StatsPolling::Off) => Some(Change::PollStats(Span::ZERO)),
                Some(StatsPolling::Every(span)) => Some(Change::PollStats(span)),
                Some(StatsPolling::Unknown) | None => None,
            };
            for change in target.into_iter().chain(polling) {
                let action = Action { guest: guest.id.clone(), change, reason: Reason::Release };
                let how = match self.world.apply(&action) {
                    Ok(()) => {
                        info!(guest = %guest.id, %change, "released");
                        "done".to_owned()
                    }
                    Err(error) => {
                        warn!(guest = %guest.id, %change, why = %error.why, "not released");
                        format!("failed: {}", error.why)
                    }
                };
                self.recorder.note(&format!("{}: {change}, released: {how}", guest.id));
            }
        }
        // What was released is not ours any more: what follows is a run of its own. What the operator said still holds.
        let held = self.state.guests.iter().filter_map(|(id, guest)| Some((id.clone(), guest.hold?)));
        let held =
            held.map(|(id, hold)| (id, Box::new(GuestState { hold: Some(hold), ..GuestState::default() })));
        self.state = State { guests: held.collect(), ..State::default() };
    }

    fn count(&mut self, outcomes: &[ApplyOutcome], violations: &[String]) {
        let done = outcomes.iter().filter(|outcome| **outcome == ApplyOutcome::Done).count();
        self.counters.ticks += 1;
        self.counters.actions_done += done as u64;
        self.counters.actions_failed += (outcomes.len() - done) as u64;
        self.counters.plans_refused += u64::from(!violations.is_empty());
    }

    fn publish(&self, last: LastTick) {
        let mut warnings = self.notices.clone();
        warnings.extend(self.refused.clone());
        warnings.extend(self.recorder.warning(self.config.mode));
        let refused = last.violations.iter();
        warnings.extend(refused.map(|violation| format!("the last plan was not applied: {violation}")));
        let (config, counters) = (self.config.clone(), self.counters);
        self.board.publish(Published { config, counters, warnings, last: Some(last) });
    }
}

/// Makes the report speak of the targets that are in force, not of those that failed.
fn correct(report: &mut Report, state: &State, plan: &Plan, outcomes: &[ApplyOutcome]) {
    let is_done = |index: usize| outcomes.get(index) == Some(&ApplyOutcome::Done);
    for (_, action) in plan.actions.iter().enumerate().filter(|(index, _)| !is_done(*index)) {
        if let Ok(index) = report.guests.binary_search_by(|guest| guest.id.cmp(&action.guest)) {
            let remembered = state.guests.get(&action.guest);
            report.guests[index].target = remembered.and_then(|remembered| remembered.target);
        }
    }
}
