//! The real daemon manages guests while its foundations break: the disk under its journal, the journal itself, the clock.
//!
//! The guests are stand-ins in their own processes. Each test checks three things: the daemon keeps managing, it reports the
//! fault and its fix, and everything works as before after the fix.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../common/mod.rs"]
mod common;

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;

use common::{Daemon, MIB, PLENTY, has_ended, memtide, needs_mounts, needs_root, play_or_run, until};
use memtide_api::Client;
use memtide_api::reclaim::{ReclaimAnswer, ReclaimRequest};
use memtide_api::view::Status;
use memtide_engine::journal::{Reader, segments};
use memtide_engine::{ReplaySummary, replay_journal};
use memtide_model::{Bytes, Keeps, Mode, Record, Span, Verdict};
use memtide_stand_in::qemu::process::{Actor, Stage};
use memtide_stand_in::qemu::{AgentBehaviour, Behaviour, News, Workload};
use memtide_testing::{Mortal, skip, trial};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::process::{Pid, Signal, kill_process};

/// Two hours in seconds.
const HOURS: i64 = 7200;

fn main() -> ExitCode {
    // Most of the time is spent waiting.
    play_or_run(3, || {
        vec![
            trial("a_full_disk_stops_only_the_journal", a_full_disk),
            trial("a_read_only_disk_loses_no_word_of_the_operator", a_read_only_disk),
            trial("a_limit_of_file_sizes_stops_only_the_journal", a_limit_of_file_sizes),
            trial("a_journal_that_is_moved_away_begins_anew", a_moved_journal),
            trial("a_disk_that_stands_still_stops_only_the_journal", a_disk_that_stands_still),
            trial("a_kill_while_the_disk_stands_still_leaves_no_foreign_hold", a_kill_while_it_stands_still),
            trial("a_frozen_file_system_stops_only_the_journal", a_frozen_file_system),
            trial("a_helper_that_was_killed_stops_only_the_journal", a_killed_helper),
            trial(
                "paths_on_a_file_system_that_never_answers_hold_nobody_up",
                a_file_system_that_never_answers,
            ),
            trial("a_journal_that_is_damaged_between_two_lives_is_taken_over", a_damaged_journal),
            trial("a_clock_that_jumps_both_ways_changes_nothing", a_clock_that_jumps),
            trial("an_order_is_void_once_its_giver_is_gone", an_order_without_a_giver),
            trial("a_reclaim_ends_with_its_client_and_counts_what_the_host_has", a_reclaim),
        ]
    })
}

/// A daemon's directory, with two guests beside it.
struct Setting {
    /// The prefix of the guests' names, so that no daemon sees the guests of another test or run.
    name: String,
    directory: tempfile::TempDir,
    stage: Stage,
    guests: Vec<Actor>,
    /// The directory of the journal is below this one, if it is not below that of the daemon.
    journal_below: Option<PathBuf>,
}

impl Setting {
    fn new(name: &str) -> Self {
        let name = format!("{name}{}", std::process::id());
        let directory = tempfile::tempdir().unwrap();
        let stage = Stage::new(directory.path()).unwrap();
        let workload = Workload { base: 200 * MIB, cache: 32 * MIB, ..Workload::default() };
        let start =
            |guest| stage.start(&format!("{name}-{guest}"), 1024, Behaviour::Honest, workload).unwrap();
        let guests = vec![start("a"), start("b")];
        Self { name, directory, stage, guests, journal_below: None }
    }

    fn journal(&self) -> PathBuf {
        self.journal_below.as_deref().unwrap_or(self.directory.path()).join("journal")
    }

    fn path(&self) -> &Path {
        self.directory.path()
    }

    /// A daemon that has seen both guests.
    fn daemon(&self) -> Daemon {
        self.daemon_by(&[])
    }

