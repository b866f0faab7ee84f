//! The daemon as an operator starts it, with its own files: its output, and the kernel's data about it.

#![allow(dead_code, reason = "each test program uses a part of it")]

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use libtest_mimic::{Arguments, Trial};
use memtide_api::view::Status;
use memtide_stand_in::qemu::process;
use memtide_testing::{Mortal, helper_of, skip};
use rustix::process::{Pid, Signal, kill_process};

pub const MIB: u64 = 1 << 20;
/// The longest wait for an expected event: generous, because the machine may be busy.
pub const PLENTY: Duration = Duration::from_secs(120);
/// The interval between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Acts as a stand-in if this process was started as one; otherwise runs the trials, `at_a_time` of them in parallel.
pub fn play_or_run(at_a_time: usize, trials: impl FnOnce() -> Vec<Trial>) -> ExitCode {
    if process::is_stand_in() {
        process::run().expect("a stand-in's command line");
        return ExitCode::SUCCESS;
    }
    let arguments = Arguments { test_threads: Some(at_a_time), ..Arguments::from_args() };
    libtest_mimic::run(&arguments, trials()).exit_code()
}

/// Skips a test that needs root if this is not root.
pub fn needs_root() {
    if !rustix::process::geteuid().is_root() {
        skip("only root can run it");
    }
}

/// Skips a test that mounts file systems in a namespace of its own if this process may not.
pub fn needs_mounts() {
    let mounts = Command::new("unshare").args(["-m", "true"]).stderr(Stdio::null()).status();
    if !mounts.is_ok_and(|status| status.success()) {
        skip("it mounts file systems in a namespace of its own, which needs CAP_SYS_ADMIN");
    }
}

/// Skips a test in which the cost of guests counts if a confined memtide of this user cannot read it.
pub fn needs_costs() {
    if let Some(why) = memtide_testing::cannot_trace() {
        skip(why);
    }
}

/// The program under test.
pub fn memtide() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_memtide"))
}

/// Waits until `is_so`.
pub fn until(what: &str, mut is_so: impl FnMut() -> bool, else_say: impl Fn() -> String) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < PLENTY, "still waiting: {what}\n{}", else_say());
        std::thread::sleep(LOOK_EVERY);
    }
}

/// The output of `command`, which must succeed. On failure, the message includes its errors and `else_say`.
fn printed(command: &mut Command, else_say: impl Fn() -> String) -> String {
    let output = command.output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{command:?}: {errors}\n{}", else_say());
    String::from_utf8_lossy(&output.stdout).into_owned() + &errors
}

/// A running daemon, killed when it is dropped.
pub struct Daemon {
    program: PathBuf,
    child: Mortal,
    directory: PathBuf,
}

