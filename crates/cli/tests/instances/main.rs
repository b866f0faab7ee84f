//! The real daemon manages UML instances: beside consoles that misbehave, after a SIGKILL, and without root.
//!
//! The instances are stand-ins in their own processes, which discovery finds like UML's: a name, a command line, a directory with the
//! process's number and a console, and a memory file without a name in a tmpfs.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../common/mod.rs"]
mod common;

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, chown, symlink};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use common::{Daemon, memtide, needs_costs, needs_root, play_or_run, until};
use memtide_api::view::{GuestStatus, Status};
use memtide_model::Bytes;
use memtide_stand_in::uml::{Manners, StandIn};
use memtide_testing::{Mortal, skip, trial};
use rustix::fs::FileType;

/// The name of the program: discovery looks for it.
const LINK: &str = "linux-standin";
/// The argument with the manners of the console.
const MANNERS: &str = "manners=";
/// The tmpfs for memory files.
const SHM: &str = "/dev/shm";
/// The consoles that misbehave: one hangs, one floods, one answers with another's reply, one lies about its version, and others.
const HOSTILE: [(&str, Manners); 7] = [
    ("hangs", Manners::Silent),
    ("floods", Manners::Floods),
    ("mixes", Manners::Mixes),
    ("version", Manners::OtherVersion),
    ("garbage", Manners::Garbage),
    ("half", Manners::Half),
    ("late", Manners::Late(Duration::from_millis(700))),
];
/// The size of the honest instance, and of each hostile one, in MiB.
const HONEST: u64 = 512;
const SMALL: u64 = 64;
/// How often the honest instance is released and managed again.
const ROUNDS: usize = 3;
/// The limit for the daemon's peak resident memory, in KiB.
const MOST_RESIDENT: u64 = 32 << 10;
/// The instance with a pipe in place of the file with its number.
const PIPE: &str = "pipe";
/// The user `nobody`, and the directory in which this program works as nobody.
const NOBODY: u32 = 65534;
const WORK: &str = "MEMTIDE_TEST_INSTANCES";

fn main() -> ExitCode {
    let program = PathBuf::from(std::env::args_os().next().unwrap_or_default());
    if program.file_name().is_some_and(|name| name == LINK) {
        play();
        return ExitCode::SUCCESS;
    }
    if let Some(directory) = std::env::var_os(WORK) {
        without_rights(Path::new(&directory));
        return ExitCode::SUCCESS;
    }
    play_or_run(2, || {
        vec![
            trial("an_honest_instance_is_managed_beside_consoles_that_misbehave", beside_hostile),
            trial("the_tmpfs_of_an_instance_is_in_the_ledger", tmpfs_in_the_ledger),
            trial("what_a_killed_daemon_left_is_removed_at_the_next_start", after_a_kill),
            trial("nobody_manages_its_own_instances", nobody_manages),
        ]
    })
}

/// Acts as an instance until its input ends.
fn play() {
    let value =
        |key: &str| std::env::args().find_map(|word| word.strip_prefix(key).map(str::to_owned)).unwrap();
    let mib: u64 = value("mem=").trim_end_matches('M').parse().unwrap();
    let directory = Path::new(&value("uml_dir=")).join(value("umid="));
    let memory = PathBuf::from(SHM).join(format!("memtide-standin-{}", std::process::id()));
    let mut file = File::options().read(true).write(true).create_new(true).open(&memory).unwrap();
    fs::remove_file(&memory).unwrap();
    file.set_len(mib << 20).unwrap();
    file.write_all(&vec![1; 8 << 20]).unwrap();
    fs::create_dir_all(&directory).unwrap();
    let console = StandIn::start(&directory.join("mconsole"), Bytes::from_mib(mib)).unwrap();
    let manners = HOSTILE.iter().find(|(name, _)| *name == value(MANNERS));
    console.machine().manners = manners.map_or(Manners::Honest, |(_, manners)| *manners);
    let number = directory.join("pid");
    if value(MANNERS) == PIPE {
        rustix::fs::mknodat(rustix::fs::CWD, &number, FileType::Fifo, 0o600.into(), 0).unwrap();
    } else {
        fs::write(number, format!("{}\n", std::process::id())).unwrap();
    }
    let _ended = std::io::stdin().read_to_end(&mut Vec::new());
}