    fn daemon_by(&self, by: &[&str]) -> Daemon {
        let (names, journal) = (&self.name, self.journal());
        let configuration = format!(
            "mode = \"manage\"\nbudget = \"3600 MiB\"\ndiscover = [\"{names}-*\"]\njournal = {{ dir = {journal:?} }}"
        );
        let daemon = Daemon::start(memtide(), self.path(), &configuration, by);
        daemon.until("both guests tell of themselves", told);
        daemon
    }

    /// The operator holds the first guest.
    fn hold(&self, daemon: &Daemon) {
        daemon.ask(&["hold", self.guests[0].name()]);
    }

    /// Waits for enough decisions that the newest one may be lost: each order wakes the daemon for one decision, and is
    /// answered after it.
    fn further_decisions(&self, daemon: &Daemon) {
        for _ in 0..3 {
            daemon.ask(&["resume", self.guests[1].name()]);
        }
    }

    /// Decisions continue: a guest that stalls gets memory, and becomes calm again.
    fn is_managed(&mut self, daemon: &Daemon) {
        let guest = &mut self.guests[1];
        guest.stall(32 * MIB).unwrap();
        let deadline = Instant::now() + PLENTY;
        match self.stage.hear_of(guest.name(), deadline).unwrap() {
            Some(News::Raised { .. } | News::Enough { .. } | News::IsFull) => {}
            other => panic!("{} says {other:?}: {}", guest.name(), daemon.ask(&["status"])),
        }
        guest.calm().unwrap();
        self.further_decisions(daemon);
        assert_eq!(daemon.status().counters.actions_refused, 0);
    }

    /// A hold of the first guest is active.
    fn is_held(daemon: &Daemon) {
        let status = daemon.status();
        let verdict = &status.guests[0].report.verdict;
        assert!(
            matches!(verdict, Verdict::Held(hold) if hold.keeps == Keeps::Size),
            "{status:#?}\n{}",
            daemon.log()
        );
        let others = &status.guests[1].report.verdict;
        assert!(!matches!(others, Verdict::Held(_)), "{status:#?}");
    }
}

fn told(status: &Status) -> bool {
    status.guests.iter().filter(|guest| guest.report.used.is_some()).count() == 2
}

/// Waits for a warning about the journal that contains all of `words`.
fn warned(setting: &Setting, daemon: &Daemon, words: &[&str]) {
    setting.further_decisions(daemon);
    let of_journal = |line: &&String| line.contains("journal");
    daemon.until("a warning", |status| status.warnings.iter().any(|line| of_journal(&line)));
    let warnings = daemon.status().warnings;
    let line = warnings.iter().find(of_journal).unwrap();
    for word in words {
        assert!(line.contains(word), "{word}: {line}");
    }
}

/// Waits until the journal is written again, then replays it. Returns its notes, and the replay's summary.
fn written_again(setting: &Setting, daemon: &Daemon, journal: &Path) -> (String, ReplaySummary) {
    setting.further_decisions(daemon);
    daemon.until("no more warning", |status| status.warnings.is_empty());
    let notes = Reader::open(journal).unwrap().filter_map(|record| match record.unwrap() {
        Record::Note { text, .. } => Some(text),
        _ => None,
    });
    (notes.collect::<Vec<_>>().join("\n"), replay_journal(&mut Reader::open(journal).unwrap()).unwrap())
}

fn a_full_disk() {
    needs_mounts();
    let mut setting = Setting::new("full");
    let journal = setting.journal();
    fs::create_dir(&journal).unwrap();
    let mount = "mount -t tmpfs -o size=1m none \"$0\" && exec \"$@\"";
    let daemon = setting.daemon_by(&["unshare", "-m", "sh", "-c", mount, journal.to_str().unwrap()]);
    // The path as the daemon sees it.
    let inside = PathBuf::from(format!("/proc/{}/root{}", daemon.pid(), journal.display()));
    let filler = inside.join("filler");
    let mut file = fs::File::create(&filler).unwrap();
    while file.write_all(&[7; 4096]).is_ok() {}
    warned(
        &setting,
        &daemon,
        &[journal.to_str().unwrap(), "No space left on device", "make room", "journal.max"],
    );
    setting.is_managed(&daemon);
    let unwritten =
        "not yet in the journal: if the daemon ends before it can write the order, the order is lost";
    let said = daemon.ask(&["hold", setting.guests[0].name()]);
    assert!(said.contains(unwritten), "{said}");
    daemon.ask(&["resume"]);
    fs::remove_file(&filler).unwrap();
    drop(file);
    let (notes, summary) = written_again(&setting, &daemon, &inside);
    assert!(notes.contains("ticks before this one could not be written"), "{notes}");
    assert_eq!((summary.gaps, summary.refused), (1, 0));
}

