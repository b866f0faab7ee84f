//! The daemon is killed with SIGKILL fifty times while real guests work, and continues each time.
//!
//! Kills are not random: each waits for its *phase*. The lab's own monitors, unknown to the daemon, show a guest on its way
//! down (mid-inflate) or up (mid-grant). strace kills the helper in a write of the journal, and the daemon is killed with it: before the first byte,
//! when everything is done and nothing is written down, or after half a frame, when a limit on the file's size ends the first
//! write.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use memtide_api::view::Status;
use memtide_engine::journal::{Reader, segments};
use memtide_engine::replay_journal;
use memtide_lab::experiments::react::stall::managing;
use memtide_lab::guest::{BALLOON, Guest};
use memtide_lab::machine::lab::Run;
use memtide_lab::machine::packages;
use memtide_lab::machine::process::{self, Held};
use memtide_lab::managers::daemon::Daemon;
use memtide_lab::wait::{LOOK_EVERY, until};
use memtide_lab::work::turn::{Load, Turn};
use memtide_model::{Bytes, Keeps, Verdict};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::JOB;
use crate::mib;
use crate::prepare;
use crate::reporting;
use crate::say;
use crate::start;
use crate::unhurt;

/// The least number of kills.
const KILLS: usize = 50;
/// If a phase then has too few kills, more are made, up to this number.
const MOST_KILLS: usize = 80;
/// The least number of kills in each phase.
const LEAST_OF_A_PHASE: usize = 3;
/// How long a kill waits for its phase. After that, the daemon is killed at any point.
const PATIENCE: Duration = Duration::from_secs(8);
/// A balloon this far from its target is still moving.
const ON_THE_WAY: Bytes = Bytes::from_mib(4);
/// The interval in seconds at which somebody polled the second guest's statistics before.
const FOUND_INTERVAL: u64 = 3;
/// `O_APPEND`.
const APPENDS: u32 = 0o2000;
/// The bytes of a frame in the file when the daemon is killed in the middle of its write.
const HALF: u64 = 100;

/// The point in its work where the daemon is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    /// A guest is giving requested memory.
    Inflate,
    /// A guest is taking granted memory.
    Grant,
    /// Nothing of the last decision and its actions is in the journal.
    BeforeWrite,
    /// Half of it is in the journal.
    MidWrite,
    /// Any point.
    Anywhere,
}

const PHASES: [Phase; 4] = [Phase::Inflate, Phase::Grant, Phase::BeforeWrite, Phase::MidWrite];

pub fn fifty_kills_hurt_nobody() {
    packages::ensure_program("strace", "strace", &say).unwrap();
    let run = prepare("test-kills");
    let guests = three_guests(&run);
    set_interval(&guests[1], FOUND_INTERVAL);
    let mut config = managing("kill-", mib(350 + 470 + 3 * 80));
    config.push_str("on_exit = \"release\"\n");
    let held = hold_the_third(&run, &config, &guests[2]);

    let over = AtomicBool::new(false);
    let (kills, work) = thread::scope(|scope| {
        let work = scope.spawn(|| work_in_turns(&guests[..2], &over));
        let ends = OnDrop(&over);
        let kills = kill_again_and_again(&run, &config, &guests, held, &over);
        drop(ends);
        (kills, work.join().unwrap())
    });
    println!("kills {kills:?}; {} turns, {} verified", work.turns, work.verified);
    assert_eq!((work.mismatches, work.failures), (0, Vec::new()));
    assert!(kills.values().sum::<usize>() >= KILLS);
    for phase in PHASES {
        assert!(kills.get(&phase).copied().unwrap_or(0) >= LEAST_OF_A_PHASE, "{phase:?}: {kills:?}");
    }
    assert!(work.turns >= 4, "the guests were at work: {} turns", work.turns);

    let mut daemon = Daemon::start(run.path(), &config).unwrap();
    look(&daemon, held);
    daemon.check_alive().unwrap();
    let log = daemon.log().unwrap();
    // All lives except the first followed one that was killed.
    let lives = kills.values().sum::<usize>() + 1;
    assert_eq!(log.matches("continues with 3 guests from the journal").count(), lives - 1, "{log}");
    assert_eq!(log.matches("torn tail").count(), kills[&Phase::MidWrite], "{log}");
    the_journal_is_whole(&daemon.journal(), lives);
    // A hold lasts beyond a clean end. The operator releases the third guest.
    daemon.command(&["resume", "kill-3"]).unwrap();
    daemon.stop().unwrap();
    for (guest, interval) in guests.iter().zip([0, FOUND_INTERVAL, 0]) {
        assert_eq!(interval_of(guest), interval, "{}: the interval found before", guest.name());
        until("its full size", JOB, || Ok((guest.actual()? >= guest.memory()).then_some(()))).unwrap();
        unhurt(guest);
    }
}