/// A directory with a daemon's files and its instances. No daemon sees the instances of another test.
struct Setting {
    name: String,
    directory: PathBuf,
}

impl Setting {
    fn new(name: &str, directory: &Path) -> Self {
        let link = directory.join(LINK);
        if !link.exists() {
            symlink(std::env::current_exe().unwrap(), link).unwrap();
        }
        Self { name: format!("{name}{}", std::process::id()), directory: directory.to_owned() }
    }

    /// An instance in a process of its own.
    fn instance(&self, name: &str, mib: u64, manners: &str) -> Mortal {
        let mut command = Command::new(self.directory.join(LINK));
        command.arg(format!("mem={mib}M")).arg(format!("umid={}-{name}", self.name));
        command.arg(format!("uml_dir={}", self.directory.join("uml").display()));
        Mortal::start(command.arg(format!("{MANNERS}{manners}")).stdin(Stdio::piped()))
    }

    /// A daemon with a budget that is less than the instances' full size.
    fn daemon(&self, program: &Path, budget: u64) -> Daemon {
        let (names, journal) = (&self.name, self.directory.join("journal"));
        let configuration = format!(
            "mode = \"manage\"\nbudget = \"{budget} MiB\"\ndiscover = [\"{names}-*\"]\njournal = {{ dir = {journal:?} }}\n[class.default]\nshare = true"
        );
        Daemon::start(program, &self.directory.join("daemon"), &configuration, &[])
    }

    fn named<'a>(&self, status: &'a Status, name: &str) -> Option<&'a GuestStatus> {
        let name = format!("{}-{name}", self.name);
        status.guests.iter().find(|guest| guest.name == name)
    }

    /// Whether memory of the honest instance was taken.
    fn is_managed(&self, status: &Status) -> bool {
        self.named(status, "honest").is_some_and(|guest| {
            guest.report.used.is_some() && guest.report.actual < Bytes::from_mib(HONEST - 100)
        })
    }

    /// The sockets that consoles answer to.
    fn replies(&self) -> Vec<PathBuf> {
        let Ok(entries) = fs::read_dir(self.directory.join("daemon/run/mconsole")) else { return Vec::new() };
        let sockets = entries.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_socket()));
        sockets.map(|entry| entry.path()).collect()
    }
}

fn beside_hostile() {
    let directory = tempfile::tempdir().unwrap();
    let setting = Setting::new("wild", directory.path());
    let _honest = setting.instance("honest", HONEST, "honest");
    let hostile: Vec<Mortal> = HOSTILE.iter().map(|(name, _)| setting.instance(name, SMALL, name)).collect();
    // It is never found, and discovery does not wait for it.
    let _pipe = setting.instance(PIPE, SMALL, PIPE);
    // Those that prove nothing count at what they use: the honest one alone exceeds this budget.
    let daemon = setting.daemon(memtide(), 480);
    daemon.until("all are seen and the honest instance is managed", |status| {
        status.guests.len() == 1 + hostile.len() && setting.is_managed(status)
    });
    let honest = format!("{}-honest", setting.name);
    for _ in 0..ROUNDS {
        daemon.reconfigure("480 MiB", "2000 MiB");
        daemon.ask(&["release", &honest]);
        daemon.until("it has all its memory again", |status| {
            let guest = setting.named(status, "honest").unwrap();
            assert!(guest.report.used.is_some(), "its statistics stay fresh: {guest:#?}");
            guest.report.actual >= Bytes::from_mib(HONEST - 8)
        });
        daemon.reconfigure("2000 MiB", "480 MiB");
        daemon.ask(&["resume", &honest]);
        daemon.until("its memory was taken again", |status| {
            assert!(setting.named(status, "honest").unwrap().report.used.is_some(), "{status:#?}");
            setting.is_managed(status)
        });
    }
    let status = daemon.status();
    for (name, _) in HOSTILE {
        let guest = setting.named(&status, name).unwrap();
        assert!(guest.report.actual <= Bytes::from_mib(SMALL), "{guest:#?}");
    }
    for name in ["hangs", "mixes", "version", "garbage", "half"] {
        let guest = setting.named(&status, name).unwrap();
        // No answer proves its size, and it has mapped no memory for it.
        assert_eq!(guest.report.used, None, "{guest:#?}");
        assert!(guest.report.actual < Bytes::from_mib(SMALL / 2), "{guest:#?}");
    }
    let resident = daemon.most_resident();
    assert!(resident < MOST_RESIDENT, "{resident} KiB resident");
    drop(hostile);
    daemon.until("they are gone", |status| status.guests.len() == 1);
    until("their sockets are gone", || setting.replies().len() == 1, || format!("{:?}", setting.replies()));
    daemon.end();
    assert_eq!(setting.replies(), Vec::<PathBuf>::new());
}

