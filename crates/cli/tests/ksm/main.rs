//! KSM is as it was found after every end of memtide, also if it is killed together with its helper.
//!
//! The daemon, its helper and the commands run in a mount namespace with a directory of ordinary files in place of `/sys/kernel/mm/ksm`. If a burst must
//! end, a thread counts passes in it, as the kernel would. The machine's own KSM is left alone.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../common/mod.rs"]
mod common;

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use common::{Daemon, PLENTY, memtide, needs_mounts, play_or_run, until};
use memtide_host::Root;
use memtide_host::ksm::settings;
use memtide_model::{KsmRun, KsmSettings};
use memtide_testing::{Mortal, skip, trial};
use rustix::process::{Pid, Signal, kill_process};

/// Set for this program if it is to hold memory.
const HOLDS: &str = "MEMTIDE_TEST_HOLDS";
/// More than the least memory for which a burst begins, in bytes.
const HELD: usize = 80 << 20;
/// The kills at random moments.
const KILLS: u64 = 10;
/// The settings as found.
const FOUND: [(&str, &str); 4] =
    [("run", "0"), ("pages_to_scan", "100"), ("sleep_millisecs", "20"), ("smart_scan", "1")];
/// Puts the directory `$0` in place of KSM's, and becomes the command behind it.
const IN_PLACE: &str = "mount --bind \"$0\" /sys/kernel/mm/ksm && exec \"$@\"";

fn main() -> ExitCode {
    if std::env::var_os(HOLDS).is_some() {
        hold();
        return ExitCode::SUCCESS;
    }
    // Each has a memtide that burns a processor for a moment.
    play_or_run(1, || {
        let test = |name: &str, test: fn()| {
            trial(name, move || {
                needs_mounts();
                needs_ksm();
                test();
            })
        };
        vec![
            test("restore_puts_back_what_a_killed_memtide_and_helper_left", restored),
            test("a_start_puts_back_what_a_killed_memtide_and_helper_left", started_again),
            test("ten_kills_at_random_moments_leave_nothing_behind", killed_at_random_moments),
        ]
    })
}

/// Skips a test if this machine has no KSM, or cannot tell which processes are marked.
fn needs_ksm() {
    let tells = fs::read_to_string("/proc/self/ksm_stat").is_ok_and(|text| text.contains("ksm_mergeable"));
    if !tells || !Path::new("/sys/kernel/mm/ksm/run").exists() {
        skip("the kernel has no KSM, or does not tell which processes it may merge (Linux 6.14)");
    }
}

/// Holds memory until its standard input ends.
fn hold() {
    let memory = vec![7_u8; HELD];
    println!("held");
    let _until_its_end = std::io::stdin().lines().next();
    assert_eq!(std::hint::black_box(&memory)[HELD - 1], 7);
}

/// A process with memory that KSM may merge.
fn holder() -> Mortal {
    let program = std::env::current_exe().unwrap();
    let mut command = Command::new(memtide());
    command.args(["ksm", "run", "--"]).arg(program).env(HOLDS, "1");
    let mut child = Mortal::start(command.stdin(Stdio::piped()).stdout(Stdio::piped()));
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "held\n");
    child
}

/// A host whose KSM is a directory of files, with a memtide's files beside it.
struct Host {
    directory: tempfile::TempDir,
    found: KsmSettings,
    _holder: Mortal,
}

