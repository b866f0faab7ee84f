//! What KSM saves over time, and what it costs, at different paces. The founding text on KSM saw almost nothing in three hours with the default, and
//! everything within 90 minutes as fast as it goes, with a core busy from then on.
//!
//! Processes hold memory of which a known part is the same in all of them. Nothing changes it, so that everything that can be merged is merged after
//! two passes of ksmd, and every further pass is waste. Another process beside them touches its memory at a fixed rate: scanning makes it wait.
//!
//! In further arms, a process starts late, half of them end, all write to their memory all the time, or real guests take their place: there an audit
//! before the start says what can be saved.

mod load;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use memtide_load::exerciser::report::Summary;
use memtide_model::Bytes;
use memtide_plot::lines::{self, Curve, Panel};
use serde::Serialize;
use serde_json::json;

use crate::error::LabError;
use crate::experiments::experiment::{Arm, ArmSeen, Effort, Experiment, Findings, Options, Repetition, Seen};
use crate::machine::ksm::{Counters, Ksm as HostKsm};
use crate::machine::lab::Run;
use crate::machine::process::{self, Held, cpu_seconds};
use crate::managers::daemon::{Daemon, SHARES};
use crate::output::report::{Figure, Row, Table};
use crate::output::sample::Samples;
use crate::output::screen::Screen;
use crate::output::show;
use crate::output::statistics::median;
use crate::wait::until;
use load::{FILLS, Holders, IDENTICAL, Load, NAMES, PROCESSES, SIZE_MIB};

/// What the process beside them touches.
const BESIDE: [&str; 5] = ["--size", "64M", "--rate", "50M", "--random"];
/// The time between two looks at the counters.
const LOOKS: Duration = Duration::from_millis(250);

const OFF: &str = "off";
const GOVERNOR: &str = "governor";
/// How ksmd is paced.
const ARMS: [(&str, &str); 7] = [
    (OFF, "off"),
    ("default", "the kernel's default: 100 pages each 20 ms"),
    ("thousand", "1,000 pages each 20 ms"),
    ("fastest", "1,000,000,000 pages each 20 ms"),
    ("advisor", "the kernel's advisor (scan-time)"),
    ("ksmtuned", "ksmtuned's rule"),
    (GOVERNOR, "memtide's governor"),
];
const QUICK: [&str; 4] = [OFF, "thousand", "fastest", GOVERNOR];
/// The paces that are tried with each further load.
const FURTHER: [&str; 2] = ["fastest", GOVERNOR];

/// The experiment.
pub struct Ksm {
    host: HostKsm,
    program: PathBuf,
    lasts: Duration,
}

/// A look at the counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Look {
    /// Seconds since the beginning.
    pub at: f64,
    /// Memory saved.
    pub saved_bytes: Bytes,
    /// Processor time of ksmd since the beginning, in seconds.
    pub ksmd_seconds: f64,
    /// Processor time of memtide since the beginning, in seconds; zero without it.
    pub memtide_seconds: f64,
    /// Complete passes since the beginning.
    pub full_scans: u64,
}

/// One run of an arm.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct KsmResult {
    /// Memory that can be saved at the end.
    pub possible_bytes: Bytes,
    /// Memory saved at the end, as the kernel counts it: what processes have left is counted until the next pass.
    pub saved_bytes: Bytes,
    /// Time until 90 % of what can be saved was saved, or of what a late process shares; null if that did not happen.
    pub seconds_to_90: Option<f64>,
    /// Processor time of ksmd and memtide meanwhile.
    pub cpu_seconds_to_90: Option<f64>,
    /// Processor time of ksmd in all.
    pub ksmd_seconds: f64,
    /// Processor time of memtide in all.
    pub memtide_seconds: f64,
    /// Processor time of both in the last 30 s, in seconds a minute.
    pub seconds_per_minute_at_the_end: f64,
    /// Memory saved for each second of both, in MiB.
    pub mib_per_second: f64,
    /// The same at the end of the second full pass; null if there were not two.
    pub mib_per_ksmd_second_after_two_passes: Option<f64>,
    /// The touches of the process beside: 99 of 100 took no longer, in nanoseconds.
    pub touch_p99_ns: f64,
    /// All looks.
    pub looks: Vec<Look>,
}