/// Sets a flag when it is dropped, even by a panic.
struct OnDrop<'a>(&'a AtomicBool);

impl Drop for OnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn three_guests(run: &Run) -> Vec<Guest> {
    let builders = [("kill-1", 512, true), ("kill-2", 512, true), ("kill-3", 384, false)];
    start(run, builders.map(|(name, memory, deflates)| reporting(name, mib(memory), deflates)))
}

fn set_interval(guest: &Guest, seconds: u64) {
    let arguments = json!({"path": BALLOON, "property": "guest-stats-polling-interval", "value": seconds});
    guest.qmp("qom-set", &arguments).unwrap();
}

fn interval_of(guest: &Guest) -> u64 {
    let arguments = json!({"path": BALLOON, "property": "guest-stats-polling-interval"});
    guest.qmp("qom-get", &arguments).as_ref().ok().and_then(Value::as_u64).unwrap()
}

/// The first life: the operator holds the third guest below its full size. The daemon is killed right after its answer.
fn hold_the_third(run: &Run, config: &str, guest: &Guest) -> Bytes {
    let daemon = Daemon::start(run.path(), config).unwrap();
    let smaller = daemon.until("a smaller guest", JOB, "kill-3", |detail| {
        (detail.status.report.actual <= mib(370)).then_some(())
    });
    assert!(smaller.is_ok(), "{:#?}", daemon.status().unwrap());
    daemon.command(&["hold", "kill-3"]).unwrap();
    daemon.kill().unwrap();
    let mut before = None;
    until("the size of the guest that is held", JOB, || {
        let now = guest.actual()?;
        Ok((before.replace(now) == Some(now)).then_some(now))
    })
    .unwrap()
}

/// The guests' work meanwhile.
#[derive(Debug, Default)]
struct Work {
    turns: usize,
    verified: Bytes,
    mismatches: u64,
    failures: Vec<String>,
}

/// One guest after the other fills memory, checks each byte and frees it, until `over` is true. Each guest frees its memory
/// only when the next one has filled a part of its own.
fn work_in_turns(guests: &[Guest], over: &AtomicBool) -> Work {
    let load = Load { cache: None, anon_mib: 160, mib_per_s: Some(50), longest: JOB };
    let mut work = Work::default();
    for seed in 1.. {
        let number = work.turns % guests.len();
        let begun = Instant::now();
        let mut turn = Turn::new(number, seed);
        while !turn.is_over() {
            turn.step(&load, &guests[number], turn.held_for().is_some());
            thread::sleep(LOOK_EVERY);
        }
        work.turns += 1;
        eprintln!("turn {} of {}: {:.1?}", work.turns, guests[number].name(), begun.elapsed());
        work.verified = work.verified.saturating_add(turn.verified());
        work.mismatches += turn.mismatches();
        if let Some(why) = turn.failure() {
            eprintln!("turn {} of {} failed: {why}", work.turns, guests[number].name());
            work.failures.push(why.to_owned());
            over.store(true, Ordering::Relaxed);
        }
        if over.load(Ordering::Relaxed) || !work.failures.is_empty() {
            break;
        }
    }
    work
}

