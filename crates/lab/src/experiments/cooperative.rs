//! Cold page cache taken from a guest that works with hot page cache: by the balloon, and by asking the agent.
//!
//! One guest reads a disk once, and then reads the first part of it again and again. Its free memory is in the balloon already. Meanwhile four
//! fifths of the cold cache are taken: not at all, by the balloon, or by the agent, whose trim comes back by free page reporting. The job is the
//! same work each time: its CPU time, its refaults and its stalls tell what the way of taking cost. All arms use the same guest, and each
//! repetition pairs them.

use std::time::{Duration, Instant};

use memtide_agent::wire;
use memtide_load::exerciser::report::Summary;
use memtide_load::helper::wire::Ask;
use memtide_model::Bytes;
use memtide_plot::bars::{self, Bar, Bars};
use serde::Serialize;
use serde_json::json;

use crate::error::LabError;
use crate::experiments::experiment::{Arm, ArmSeen, Effort, Experiment, Findings, Options, Repetition, Seen};
use crate::guest::agent::Peer;
use crate::guest::disk::Disk;
use crate::guest::{Guest, start_all};
use crate::machine::lab::Run;
use crate::machine::process::cpu_seconds;
use crate::output::report::{Figure, Row, Table};
use crate::output::sample::Samples;
use crate::output::screen::Screen;
use crate::output::show;
use crate::output::statistics::{Interval, median, median_bytes};
use crate::wait::until;
use crate::work::exercise::{load, read_disk};

const GUEST_MEMORY: Bytes = Bytes::from_mib(1024);
/// The disk, and the part of it that is hot, in MiB.
const DISK_MIB: u64 = 550;
const HOT_MIB: u64 = 150;
/// What is taken: four fifths of the cold cache.
const TAKEN: Bytes = Bytes::from_mib((DISK_MIB - HOT_MIB) * 4 / 5);
/// Free memory that the guest keeps beside it, for its kernel.
const LEFT_FREE: Bytes = Bytes::from_mib(32);
/// The rounds over the hot cache before the job, so that the kernel knows it as hot, and in the job.
const WARM_PASSES: u64 = 4;
const JOB_PASSES: u64 = 60;
/// The longest time for taken memory to come back.
const COMES_BACK: Duration = Duration::from_secs(12);
/// The longest time for a job in the guest.
const WORK: Duration = Duration::from_secs(240);
/// The goals: the agent's share of the balloon's refaults and stalls, and the loss of work against a guest from which nothing is taken.
const HALF: f64 = 0.5;
const LOSS: f64 = 0.01;

const UNTOUCHED: &str = "untouched";
const BALLOON: &str = "balloon";
const AGENT: &str = "agent";

/// The experiment. Its guest works from the first repetition to the last.
pub struct Cooperative {
    guest: Guest,
    peer: Peer,
    disk: Disk,
}

/// One run of an arm.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct CooperativeResult {
    /// The time of the job.
    pub seconds: f64,
    /// The CPU time of the guest's process in this time.
    pub cpu_seconds: f64,
    /// Pages of files that the guest had dropped and read again during the job.
    pub refaults: f64,
    /// The time that tasks of the guest stalled for memory during the job, in milliseconds.
    pub stalled_ms: f64,
    /// The time of the taking.
    pub taking_seconds: f64,
    /// Page cache that the agent dropped; zero without it.
    pub dropped_bytes: Bytes,
    /// The guest's size at the end.
    pub actual_bytes: Bytes,
    /// What the guest cost the host before the job.
    pub before_bytes: Bytes,
    /// The same after the job.
    pub after_bytes: Bytes,
}

impl Experiment for Cooperative {
    const NAME: &'static str = "cooperative";
    const ABOUT: &'static str = "cold page cache beside hot: taken by the balloon, or by asking the agent";
    type Result = CooperativeResult;

