//! The confined daemon does all its work, both as root and as a user without rights.
//!
//! Two tests of root start their other half as the user nobody, from copies of this program, because root hides permission errors.
//! Without root, all tests are skipped.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../common/mod.rs"]
mod common;

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::mpsc::{Receiver, channel};
use std::thread;

use common::{Daemon, MIB, PLENTY, memtide, needs_costs, needs_root, play_or_run, until};
use memtide_api::history::GuestChange;
use memtide_api::view::{GuestStatus, Status};
use memtide_api::{Client, Event};
use memtide_model::Mode;
use memtide_stand_in::qemu::process::{self, Actor, Stage};
use memtide_stand_in::qemu::{Behaviour, Workload};
use memtide_testing::{skip, trial};

/// The user `nobody`, and a user who is neither nobody nor root.
const NOBODY: u32 = 65534;
const SOMEBODY: u32 = 65533;
/// The directory in which this program works as nobody.
const WORK: &str = "MEMTIDE_TEST_DIRECTORY";
/// Set if the `/proc` of this half hides other users' processes.
const HIDDEN: &str = "MEMTIDE_TEST_HIDDEN";
/// `CAP_DAC_OVERRIDE` and `CAP_SYS_PTRACE`.
const KEPT: u64 = 1 << 1 | 1 << 19;
/// With this many guests, a segment of the journal is soon full.
const CROWD: usize = 40;
/// The budget is less than the guests' worst-case cost, so there is work to do.
const MANAGING: &str = "mode = \"manage\"\nbudget = \"6 GiB\"\ndiscover = [\"confined-*\"]";
/// The same for nobody's test. Root's guest, whose mappings and monitor are closed, counts at its footprint: the own one alone exceeds the budget.
const MANAGING_FEW: &str = "mode = \"manage\"\nbudget = \"240 MiB\"\ndiscover = [\"few-*\"]";

fn main() -> ExitCode {
    if let Some(directory) = std::env::var_os(WORK).filter(|_| !process::is_stand_in()) {
        let directory = PathBuf::from(directory);
        match std::env::var_os(HIDDEN) {
            Some(_) => beside_hidden_processes(&directory),
            None => without_rights(&directory),
        }
        return ExitCode::SUCCESS;
    }
    let of_root = |name: &str, test: fn()| {
        trial(name, move || {
            needs_root();
            test();
        })
    };
    // One at a time: a program that another trial starts during the copy keeps the file open, so the copy cannot run.
    play_or_run(1, || {
        vec![
            of_root("root_gives_up_what_it_does_not_need_and_manages", root_manages),
            of_root("nobody_manages_its_own_guests_and_says_what_it_may_not", nobody_manages),
            of_root("processes_that_proc_hides_are_not_seen", hidden_processes),
            of_root("what_is_switched_off_is_said", switched_off),
        ]
    })
}

/// A directory that all users may traverse.
fn open_directory() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
    directory
}

fn start(stage: &Stage, name: &str) -> Actor {
    let workload = Workload { base: 50 * MIB, cache: 8 * MIB, ..Workload::default() };
    stage.start(name, 256, Behaviour::Honest, workload).unwrap()
}

/// A daemon whose journal has short segments.
fn start_daemon(program: &Path, directory: &Path, journal: &Path, more: &str) -> Daemon {
    Daemon::start(
        program,
        directory,
        &format!("journal = {{ dir = {journal:?}, max = \"8 MiB\" }}\n{more}"),
        &[],
    )
}

fn is_managed(status: &Status, name: &str) -> bool {
    status.guests.iter().any(|guest| guest.name == name && guest.report.target.is_some())
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o777
}

fn segments(journal: &Path) -> Vec<PathBuf> {
    fs::read_dir(journal).map(|all| all.map(|one| one.unwrap().path()).collect()).unwrap_or_default()
}

