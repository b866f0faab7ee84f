//! The daemon among other programs: a service manager, and a second daemon.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::{Daemon, PLENTY, memtide, until};
use memtide_api::view::Status;
use memtide_model::Mode;
use memtide_testing::Mortal;
use rustix::process::{Pid, Signal, kill_process};

/// Matches no guest of this machine.
const NOBODY: &str = "discover = [\"nobody\"]";

fn journal_in(directory: &Path) -> String {
    format!("journal = {{ dir = {:?} }}", directory.join("journal"))
}

#[test]
fn a_service_manager_is_told_of_beginning_and_end_and_puts_the_time_to_each_line() {
    let directory = tempfile::tempdir().unwrap();
    let manager = directory.path().join("manager");
    let socket = UnixDatagram::bind(&manager).unwrap();
    socket.set_read_timeout(Some(PLENTY)).unwrap();
    let told = || {
        let mut text = [0; 64];
        let length = socket.recv(&mut text).unwrap();
        String::from_utf8_lossy(&text[..length]).into_owned()
    };
    let by = ["env", "JOURNAL_STREAM=8:1", &format!("NOTIFY_SOCKET={}", manager.display())];
    let configuration = format!("{NOBODY}\n{}", journal_in(directory.path()));
    let daemon = Daemon::start(memtide(), &directory.path().join("one"), &configuration, &by);
    assert_eq!(told(), "READY=1\n");
    let log = daemon.end();
    assert_eq!(told(), "STOPPING=1\n");
    assert!(log.lines().all(|line| line.trim_start().starts_with("INFO")), "{log}");
    assert!(log.contains("mode=observe"), "{log}");
}

#[test]
fn a_second_daemon_with_the_same_socket_observes_and_says_so() {
    let directory = tempfile::tempdir().unwrap();
    let configuration = format!("mode = \"manage\"\n{NOBODY}\n{}", journal_in(directory.path()));
    let first = Daemon::start(memtide(), directory.path(), &configuration, &[]);
    first.until("a first that manages", |status| status.mode == Mode::Manage);
    let socket = first.socket();
    let own = || {
        let files = std::fs::read_dir(directory.path().join("run")).unwrap();
        files.map(|file| file.unwrap().path()).find(|path| *path != socket)
    };
    let second = Daemon::start(memtide(), directory.path(), &configuration, &[]);
    until("a socket beside the first", || own().is_some(), || second.log());
    let status = || first.command(&["status", "--socket", own().unwrap().to_str().unwrap()]);
    // Its socket answers before its first decision.
    let says_so = || {
        let status = status();
        status.contains("another one runs here") && status.contains("observing")
    };
    until("a second that observes and says so", says_so, status);
    first.until("a first that still manages", |status| status.mode == Mode::Manage);

    // A service manager then restarts it, and it manages guests.
    first.kill();
    let log = second.ended();
    assert!(log.contains("the other memtide has ended") && log.contains("restart it to manage"), "{log}");

    // A daemon with its own socket does the same.
    let third = Daemon::start(memtide(), directory.path(), &configuration, &[]);
    assert_eq!(own(), None, "no other socket is left");
    third.until("one that manages", |status| status.mode == Mode::Manage);
    let fourth = Daemon::start(memtide(), &directory.path().join("fourth"), &configuration, &[]);
    fourth.until("one that observes", |status| status.mode == Mode::Observe);
    third.kill();
    fourth.ended();
    assert_eq!(
        std::fs::read_dir(directory.path().join("run")).unwrap().count(),
        1,
        "no other socket is left"
    );
}

#[test]
fn a_daemon_is_asked_also_where_its_new_configuration_was_refused() {
    let directory = tempfile::tempdir().unwrap();
    let configuration = format!("budget = \"1 GiB\"\n{NOBODY}\n{}", journal_in(directory.path()));
    let daemon = Daemon::start(memtide(), directory.path(), &configuration, &[]);
    daemon.until("an answer", |status| status.mode == Mode::Observe);
    let file = directory.path().join("memtide.toml");
    for (from, to, why) in [
        ("\"1 GiB\"", "5", ":2:10: budget: found the number 5: write"),
        ("= 5", "= ", ":2:10: a value is missing: write one"),
    ] {
        daemon.reconfigure(from, to);
        let status = || daemon.command(&["status", "--config", file.to_str().unwrap()]);
        // It appears on standard error and in the status itself.
        until("a refusal", || status().matches(why).count() == 2, status);
    }
}