    fn arms(effort: Effort) -> Vec<Arm> {
        let runs = match effort {
            Effort::Quick => 3,
            Effort::Usual => 12,
            Effort::Full => 36,
        };
        let takes = Duration::from_secs(25);
        let arm = |key: &str, title: &str| Arm { key: key.to_owned(), title: title.to_owned(), runs, takes };
        vec![
            arm(UNTOUCHED, "nothing is taken"),
            arm(BALLOON, "the balloon takes"),
            arm(AGENT, "the agent is asked"),
        ]
    }

    fn has_memtide(key: &str) -> bool {
        key != UNTOUCHED
    }

    fn prepare(_: &Options, _: &[Arm], run: &Run, _: &Screen) -> Result<Self, LabError> {
        let disk = Disk::ensure(run.lab().cache(), 51, DISK_MIB)?;
        let builder = Guest::builder("cooperative-1")
            .memory(GUEST_MEMORY)
            .deflate_on_oom(true)
            .free_page_reporting(true)
            .disk(&disk)
            .agent(true);
        let guest = start_all([builder], run, None)?.pop().expect("one was started");
        let mut peer = Peer::connect(&guest)?;
        peer.greet()?;
        Ok(Self { guest, peer, disk })
    }

    fn run(&mut self, of: Repetition<'_>, _: &Run, _: &Screen) -> Result<Seen<CooperativeResult>, LabError> {
        let guest = &self.guest;
        guest.set_target(GUEST_MEMORY)?;
        guest.until("its full size", WORK, |guest| Ok((guest.actual()? == GUEST_MEMORY).then_some(())))?;
        let cold = guest.begin(read_disk(&self.disk, DISK_MIB, None))?;
        guest.finish::<Summary>(cold, "reading the disk once", WORK)?;
        let warm = guest.begin(self.hot(WARM_PASSES))?;
        guest.finish::<Summary>(warm, "reading the hot part", WORK)?;

        let size = self.shrink()?;
        let before_bytes = guest.private();
        let cpu_before = cpu_seconds(guest.pid())?;
        let refaults_before = guest.meminfo()?.file_refaults();
        let job = guest.begin(self.hot(JOB_PASSES))?;
        guest.until("the job's first second", WORK, |guest| Ok(guest.second(job)?.map(|_| ())))?;
        let begun = Instant::now();
        let dropped_bytes = self.take(&of.arm.key, (size, before_bytes))?;
        let taking_seconds = begun.elapsed().as_secs_f64();
        let guest = &self.guest;
        let summary: Summary = guest.finish(job, "the job", WORK)?;
        let result = CooperativeResult {
            seconds: summary.seconds,
            cpu_seconds: cpu_seconds(guest.pid())? - cpu_before,
            refaults: show::float(guest.meminfo()?.file_refaults() - refaults_before),
            stalled_ms: show::float(summary.psi_some_us.unwrap_or(0)) / 1000.0,
            taking_seconds,
            dropped_bytes,
            actual_bytes: guest.actual()?,
            before_bytes,
            after_bytes: guest.private(),
        };
        // With its last opener, the disk's page cache goes: each run begins with a guest that has none.
        guest.ask::<serde_json::Value>(Ask::Cancel { job: cold.id() }, WORK)?;
        Ok(Seen { names: Vec::new(), samples: Samples::default(), result })
    }