impl Experiment for Ksm {
    const NAME: &'static str = "ksm";
    const ABOUT: &'static str = "what KSM saves over time, and what it costs, at different paces";
    type Result = KsmResult;

    fn arms(effort: Effort) -> Vec<Arm> {
        let is_run = |key: &str, load: Load| match (effort, load) {
            (Effort::Quick, Load::Still) => QUICK.contains(&key),
            (Effort::Quick, _) => false,
            (Effort::Usual | Effort::Full, Load::Still) => true,
            (Effort::Usual | Effort::Full, _) => FURTHER.contains(&key),
        };
        let paced = |(load, (key, title)): (Load, (&str, &str))| {
            let suffix = load.suffix();
            is_run(key, load).then(|| Arm {
                key: format!("{key}{suffix}"),
                title: if suffix.is_empty() {
                    title.to_owned()
                } else {
                    format!("{title}; {}", load.title())
                },
                runs: 1,
                takes: lasts(effort) + Duration::from_secs(if load == Load::Guests { 60 } else { 15 }),
            })
        };
        Load::ALL.into_iter().flat_map(|load| ARMS.map(|arm| (load, arm))).filter_map(paced).collect()
    }

    fn has_memtide(key: &str) -> bool {
        key.starts_with(GOVERNOR)
    }

    fn prepare(options: &Options, _: &[Arm], run: &Run, screen: &Screen) -> Result<Self, LabError> {
        Daemon::program()?;
        screen.say(&format!(
            "this sets the KSM of the whole machine until it ends; to undo it by hand: {}",
            HostKsm::UNDO
        ));
        let program = run.lab().program("memtide-load")?;
        Ok(Self { host: HostKsm::take()?, program, lasts: lasts(options.effort) })
    }

    fn run(&mut self, of: Repetition<'_>, run: &Run, _: &Screen) -> Result<Seen<KsmResult>, LabError> {
        let (pace, load) = pace_and_load(&of.arm.key)?;
        let mut holders = Holders::start(load, of.seed, &self.program, run)?;
        let (mut beside, file) = self.beside(run)?;
        let looks = self.watch(pace, &mut holders, run)?;
        let p99 = latency(&mut beside, &file)?;
        let result = result(&holders, looks, p99);
        drop(holders);
        self.host.reset()?;
        Ok(Seen { names: Vec::new(), samples: Samples::default(), result })
    }

    fn find(&self, arms: &[ArmSeen<KsmResult>]) -> Result<Findings, LabError> {
        let title = "What KSM saves over time".to_owned();
        let about = format!(
            "{PROCESSES} processes hold {SIZE_MIB} MiB each, of which {IDENTICAL} % are the same in all of them. Nothing changes, unless the arm says \
             so. Another process touches 50 MiB a second of its memory. Real guests read the same disk and hold such memory; what they can save is an estimate."
        );
        let middles: Vec<(&str, &KsmResult)> =
            arms.iter().filter_map(|seen| Some((seen.arm.title.as_str(), middle(seen)?))).collect();
        let curve = |(color, seen): (usize, &ArmSeen<KsmResult>)| Curve {
            name: seen.arm.key.clone(),
            points: middle(seen).map(points).unwrap_or_default(),
            color,
            is_thin: false,
        };
        let panel = |load: Load| {
            let merging = arms.iter().filter(|seen| {
                seen.arm.key != OFF && pace_and_load(&seen.arm.key).is_ok_and(|(_, of)| of == load)
            });
            let possible = merging.clone().find_map(middle).map(|result| show::mib(result.possible_bytes));
            possible.map(|possible| Panel {
                title: format!("saved: {}", load.title()),
                curves: merging.enumerate().map(curve).collect(),
                line: Some((possible, "all that can be saved".to_owned())),
                ..Panel::default()
            })
        };
        let panels: Vec<Panel> = Load::ALL.into_iter().filter_map(panel).collect();
        Ok(Findings {
            figures: vec![Figure { name: "plot".to_owned(), svg: lines::svg(&title, &about, &panels) }],
            setting: json!({
                "processes": PROCESSES, "size_mib": SIZE_MIB, "identical_percent": IDENTICAL,
                "seconds": self.lasts.as_secs(),
            }),
            tables: vec![Table::of("by pace", &middles, &ROWS)],
            failures: Vec::new(),
            title,
            about,
        })
    }
}

