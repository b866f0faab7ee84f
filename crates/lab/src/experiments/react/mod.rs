//! The speed of memory when a guest needs it urgently.
//!
//! - *free*: a guest stalls while the host has free memory; compared with the raw command that deflates its balloon;
//! - *donor*: a guest stalls and another one has the memory that it needs; compared with raw inflation and deflation;
//! - *free-busy*, *donor-busy*: the same beside a process that takes a whole core of the host, from the first command to the last;
//! - *halve*: the host is in the state hard, and other guests have a promise of all of their memory; the time until an idle guest of 1 GiB has
//!   given half of its memory, under memtide and under MOM's rule.

use std::time::{Duration, Instant};

use memtide_load::exerciser::report::Summary;
use memtide_model::{Bytes, Commitment};
use memtide_plot::bars::{self, Bar, Bars};
use serde::Serialize;
use serde_json::json;

use self::stall::{DEADLINE, free, managing, move_to, need_and_grant, raw, settled};
use crate::error::LabError;
use crate::experiments::experiment::{Arm, ArmSeen, Effort, Experiment, Findings, Options, Repetition, Seen};
use crate::guest::channel::Job;
use crate::guest::{Guest, GuestBuilder, start_all};
use crate::machine::lab::Run;
use crate::machine::process;
use crate::machine::small_host::SmallHost;
use crate::managers::daemon::Daemon;
use crate::managers::memtide::Memtide;
use crate::managers::peer::{Peer, Rule};
use crate::managers::{Managed, Manager};
use crate::output::report::{Figure, Row, Table};
use crate::output::sample::{EVERY, Samples};
use crate::output::screen::Screen;
use crate::output::show;
use crate::output::statistics::{median, p95};
use crate::wait::until;
use crate::work::exercise::fill;

pub mod stall;
pub mod uml;

/// The prefix of the guests' names.
const NAMES: &str = "react-";
const GUEST_MEMORY: Bytes = Bytes::from_mib(1024);
/// With free memory: the guest's small size, the memory that its job needs, and the host's memory.
const SMALL: Bytes = Bytes::from_mib(320);
const NEED_MIB: u64 = 320;
const ROOMY: Bytes = Bytes::from_mib(1100);
/// Without free memory: both guests together keep this much beyond the cost of their processes.
const TIGHT: Bytes = Bytes::from_mib(640 + 2 * 150);
/// The number of busy guests, the memory that each uses, and the memory that the idle guest has used before.
const BUSY: usize = 4;
const USED_MIB: u64 = 680;
const TOUCHED_MIB: u64 = 850;
/// The default reserve of memtide, and the rest of the host that is free, in percent: between the lines of hard (4) and low
/// (2).
const RESERVE_PERCENT: u64 = 5;
const FREE_PERCENT: u64 = 3;
/// The longest time for a manager to halve a guest.
const HALVES: Duration = Duration::from_secs(400);

const FREE: &str = "free";
const DONOR: &str = "donor";
const FREE_BUSY: &str = "free-busy";
const DONOR_BUSY: &str = "donor-busy";
const HALVE: &str = "halve";
const HALVE_MOM: &str = "halve-mom";

/// The experiment.
pub struct React;

/// One measurement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct ReactResult {
    /// The guest's wait for memory: the longer of the time from its stall to the first grant (zero if the grant came first)
    /// and its total stall. For halving, the time from the manager's start to half of the memory.
    pub seconds: f64,
    /// From the start of the job that needs the memory to the first grant; null for halving.
    pub from_need_seconds: Option<f64>,
    /// The time of the raw commands for the same memory; null for halving.
    pub raw_seconds: Option<f64>,
    /// The memory granted or given.
    pub moved_bytes: Bytes,
    /// The free share of the small host when the need began; null if there is no small host.
    pub host_free: Option<f64>,
}

impl Experiment for React {
    const NAME: &'static str = "react";
    const ABOUT: &'static str =
        "how fast memory moves: a stall answered, an idle guest halved on a host in need";
    type Result = ReactResult;