fn a_read_only_disk() {
    needs_mounts();
    let mut setting = Setting::new("read-only");
    let journal = setting.journal();
    let daemon = setting.daemon();
    setting.hold(&daemon);
    daemon.kill();
    // On this disk, not even a torn tail can be cut off.
    let newest = segments(&journal).unwrap().pop().unwrap();
    let file = OpenOptions::new().append(true).open(&newest).unwrap();
    (&file).write_all(&[9; 20]).unwrap();
    let mount = "mount --bind \"$0\" \"$0\" && mount -o remount,bind,ro \"$0\" && exec \"$@\"";
    let daemon = setting.daemon_by(&["unshare", "-m", "sh", "-c", mount, journal.to_str().unwrap()]);
    Setting::is_held(&daemon);
    setting.is_managed(&daemon);
    warned(
        &setting,
        &daemon,
        &[journal.to_str().unwrap(), "Read-only file system", "make the directory writable"],
    );
}

fn a_limit_of_file_sizes() {
    let mut setting = Setting::new("limit");
    let daemon = setting.daemon();
    let (pid, newest) =
        (daemon.journal_helper().to_string(), segments(&setting.journal()).unwrap().pop().unwrap());
    let limit = |limit: &str| {
        let done = Command::new("prlimit").args(["--pid", &pid, &format!("--fsize={limit}:")]).status();
        assert!(done.unwrap().success());
    };
    limit("100");
    warned(&setting, &daemon, &[newest.parent().unwrap().to_str().unwrap(), "File too large", "LimitFSIZE"]);
    setting.is_managed(&daemon);
    limit("unlimited");
    let (notes, summary) = written_again(&setting, &daemon, &setting.journal());
    assert!(notes.contains("ticks before this one could not be written"), "{notes}");
    assert_eq!((summary.gaps, summary.refused), (1, 0));
}

/// What people see while the disk of the journal stands still: decisions go on, and an order is told to be lost if the daemon ends.
fn stands_still(setting: &mut Setting, daemon: &Daemon) {
    daemon.until("a warning", |status| {
        status.warnings.iter().any(|line| line.contains("s behind: its disk takes no more"))
    });
    setting.is_managed(daemon);
    let said = daemon.ask(&["hold", setting.guests[0].name()]);
    assert!(said.contains("not yet in the journal"), "{said}");
    daemon.ask(&["resume"]);
    assert!(daemon.status().unwritten.is_some());
}

/// Sends a signal to the helper that writes the journal.
fn signal(helper: u32, signal: Signal) {
    kill_process(Pid::from_raw(helper.cast_signed()).unwrap(), signal).unwrap();
}

/// For the daemon, a helper that is stopped is one that waits for its disk.
fn a_disk_that_stands_still() {
    let mut setting = Setting::new("still");
    let daemon = setting.daemon();
    let helper = daemon.journal_helper();
    signal(helper, Signal::STOP);
    stands_still(&mut setting, &daemon);
    signal(helper, Signal::CONT);
    let (_, summary) = written_again(&setting, &daemon, &setting.journal());
    assert_eq!((summary.gaps, summary.refused), (0, 0), "nothing is lost as long as the queue has room");
    // It ends although its helper does not. (The kernel lets the helper go on then: nobody is left who would.)
    signal(helper, Signal::STOP);
    stands_still(&mut setting, &daemon);
    let log = daemon.end();
    assert!(log.contains("ends without its last decisions"), "{log}");
    let daemon = setting.daemon();
    assert_eq!(daemon.status().mode, Mode::Manage, "{}", daemon.log());
    setting.is_managed(&daemon);
    until("the end of the former helper", || has_ended(helper), || daemon.log());
    let (_, summary) = written_again(&setting, &daemon, &setting.journal());
    assert_eq!((summary.gaps, summary.refused), (0, 0));
}

