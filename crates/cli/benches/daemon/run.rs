//! The run: guests, daemon, stalls, figures.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use memtide_stand_in::qemu::process::{Actor, Stage};
use memtide_stand_in::qemu::{AgentBehaviour, Behaviour, News, Workload};
use serde_json::{Value, json};

use crate::events::{self, Stalled};
use crate::outside::{self, Resident};
use crate::{Options, Outcome, host};

const MIB: u64 = 1 << 20;
/// A guest's size.
const GUEST_MIB: u64 = 1024;
/// What a stalling guest wants more than it keeps.
const WANTS: u64 = 64 * MIB;
/// A stall that is not answered within this is not answered.
const PATIENCE: Duration = Duration::from_secs(10);
/// The directory of the daemon's journal.
const JOURNAL: &str = "journal";
/// How long the daemon may take until all guests are managed and the commitment is kept.
const SETTLES_WITHIN: Duration = Duration::from_secs(180);
/// How long it runs before anything is measured, once that is so.
const WARMS_UP: Duration = Duration::from_secs(30);

/// Numbers that look random and are the same for the same seed (SplitMix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// From `least` to `most`.
    fn between(&mut self, least: u64, most: u64) -> u64 {
        least + self.next() % (most - least + 1)
    }
}

/// The daemon, killed when it is dropped.
struct Daemon {
    child: Child,
    socket: PathBuf,
}

impl Daemon {
    fn start(directory: &Path, budget_mib: u64, log: Option<&Path>) -> Outcome<Self> {
        let socket = directory.join("memtide.sock");
        let file = directory.join("memtide.toml");
        let text = format!(
            "mode = \"manage\"\ncommitment = \"strict\"\nbudget = \"{budget_mib} MiB\"\ndiscover = [\"scale-*\"]\n\
             socket = \"{}\"\njournal = {{ dir = \"{}\" }}\n",
            socket.display(),
            directory.join(JOURNAL).display()
        );
        fs::write(&file, text)?;
        let log = File::create(log.map_or_else(|| directory.join("log"), Path::to_owned))?;
        let child = Command::new(env!("CARGO_BIN_EXE_memtide"))
            .args(["run", "--config"])
            .arg(&file)
            .stdin(Stdio::null())
            .stderr(log)
            .spawn()?;
        Ok(Self { child, socket })
    }

    fn status(&self) -> Outcome<Value> {
        let mut stream = UnixStream::connect(&self.socket)?;
        stream.write_all(b"GET /v1/status HTTP/1.0\r\nhost: memtide\r\n\r\n")?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        let (_, body) = text.split_once("\r\n\r\n").ok_or("an answer without a body")?;
        Ok(serde_json::from_str(body)?)
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What was counted at one moment.
struct Count {
    at: Instant,
    daemon_cpu: f64,
    stand_ins_cpu: f64,
    ticks: u64,
    changes: u64,
    commands: u64,
    connections: u64,
}

struct Bench<'a> {
    options: &'a Options,
    random: Random,
    stage: Stage,
    /// Ends before its guests.
    daemon: Daemon,
    guests: Vec<Actor>,
    most: Resident,
    /// The stalls of guests that rest otherwise.
    stalled: Vec<Stalled>,
}

/// One stall and its answer.
struct Reaction {
    changing: bool,
    raised: Option<f64>,
    enough: Option<f64>,
}

pub fn run(options: &Options) -> Outcome<()> {
    let directory = tempfile::tempdir()?;
    let mut random = Random(options.seed);
    let stage = Stage::new(directory.path())?;
    println!(
        "{} guests of {GUEST_MIB} MiB, a third of them changing; host of {} MiB",
        options.guests,
        host::budget_mib(options.guests)
    );
    let guests: Vec<Actor> = (0..options.guests)
        .map(|n| {
            let (name, workload) = (format!("scale-{n}"), workload(n, &mut random));
            match options.agents {
                true => stage.start_with_agent(&name, GUEST_MIB, workload, AgentBehaviour::Honest),
                false => stage.start(&name, GUEST_MIB, Behaviour::Honest, workload),
            }
        })
        .collect::<Result<_, _>>()?;
    let daemon = Daemon::start(directory.path(), host::budget_mib(options.guests), options.log.as_deref())?;
    let most = Resident::default();
    let mut bench = Bench { options, random, stage, guests, daemon, most, stalled: Vec::new() };
    bench.settle()?;
    let before = bench.count()?;
    let reactions = bench.stalls()?;
    let after = bench.count()?;
    let stalled = std::mem::take(&mut bench.stalled);
    let events = match options.agents {
        true => events::latencies(&directory.path().join(JOURNAL), stalled)?,
        false => Vec::new(),
    };
    bench.report(&before, &after, &reactions, &Spread::of(events.into_iter()))
}

/// What the guest with this number does.
fn workload(number: u64, random: &mut Random) -> Workload {
    let period = random.between(20_000, 60_000);
    Workload {
        base: random.between(150, 350) * MIB,
        swing: if is_changing(number) { 200 * MIB } else { 0 },
        period,
        phase: random.between(0, period),
        cache: random.between(20, 60) * MIB,
    }
}

const fn is_changing(number: u64) -> bool {
    number.is_multiple_of(3)
}

impl Bench<'_> {
    /// Waits until all guests are managed and the commitment is kept, and a while longer.
    fn settle(&mut self) -> Outcome<()> {
        let begun = Instant::now();
        loop {
            thread::sleep(Duration::from_secs(1));
            let status = self.daemon.status().unwrap_or_default();
            let guests = status["guests"].as_array().map_or(&[][..], Vec::as_slice);
            let managed = guests.iter().filter(|guest| guest["target"].is_u64()).count();
            if managed == self.guests.len() && status["host"]["breach"] == 0 {
                break;
            }
            if begun.elapsed() > SETTLES_WITHIN {
                return Err(format!(
                    "after {} s {managed} of {} guests are managed, breach {}, room {}, state {}",
                    SETTLES_WITHIN.as_secs(),
                    self.guests.len(),
                    status["host"]["breach"],
                    status["host"]["room"],
                    status["host"]["state"]
                )
                .into());
            }
        }
        println!("all managed, commitment kept after {:.0} s", begun.elapsed().as_secs_f64());
        thread::sleep(WARMS_UP);
        Ok(())
    }