fn root_manages() {
    needs_costs();
    let directory = open_directory();
    let stage = Stage::new(directory.path()).unwrap();
    let guests: Vec<Actor> = (0..CROWD).map(|n| start(&stage, &format!("confined-{n}"))).collect();
    let work = directory.path().join("daemon");
    let journal = directory.path().join("journal");
    // A monitor that root can reach only because it may ignore file modes.
    let hidden = directory.path().join("0.qmp");
    chown(&hidden, Some(NOBODY), Some(NOBODY)).unwrap();
    fs::set_permissions(&hidden, fs::Permissions::from_mode(0o600)).unwrap();
    let daemon = start_daemon(memtide(), &work, &journal, MANAGING);
    daemon.until("all guests are managed", |status| {
        guests.iter().all(|guest| is_managed(status, guest.name()))
    });
    every_thread_is_confined(&daemon);
    the_journal_goes_on(&daemon, &journal);
    assert!(daemon.ask(&["explain", "confined-0"]).contains("costs the host"), "{}", daemon.log());
    let changed = a_change_of(&daemon, "confined-2");
    daemon.ask(&["release", "confined-2"]);
    let change = changed.recv_timeout(PLENTY).expect("the stream of events tells of the change");
    assert!(change.tried.change.contains("target") && change.tried.failed.is_none(), "{change:?}");
    daemon.ask(&["hold", "confined-1"]);
    daemon
        .until("the order is heard", |status| status.guests.iter().any(|guest| guest.state.contains("held")));

    let second = start_daemon(memtide(), &directory.path().join("second"), &journal, MANAGING);
    assert_eq!(second.status().mode, Mode::Observe);
    second.end();

    daemon.reconfigure("\"manage\"", "\"observe\"");
    daemon.until("the configuration is read again", |status| status.mode == Mode::Observe);
    let socket = daemon.socket();
    assert_eq!((mode(&socket), mode(socket.parent().unwrap())), (0o660, 0o751));
    let log = daemon.end();
    assert!(!socket.exists(), "{log}");
    assert!(!log.contains("os error 38") && !log.contains("not applied"), "{log}");
    assert!(log.contains("confined: capabilities "), "{log}");
}

/// The first change of a guest that the stream of events tells from now on.
fn a_change_of(daemon: &Daemon, guest: &'static str) -> Receiver<GuestChange> {
    let (found, change) = channel();
    let (begins, begun) = channel();
    let client = Client::at(&daemon.socket());
    thread::spawn(move || {
        let _ended_with_the_daemon = client.events(|event| {
            let _begun_before = begins.send(());
            match event {
                Event::Change(change) if change.guest == guest => found.send(change).is_err(),
                _ => true,
            }
        });
    });
    begun.recv_timeout(PLENTY).expect("the stream begins with the last tick");
    change
}

fn every_thread_is_confined(daemon: &Daemon) {
    let names: Vec<String> = daemon.threads("Name").into_keys().collect();
    assert!(["memtide", "engine", "api"].iter().all(|name| names.iter().any(|n| n == name)), "{names:?}");
    for field in ["CapEff", "CapPrm", "CapInh", "CapAmb"] {
        for (name, set) in daemon.threads(field) {
            let most = if name == "api" || matches!(field, "CapInh" | "CapAmb") { 0 } else { KEPT };
            let set = u64::from_str_radix(&set, 16).unwrap();
            assert_eq!(set & !most, 0, "{field} of {name} is {set:#x}");
        }
    }
    for (field, expected) in [("NoNewPrivs", "1"), ("Seccomp", "2")] {
        assert!(daemon.threads(field).values().all(|value| value == expected), "{:?}", daemon.threads(field));
    }
    let told = daemon.status().confined.join("; ");
    for part in ["CAP_SYS_PTRACE CAP_DAC_OVERRIDE", "no programs", "monitors: no writing", "API: no files"] {
        assert!(told.contains(part), "{told}");
    }
    assert!(daemon.ask(&["status"]).contains(&told), "{told}");
}

/// It starts new segments, and creates a new directory if somebody has removed the old one.
fn the_journal_goes_on(daemon: &Daemon, journal: &Path) {
    let log = || format!("{:?}\n{}", segments(journal), daemon.log());
    until("a segment is full", || segments(journal).len() > 1, log);
    fs::remove_dir_all(journal).unwrap();
    until("a new directory", || !segments(journal).is_empty(), log);
    assert_eq!((mode(journal), mode(&segments(journal)[0])), (0o700, 0o600));
}

fn nobody_manages() {
    let directory = open_directory();
    let stage = Stage::new(directory.path()).unwrap();
    let _of_root = start(&stage, "few-root");
    let (work, test) = place_for_nobody(directory.path());
    let mut as_nobody = Command::new(&test);
    as_nobody.env(WORK, &work).current_dir(&work).uid(NOBODY).gid(NOBODY);
    assert!(as_nobody.status().unwrap().success(), "see above");
}

/// A directory of the user nobody below `directory`, and this program in it. They are copies, because nobody may be unable to reach the originals.
fn place_for_nobody(directory: &Path) -> (PathBuf, PathBuf) {
    let work = directory.join("nobody");
    fs::create_dir(&work).unwrap();
    chown(&work, Some(NOBODY), Some(NOBODY)).unwrap();
    let test = work.join("test");
    fs::copy(memtide(), work.join("memtide")).unwrap();
    fs::copy(std::env::current_exe().unwrap(), &test).unwrap();
    (work, test)
}