fn a_kill_while_it_stands_still() {
    let mut setting = Setting::new("killed");
    let daemon = setting.daemon();
    let helper = daemon.journal_helper();
    signal(helper, Signal::STOP);
    stands_still(&mut setting, &daemon);
    daemon.kill_alone();
    let daemon = setting.daemon();
    setting.is_managed(&daemon);
    let held =
        |status: &Status| status.guests.iter().any(|guest| matches!(guest.report.verdict, Verdict::Held(_)));
    assert!(!held(&daemon.status()), "{:#?}", daemon.status());
    until("the end of the former helper", || has_ended(helper), || daemon.log());
}

/// A file system on a loop device, which is frozen: a process that writes to it cannot be ended.
struct Frozen {
    at: PathBuf,
}

impl Frozen {
    fn make(directory: &Path) -> Self {
        let (image, at) = (directory.join("image"), directory.join("disk"));
        fs::create_dir(&at).unwrap();
        fs::File::create(&image).unwrap().set_len(64 << 20).unwrap();
        let paths = [image.to_str().unwrap(), at.to_str().unwrap()];
        let works = |program: &str, arguments: &[&str]| {
            let mut command = Command::new(program);
            command.args(arguments).stdout(Stdio::null()).stderr(Stdio::null());
            command.status().is_ok_and(|status| status.success())
        };
        if !(works("mke2fs", &["-q", "-F", "-t", "ext4", paths[0]])
            && works("mount", &["-o", "loop", paths[0], paths[1]]))
        {
            skip("it mounts a file system on a loop device");
        }
        let frozen = Self { at: at.clone() };
        if !(works("fsfreeze", &["-f", paths[1]]) && works("fsfreeze", &["-u", paths[1]])) {
            drop(frozen);
            skip("it freezes a file system");
        }
        frozen
    }

    fn freeze(&self, how: &str) {
        let done = Command::new("fsfreeze").arg(how).arg(&self.at).status();
        assert!(done.unwrap().success());
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        // It is frozen only if the test has failed. The helper that waits for it then goes on, and ends.
        let _thawed = Command::new("fsfreeze").arg("-u").arg(&self.at).stderr(Stdio::null()).status();
        let _unmounted = Command::new("umount").arg("--lazy").arg(&self.at).status();
    }
}

fn a_frozen_file_system() {
    needs_root();
    let mut setting = Setting::new("frozen");
    let disk = Frozen::make(setting.path());
    setting.journal_below = Some(disk.at.clone());
    let daemon = setting.daemon();
    let helper = daemon.journal_helper();
    disk.freeze("-f");
    stands_still(&mut setting, &daemon);
    daemon.end();
    assert!(!has_ended(helper), "it waits for the disk");
    let daemon = setting.daemon();
    assert_eq!(daemon.status().mode, Mode::Manage, "{}", daemon.log());
    stands_still(&mut setting, &daemon);
    disk.freeze("-u");
    until("the end of the former helper", || has_ended(helper), || daemon.log());
    let (_, summary) = written_again(&setting, &daemon, &setting.journal());
    assert_eq!((summary.gaps, summary.refused), (0, 0));
    daemon.end();
}

/// A FUSE file system whose program has the kernel's requests, and answers none.
struct Silent {
    at: PathBuf,
    program: Option<Mortal>,
}