    fn count(&mut self) -> Outcome<Count> {
        let status = self.daemon.status()?;
        let (mut commands, mut connections) = (0, 0);
        for guest in &mut self.guests {
            guest.count()?;
            // What it told before is of no interest any more.
            let (more_commands, more_connections) = loop {
                match self.stage.hear_of(guest.name(), Instant::now() + PATIENCE)? {
                    Some(News::Counted { commands, connections }) => break (commands, connections),
                    Some(_) => {}
                    None => return Err(format!("{} does not answer", guest.name()).into()),
                }
            };
            commands += more_commands;
            connections += more_connections;
        }
        let stand_ins = self.guests.iter().map(|guest| outside::cpu_seconds(guest.pid()));
        Ok(Count {
            at: Instant::now(),
            daemon_cpu: outside::cpu_seconds(self.daemon.child.id())?,
            stand_ins_cpu: stand_ins.sum::<Outcome<f64>>()?,
            ticks: status["counters"]["ticks"].as_u64().ok_or("no ticks")?,
            changes: status["counters"]["actions_done"].as_u64().ok_or("no actions")?,
            commands,
            connections,
        })
    }

    fn stalls(&mut self) -> Outcome<Vec<Reaction>> {
        let mut reactions = Vec::new();
        while (reactions.len() as u64) < self.options.stalls {
            thread::sleep(Duration::from_millis(self.random.between(500, 2500)));
            let resident = outside::resident(self.daemon.child.id())?;
            if resident.all > self.most.all {
                self.most = resident;
            }
            if let Some(reaction) = self.stall()? {
                reactions.push(reaction);
            }
        }
        Ok(reactions)
    }

    /// Lets a random guest stall, and waits for the answer; `None` where it keeps all of its memory already.
    fn stall(&mut self) -> Outcome<Option<Reaction>> {
        let number = self.random.between(0, self.options.guests - 1);
        let guest = &mut self.guests[usize::try_from(number)?];
        let mut reaction = Reaction { changing: is_changing(number), raised: None, enough: None };
        if !reaction.changing {
            self.stalled.push(Stalled::now(guest.name())?);
        }
        let begun = Instant::now();
        guest.stall(WANTS)?;
        while let Some(news) = self.stage.hear_of(guest.name(), begun + PATIENCE)? {
            let seconds = |after_us: u64| Some(Duration::from_micros(after_us).as_secs_f64());
            match news {
                News::IsFull => {
                    if !reaction.changing {
                        self.stalled.pop();
                    }
                    return Ok(None);
                }
                News::Raised { after_us } => reaction.raised = seconds(after_us),
                News::Enough { after_us } => {
                    reaction.enough = seconds(after_us);
                    break;
                }
                _ => {}
            }
        }
        // It works with what it was given.
        thread::sleep(Duration::from_secs(1));
        guest.calm()?;
        println!(
            "{:>10} {} raised after {}, enough after {}",
            guest.name(),
            if reaction.changing { "(changing)" } else { "(resting) " },
            text(reaction.raised),
            text(reaction.enough)
        );
        Ok(Some(reaction))
    }

