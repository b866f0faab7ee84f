//! One setup under one manager, from beginning to end.

use std::fmt;
use std::str::FromStr;

use memtide_engine::{Engine, LastTick, Step, World};
use memtide_model::{Action, Answer, Bytes, Commitment, Config, GuestId, Mode, Moment, Span, WallClock};

use crate::daemon::Daemon;
use crate::machine::Machine;
use crate::measure::{GuestMeasures, HostMeasures, Sample};
use crate::rules::{Comparator, GuestInput, HostInput, LEAST_PERCENT, Rule, UnknownRule};
use crate::setup::BEGINS;
use crate::setup::Setup;

/// Only this many violations of a run are kept with their text; the others are only counted.
const KEPT_VIOLATIONS: usize = 20;

/// The manager of the guests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manager {
    /// memtide, with one of its commitments.
    Memtide(Commitment),
    /// Another manager's rule.
    Rule(Rule),
    /// Nobody: free page reporting alone.
    Nobody,
}

impl Manager {
    /// memtide with a strict commitment.
    pub const STRICT: Self = Self::Memtide(Commitment::Strict);
    /// memtide with an elastic commitment.
    pub const ELASTIC: Self = Self::Memtide(Commitment::Elastic);

    /// All managers, in the order of a table.
    #[must_use]
    pub fn all() -> Vec<Self> {
        let rules = Rule::ALL.into_iter().map(Self::Rule);
        [Self::STRICT, Self::ELASTIC].into_iter().chain(rules).chain([Self::Nobody]).collect()
    }
}

impl fmt::Display for Manager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memtide(Commitment::Strict) => f.pad("strict"),
            Self::Memtide(Commitment::Elastic) => f.pad("elastic"),
            Self::Rule(rule) => rule.fmt(f),
            Self::Nobody => f.pad("none"),
        }
    }
}

impl FromStr for Manager {
    type Err = UnknownRule;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(match text {
            "strict" => Self::STRICT,
            "elastic" => Self::ELASTIC,
            "none" => Self::Nobody,
            _ => Self::Rule(text.parse()?),
        })
    }
}

/// The id of the guest of a setup with this name. Ids know no `@`: names lose it there.
#[must_use]
pub fn known_as(name: &str) -> GuestId {
    GuestId::new(name, 0, "sim")
}

/// How a run is made.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The time between two decisions of memtide; `None`: the pace that its engine chooses.
    pub tick: Option<Span>,
    /// Keep memtide's first decision at or after this time, for the guest of this name.
    pub explain: Option<(String, Span)>,
}

/// A requested decision.
#[derive(Clone, Debug)]
pub struct Explained {
    /// The decision.
    pub tick: LastTick,
    /// The configuration that it used.
    pub config: Config,
    /// The guest's changes up to then: the time by both clocks, the action, and the answer to it.
    pub changes: Vec<(Moment, WallClock, Action, Answer)>,
}

/// The result of a run.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The manager.
    pub manager: Manager,
    /// The time simulated.
    pub lasts: Span,
    /// The guests, in the order of the setup.
    pub guests: Vec<GuestMeasures>,
    /// The host.
    pub host: HostMeasures,
    /// The time from the last fault to the last moment at which something was wrong; `None` if that was near the end.
    pub right_again: Option<Span>,
    /// The first actions that memtide's own check refused: the time and the reason.
    pub violations: Vec<(Span, String)>,
    /// The number of all violations.
    pub violation_count: u64,
    /// The daemon's warnings at the end. Only a setup with faults of the daemon has a journal, and only with a journal are there warnings.
    pub warnings: Vec<String>,
    /// Decisions made.
    pub decisions: u64,
    /// The course of the run.
    pub samples: Vec<Sample>,
    /// The requested decision, if memtide managed.
    pub explained: Option<Box<Explained>>,
}

/// Runs `setup` under `manager`. `progress` receives the time that has passed.
pub fn run(setup: &Setup, manager: Manager, options: &Options, progress: &mut dyn FnMut(Span)) -> Outcome {
    keep_freed_memory();
    let mut machine = Machine::new(setup);
    let mut notes = Notes::default();
    match manager {
        Manager::Memtide(commitment) => {
            let config = Config { commitment, mode: Mode::Manage, ..setup.config.clone() };
            machine = manage(machine, &config, options, &mut notes, progress);
        }
        Manager::Rule(rule) => follow(&mut machine, setup, rule, progress),
        Manager::Nobody => {
            while !machine.is_over() {
                machine.live(machine.now().after(Span::from_secs(60)), false);
                progress(machine.elapsed());
            }
        }
    }
    let measures = machine.measures;
    Outcome {
        manager,
        lasts: setup.lasts,
        right_again: measures.right_again(setup.lasts),
        guests: measures.guests,
        host: measures.host,
        violations: notes.violations,
        violation_count: notes.violation_count,
        warnings: notes.warnings,
        decisions: notes.decisions,
        samples: measures.samples,
        explained: notes.explained,
    }
}