#[test]
fn the_stream_of_events_goes_on_longer_than_other_connections_and_ends_with_the_daemon() {
    let directory = tempfile::tempdir().unwrap();
    let configuration = format!("{NOBODY}\n{}", journal_in(directory.path()));
    let daemon = Daemon::start(memtide(), directory.path(), &configuration, &[]);
    let mut watch = Command::new(memtide());
    watch.args(["status", "--watch", "--json", "--socket"]).arg(daemon.socket());
    let mut watch = Mortal::start(watch.stdout(Stdio::piped()).stderr(Stdio::piped()));
    let lines = BufReader::new(watch.stdout.take().unwrap()).lines();
    let mut ticks = lines.map(|line| serde_json::from_str::<Status>(&line.unwrap()).unwrap().counters.ticks);
    let begun = Instant::now();
    let mut last = ticks.next().unwrap();
    // Other connections end after 10 s.
    while begun.elapsed() < Duration::from_secs(12) {
        let next = ticks.next().expect("the stream goes on");
        assert!(next > last, "{next} after {last}");
        last = next;
    }
    let clients: Vec<_> = (0..7).map(|_| listen(&daemon)).collect();
    assert!(clients.iter().all(|(answer, _)| answer.contains("200 OK")), "{clients:?}");
    assert!(listen(&daemon).0.contains("503 Service Unavailable"), "one too many of one user");
    daemon.end();
    let output = watch.output(PLENTY);
    assert_eq!(output.status.code(), Some(4), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("the daemon has ended"), "{output:?}");
}

/// A client that listens to events, and the first line of the daemon's answer.
fn listen(daemon: &Daemon) -> (String, UnixStream) {
    let mut client = UnixStream::connect(daemon.socket()).unwrap();
    client.write_all(b"GET /v1/events HTTP/1.1\r\nhost: memtide\r\n\r\n").unwrap();
    let mut first = String::new();
    BufReader::new(client.try_clone().unwrap()).read_line(&mut first).unwrap();
    (first, client)
}

#[test]
fn a_reload_is_heard_as_soon_as_there_is_a_socket() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("memtide.sock");
    let file = directory.path().join("memtide.toml");
    fs::write(&file, format!("socket = {socket:?}\n{NOBODY}\n{}", journal_in(directory.path()))).unwrap();
    for _ in 0..10 {
        let mut daemon = Mortal::start(Command::new(memtide()).arg("run").arg("--config").arg(&file));
        while !socket.exists() {
            assert!(daemon.try_wait().unwrap().is_none(), "the daemon has ended");
        }
        let pid = Pid::from_raw(daemon.id().cast_signed()).unwrap();
        kill_process(pid, Signal::HUP).unwrap();
        kill_process(pid, Signal::TERM).unwrap();
        assert_eq!(daemon.wait().unwrap().code(), Some(0), "a signal was not heard");
    }
}

#[test]
fn a_reload_says_what_changed() {
    let directory = tempfile::tempdir().unwrap();
    let configuration = format!("budget = \"1 GiB\"\n{NOBODY}\n{}", journal_in(directory.path()));
    let daemon = Daemon::start(memtide(), directory.path(), &configuration, &[]);
    for (from, to, said) in [
        ("1 GiB", "2 GiB", "new configuration: budget 2 GiB\n"),
        ("2 GiB", "2048 MiB", "configuration read again: nothing changed\n"),
        ("nobody", "none", "configuration read again: nothing else changed\n"),
        ("2048 MiB\"", "2 GiB\"\nmode = \"manage\"", "new configuration: mode manage\n"),
        ("manage", "observe", "WARN new configuration: mode observe; guests are no longer managed\n"),
    ] {
        daemon.reconfigure(from, to);
        until("a word of the change", || daemon.log().contains(said), || daemon.log());
    }
    // Emptied by mistake.
    fs::write(directory.path().join("memtide.toml"), "").unwrap();
    daemon.signal(Signal::HUP);
    let said = "WARN new configuration: budget host; the file sets nothing: the defaults apply\n";
    until("a word of the change", || daemon.log().contains(said), || daemon.log());
}