impl Silent {
    fn mount(directory: &Path) -> Self {
        if !Path::new("/dev/fuse").exists() {
            skip("there is no FUSE");
        }
        let at = directory.join("silent");
        fs::create_dir(&at).unwrap();
        let mount = "exec 3<>/dev/fuse && mount -i -t fuse -o fd=3,rootmode=40000,user_id=0,group_id=0,allow_other none \"$0\" && exec sleep 120";
        let mut command = Command::new("sh");
        let program = Mortal::start(command.args(["-c", mount]).arg(&at).stderr(Stdio::null()));
        let mut silent = Self { at, program: Some(program) };
        let is_mounted =
            |at: &Path| fs::read_to_string("/proc/mounts").unwrap().contains(at.to_str().unwrap());
        let begun = Instant::now();
        while !is_mounted(&silent.at) {
            if silent.program.as_mut().unwrap().try_wait().unwrap().is_some() || begun.elapsed() > PLENTY {
                skip("it mounts a FUSE file system");
            }
        }
        silent
    }
}

impl Drop for Silent {
    fn drop(&mut self) {
        // Without its program, the kernel fails all requests that wait.
        drop(self.program.take());
        let _unmounted = Command::new("umount").arg("--lazy").arg(&self.at).stderr(Stdio::null()).status();
    }
}

fn a_file_system_that_never_answers() {
    needs_root();
    let mut setting = Setting::new("silent");
    let daemon = setting.daemon();
    let silent = Silent::mount(setting.path());
    let at = |name: &str| silent.at.join(name).display().to_string();
    let name = |kind: &str| format!("{}-{kind}", setting.name);
    let (monitor, memory) = (
        format!("unix:{},server=on", at("qmp")),
        format!("memory-backend-file,id=m,size=64M,share=on,mem-path={}", at("ram")),
    );
    let config = at("config");
    let lines: [(&str, Vec<&str>); 3] = [
        ("monitor", vec!["-qmp", &monitor]),
        ("memory", vec!["-object", &memory, "-machine", "memory-backend=m"]),
        ("config", vec!["-readconfig", &config]),
    ];
    let strangers = lines.map(|(kind, options)| {
        // It waits for the end of this test, whatever its further words are, and starts nothing that would outlive it.
        let words = ["-c", "read -r _; true", "-name", &name(kind), "-m", "64"];
        Mortal::start(
            Command::new("/bin/bash")
                .arg0("qemu-system-x86_64")
                .args(words)
                .args(options)
                .stdin(Stdio::piped()),
        )
    });
    daemon.until("the others", |status| status.guests.len() + status.outsiders.count > 2);
    for _ in 0..3 {
        setting.is_managed(&daemon);
    }
    assert!(daemon.status().unwritten.is_none());
    // A thread of it may wait for the file system, and nothing can end that: what it had is free all the same.
    daemon.signal(Signal::TERM);
    let socket = daemon.socket();
    until("the end of its socket", || !socket.exists(), || daemon.log());
    let next = setting.daemon();
    assert_eq!(next.status().mode, Mode::Manage, "{}", next.log());
    setting.is_managed(&next);
    next.signal(Signal::TERM);
    until("the end of its socket", || !socket.exists(), || next.log());
    drop((silent, strangers));
    drop((daemon, next));
}

fn a_killed_helper() {
    let mut setting = Setting::new("helper");
    let daemon = setting.daemon();
    signal(daemon.journal_helper(), Signal::KILL);
    warned(&setting, &daemon, &["the helper journal has ended: restart memtide"]);
    setting.is_managed(&daemon);
    daemon.kill_alone();
    let daemon = setting.daemon();
    written_again(&setting, &daemon, &setting.journal());
}