impl Daemon {
    /// Starts the daemon `program` with this configuration and creates `directory` for its files. If `by` is given, that command
    /// starts the daemon and becomes it. The journal is where the configuration says.
    pub fn start(program: &Path, directory: &Path, configuration: &str, by: &[&str]) -> Self {
        fs::create_dir_all(directory).unwrap();
        let socket = directory.join("run/memtide.sock");
        let file = directory.join("memtide.toml");
        fs::write(&file, format!("socket = {socket:?}\n{configuration}\n")).unwrap();
        let words = [by, &[program.to_str().unwrap()]].concat();
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).args(["run", "-v", "--config"]).arg(file);
        command.env_remove("XDG_RUNTIME_DIR").env("TMPDIR", directory).stdin(Stdio::null());
        let child = Mortal::start(command.stderr(File::create(directory.join("log")).unwrap()));
        let daemon = Self { program: program.to_owned(), child, directory: directory.to_owned() };
        until("a socket", || UnixStream::connect(daemon.socket()).is_ok(), || daemon.log());
        daemon
    }

    /// The socket of its API.
    pub fn socket(&self) -> PathBuf {
        self.directory.join("run/memtide.sock")
    }

    /// Its process ID.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Its standard error so far.
    pub fn log(&self) -> String {
        said(&self.directory.join("log"))
    }

    /// The output of a command that needs no daemon.
    pub fn command(&self, arguments: &[&str]) -> String {
        printed(Command::new(&self.program).args(arguments), || self.log())
    }

    /// The output of a command for this daemon.
    pub fn ask(&self, arguments: &[&str]) -> String {
        self.command(&[arguments, &["--socket", self.socket().to_str().unwrap()]].concat())
    }

    /// `memtide status --json`.
    pub fn status(&self) -> Status {
        serde_json::from_str(&self.ask(&["status", "--json"])).unwrap()
    }

    /// Waits until `is_so` accepts the status.
    pub fn until(&self, what: &str, is_so: impl Fn(&Status) -> bool) {
        until(what, || is_so(&self.status()), || format!("{:#?}\n{}", self.status(), self.log()));
    }

    /// Changes its configuration and makes it reload.
    pub fn reconfigure(&self, from: &str, to: &str) {
        let path = self.directory.join("memtide.toml");
        fs::write(&path, fs::read_to_string(&path).unwrap().replace(from, to)).unwrap();
        self.signal(Signal::HUP);
    }

    /// The `field` in each thread's `/proc/PID/task/TID/status`, by thread name.
    pub fn threads(&self, field: &str) -> BTreeMap<String, String> {
        let of = |thread: PathBuf| (field_of(&thread, "Name"), field_of(&thread, field));
        let threads = fs::read_dir(format!("/proc/{}/task", self.pid())).unwrap();
        threads.map(|thread| of(thread.unwrap().path())).collect()
    }

    /// The CPU time of all its threads so far, in seconds.
    pub fn cpu_seconds(&self) -> f64 {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid())).unwrap();
        let (_, fields) = stat.rsplit_once(')').unwrap();
        // utime and stime are fields 14 and 15; the first one after the name is field 3.
        let ticks = fields.split_ascii_whitespace().skip(11).take(2);
        ticks.map(|ticks| ticks.parse::<u64>().unwrap()).sum::<u64>() as f64 / 100.0
    }

    /// Its peak resident memory, in KiB.
    pub fn most_resident(&self) -> u64 {
        let most = field_of(Path::new(&format!("/proc/{}", self.pid())), "VmHWM");
        most.trim_end_matches(" kB").parse().unwrap()
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Its helper that writes the journal.
    pub fn journal_helper(&self) -> u32 {
        helper_of(self.pid(), "journal").unwrap_or_else(|| panic!("no helper\n{}", self.log()))
    }

    /// Kills it, as the kernel's OOM killer does, and waits for its helper.
    pub fn kill(self) {
        let helper = self.journal_helper();
        self.kill_alone();
        until("the end of its helper", || has_ended(helper), String::new);
    }

    /// Kills it without waiting for its helper.
    pub fn kill_alone(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Waits until it exits by itself with an error, and returns its log.
    pub fn ended(self) -> String {
        self.said_until_it_ended(false)
    }

    /// Terminates it, as a service manager does, and returns its log.
    pub fn end(self) -> String {
        self.signal(Signal::TERM);
        self.said_until_it_ended(true)
    }

    fn said_until_it_ended(mut self, well: bool) -> String {
        let log = self.directory.join("log");
        until("its end", || self.child.try_wait().unwrap().is_some(), || said(&log));
        assert_eq!(self.child.wait().unwrap().success(), well, "{}", said(&log));
        said(&log)
    }
}

/// Whether the process has ended, also if nobody has waited for it.
pub fn has_ended(pid: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    status.is_empty() || status.contains("State:\tZ")
}

/// The text of a log; invalid bytes are replaced.
fn said(log: &Path) -> String {
    String::from_utf8_lossy(&fs::read(log).unwrap()).into_owned()
}

/// A field of the `status` in a directory of /proc; empty if it is missing.
fn field_of(of: &Path, field: &str) -> String {
    let text = fs::read_to_string(of.join("status")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    line.unwrap_or_default().trim().to_owned()
}