/// How long an arm is watched.
const fn lasts(effort: Effort) -> Duration {
    Duration::from_secs(match effort {
        Effort::Quick => 45,
        Effort::Usual => 180,
        Effort::Full => 600,
    })
}

/// The pace and the load of an arm.
fn pace_and_load(key: &str) -> Result<(&str, Load), LabError> {
    let has = |load: &Load| !load.suffix().is_empty() && key.ends_with(load.suffix());
    let load = Load::ALL.into_iter().find(has).unwrap_or(Load::Still);
    let pace = key.strip_suffix(load.suffix()).unwrap_or(key);
    match ARMS.iter().any(|(of, _)| *of == pace) {
        true => Ok((pace, load)),
        false => Err(LabError::Usage(format!("no arm `{key}`"))),
    }
}

impl Ksm {
    /// Starts the process beside them, for as long as an arm is watched.
    fn beside(&self, run: &Run) -> Result<(Held, PathBuf), LabError> {
        let file = run.path().join("beside.json");
        let out = File::create(&file).map_err(LabError::file(&file))?;
        let mut command = process::mortal(&self.program.to_string_lossy());
        command.args(BESIDE).args(["--json", "--duration", &format!("{}s", self.lasts.as_secs())]);
        command.stdin(Stdio::null()).stdout(out).stderr(Stdio::null());
        Ok((Held(process::spawn(command)?), file))
    }

    /// Sets the pace, and looks at the counters until the time is over.
    fn watch(&self, arm: &str, holders: &mut Holders, run: &Run) -> Result<Vec<Look>, LabError> {
        let before = self.host.counters()?;
        let begun = Instant::now();
        let mut tuned = Ksmtuned::default();
        match arm {
            "thousand" => self.pace(1_000, 20)?,
            "fastest" => self.pace(1_000_000_000, 20)?,
            "advisor" => self.host.set("advisor_mode", "scan-time")?,
            "default" => self.pace(100, 20)?,
            _ => {}
        }
        let governor = match arm {
            GOVERNOR => {
                let guests = format!("mode = \"manage\"\ndiscover = [\"{NAMES}*\"]\n{SHARES}");
                Some(Daemon::start(run.path(), &guests)?)
            }
            OFF => None,
            _ => self.host.set("run", "1").map(|()| None)?,
        };
        let mut looks = vec![Look::default()];
        while begun.elapsed() < self.lasts {
            if arm == "ksmtuned"
                && let Some((pages, sleep)) = tuned.decide(begun.elapsed())
            {
                self.pace(pages, sleep)?;
            }
            let part = begun.elapsed().as_secs_f64() / self.lasts.as_secs_f64();
            holders.step(part, &self.program, || begun.elapsed().as_secs_f64())?;
            let next = begun + LOOKS * u32::try_from(looks.len()).unwrap_or(u32::MAX);
            until("the next look", self.lasts + FILLS, || Ok((Instant::now() >= next).then_some(())))?;
            let memtide = governor.as_ref().map(|daemon| cpu_seconds(daemon.pid())).transpose()?;
            let at = (begun.elapsed(), memtide.unwrap_or_default());
            looks.push(look(before, self.host.counters()?, at));
        }
        governor.map(Daemon::stop).transpose()?;
        Ok(looks)
    }

    fn pace(&self, pages: u64, sleep_ms: u64) -> Result<(), LabError> {
        self.host.set("pages_to_scan", &pages.to_string())?;
        self.host.set("sleep_millisecs", &sleep_ms.to_string())
    }
}

/// Saved memory over time.
fn points(result: &KsmResult) -> Vec<(f64, f64)> {
    result.looks.iter().map(|look| (look.at, show::mib(look.saved_bytes))).collect()
}

fn look(before: Counters, now: Counters, (at, memtide_seconds): (Duration, f64)) -> Look {
    Look {
        at: at.as_secs_f64(),
        saved_bytes: now.saved.saturating_sub(before.saved),
        ksmd_seconds: now.cpu_seconds - before.cpu_seconds,
        memtide_seconds,
        full_scans: now.full_scans - before.full_scans,
    }
}

/// ksmtuned's rule with Debian's settings, on a host that is always short of memory: 300 pages more each minute, from 64 to 1,250, and a sleep of
/// 10 ms for 16 GiB, more for less.
#[derive(Default)]
struct Ksmtuned {
    pages: u64,
    decided: Option<Duration>,
}