fn a_moved_journal() {
    let mut setting = Setting::new("moved");
    let (journal, away) = (setting.journal(), setting.path().join("away"));
    let daemon = setting.daemon();
    fs::rename(&journal, &away).unwrap();
    // Only the file that the daemon's next run reads counts.
    setting.further_decisions(&daemon);
    daemon.until("a new journal", |_| segments(&journal).is_ok_and(|segments| !segments.is_empty()));
    let (_, summary) = written_again(&setting, &daemon, &journal);
    assert_eq!((summary.gaps, summary.refused), (0, 0));
    replay_journal(&mut Reader::open(&away).unwrap()).unwrap();

    // A file replaces the directory atomically.
    let file = setting.path().join("file");
    fs::write(&file, "").unwrap();
    renameat_with(CWD, &file, CWD, &journal, RenameFlags::EXCHANGE).unwrap();
    warned(&setting, &daemon, &[journal.to_str().unwrap(), "put a directory there", "journal.dir"]);
    setting.is_managed(&daemon);
    fs::remove_file(&journal).unwrap();
    let (notes, _) = written_again(&setting, &daemon, &journal);
    assert!(notes.contains("ticks before this one could not be written"), "{notes}");

    fs::remove_dir_all(&journal).unwrap();
    setting.further_decisions(&daemon);
    daemon.until("a new journal", |_| segments(&journal).is_ok_and(|segments| !segments.is_empty()));
    written_again(&setting, &daemon, &journal);
    setting.is_managed(&daemon);
}

/// Damage to a journal between two runs: to its directory and its newest segment.
type Damage = fn(&Path, &Path);

fn a_damaged_journal() {
    let setting = Setting::new("damaged");
    let journal = setting.journal();
    let daemon = setting.daemon();
    setting.hold(&daemon);
    setting.further_decisions(&daemon);
    daemon.kill();
    let damages: [(Damage, &str); 5] = [
        (cut, "a torn tail of "),
        (scribble, "is corrupt at byte "),
        (no_start, "is corrupt at byte 12"),
        (add_empty, "deleted, because it held no complete record (0 bytes)"),
        (add_other_format, "has the journal format 9, this memtide reads format 3"),
    ];
    for (damage, said) in damages {
        let newest = segments(&journal).unwrap().pop().unwrap();
        damage(&journal, &newest);
        let damaged = segments(&journal).unwrap().pop().unwrap();
        let daemon = setting.daemon();
        let log = daemon.log();
        let line = log.lines().find(|line| line.contains(said));
        let line = line.unwrap_or_else(|| panic!("{said}: {log}"));
        assert!(line.contains(damaged.to_str().unwrap()), "{line}");
        assert!(log.contains("continues with 2 guests from the journal"), "{log}");
        Setting::is_held(&daemon);
        assert_eq!(daemon.status().warnings, Vec::<String>::new());
        setting.further_decisions(&daemon);
        daemon.kill();
    }
}

fn cut(_: &Path, newest: &Path) {
    let file = OpenOptions::new().write(true).open(newest).unwrap();
    file.set_len(file.metadata().unwrap().len() - 7).unwrap();
}

fn scribble(_: &Path, newest: &Path) {
    let file = OpenOptions::new().write(true).open(newest).unwrap();
    file.write_all_at(b"scribble", file.metadata().unwrap().len() / 2).unwrap();
}

/// The first record is lost, and with it the base of the segment.
fn no_start(_: &Path, newest: &Path) {
    let file = OpenOptions::new().write(true).open(newest).unwrap();
    file.write_all_at(b"scribble", 40).unwrap();
}

fn add_empty(journal: &Path, _: &Path) {
    fs::write(journal.join("000900.mtj"), "").unwrap();
}

fn add_other_format(journal: &Path, _: &Path) {
    let mut header = memtide_engine::journal::header();
    header[8] = 9;
    fs::write(journal.join("000901.mtj"), header).unwrap();
}

fn a_clock_that_jumps() {
    let mut setting = Setting::new("clock");
    let daemon = setting.daemon();
    for ahead in [HOURS, -HOURS, HOURS, 0] {
        for guest in &mut setting.guests {
            guest.set_clock(ahead).unwrap();
        }
        setting.is_managed(&daemon);
        assert!(told(&daemon.status()), "{ahead}: {:#?}", daemon.status());
    }
    // A clock that is ahead does not make old statistics fresh.
    setting.guests[0].set_clock(HOURS).unwrap();
    setting.is_managed(&daemon);
    setting.guests[0].hush().unwrap();
    daemon.until("statistics that are too old", |status| status.guests[0].report.used.is_none());
    setting.is_managed(&daemon);
}

