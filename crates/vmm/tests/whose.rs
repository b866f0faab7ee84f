//! Which monitor is whose, with processes of this system: who names a path, who listens there, who holds it.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::fd::AsRawFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::wait_until;
use memtide_model::Absence;
use memtide_testing::{Mortal, skipped};
use memtide_vmm::qemu::{ConfiguredGuest, Qemu};
use memtide_vmm::{Admitted, Backend, Fleet, Wish};

const PROC: &str = "/proc";

/// A process with QEMU's command line that names a monitor and does nothing. It ends with its input.
fn impostor(name: &str, monitor: &Path) -> Mortal {
    use std::os::unix::process::CommandExt;
    let qmp = format!("unix:{},server=on,wait=off", monitor.display());
    let mut command = Command::new("sh");
    command.arg0("qemu-system-x86_64").args(["-c", "read x", "-name", name, "-m", "8", "-qmp", &qmp]);
    Mortal::start(command.stdin(Stdio::piped()))
}

/// A name that no other guest of this machine has.
fn name(of: &str) -> String {
    format!("{of}-{}", std::process::id())
}

/// The guest called `name` on this machine, seen through its monitor.
struct Watch {
    fleet: Fleet,
    name: String,
    /// Dropping it ends the runtime's thread.
    _end: tokio::sync::oneshot::Sender<()>,
}

impl Watch {
    fn on(name: &str) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let handle = runtime.handle().clone();
        let (end, ended) = tokio::sync::oneshot::channel::<()>();
        std::thread::spawn(move || runtime.block_on(ended));
        let qemu = Qemu::new(Path::new(PROC), []);
        let fleet = Fleet::start(handle, vec![Box::new(qemu)], Admitted::named(&[name]), |_| {});
        Self { fleet, name: name.to_owned(), _end: end }
    }

    /// Why there is no balloon; `None` if the guest is not seen.
    fn balloon(&mut self) -> Option<Absence> {
        let seen = self.fleet.observe(Duration::from_secs(5), |_| Some(Wish::default()));
        let guest = seen.into_iter().find(|seen| seen.found.id.name() == self.name)?;
        guest.told.balloon.why_not().cloned()
    }

    /// Waits until the monitor has answered. The guests of these tests have no balloon.
    fn hears(&mut self) {
        wait_until("the monitor answers", || self.balloon() == Some(Absence::NoBalloon));
    }
}

#[test]
fn a_configured_guest_belongs_to_the_process_that_listens() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("db1.qmp");
    let impostor = impostor(&name("innocent"), &path);
    let guest = ConfiguredGuest { name: name("db1"), qmp: path.clone() };
    let mut qemu = Qemu::new(Path::new(PROC), [guest.clone()]);
    let mut owner = || {
        let found = qemu.discover(true).unwrap().unwrap_or_default();
        let ours = found.into_iter().find(|found| found.id.name() == guest.name);
        ours.map(|found| found.process.pid)
    };
    wait_until("the impostor has its command line", || {
        let cmdline = fs::read(format!("/proc/{}/cmdline", impostor.id())).unwrap();
        cmdline.starts_with(b"qemu")
    });
    assert_eq!(owner(), None, "nobody listens");
    let _listener = UnixListener::bind(&path).unwrap();
    assert_eq!(owner(), Some(std::process::id()));
}

#[test]
fn nobody_connects_to_a_socket_that_a_process_only_names() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("of-somebody-else");
    let listener = UnixListener::bind(&path).unwrap();
    listener.set_nonblocking(true).unwrap();
    let _impostor = impostor(&name("names"), &path);
    let mut watch = Watch::on(&name("names"));
    wait_until("the guest is seen", || watch.balloon() == Some(Absence::Disconnected));
    watch.balloon();
    assert_eq!(listener.accept().unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
}

/// A real QEMU without a machine code to run; `None` if this machine has none that can do this.
fn qemu(name: &str, needs: &str) -> Option<Command> {
    let help = Command::new("qemu-system-x86_64").arg("--help").output();
    if !help.is_ok_and(|help| String::from_utf8_lossy(&help.stdout).contains(needs)) {
        skipped(&format!("qemu-system-x86_64 is missing, or does not know {needs}"));
        return None;
    }
    let mut command = Command::new("qemu-system-x86_64");
    command.args([
        "-name",
        name,
        "-S",
        "-m",
        "16",
        "-M",
        "pc",
        "-accel",
        "tcg,tb-size=8",
        "-display",
        "none",
    ]);
    command.args(["-nodefaults", "-no-user-config"]).stdin(Stdio::null()).stdout(Stdio::null());
    Some(command)
}