/// Kills in each phase in turn, until there are enough kills.
fn kill_again_and_again(
    run: &Run,
    config: &str,
    guests: &[Guest],
    held: Bytes,
    over: &AtomicBool,
) -> BTreeMap<Phase, usize> {
    let mut kills = BTreeMap::from([(Phase::Anywhere, 1)]);
    let count = |kills: &BTreeMap<Phase, usize>, phase: Phase| kills.get(&phase).copied().unwrap_or(0);
    for number in 1..MOST_KILLS {
        let enough = PHASES.iter().all(|phase| count(&kills, *phase) >= LEAST_OF_A_PHASE);
        // `over` is true before that only if the work has failed.
        if number >= KILLS && enough || over.load(Ordering::Relaxed) {
            break;
        }
        let lacking =
            PHASES.iter().find(|phase| number >= KILLS && count(&kills, **phase) < LEAST_OF_A_PHASE);
        let wanted = lacking.copied().unwrap_or(PHASES[number % PHASES.len()]);
        let daemon = Daemon::start(run.path(), config).unwrap();
        look(&daemon, held);
        let phase = kill_in(daemon, guests, wanted);
        eprintln!("kill {number}: {phase:?}");
        *kills.entry(phase).or_default() += 1;
    }
    kills
}

/// Checks that hold in every life.
fn look(daemon: &Daemon, held: Bytes) -> Status {
    let status = daemon.status().unwrap();
    assert_eq!(status.counters.actions_refused, 0, "{status:#?}");
    assert_eq!(status.warnings, Vec::<String>::new());
    assert_eq!(status.guests.len(), 3, "{status:#?}");
    for guest in &status.guests {
        match guest.report.verdict {
            Verdict::Held(hold) if guest.name == "kill-3" => {
                assert_eq!(hold.keeps, Keeps::Size, "{guest:#?}")
            }
            Verdict::Held(_) => panic!("nobody held it: {guest:#?}"),
            _ => assert_ne!(guest.name, "kill-3", "the operator's word was forgotten: {guest:#?}"),
        }
        if guest.name == "kill-3" {
            assert_eq!(guest.report.actual, held, "{guest:#?}");
        }
    }
    status
}

/// Kills the daemon in the `wanted` phase, or at any point if the phase does not come. Returns the actual phase.
fn kill_in(daemon: Daemon, guests: &[Guest], wanted: Phase) -> Phase {
    match wanted {
        Phase::Inflate | Phase::Grant => {
            let begun = Instant::now();
            while begun.elapsed() < PATIENCE {
                if is_moving(&daemon, guests, wanted) {
                    daemon.kill().unwrap();
                    return wanted;
                }
            }
            daemon.kill().unwrap();
            Phase::Anywhere
        }
        Phase::BeforeWrite | Phase::MidWrite => {
            kill_in_write(daemon, wanted);
            wanted
        }
        Phase::Anywhere => {
            daemon.kill().unwrap();
            wanted
        }
    }
}

/// Whether the lab's own monitor shows a guest on its way to the target that the daemon has written.
fn is_moving(daemon: &Daemon, guests: &[Guest], phase: Phase) -> bool {
    let status = daemon.status().unwrap();
    guests.iter().zip(&status.guests).any(|(guest, said)| {
        assert_eq!(guest.name(), said.name);
        let Some(target) = said.report.target else { return false };
        let before = guest.actual().unwrap();
        let falls = before > target.saturating_add(ON_THE_WAY);
        let rises = before.saturating_add(ON_THE_WAY) < target;
        if !(if phase == Phase::Inflate { falls } else { rises }) {
            return false;
        }
        let now = guest.actual().unwrap();
        if phase == Phase::Inflate { now < before && now > target } else { now > before && now < target }
    })
}

