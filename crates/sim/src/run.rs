//! One setup under one manager, from beginning to end.

use std::fmt;
use std::str::FromStr;

use memtide_engine::{Engine, LastTick, Step, World};
use memtide_model::{
    Action, ApplyOutcome, Bytes, Commitment, Config, GuestId, Mode, Moment, Span, WallClock,
};

use crate::daemon::Daemon;
use crate::machine::{BEGINS, Machine};
use crate::measure::{GuestMeasures, HostMeasures, Sample};
use crate::rules::{Comparator, HostLook, LEAST_PERCENT, Look, Rule, UnknownRule};
use crate::setup::Setup;

/// The least of a guest's violations that are kept with their text; the others are only counted.
const KEPT_VIOLATIONS: usize = 20;

/// Who manages the guests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manager {
    /// memtide, with one of its commitments.
    Memtide(Commitment),
    /// Another manager's rule.
    Rule(Rule),
    /// Nobody: free page reporting alone.
    Nobody,
}

/// Strict and elastic, the other rules, and nobody.
impl Manager {
    /// memtide with a strict commitment.
    pub const STRICT: Self = Self::Memtide(Commitment::Strict);
    /// memtide with an elastic commitment.
    pub const ELASTIC: Self = Self::Memtide(Commitment::Elastic);

    /// Everybody, in the order of a table.
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
    /// The time from one decision of memtide to the next; `None`: the pace that its engine chooses.
    pub tick: Option<Span>,
    /// Keep what memtide decides about the guest of this name, at this time or next.
    pub explain: Option<(String, Span)>,
}

/// A decision that was asked for.
#[derive(Clone, Debug)]
pub struct Explained {
    /// The decision.
    pub tick: LastTick,
    /// The configuration that it followed.
    pub config: Config,
    /// The guest's changes up to then: when, by both clocks, what, and why it failed if it did.
    pub changes: Vec<(Moment, WallClock, Action, Option<String>)>,
}

/// What a run brought.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Who managed.
    pub manager: Manager,
    /// How long it was simulated.
    pub lasts: Span,
    /// The guests, in the order of the setup.
    pub guests: Vec<GuestMeasures>,
    /// The host.
    pub host: HostMeasures,
    /// How long after the last fault something was wrong for the last time; `None`: to the end, or a guest was lost for good.
    pub right_again: Option<Span>,
    /// Plans that memtide's own check refused: when, and why. The first few.
    pub violations: Vec<(Span, String)>,
    /// How many there were.
    pub violation_count: u64,
    /// What its daemon warns of at the end, if it has a journal: only a setup in which the daemon suffers has one.
    pub warnings: Vec<String>,
    /// Decisions made.
    pub decisions: u64,
    /// The course of the run.
    pub samples: Vec<Sample>,
    /// The decision that was asked for, if memtide managed.
    pub explained: Option<Box<Explained>>,
}

/// Runs `setup` under `manager`. `progress` hears how much time has passed.
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

/// Makes the allocator keep what is freed. A decision about a thousand guests frees some megabytes, and glibc gave them back to
/// the system and faulted them in again at each tick: a third of the time. Freeing one large block raises both of its thresholds.
fn keep_freed_memory() {
    drop(std::hint::black_box(Vec::<u8>::with_capacity(24 << 20)));
}

/// What is noted of memtide's decisions.
#[derive(Debug, Default)]
struct Notes {
    violations: Vec<(Span, String)>,
    violation_count: u64,
    warnings: Vec<String>,
    decisions: u64,
    changes: Vec<(Moment, WallClock, Action, Option<String>)>,
    explained: Option<Box<Explained>>,
}

impl Notes {
    fn take(&mut self, engine: &Engine<Machine>, config: &Config, step: Step, options: &Options) {
        let at = step.seen.taken_at.since(BEGINS);
        self.decisions += 1;
        self.violation_count += step.violations.len() as u64;
        let room = KEPT_VIOLATIONS.saturating_sub(self.violations.len());
        self.violations.extend(step.violations.iter().take(room).map(|text| (at, text.clone())));
        if let Some((name, wanted)) = options.explain.as_ref().filter(|_| self.explained.is_none()) {
            self.explain(engine, config, step, (known_as(name).name(), *wanted <= at));
        }
    }

    /// Keeps the changes of the guest `name`, and the whole decision once its time has come.
    fn explain(&mut self, engine: &Engine<Machine>, config: &Config, step: Step, (name, now): (&str, bool)) {
        let Step { seen, plan, report, violations, outcomes } = step;
        for (action, outcome) in plan.actions.iter().zip(&outcomes).filter(|(a, _)| a.guest.name() == name) {
            let failed = match outcome {
                ApplyOutcome::Done => None,
                ApplyOutcome::Failed(why) => Some(why.clone()),
            };
            self.changes.push((seen.taken_at, seen.wall, action.clone(), failed));
        }
        if now {
            let (state, took) = (engine.state().clone(), Span::ZERO);
            let tick = LastTick { seen, plan, report, state, violations, outcomes, took };
            let changes = std::mem::take(&mut self.changes);
            self.explained = Some(Box::new(Explained { tick, config: config.clone(), changes }));
        }
    }
}

/// memtide's own engine manages.
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
            None => _ = engine.rest(began),
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

/// Another manager's rule is followed.
fn follow(machine: &mut Machine, setup: &Setup, rule: Rule, progress: &mut dyn FnMut(Span)) {
    let mut comparator = Comparator::new(rule);
    while !machine.is_over() {
        machine.live(comparator.next_look(), false);
        let looks = looks(machine, setup);
        let overheads = Bytes::sum(looks.iter().map(|(_, overhead)| *overhead));
        let other = machine.host.other.saturating_add(overheads);
        let host = HostLook { total: machine.host.capacity(), free: machine.host.free(), other };
        let looks: Vec<Look> = looks.into_iter().map(|(look, _)| look).collect();
        for (id, target) in comparator.look(machine.now(), host, &looks) {
            machine.set_target(&id, target);
        }
        progress(machine.elapsed());
    }
}

/// What a rule sees of each guest, and the overhead of its VMM.
fn looks(machine: &Machine, setup: &Setup) -> Vec<(Look, Bytes)> {
    let present = machine.guests.iter().filter_map(|resident| Some((resident, resident.guest.as_ref()?)));
    let look = |(resident, guest): (&crate::machine::Resident, &memtide_guest::Guest)| {
        let (_, class) = setup.config.class_of(&resident.plan.name);
        let (stats, full) = (guest.stats(), guest.spec().memory);
        let driver = guest.has_driver();
        let look = Look {
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
        (look, guest.spec().overhead)
    };
    present.map(look).collect()
}