    fn find(&self, arms: &[ArmSeen<CooperativeResult>]) -> Result<Findings, LabError> {
        let title = "Cold page cache taken beside hot".to_owned();
        let about = format!(
            "A guest of {GUEST_MEMORY} has read {DISK_MIB} MiB of its disk once, and reads {HOT_MIB} MiB of it again and again. \
             One second after the job's begin, {TAKEN} are taken: by the balloon, or by asking the agent. Medians."
        );
        let middles: Vec<Middle<'_>> = arms
            .iter()
            .filter_map(|seen| Some((seen.arm.key.as_str(), seen.arm.title.as_str(), middle(&seen.runs)?)))
            .collect();
        let losses: Vec<(&ArmSeen<CooperativeResult>, Interval)> =
            arms.iter().filter_map(|seen| Some((seen, loss(arms, &seen.arm.key)?))).collect();
        let failures = failures(&middles, &losses);
        let groups = groups(&middles, &losses);
        let columns: Vec<(&str, &CooperativeResult)> =
            middles.iter().map(|(_, title, result)| (*title, result)).collect();
        Ok(Findings {
            figures: vec![Figure { name: "plot".to_owned(), svg: bars::svg(&title, &about, &groups) }],
            title,
            about,
            setting: json!({
                "guest_memory_bytes": GUEST_MEMORY,
                "disk_bytes": Bytes::from_mib(DISK_MIB),
                "hot_bytes": Bytes::from_mib(HOT_MIB),
                "taken_bytes": TAKEN,
                "job_passes": JOB_PASSES,
                "loss": losses.iter().map(|(seen, loss)| (seen.arm.key.clone(), json!(loss))).collect::<serde_json::Map<_, _>>(),
            }),
            tables: vec![Table::of("medians", &columns, &ROWS)],
            failures,
        })
    }
}

impl Cooperative {
    /// Reads the hot part, and checks it.
    fn hot(&self, passes: u64) -> Ask {
        let seed = self.disk.seed;
        load(&format!(
            "--kind cache --file /dev/vda --size {HOT_MIB}M --seed {seed} --rate max --verify --passes {passes}"
        ))
    }

    /// Takes memory from a guest of this size and this cost in the way of an arm, and waits until the host has four fifths of it. Returns what
    /// the agent dropped.
    fn take(&mut self, arm: &str, (size, cost): (Bytes, Bytes)) -> Result<Bytes, LabError> {
        let dropped = match arm {
            UNTOUCHED => return Ok(Bytes::ZERO),
            AGENT => {
                let trim = wire::Ask::Trim { bytes: TAKEN, may_swap: false, last_resort: false };
                self.peer.done(trim)?.bytes.unwrap_or_default()
            }
            _ => {
                self.guest.set_target(size.saturating_sub(TAKEN))?;
                Bytes::ZERO
            }
        };
        let back = || cost.saturating_sub(self.guest.private()) >= TAKEN.mul_div(4, 5);
        // What does not come back shows in the table.
        match until("four fifths of the memory", COMES_BACK, || Ok(back().then_some(()))) {
            Err(LabError::Deadline { .. }) => Ok(dropped),
            other => other.map(|()| dropped),
        }
    }

    /// Puts the free memory of the guest into its balloon. Returns its size then.
    fn shrink(&self) -> Result<Bytes, LabError> {
        let free = Bytes::from_kib(self.guest.meminfo()?.free_kib).saturating_sub(LEFT_FREE);
        let size = GUEST_MEMORY.saturating_sub(free);
        self.guest.set_target(size)?;
        self.guest.until("its size", WORK, |guest| Ok((guest.actual()? <= size).then_some(size)))
    }
}

/// An arm's key and title, and the medians of its runs.
type Middle<'a> = (&'a str, &'a str, CooperativeResult);

/// An arm, and what it cost beyond the guest from which nothing was taken.
type Loss<'a> = (&'a ArmSeen<CooperativeResult>, Interval);

/// The goals that were missed.
fn failures(middles: &[Middle<'_>], losses: &[Loss<'_>]) -> Vec<String> {
    let of = |key: &str| middles.iter().find(|(of, ..)| *of == key).map(|(.., result)| result);
    let mut failures = Vec::new();
    if let (Some(balloon), Some(agent)) = (of(BALLOON), of(AGENT)) {
        let sums = [
            ("refaults", balloon.refaults, agent.refaults),
            ("stalls in ms", balloon.stalled_ms, agent.stalled_ms),
        ];
        for (what, balloon, agent) in sums {
            if agent > HALF * balloon {
                failures
                    .push(format!("{what}: {agent:.0} with the agent, {balloon:.0} with the balloon alone"));
            }
        }
    }
    if let Some(agent) = of(AGENT).filter(|agent| agent.dropped_bytes < TAKEN.mul_div(99, 100)) {
        failures.push(format!("the agent dropped {} of {TAKEN}", agent.dropped_bytes));
    }
    let agent = losses.iter().find(|(seen, _)| seen.arm.key == AGENT);
    if let Some((_, loss)) = agent.filter(|(_, loss)| loss.high > LOSS) {
        failures.push(format!("with the agent the job may cost {} more CPU time", show::percent(loss.high)));
    }
    failures
}