    fn report(&self, before: &Count, after: &Count, reactions: &[Reaction], events: &Spread) -> Outcome<()> {
        let seconds = (after.at - before.at).as_secs_f64();
        let per_minute = |before: f64, after: f64| (after - before) / seconds * 60.0;
        let guests = self.options.guests as f64;
        let of = |changing: Option<bool>| {
            let chosen = reactions.iter().filter(|reaction| changing.is_none_or(|c| c == reaction.changing));
            Spread::of(chosen.map(|reaction| reaction.raised.unwrap_or(PATIENCE.as_secs_f64())))
        };
        let all = of(None);
        let enough = Spread::of(reactions.iter().map(|r| r.enough.unwrap_or(PATIENCE.as_secs_f64())));
        let figures = BTreeMap::from([
            ("schema", json!(1)),
            ("guests", json!(self.options.guests)),
            ("agents", json!(self.options.agents)),
            ("stalls", json!(reactions.len())),
            ("unanswered_stalls", json!(reactions.iter().filter(|r| r.raised.is_none()).count())),
            ("seconds", json!(seconds)),
            ("cpu_seconds_per_minute", json!(per_minute(before.daemon_cpu, after.daemon_cpu))),
            ("resident_mib", json!(self.most.all as f64 / 1024.0)),
            ("anonymous_mib", json!(self.most.anonymous as f64 / 1024.0)),
            ("reaction_p50_seconds", json!(all.p50)),
            ("reaction_p95_seconds", json!(all.p95)),
            ("reaction_max_seconds", json!(all.most)),
            ("enough_p95_seconds", json!(enough.p95)),
            ("event_p50_seconds", json!(events.p50)),
            ("event_p95_seconds", json!(events.p95)),
            ("reaction_p95_seconds_of_changing", json!(of(Some(true)).p95)),
            ("reaction_p95_seconds_of_resting", json!(of(Some(false)).p95)),
            (
                "queries_per_guest_minute",
                json!(per_minute(before.commands as f64, after.commands as f64) / guests),
            ),
            (
                "connections_per_guest_minute",
                json!(per_minute(before.connections as f64, after.connections as f64) / guests),
            ),
            ("tick_interval_seconds", json!(seconds / (after.ticks - before.ticks) as f64)),
            ("changes_per_minute", json!(per_minute(before.changes as f64, after.changes as f64))),
            (
                "stand_ins_cpu_seconds_per_minute",
                json!(per_minute(before.stand_ins_cpu, after.stand_ins_cpu)),
            ),
        ]);
        for (name, figure) in &figures {
            match figure.as_f64() {
                Some(number) => println!("{name:>34}  {number:.3}"),
                None => println!("{name:>34}  {figure}"),
            }
        }
        let directory =
            Path::new(env!("CARGO_TARGET_TMPDIR")).parent().ok_or("no target directory")?.join("bench");
        fs::create_dir_all(&directory)?;
        let file = directory.join("daemon.json");
        fs::write(&file, serde_json::to_string_pretty(&figures)?)?;
        println!("{}", file.display());
        Ok(())
    }
}

fn text(seconds: Option<f64>) -> String {
    seconds.map_or_else(|| "never".to_owned(), |seconds| format!("{seconds:.3} s"))
}

/// Where values lie; zeros where there are none.
struct Spread {
    p50: f64,
    p95: f64,
    most: f64,
}

impl Spread {
    fn of(values: impl Iterator<Item = f64>) -> Self {
        let mut values: Vec<f64> = values.collect();
        values.sort_by(f64::total_cmp);
        // The least value that this share of all values does not exceed.
        let at = |percent: usize| {
            let rank = (values.len() * percent).div_ceil(100).max(1);
            values.get(rank - 1).copied().unwrap_or_default()
        };
        Self { p50: at(50), p95: at(95), most: at(100) }
    }
}