#[test]
fn a_reserve_that_leaves_nothing_is_refused_at_the_start_by_a_check_and_at_a_reload() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("memtide.toml");
    let configuration = format!("reserve = \"1 GiB\"\n{NOBODY}\n{}", journal_in(directory.path()));
    let daemon = Daemon::start(memtide(), directory.path(), &configuration, &[]);
    daemon.until("an answer", |status| status.mode == Mode::Observe);

    let too_much = "reserve: 9 TiB leaves nothing for guests, since the host has ";
    daemon.reconfigure("\"1 GiB\"", "\"9 TiB\"");
    until("a refusal", || daemon.log().contains(too_much), || daemon.log());
    // The next tick publishes it.
    let is_shown = |status: &str| status.contains("the old one stays") && status.contains("reserve 1 GiB");
    until("a word in the status", || is_shown(&daemon.ask(&["status"])), || daemon.log());

    let refused = |arguments: &[&str]| {
        let output = Command::new(memtide())
            .args(["run", "--config", file.to_str().unwrap()])
            .args(arguments)
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(1));
        String::from_utf8(output.stderr).unwrap()
    };
    for error in [refused(&[]), refused(&["--check"])] {
        assert!(
            error.contains(too_much) && error.contains(": write less, as in reserve = \"5%\""),
            "{error}"
        );
    }
    daemon.reconfigure("\"9 TiB\"", "\"2 GiB\"");
    let error = refused(&["--check", "--budget", "1G"]);
    assert!(error.contains("reserve: 2 GiB leaves nothing for guests, since the budget is 1 GiB"), "{error}");
}

/// The daemon's peak memory so far, in KiB.
fn most_memory(daemon: &Daemon) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", daemon.pid())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

#[test]
fn a_huge_configuration_is_refused_without_being_read() {
    let directory = tempfile::tempdir().unwrap();
    let configuration = format!("{NOBODY}\n{}", journal_in(directory.path()));
    let daemon = Daemon::start(memtide(), directory.path(), &configuration, &[]);
    daemon.until("an answer", |status| status.mode == Mode::Observe);
    let before = most_memory(&daemon);
    let file = std::fs::File::create(directory.path().join("memtide.toml")).unwrap();
    file.set_len(100 << 20).unwrap();
    daemon.signal(Signal::HUP);
    until("a refusal", || daemon.log().contains("is too long for a configuration"), || daemon.log());
    let grown = most_memory(&daemon) - before;
    assert!(grown < 16 << 10, "{grown} KiB more");
    assert!(daemon.end().contains("the old one stays"));
}

#[test]
fn a_file_in_the_place_of_the_journal_is_told_once() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("journal"), "").unwrap();
    let configuration = format!("mode = \"manage\"\n{NOBODY}\n{}", journal_in(directory.path()));
    let daemon = Daemon::start(memtide(), directory.path(), &configuration, &[]);
    daemon.until("decisions", |status| status.counters.ticks > 2);
    let log = daemon.end();
    let warnings: Vec<&str> = log.lines().filter(|line| line.contains("WARN")).collect();
    assert!(matches!(&warnings[..], [one] if one.contains("put a directory there")), "{log}");
}

#[test]
fn a_socket_that_is_removed_is_missed() {
    let directory = tempfile::tempdir().unwrap();
    let configuration = format!("{NOBODY}\n{}", journal_in(directory.path()));
    let daemon = Daemon::start(memtide(), directory.path(), &configuration, &[]);
    std::fs::remove_file(daemon.socket()).unwrap();
    let said = || daemon.log().contains("the socket was removed or replaced: nobody can reach this daemon");
    until("a word of it", said, || daemon.log());
    daemon.end();
}