/// Lets strace kill the helper with SIGKILL in its next write of the journal: before it, or when the first half is written. The daemon is killed then, too.
fn kill_in_write(daemon: Daemon, phase: Phase) {
    let helper = memtide_testing::helper_of(daemon.pid(), "journal").expect("a helper writes the journal");
    let pid = helper.to_string();
    // The daemon decides before its first tick is in the journal. Until then, the newest segment is the last life's.
    let segment = until("a segment of this life", JOB, || Ok(open_segment(&daemon, &pid))).unwrap();
    let process = Pid::from_raw(helper.cast_signed()).unwrap();
    kill_process(process, Signal::STOP).unwrap();
    until_all_threads(&pid, "stopped", |status| status.contains("State:\tT"));
    if phase == Phase::MidWrite {
        let limit = fs::metadata(&segment).unwrap().len() + HALF;
        process::run(Command::new("prlimit").args(["--pid", &pid, &format!("--fsize={limit}:")])).unwrap();
    }
    let mut strace = Held(strace(&pid, &segment, if phase == Phase::MidWrite { 2 } else { 1 }));
    until_all_threads(&pid, "traced", |status| !status.contains("TracerPid:\t0\n"));
    kill_process(process, Signal::CONT).unwrap();
    // It ends with the process that it traces.
    until("the helper's next write", JOB, || Ok(strace.0.try_wait().unwrap())).unwrap();
    daemon.kill().unwrap();
    let mut reader = Reader::open(&segment).unwrap();
    reader.by_ref().for_each(|record| drop(record.unwrap()));
    assert_eq!(reader.torn().is_some(), phase == Phase::MidWrite, "{}", segment.display());
}

/// The segment that the helper `pid` writes. While it starts, it reads the last life's.
fn open_segment(daemon: &Daemon, pid: &str) -> Option<PathBuf> {
    let newest = segments(&daemon.journal()).unwrap().pop()?.canonicalize().ok()?;
    let appends = |fd: &fs::DirEntry| {
        let info = Path::new("/proc").join(pid).join("fdinfo").join(fd.file_name());
        let info = fs::read_to_string(info).unwrap_or_default();
        let flags = info.lines().find_map(|line| line.strip_prefix("flags:"));
        flags
            .is_some_and(|flags| u32::from_str_radix(flags.trim(), 8).is_ok_and(|flags| flags & APPENDS != 0))
    };
    let open = fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten().filter(appends);
    open.filter_map(|fd| fs::read_link(fd.path()).ok()).find(|file| *file == newest)
}

/// strace, attached to the process `pid`: it kills the process in its `nth` write to `file`.
fn strace(pid: &str, file: &Path, nth: u32) -> Child {
    let mut command = process::mortal("strace");
    command.args(["-f", "-qq", "-e", "trace=write", "-e"]);
    command.arg(format!("inject=write:signal=SIGKILL:when={nth}")).arg("-P").arg(file);
    command.arg("-o").arg(file.with_extension("strace")).args(["-p", pid]);
    process::spawn(command).unwrap()
}

/// Waits until the kernel reports the wanted status for all threads of a process.
fn until_all_threads(pid: &str, what: &str, wanted: impl Fn(&str) -> bool) {
    until(&format!("{what} threads"), JOB, || {
        let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
        let all = tasks.map(|task| fs::read_to_string(task.unwrap().path().join("status")).unwrap());
        Ok(all.into_iter().all(|status| wanted(&status)).then_some(()))
    })
    .unwrap();
}

/// A replay decides all decisions of all lives again, and none of them broke a promise.
fn the_journal_is_whole(journal: &Path, lives: usize) {
    let mut reader = Reader::open(journal).unwrap();
    let summary = replay_journal(&mut reader).unwrap();
    println!("{summary:?}");
    assert_eq!(summary.refused, 0, "check() found nothing");
    assert_eq!(summary.runs, lives as u64, "each life is a run");
}