fn hidden_processes() {
    const HIDES: &str = "mount -t proc -o hidepid=2 proc /proc";
    let in_hidden = |then: &str| {
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", &format!("{HIDES} && {then}")]);
        command
    };
    if !in_hidden("true").status().unwrap().success() {
        skip("a /proc that hides processes cannot be mounted");
    }
    let directory = open_directory();
    let stage = Stage::new(directory.path()).unwrap();
    let _of_root = start(&stage, "few-root");
    let (work, test) = place_for_nobody(directory.path());
    let user = format!("--reuid={NOBODY} --regid={NOBODY} --clear-groups");
    let mut as_nobody = in_hidden(&format!("exec setpriv {user} {}", test.display()));
    as_nobody.env(WORK, &work).env(HIDDEN, "").current_dir(&work);
    assert!(as_nobody.status().unwrap().success(), "see above");
}

/// The other half, as the user nobody: its `/proc` does not show root's guest, so its daemon does not count it as a guest.
fn beside_hidden_processes(work: &Path) {
    let stage = Stage::new(work).unwrap();
    let _own = start(&stage, "few-own");
    let (program, files, journal) = (work.join("memtide"), work.join("daemon"), work.join("journal"));
    let daemon = start_daemon(&program, &files, &journal, "discover = [\"few-*\"]");
    daemon.until("its own guest is found", |status| !status.guests.is_empty());
    let status = daemon.status();
    let names: Vec<&str> = status.guests.iter().map(|guest| guest.name.as_str()).collect();
    assert_eq!((names, status.outsiders.count), (vec!["few-own"], 0), "{status:#?}");
    daemon.end();
}

/// The other half: a user without rights, in its own directory, beside a guest of root.
fn without_rights(work: &Path) {
    let stage = Stage::new(work).unwrap();
    let _own = start(&stage, "few-own");
    let program = work.join("memtide");
    let (files, journal) = (work.join("daemon"), work.join("journal"));
    let daemon = start_daemon(&program, &files, &journal, MANAGING_FEW);
    let of_root = |guest: &&GuestStatus| guest.name == "few-root";
    daemon.until("its own guest is managed, root's is not", |status| {
        is_managed(status, "few-own")
            && status.guests.iter().find(of_root).is_some_and(|guest| guest.state.contains("permission"))
    });
    let status = daemon.status();
    assert_eq!(status.guests.iter().find(of_root).unwrap().report.target, None);
    assert!(status.confined[0].contains("capabilities none"), "{:?}", status.confined);
    assert!(daemon.threads("CapEff").values().all(|set| set == "0000000000000000"));
    assert!(daemon.threads("Seccomp").values().all(|value| value == "2"));

    let locks = files.join(format!("memtide-claims-{NOBODY}"));
    until("a segment", || !segments(&journal).is_empty(), || daemon.log());
    let segment = segments(&journal).remove(0);
    assert_eq!((mode(&locks), mode(&journal), mode(&segment)), (0o700, 0o700, 0o600));
    assert_eq!(mode(&daemon.socket()), 0o660);
    let log = daemon.end();
    assert!(!log.contains("os error 38") && !log.contains("not applied"), "{log}");
    says_what_to_name_elsewhere(&program, work);
}

/// A daemon that cannot create its socket or its journal names the key that moves it.
fn says_what_to_name_elsewhere(program: &Path, work: &Path) {
    let of_root = work.parent().unwrap();
    let file = work.join("of-root.toml");
    fs::write(&file, format!("socket = {:?}\n", of_root.join("run/memtide.sock"))).unwrap();
    let output = Command::new(program).args(["run", "--config"]).arg(&file).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(
        text.contains("cannot create ") && text.contains(" as user ") && text.contains("sets `socket`"),
        "{text}"
    );
    let daemon = start_daemon(program, &work.join("elsewhere"), &of_root.join("journal"), MANAGING_FEW);
    until("a daemon without a journal", || daemon.log().contains("no journal"), || daemon.log());
    assert!(daemon.log().contains("moves the journal (`journal = {"), "{}", daemon.log());
    daemon.end();
}

fn switched_off() {
    let directory = open_directory();
    let journal = directory.path().join("journal");
    let daemon = start_daemon(memtide(), &directory.path().join("daemon"), &journal, "confine = false");
    assert_eq!(daemon.status().confined, ["nothing (`confine = false`)"]);
    assert!(daemon.threads("Seccomp").values().all(|value| value == "0"));
    // Other users can reach neither the socket nor the journal, confined or not.
    until("a segment", || !segments(&journal).is_empty(), || daemon.log());
    let program = directory.path().join("memtide");
    fs::copy(memtide(), &program).unwrap();
    let (socket, segment) = (daemon.socket(), segments(&journal).remove(0));
    let (socket, segment) = (socket.to_str().unwrap(), segment.to_str().unwrap());
    for arguments in [["status", "--socket", socket].as_slice(), &["journal", segment]] {
        let output = Command::new(&program).args(arguments).uid(SOMEBODY).gid(SOMEBODY).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && text.to_lowercase().contains("permission"), "{text}");
    }
    daemon.end();
}