    fn arms(effort: Effort) -> Vec<Arm> {
        let (stalls, halves, halves_mom) = match effort {
            Effort::Quick => (5, 1, 1),
            Effort::Usual => (20, 3, 1),
            Effort::Full => (40, 5, 3),
        };
        let arm = |key: &str, title: &str, runs, seconds| Arm {
            key: key.to_owned(),
            title: title.to_owned(),
            runs,
            takes: Duration::from_secs(seconds),
        };
        vec![
            arm(FREE, "a stall, from free memory", stalls, 14),
            arm(DONOR, "a stall, from a donor", stalls, 22),
            arm(FREE_BUSY, "a stall, from free memory, one core busy", stalls / 2, 28),
            arm(DONOR_BUSY, "a stall, from a donor, one core busy", stalls / 2, 44),
            arm(HALVE, "halved by memtide", halves, 50),
            arm(HALVE_MOM, "halved by MOM's rule", halves_mom, 170),
        ]
    }

    fn has_memtide(key: &str) -> bool {
        key != HALVE_MOM
    }

    fn prepare(_: &Options, _: &[Arm], _: &Run, _: &Screen) -> Result<Self, LabError> {
        Daemon::program().map(|_| Self)
    }

    fn run(&mut self, of: Repetition<'_>, run: &Run, _: &Screen) -> Result<Seen<ReactResult>, LabError> {
        let key = of.arm.key.as_str();
        let _busy = [FREE_BUSY, DONOR_BUSY].contains(&key).then(process::busy).transpose()?;
        let result = match key {
            FREE | FREE_BUSY => from_free_memory(run)?,
            DONOR | DONOR_BUSY => from_a_donor(run)?,
            HALVE => {
                let memtide = Memtide::find(Commitment::Strict, &format!("{NAMES}*"))?;
                let mut memtide = memtide.with(&busy_keep_all()).over(run.lab().libvirtd());
                halve(&mut memtide, run)?
            }
            _ => halve(&mut Peer::new(Rule::Mom), run)?,
        };
        Ok(Seen { names: Vec::new(), samples: Samples::default(), result })
    }

    fn find(&self, arms: &[ArmSeen<ReactResult>]) -> Result<Findings, LabError> {
        let title = "How fast memory moves".to_owned();
        let about = "A guest that stalls is granted memory, from what is free or from a donor; and an idle guest of 1 GiB is \
                     made to give half of its memory on a host that has 8 % free and whose other guests use what they have."
            .to_owned();
        let judged: Vec<Judged> = arms.iter().filter_map(judge).chain(ratio(arms)).collect();
        let setting = json!({ "guest_memory_bytes": GUEST_MEMORY });
        findings((title, about), setting, arms, &groups(arms), &judged)
    }
}

/// The findings of an experiment about reactions: its medians, and how they were `judged`.
fn findings(
    (title, about): (String, String),
    setting: serde_json::Value,
    arms: &[ArmSeen<ReactResult>],
    groups: &[Bars],
    judged: &[Judged],
) -> Result<Findings, LabError> {
    let middles: Vec<(&str, ReactResult)> =
        arms.iter().map(|seen| (seen.arm.title.as_str(), middle(&seen.runs))).collect();
    let columns: Vec<(&str, &ReactResult)> = middles.iter().map(|(title, result)| (*title, result)).collect();
    Ok(Findings {
        figures: vec![Figure { name: "plot".to_owned(), svg: bars::svg(&title, &about, groups) }],
        title,
        about,
        setting,
        tables: vec![table(judged), Table::of("medians", &columns, &ROWS)],
        failures: judged.iter().filter(|judged| !judged.kept).map(Judged::text).collect(),
    })
}

/// Guests on an ample host.
fn start(run: &Run, guests: usize) -> Result<Vec<Guest>, LabError> {
    let guest = |nth| builder(nth).deflate_on_oom(true).free_page_reporting(true);
    start_all((1..=guests).map(guest), run, None)
}

fn builder(nth: usize) -> GuestBuilder {
    Guest::builder(&format!("{NAMES}{nth}")).memory(GUEST_MEMORY)
}

/// The guest is small and the host has room, as after a neighbour has gone. A new daemon finds this situation.
/// The configuration of a daemon that manages the guests in a host of `capacity`, however they were started.
fn configuration(capacity: Bytes, run: &Run) -> String {
    let libvirt = run.lab().libvirtd().map(|daemon| daemon.settings()).unwrap_or_default();
    format!("{}{libvirt}", managing(NAMES, capacity))
}

fn from_free_memory(run: &Run) -> Result<ReactResult, LabError> {
    let guests = start(run, 1)?;
    let guest = &guests[0];
    move_to(guest, SMALL)?;
    let daemon = Daemon::start(run.path(), &configuration(ROOMY, run))?;
    daemon.until("statistics", DEADLINE, guest.name(), |detail| {
        detail.status.report.used.filter(|used| !used.is_zero())
    })?;
    let (reaction, memory) = need_and_grant(&daemon, guest, fill(7, NEED_MIB, None))?;
    daemon.stop()?;
    free(guest, memory)?;
    result(reaction, raw(guest, None, reaction.granted)?)
}