impl Ksmtuned {
    /// Pages and sleep in milliseconds, if it decides now.
    fn decide(&mut self, now: Duration) -> Option<(u64, u64)> {
        if self.decided.is_some_and(|decided| now < decided + Duration::from_secs(60)) {
            return None;
        }
        self.pages = (self.pages + 300).clamp(64, 1_250);
        self.decided = Some(now);
        let total = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let kib = total.split_whitespace().nth(1).and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(1 << 24);
        Some((self.pages, (10 * (1 << 24) / kib.max(1)).max(10)))
    }
}

/// The 99th percentile of the touches of a process that ends by itself.
fn latency(process: &mut Held, file: &Path) -> Result<f64, LabError> {
    process.0.wait().map_err(LabError::file(file))?;
    let text = std::fs::read(file).map_err(LabError::file(file))?;
    let summary: Summary =
        serde_json::from_slice(&text).map_err(|error| LabError::file(file)(error.into()))?;
    Ok(show::float(summary.latency_ns.p99))
}

fn result(holders: &Holders, looks: Vec<Look>, touch_p99_ns: f64) -> KsmResult {
    let last = looks.last().copied().unwrap_or_default();
    let mut since = looks.iter().filter(|look| look.at >= holders.since);
    let began = since.clone().next().copied().unwrap_or_default();
    let converges = |look: &&Look| look.saved_bytes >= holders.enough && !holders.possible.is_zero();
    let converged = since.find(converges);
    let passed = looks.iter().find(|look| look.full_scans >= 2);
    let recent = looks.iter().find(|look| look.at + 30.0 >= last.at).copied().unwrap_or_default();
    let both = |look: &Look| look.ksmd_seconds + look.memtide_seconds;
    let rate = |look: &Look| show::mib(look.saved_bytes) / both(look).max(0.01);
    KsmResult {
        possible_bytes: holders.possible,
        saved_bytes: last.saved_bytes,
        seconds_to_90: converged.map(|look| look.at - began.at),
        cpu_seconds_to_90: converged.map(|look| both(look) - both(&began)),
        ksmd_seconds: last.ksmd_seconds,
        memtide_seconds: last.memtide_seconds,
        seconds_per_minute_at_the_end: (both(&last) - both(&recent)) / (last.at - recent.at).max(1.0) * 60.0,
        mib_per_second: rate(&last),
        mib_per_ksmd_second_after_two_passes: passed.map(rate),
        touch_p99_ns,
        looks,
    }
}

/// The run with the median saving at the end.
fn middle(seen: &ArmSeen<KsmResult>) -> Option<&KsmResult> {
    let middle = median(seen.runs.iter().map(|run| show::mib(run.result.saved_bytes)))?;
    let distance = |run: &&Seen<KsmResult>| (show::mib(run.result.saved_bytes) - middle).abs();
    seen.runs.iter().min_by(|a, b| distance(a).total_cmp(&distance(b))).map(|run| &run.result)
}

const ROWS: [Row<KsmResult>; 9] = [
    ("can be saved at the end", |r| r.possible_bytes.to_string()),
    ("saved at the end, as the kernel counts", |r| r.saved_bytes.to_string()),
    ("time to 90 %", |r| show::or(r.seconds_to_90.map(|seconds| format!("{seconds:.1} s")), "–")),
    ("processor time of both to 90 %", |r| {
        show::or(r.cpu_seconds_to_90.map(|seconds| format!("{seconds:.2} s")), "–")
    }),
    ("ksmd's processor time in all", |r| format!("{:.2} s", r.ksmd_seconds)),
    ("memtide's processor time", |r| format!("{:.2} s", r.memtide_seconds)),
    ("both in the last 30 s", |r| format!("{:.2} s a minute", r.seconds_per_minute_at_the_end)),
    ("saved for each second of both", |r| {
        let two = r.mib_per_ksmd_second_after_two_passes;
        let two = two.map_or(String::new(), |rate| format!(" ({rate:.0} MiB after two passes)"));
        format!("{:.0} MiB{two}", r.mib_per_second)
    }),
    ("a touch beside, 99 of 100 below", |r| format!("{:.0} ns", r.touch_p99_ns)),
];