fn an_order_without_a_giver() {
    let setting = Setting::new("order");
    let daemon = setting.daemon();
    daemon.signal(Signal::STOP);
    let (name, socket) = (setting.guests[0].name(), daemon.socket());
    let hold = Command::new(memtide()).args(["hold", name, "--socket"]).arg(socket).output().unwrap();
    daemon.signal(Signal::CONT);
    let said = String::from_utf8(hold.stderr).unwrap();
    assert!(!hold.status.success() && said.contains("an order that it has not heard is lost"), "{said}");
    // The daemon hears orders one after the other.
    setting.further_decisions(&daemon);
    assert!(!matches!(daemon.status().guests[0].report.verdict, Verdict::Held(_)), "{}", daemon.log());
    assert!(!daemon.log().contains("order: hold"), "{}", daemon.log());

    let said = daemon.ask(&["hold", name]);
    assert!(!said.contains("journal"), "{said}");
    daemon.ask(&["resume"]);
    let log = daemon.log();
    let said = [
        &format!("order: hold {name}"),
        "held by the operator",
        "order: resume all 2 guests",
        "managed again",
    ];
    let at: Vec<_> = said.iter().map(|said| log.find(said)).collect();
    assert!(at.iter().all(Option::is_some) && at.is_sorted(), "{at:?} {log}");
}

fn a_reclaim() {
    let setting = Setting::new("reclaim");
    let workload = Workload { base: 200 * MIB, cache: 400 * MIB, ..Workload::default() };
    let name = format!("{}-c", setting.name);
    let daemon = setting.daemon();
    let _guest = setting.stage.start_with_agent(&name, 1024, workload, AgentBehaviour::Honest).unwrap();
    let client = Client::at(&daemon.socket());
    let asked = ReclaimRequest { guest: name.clone(), ..Default::default() };
    let offer = ReclaimRequest { dry_run: true, ..asked.clone() };
    let offered = || client.reclaim(&offer);
    let is_enough = |answer: Option<ReclaimAnswer>| {
        answer.is_some_and(|answer| answer.offer.cache > Bytes::new(128 * MIB))
    };
    common::until(
        "page cache can be had",
        || offered().is_ok_and(is_enough),
        || format!("{:?}\n{}", offered(), daemon.log()),
    );

    // Its client hangs up, so the guest is free for the next one.
    let mut command = Command::new(memtide());
    command.args(["reclaim", &name, "--socket"]).arg(daemon.socket()).stdout(Stdio::null());
    let gone = Mortal::start(&mut command);
    let turn = |what: &str, is_taken: bool| {
        let small = ReclaimRequest { by: Some(Bytes::ZERO), ..asked.clone() };
        let is_so = || {
            client.reclaim(&small).is_err_and(|error| error.to_string().contains("somebody else")) == is_taken
        };
        common::until(what, is_so, || daemon.log());
    };
    turn("the first client's turn", true);
    drop(gone);
    turn("nobody's turn", false);

    // A stand-in costs the host the same whatever its guest drops: an agent's word is not enough.
    let hold = ReclaimRequest { hold: Some(Span::from_secs(60)), ..asked.clone() };
    let answer = client.reclaim(&hold).unwrap().unwrap();
    let done = answer.done.unwrap();
    assert!(done.dropped > Bytes::new(64 * MIB) && done.back < Bytes::new(MIB), "{done:?}");
    let held = answer.held.unwrap();
    assert!(held.decided && matches!(held.guests[0].report.verdict, Verdict::Held(_)), "{held:?}");

    daemon.reconfigure("\"manage\"", "\"observe\"");
    daemon.until("a daemon that observes", |status| status.mode == Mode::Observe);
    let said = client.reclaim(&asked).unwrap_err().to_string();
    assert!(said.contains("409") && said.contains("only observes"), "{said}");
}