fn tmpfs_in_the_ledger() {
    needs_costs();
    let space = rustix::fs::statvfs(SHM).unwrap();
    if space.f_blocks == 0 {
        skip(&format!("{SHM} has no limit here"));
    }
    let directory = tempfile::tempdir().unwrap();
    let setting = Setting::new("shm", directory.path());
    let _honest = setting.instance("honest", HONEST, "honest");
    let daemon = setting.daemon(memtide(), 400);
    daemon.until("its tmpfs is seen", |status| !status.host.tmpfs.is_empty());
    let status = daemon.status();
    let tmpfs = &status.host.tmpfs[0];
    assert_eq!((tmpfs.id.0, tmpfs.guests), (fs::metadata(SHM).unwrap().dev(), 1), "{tmpfs:#?}");
    assert_eq!(tmpfs.space.size, Bytes::new(space.f_blocks * space.f_frsize));
    assert!(tmpfs.space.free < tmpfs.space.size && tmpfs.at == SHM, "{tmpfs:#?}");
    let name = format!("{}-honest", setting.name);
    let explained = daemon.ask(&["explain", &name]);
    assert!(explained.contains("lies in         the tmpfs /dev/shm, "), "{explained}");
    for wrong in ["balloon", "polling unknown"] {
        assert!(!explained.contains(wrong), "{explained}");
    }
    for right in
        ["remove memory and plug it back", "removed; only memtide gives it back", "read from its console"]
    {
        assert!(explained.contains(right), "{explained}");
    }
    assert!(explained.contains("although `share` of its class is true"), "{explained}");
    let told = daemon.ask(&["status"]);
    assert!(told.contains("; cannot share"), "{told}");
    daemon.end();
}

fn after_a_kill() {
    let directory = tempfile::tempdir().unwrap();
    let setting = Setting::new("kill", directory.path());
    let _honest = setting.instance("honest", HONEST, "honest");
    let daemon = setting.daemon(memtide(), 400);
    daemon.until("it is managed", |status| setting.is_managed(status));
    let left = setting.replies();
    assert_eq!(left.len(), 1);
    daemon.kill();
    assert_eq!(setting.replies(), left, "nobody removes them after a SIGKILL");
    let daemon = setting.daemon(memtide(), 400);
    daemon.until("it is managed again", |status| setting.is_managed(status));
    assert!(!left[0].exists() && setting.replies().len() == 1, "{:?}", setting.replies());
    daemon.end();
}

fn nobody_manages() {
    needs_root();
    let directory = tempfile::tempdir().unwrap();
    fs::set_permissions(directory.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let work = directory.path().join("nobody");
    fs::create_dir(&work).unwrap();
    chown(&work, Some(NOBODY), Some(NOBODY)).unwrap();
    // Copies, because the user nobody may be unable to reach the originals.
    let test = work.join("test");
    fs::copy(memtide(), work.join("memtide")).unwrap();
    fs::copy(std::env::current_exe().unwrap(), &test).unwrap();
    let mut as_nobody = Command::new(&test);
    as_nobody.env(WORK, &work).current_dir(&work).uid(NOBODY).gid(NOBODY);
    assert!(as_nobody.status().unwrap().success(), "see above");
}

/// The other half: a user without rights manages its own instance, in its own directory.
fn without_rights(work: &Path) {
    let setting = Setting::new("own", work);
    let _honest = setting.instance("honest", HONEST, "honest");
    let daemon = setting.daemon(&work.join("memtide"), 400);
    daemon.until("its own instance is managed", |status| setting.is_managed(status));
    assert!(daemon.threads("CapEff").values().all(|set| set == "0000000000000000"));
    assert_eq!(daemon.status().host.tmpfs.first().map(|tmpfs| tmpfs.guests), Some(1));
    daemon.end();
    assert_eq!(setting.replies(), Vec::<PathBuf>::new());
}