fn listen_at(path: &Path) -> String {
    format!("unix:{},server=on,wait=off", path.display())
}

#[test]
fn a_qemu_that_changed_its_root_is_heard() {
    if !rustix::process::geteuid().is_root() {
        return skipped("to change the root needs root");
    }
    let name = name("jailed");
    let Some(mut command) = qemu(&name, "chroot=dir") else { return };
    let dir = tempfile::tempdir().unwrap();
    let (jail, path) = (dir.path().join("jail"), dir.path().join("vm.qmp"));
    fs::create_dir(&jail).unwrap();
    command.arg("-run-with").arg(format!("chroot={}", jail.display())).arg("-qmp").arg(listen_at(&path));
    let vm = Mortal::start(&mut command);
    let root = format!("/proc/{}/root", vm.id());
    wait_until("it has changed its root", || fs::read_link(&root).is_ok_and(|root| root == jail));
    Watch::on(&name).hears();
}

/// A QEMU in the background. It ends with its test.
struct Daemon(PathBuf);

impl Drop for Daemon {
    fn drop(&mut self) {
        let pid = fs::read_to_string(&self.0).ok().and_then(|pid| pid.trim().parse().ok());
        if let Some(pid) = pid.and_then(rustix::process::Pid::from_raw) {
            let _ended = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
    }
}

#[test]
fn a_qemu_that_left_the_directory_of_its_start_is_heard() {
    let name = name("daemon");
    let Some(mut command) = qemu(&name, "-daemonize") else { return };
    let dir = tempfile::tempdir().unwrap();
    let pidfile = dir.path().join("vm.pid");
    command.args(["-daemonize", "-pidfile"]).arg(&pidfile).args(["-qmp", "unix:vm.qmp,server=on,wait=off"]);
    let _daemon = Daemon(pidfile);
    // Its pidfile stays open, and shows the directory.
    assert!(command.current_dir(dir.path()).env_remove("PWD").status().unwrap().success());
    Watch::on(&name).hears();
}

#[test]
fn a_qemu_with_a_passed_monitor_is_heard() {
    let name = name("passed");
    let Some(mut command) = qemu(&name, "-chardev") else { return };
    let dir = tempfile::tempdir().unwrap();
    let listener = UnixListener::bind(dir.path().join("vm.qmp")).unwrap();
    rustix::io::fcntl_setfd(&listener, rustix::io::FdFlags::empty()).unwrap();
    let chardev = format!("socket,id=m,fd={},server=on,wait=off", listener.as_raw_fd());
    let _vm = Mortal::start(command.args(["-chardev", &chardev, "-mon", "chardev=m,mode=control"]));
    drop(listener);
    Watch::on(&name).hears();
}

#[test]
fn a_monitor_that_another_program_holds_is_not_filled_with_connections() {
    let name = name("held");
    let Some(mut command) = qemu(&name, "-qmp") else { return };
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("vm.qmp");
    let _vm = Mortal::start(command.arg("-qmp").arg(listen_at(&path)));
    wait_until("it listens", || path.exists());
    let holder = UnixStream::connect(&path).unwrap();
    BufReader::new(&holder).read_line(&mut String::new()).unwrap();

    let mut watch = Watch::on(&name);
    wait_until("it is taken", || watch.balloon() == Some(Absence::ControlTaken));
    // Longer than the first waits after a failure.
    let until = Instant::now() + Duration::from_secs(4);
    while Instant::now() < until {
        assert_eq!(watch.balloon(), Some(Absence::ControlTaken));
    }
    let list = fs::read_to_string("/proc/self/net/unix").unwrap();
    let waiting = list.lines().filter(|line| line.contains(" 02 ") && line.ends_with(path.to_str().unwrap()));
    assert_eq!(waiting.count(), 1, "the one connection that showed it");
    drop(holder);
    watch.hears();
}