/// Makes the allocator keep freed memory. A decision about a thousand guests frees several MiB. glibc returned them to the system and
/// faulted them in again at each tick, which took a third of the time. Freeing one large block raises both of its thresholds.
fn keep_freed_memory() {
    drop(std::hint::black_box(Vec::<u8>::with_capacity(24 << 20)));
}

/// Notes on memtide's decisions.
#[derive(Debug, Default)]
struct Notes {
    violations: Vec<(Span, String)>,
    violation_count: u64,
    warnings: Vec<String>,
    decisions: u64,
    changes: Vec<(Moment, WallClock, Action, Answer)>,
    explained: Option<Box<Explained>>,
}

impl Notes {
    fn take(&mut self, engine: &Engine<Machine>, config: &Config, step: Step, options: &Options) {
        let at = step.seen.taken_at.since(BEGINS);
        self.decisions += 1;
        self.violation_count += step.refusals.len() as u64;
        let room = KEPT_VIOLATIONS.saturating_sub(self.violations.len());
        self.violations.extend(step.refusals.iter().take(room).map(|refusal| (at, refusal.why.clone())));
        if let Some((name, wanted)) = options.explain.as_ref().filter(|_| self.explained.is_none()) {
            self.explain(engine, config, step, (known_as(name).name(), *wanted <= at));
        }
    }

    /// Keeps the changes of the guest `name`, and the whole decision once it is due.
    fn explain(&mut self, engine: &Engine<Machine>, config: &Config, step: Step, (name, now): (&str, bool)) {
        let Step { seen, plan, report, refusals, answers } = step;
        for (action, answer) in
            plan.actions.iter().zip(&answers).filter(|(a, _)| a.guest().is_some_and(|id| id.name() == name))
        {
            self.changes.push((seen.taken_at, seen.wall, action.clone(), answer.clone()));
        }
        if now {
            let (state, took) = (engine.state().clone(), Span::ZERO);
            let tick = LastTick { seen, plan, report, state, refusals, answers, took };
            let changes = std::mem::take(&mut self.changes);
            self.explained = Some(Box::new(Explained { tick, config: config.clone(), changes }));
        }
    }
}

/// Lets memtide's own engine manage.
fn manage(
    machine: Machine,
    config: &Config,
    options: &Options,
    notes: &mut Notes,
    progress: &mut dyn FnMut(Span),
) -> Machine {
    let mut daemon = Daemon::start(machine, config);
    loop {
        let engine = daemon.engine();
        let began = engine.world_mut().now();
        let step = engine.step();
        notes.take(engine, config, step, options);
        match options.tick {
            Some(tick) => engine.world_mut().live(began.after(tick), false),
            None => _ = engine.wait(began),
        }
        progress(engine.world_mut().elapsed());
        if engine.world_mut().is_over() {
            let (machine, warnings) = daemon.stop();
            notes.warnings = warnings;
            return machine;
        }
        daemon.suffer();
    }
}

/// Lets another manager's rule manage.
fn follow(machine: &mut Machine, setup: &Setup, rule: Rule, progress: &mut dyn FnMut(Span)) {
    let mut comparator = Comparator::new(rule);
    while !machine.is_over() {
        machine.live(comparator.next_sample(), false);
        let inputs = inputs(machine, setup);
        let overheads = Bytes::sum(inputs.iter().map(|(_, overhead)| *overhead));
        let other = machine.host.other.saturating_add(overheads);
        let host = HostInput { total: machine.host.capacity(), free: machine.host.free(), other };
        let inputs: Vec<GuestInput> = inputs.into_iter().map(|(input, _)| input).collect();
        for (id, target) in comparator.targets(machine.now(), host, &inputs) {
            machine.set_target(&id, target);
        }
        progress(machine.elapsed());
    }
}

/// A rule's input about each guest, and the overhead of the guest's VMM.
fn inputs(machine: &Machine, setup: &Setup) -> Vec<(GuestInput, Bytes)> {
    let present = machine.guests.iter().filter_map(|resident| Some((resident, resident.guest.as_ref()?)));
    let input = |(resident, guest): (&crate::resident::Resident, &memtide_guest::Guest)| {
        let (_, class) = setup.config.class_of(&resident.plan.name, None);
        let (stats, full) = (guest.stats(), guest.spec().memory);
        let driver = guest.has_driver();
        let input = GuestInput {
            id: resident.id.clone(),
            full,
            size: guest.size().actual,
            target: None,
            driver,
            unused: stats.free.filter(|_| driver),
            available: stats.available.filter(|_| driver),
            min: full.mul_div(LEAST_PERCENT, 100).max(class.reservation.min(full)),
            shares: class.shares,
        };
        (input, guest.spec().overhead)
    };
    present.map(input).collect()
}