impl Host {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let ksm = Root::at(directory.path()).sys("kernel/mm/ksm");
        fs::create_dir_all(&ksm).unwrap();
        let counters = [("full_scans", "0"), ("pages_sharing", "0"), ("pages_shared", "0")];
        for (name, value) in FOUND.into_iter().chain(counters) {
            fs::write(ksm.join(name), value).unwrap();
        }
        let found = settings::read(&Root::at(directory.path())).unwrap();
        Self { directory, found, _holder: holder() }
    }

    fn root(&self) -> Root {
        Root::at(self.directory.path())
    }

    fn ksm(&self) -> PathBuf {
        self.root().sys("kernel/mm/ksm")
    }

    /// The settings; `None` in the middle of a write.
    fn settings(&self) -> Option<KsmSettings> {
        settings::read(&self.root()).ok()
    }

    fn journal(&self) -> PathBuf {
        self.directory.path().join("journal")
    }

    /// A daemon that governs KSM, or only observes.
    fn daemon(&self, governs: bool) -> Daemon {
        let (mode, ksm) = if governs { ("manage", "govern") } else { ("observe", "observe") };
        let configuration = format!(
            "mode = \"{mode}\"\ndiscover = [\"no-guest\"]\nksm = {{ mode = \"{ksm}\", cpu = \"full\" }}\njournal = {{ dir = {:?} }}",
            self.journal()
        );
        let ksm = self.ksm();
        let by = ["unshare", "-m", "sh", "-c", IN_PLACE, ksm.to_str().unwrap()];
        Daemon::start(memtide(), &self.directory.path().join("daemon"), &configuration, &by)
    }

    /// Kills the daemon and its helper, the helper first.
    fn kill(daemon: Daemon) {
        let helper = helper_of(&daemon);
        kill_process(helper, Signal::KILL).unwrap();
        daemon.kill();
        let gone = || fs::read_to_string(format!("/proc/{}/stat", helper.as_raw_pid()));
        until("the helper's end", || gone().map_or(true, |stat| stat.contains(") Z ")), String::new);
    }

    /// A write that was killed can leave an ordinary file empty. The kernel's files are never empty: there, nothing was written.
    fn heal(&self) {
        for (name, value) in FOUND {
            let path = self.ksm().join(name);
            if fs::read_to_string(&path).unwrap().is_empty() {
                fs::write(path, value).unwrap();
            }
        }
    }

    fn until_it_scans(&self, daemon: &Daemon) {
        let scans = || self.settings().is_some_and(|present| present.run == KsmRun::Scanning);
        until("a burst", scans, || daemon.log());
    }

    /// `memtide ksm restore`.
    fn restore(&self) -> String {
        let file = self.directory.path().join("daemon/memtide.toml");
        let output = Command::new("unshare")
            .args(["-m", "sh", "-c", IN_PLACE])
            .arg(self.ksm())
            .arg(memtide())
            .args(["ksm", "restore", "--config"])
            .arg(file)
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        assert!(output.status.success(), "{text}");
        text
    }
}

/// The kernel's thread: it counts passes as long as this value lives. Without it, no pass and no burst ends.
struct Ksmd {
    ends: Arc<AtomicBool>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Ksmd {
    fn of(host: &Host) -> Self {
        let (ksm, ends) = (host.ksm(), Arc::new(AtomicBool::new(false)));
        let thread = {
            let ends = Arc::clone(&ends);
            thread::spawn(move || scan(&ksm, &ends))
        };
        Self { ends, thread: Some(thread) }
    }
}

impl Drop for Ksmd {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        let _panicked = self.thread.take().map(thread::JoinHandle::join);
    }
}

/// Counts a pass each 20 ms while KSM scans.
fn scan(ksm: &Path, ends: &AtomicBool) {
    let mut passes = 0_u64;
    while !ends.load(Ordering::Relaxed) {
        thread::park_timeout(Duration::from_millis(20));
        if fs::read_to_string(ksm.join("run")).is_ok_and(|run| run.trim() == "1") {
            passes += 1;
            // In place, as in the kernel: a reader never sees an empty file.
            let mut file = fs::File::options().write(true).open(ksm.join("full_scans")).unwrap();
            write!(file, "{passes}").unwrap();
        }
    }
}

/// The daemon's child: its helper that sets KSM is one of them.
fn helper_of(daemon: &Daemon) -> Pid {
    let pid = daemon.pid();
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    let is_it = |child: &i32| {
        let words = fs::read(format!("/proc/{child}/cmdline")).unwrap_or_default();
        words.ends_with(b"helper\0ksm\0")
    };
    let mut found = children.split_whitespace().filter_map(|child| child.parse().ok()).filter(is_it);
    Pid::from_raw(found.next().unwrap_or_else(|| panic!("no helper: {}", daemon.log()))).unwrap()
}