fn from_a_donor(run: &Run) -> Result<ReactResult, LabError> {
    let guests = start(run, 2)?;
    let (guest, donor) = (&guests[0], &guests[1]);
    let daemon = Daemon::start(run.path(), &configuration(TIGHT, run))?;
    settled(&daemon, donor)?;
    let small = settled(&daemon, guest)?;
    let need = small.whole_mib().saturating_sub(100) + 64;
    let (reaction, memory) = need_and_grant(&daemon, guest, fill(7, need, None))?;
    daemon.stop()?;
    free(guest, memory)?;
    for guest in &guests {
        move_to(guest, Bytes::from_mib(600))?;
    }
    result(reaction, raw(guest, Some(donor), reaction.granted)?)
}

fn result(reaction: stall::Reaction, raw: Duration) -> Result<ReactResult, LabError> {
    Ok(ReactResult {
        seconds: reaction.waited().as_secs_f64(),
        from_need_seconds: Some(reaction.from_need.as_secs_f64()),
        raw_seconds: Some(raw.as_secs_f64()),
        moved_bytes: reaction.granted,
        host_free: None,
    })
}

/// The class of the busy guests: all of their memory is promised to them, so that only the idle one can give.
fn busy_keep_all() -> String {
    let names: Vec<String> = (2..=1 + BUSY).map(|nth| format!("\"{NAMES}{nth}\"")).collect();
    format!(
        "[class.busy]\nmatch = [{}]\nreservation = \"{} MiB\"",
        names.join(", "),
        GUEST_MEMORY.whole_mib()
    )
}

/// A host in the state hard: four guests use most of their memory, and one has freed nearly all of it. Until this one has
/// given half, both managers have reason to continue: more is promised to the others than the host has left (memtide's strict
/// commitment), and less than a fifth of the host is free (MOM's rule).
fn halve(manager: &mut dyn Manager, run: &Run) -> Result<ReactResult, LabError> {
    // The cost of all guests is measured on an ample host. Then the host is made to fit.
    let host = SmallHost::create("halve", GUEST_MEMORY.mul_div(8, 1), Bytes::ZERO)?;
    // Without free page reporting: the manager must take the used memory, not find it free.
    let guests = start_all((1..=1 + BUSY).map(builder), run, Some(&host))?;
    let (idle, busy) = (&guests[0], &guests[1..]);
    let begun: Result<Vec<Job>, LabError> =
        busy.iter().map(|guest| guest.begin(fill(1, USED_MIB, None))).collect();
    let touched = idle.run(fill(1, TOUCHED_MIB, None), DEADLINE)?;
    free(idle, touched)?;
    for (guest, job) in busy.iter().zip(begun?) {
        guest.finish::<Summary>(job, "a guest that uses its memory", DEADLINE)?;
    }
    let capacity = host.usage()?.mul_div(100, 100 - RESERVE_PERCENT - FREE_PERCENT);
    let host = host.with_capacity(capacity)?;
    let managed = Managed { dir: run.path(), host: &host, guests: &guests };
    let host_free = 1.0 - show::mib(host.usage()?) / show::mib(capacity);
    let (begun, mut ticked) = (Instant::now(), Instant::now());
    manager.start(managed)?;
    let half = GUEST_MEMORY.mul_div(1, 2);
    let halved = until("half of the memory of an idle guest", HALVES, || {
        if ticked.elapsed() >= EVERY {
            ticked = Instant::now();
            manager.tick(managed)?;
        }
        Ok((idle.actual()? <= half).then(|| begun.elapsed()))
    })?;
    manager.stop(managed)?;
    Ok(ReactResult {
        seconds: halved.as_secs_f64(),
        moved_bytes: half,
        host_free: Some(host_free),
        ..ReactResult::default()
    })
}

/// The medians of an arm's runs.
fn middle(runs: &[Seen<ReactResult>]) -> ReactResult {
    let of =
        |value: fn(&ReactResult) -> Option<f64>| median(runs.iter().filter_map(|run| value(&run.result)));
    let mut moved: Vec<Bytes> = runs.iter().map(|run| run.result.moved_bytes).collect();
    moved.sort_unstable();
    ReactResult {
        seconds: of(|r| Some(r.seconds)).unwrap_or_default(),
        from_need_seconds: of(|r| r.from_need_seconds),
        raw_seconds: of(|r| r.raw_seconds),
        moved_bytes: moved.get(moved.len() / 2).copied().unwrap_or_default(),
        host_free: of(|r| r.host_free),
    }
}