/// The bars of the plot.
fn groups(middles: &[Middle<'_>], losses: &[Loss<'_>]) -> [Bars; 3] {
    let bars = |title: &str, of: fn(&CooperativeResult) -> f64| {
        let bar = |(_, label, result): &Middle<'_>| Bar {
            label: (*label).to_owned(),
            value: of(result),
            interval: None,
            text: format!("{:.0}", of(result)),
        };
        Bars { title: title.to_owned(), bars: middles.iter().map(bar).collect(), line: None }
    };
    let bar = |(seen, loss): &Loss<'_>| Bar {
        label: seen.arm.title.clone(),
        value: loss.middle * 100.0,
        interval: Some((loss.low * 100.0, loss.high * 100.0)),
        text: format!("{:+.1} %", loss.middle * 100.0),
    };
    let cost = Bars {
        title: "more CPU time for the same job, in percent".to_owned(),
        bars: losses.iter().map(bar).collect(),
        line: Some((LOSS * 100.0, "the goal: at most 1 %".to_owned())),
    };
    [bars("pages read again", |r| r.refaults), bars("stalled for memory, ms", |r| r.stalled_ms), cost]
}

/// The medians of an arm's runs.
fn middle(runs: &[Seen<CooperativeResult>]) -> Option<CooperativeResult> {
    let of = |value: fn(&CooperativeResult) -> f64| median(runs.iter().map(|run| value(&run.result)));
    let bytes =
        |value: fn(&CooperativeResult) -> Bytes| median_bytes(runs.iter().map(|run| value(&run.result)));
    Some(CooperativeResult {
        seconds: of(|r| r.seconds)?,
        cpu_seconds: of(|r| r.cpu_seconds)?,
        refaults: of(|r| r.refaults)?,
        stalled_ms: of(|r| r.stalled_ms)?,
        taking_seconds: of(|r| r.taking_seconds)?,
        dropped_bytes: bytes(|r| r.dropped_bytes)?,
        actual_bytes: bytes(|r| r.actual_bytes)?,
        before_bytes: bytes(|r| r.before_bytes)?,
        after_bytes: bytes(|r| r.after_bytes)?,
    })
}

/// The CPU time that an arm needs beyond that of the guest from which nothing is taken, as a part of it.
fn loss(arms: &[ArmSeen<CooperativeResult>], key: &str) -> Option<Interval> {
    let runs = |key: &str| arms.iter().find(|seen| seen.arm.key == key).map(|seen| &seen.runs);
    if key == UNTOUCHED {
        return None;
    }
    let pairs = runs(key)?.iter().zip(runs(UNTOUCHED)?);
    let losses: Vec<f64> =
        pairs.map(|(with, without)| with.result.cpu_seconds / without.result.cpu_seconds - 1.0).collect();
    Interval::of(&losses)
}

const ROWS: [Row<CooperativeResult>; 8] = [
    ("time of the job", |r| format!("{:.1} s", r.seconds)),
    ("CPU time of the guest's process", |r| format!("{:.1} s", r.cpu_seconds)),
    ("pages read again", |r| format!("{:.0}", r.refaults)),
    ("stalled for memory", |r| format!("{:.0} ms", r.stalled_ms)),
    ("time of the taking", |r| format!("{:.1} s", r.taking_seconds)),
    ("dropped by the agent", |r| r.dropped_bytes.to_string()),
    ("the guest's size at the end", |r| r.actual_bytes.to_string()),
    ("its cost to the host, before and after", |r| format!("{}, {}", r.before_bytes, r.after_bytes)),
];