fn restored() {
    let host = Host::new();
    let daemon = host.daemon(true);
    host.until_it_scans(&daemon);
    let file = host.directory.path().join("daemon/memtide.toml");
    let refused = Command::new(memtide()).args(["ksm", "restore", "--config"]).arg(&file).output().unwrap();
    assert!(String::from_utf8_lossy(&refused.stderr).contains("memtide runs here"), "{refused:?}");
    Host::kill(daemon);
    assert_ne!(host.settings().unwrap(), host.found, "nobody was there to put it back");
    let text = host.restore();
    assert!(text.contains("KSM is as it was found: stopped"), "{text}");
    assert_eq!(host.settings().unwrap(), host.found);
    let text = host.restore();
    assert!(text.contains("nothing to put back"), "{text}");
}

fn started_again() {
    let host = Host::new();
    let daemon = host.daemon(true);
    host.until_it_scans(&daemon);
    Host::kill(daemon);
    assert_ne!(host.settings().unwrap(), host.found, "nobody was there to put it back");
    // One that does not govern does so, too.
    let daemon = host.daemon(false);
    until("the settings as found", || host.settings() == Some(host.found), || daemon.log());
    until("its words", || daemon.log().contains("KSM is as it was found"), || daemon.log());
    assert!(daemon.log().contains("KSM is as it was found before memtide was killed"), "{}", daemon.log());
    daemon.end();
    // The one that was killed found it so. The next one, too.
    let daemon = host.daemon(true);
    host.until_it_scans(&daemon);
    daemon.end();
    until("the settings as found", || host.settings() == Some(host.found), String::new);
    let text = host.restore();
    assert!(text.contains("nothing to put back"), "{text}");
}

/// A moment to be killed at.
#[derive(Clone, Copy, Debug)]
enum At {
    /// As soon as this file of KSM is not as it was found: in the middle of an order, with luck.
    Changed(&'static str),
    /// After this many more passes of the burst, or at its end if that is sooner: a burst that saves nothing ends after a pass or two.
    Passes(u64),
    /// As soon as the burst has ended.
    Rests,
}

impl At {
    fn drawn(random: &mut u64) -> Self {
        // A linear congruential generator, as in Knuth's MMIX.
        *random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        match (*random >> 33) % 8 {
            0 => Self::Changed("pages_to_scan"),
            1 => Self::Changed("sleep_millisecs"),
            2 => Self::Changed("smart_scan"),
            3 => Self::Changed("run"),
            7 => Self::Rests,
            passes => Self::Passes(passes - 3),
        }
    }
}

fn killed_at_random_moments() {
    let host = Host::new();
    let _ksmd = Ksmd::of(&host);
    let since = std::time::UNIX_EPOCH.elapsed().unwrap();
    let seed = u64::from(since.subsec_nanos()) ^ since.as_secs();
    let mut random = seed;
    for nth in 0..KILLS {
        let at = At::drawn(&mut random);
        let why = || format!("seed {seed}, kill {nth}, {at:?}");
        let read = |name: &str| fs::read_to_string(host.ksm().join(name)).unwrap();
        let before = read("full_scans");
        let found = match at {
            At::Changed(name) => read(name),
            At::Passes(_) | At::Rests => String::new(),
        };
        let daemon = host.daemon(true);
        // Without a pause between two looks: an order takes microseconds.
        let begun = Instant::now();
        let (mut scanned, mut is_there) = (false, false);
        while !is_there {
            assert!(begun.elapsed() < PLENTY, "still waiting: {}\n{}", why(), daemon.log());
            let number = |text: String| text.trim().parse::<u64>().unwrap_or_default();
            scanned |= read("run").trim() == "1";
            let rests = scanned && read("run").trim() == "0";
            is_there = match at {
                // An order to leave pages out changes nothing there.
                At::Changed("smart_scan") => scanned,
                At::Changed(name) => read(name) != found,
                At::Passes(passes) => rests || number(read("full_scans")) >= number(before.clone()) + passes,
                At::Rests => rests,
            };
        }
        Host::kill(daemon);
        host.heal();
        // The next start puts back, or `memtide ksm restore`.
        if nth % 2 == 0 {
            host.restore();
        } else {
            host.daemon(false).end();
        }
        assert_eq!(host.settings(), Some(host.found), "{}", why());
    }
}