/// The bars of each stall, and all halving arms in one group, to compare them.
fn groups(arms: &[ArmSeen<ReactResult>]) -> Vec<Bars> {
    let ran = || arms.iter().filter(|seen| !seen.runs.is_empty());
    let halves = |seen: &&ArmSeen<ReactResult>| [HALVE, HALVE_MOM].contains(&seen.arm.key.as_str());
    let mut groups: Vec<Bars> = ran().filter(|seen| !halves(seen)).map(stall_bars).collect();
    let bars: Vec<Bar> =
        ran().filter(halves).filter_map(|seen| Some(bar(&seen.arm.title, median(seconds(seen))?))).collect();
    if !bars.is_empty() {
        groups.push(Bars { title: "an idle guest halved, median".to_owned(), bars, line: None });
    }
    groups
}

/// The median and the 95th percentile, beside the raw commands.
fn stall_bars(seen: &ArmSeen<ReactResult>) -> Bars {
    let raw = median(seen.runs.iter().filter_map(|run| run.result.raw_seconds));
    let bars =
        [("median", median(seconds(seen))), ("95 of 100 below", p95(seconds(seen))), ("raw commands", raw)];
    Bars {
        title: seen.arm.title.clone(),
        bars: bars.into_iter().filter_map(|(label, value)| Some(bar(label, value?))).collect(),
        line: None,
    }
}

fn bar(label: &str, value: f64) -> Bar {
    Bar { label: label.to_owned(), value, text: format!("{value:.2} s"), interval: None }
}

fn seconds(seen: &ArmSeen<ReactResult>) -> impl Iterator<Item = f64> {
    seen.runs.iter().map(|run| run.result.seconds)
}

/// A figure and its goal.
struct Judged {
    what: String,
    measured: String,
    goal: String,
    kept: bool,
}

impl Judged {
    fn text(&self) -> String {
        format!("{}: {}, the goal is {}", self.what, self.measured, self.goal)
    }
}

/// What was measured, beside the goals.
fn table(judged: &[Judged]) -> Table {
    let head = ["", "measured", "goal"].map(str::to_owned).to_vec();
    let rows =
        judged.iter().map(|judged| vec![judged.what.clone(), judged.measured.clone(), judged.goal.clone()]);
    Table { caption: String::new(), rows: std::iter::once(head).chain(rows).collect() }
}

/// Goal: 95 of 100 stalls are answered within 1.2 times the raw commands of the same arm plus 0.3 s.
fn judge(seen: &ArmSeen<ReactResult>) -> Option<Judged> {
    let raw = median(seen.runs.iter().filter_map(|run| run.result.raw_seconds))?;
    let measured = p95(seconds(seen))?;
    let goal = 1.2 * raw + 0.3;
    Some(Judged {
        what: format!("{}: 95 of 100 below", seen.arm.title),
        measured: format!("{measured:.2} s"),
        goal: format!("at most {goal:.2} s (1.2 × raw QMP + 0.3 s)"),
        kept: measured <= goal,
    })
}

/// Goal: memtide halves 20 times as fast as MOM.
fn ratio(arms: &[ArmSeen<ReactResult>]) -> Option<Judged> {
    let middle = |key: &str| median(seconds(arms.iter().find(|seen| seen.arm.key == key)?));
    let ratio = middle(HALVE_MOM)? / middle(HALVE)?;
    Some(Judged {
        what: "halved by memtide, against MOM's rule".to_owned(),
        measured: format!("{ratio:.0} × as fast"),
        goal: "at least 20 ×".to_owned(),
        kept: ratio >= 20.0,
    })
}

const ROWS: [Row<ReactResult>; 4] = [
    ("waited, or from the start", |r| format!("{:.2} s", r.seconds)),
    ("from the begin of the job to a grant", |r| {
        show::or(r.from_need_seconds.map(|s| format!("{s:.2} s")), "n/a")
    }),
    ("raw commands", |r| show::or(r.raw_seconds.map(|s| format!("{s:.2} s")), "n/a")),
    ("free share of the host before", |r| show::or(r.host_free.map(show::percent), "n/a")),
];
