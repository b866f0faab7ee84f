//! A libvirtd of the lab's own, beside any other one of this machine.
//!
//! **Problem.** libvirtd has fixed places for its sockets, its state and its configuration, and wants a user that its package may not have made.
//!
//! **Rule.** As root it runs as on a real host (`qemu:///system`), in a mount namespace in which these places lead to a directory of the lab. Without root it runs as for any user
//! (`qemu:///session`), with its directories in the environment. Its guests start through a small script, which puts QEMU into the cgroup of the small host first.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rustix::process::geteuid;

use crate::error::LabError;
use crate::machine::packages;
use crate::machine::places::RunDir;
use crate::machine::process::{self, Held, find, mortal, run};
use crate::wait::until;

/// The longest time for the daemon to open its socket: it first asks QEMU what it can.
const OPENS: Duration = Duration::from_secs(60);
/// The longest time for it to notice the end of a QEMU.
const ENDS: Duration = Duration::from_secs(20);
/// The places of a daemon of root, and the directories below the lab's that they lead to.
const MOUNTS: &str =
    "run:/run/libvirt lib:/var/lib/libvirt cache:/var/cache/libvirt etc:/etc/libvirt log:/var/log/libvirt";
/// No confinement and no other user: the lab's files need none.
const QEMU_CONF: &str = "user = \"root\"\ngroup = \"root\"\ndynamic_ownership = 0\nremember_owner = 0\nsecurity_driver = \"none\"\nnamespaces = []\ncgroup_controllers = []\nstdio_handler = \"file\"\n";
const LIBVIRTD_CONF: &str = "unix_sock_group = \"root\"\nauth_unix_rw = \"none\"\nauth_unix_ro = \"none\"\n";
/// Gives the namespace its places and the user that libvirt wants, then becomes the daemon. `$0` is the lab's directory.
const AS_ROOT: &str = r#"set -e
cp /etc/passwd /etc/group "$0"
for name in libvirt-qemu kvm; do
  grep -q "^$name:" "$0/group" || echo "$name:x:64055:" >> "$0/group"
done
grep -q '^libvirt-qemu:' "$0/passwd" || echo 'libvirt-qemu:x:64055:64055::/:/usr/sbin/nologin' >> "$0/passwd"
for place in $1 passwd:/etc/passwd group:/etc/group; do
  [ -f "$0/${place%%:*}" ] || mkdir -p "${place#*:}"
  mount --bind "$0/${place%%:*}" "${place#*:}"
done
exec libvirtd --config "$0/etc/libvirtd.conf" --pid-file "$0/run/libvirtd.pid""#;

/// Enters the small host's cgroup, and lets a shell end QEMU with the lab: QEMU is no child of anybody. `DIR` is the lab's directory, `LAB` its process.
const SCRIPT: &str = r#"read -r procs 2>/dev/null < 'DIR/procs' && echo $$ > "$procs"
sh -c 'while kill -0 $0; do kill -0 LAB || exec kill -9 $0; sleep 2; done' $$ >/dev/null 2>&1 </dev/null &"#;

/// The daemon. It ends with its guests when this is dropped.
#[derive(Debug)]
pub struct Libvirtd {
    daemon: Mutex<Option<Held>>,
    emulator: PathBuf,
    dir: RunDir,
}

impl Libvirtd {
    /// Installs it if it is missing, and starts it with guests of the QEMU `program`.
    ///
    /// # Errors
    /// If it cannot be installed or started.
    pub fn start(program: &Path, say: &dyn Fn(&str)) -> Result<Self, LabError> {
        packages::ensure_libvirt(say)?;
        let dir = RunDir::create("libvirtd")?;
        for part in ["run", "lib", "cache", "etc", "log", "conf"] {
            let part = dir.path().join(part);
            fs::create_dir_all(&part).map_err(LabError::file(&part))?;
        }
        let write = |name: &str, text: &str| {
            let path = dir.path().join(name);
            fs::write(&path, text).map_err(LabError::file(&path))
        };
        write("etc/qemu.conf", QEMU_CONF)?;
        write("etc/libvirtd.conf", LIBVIRTD_CONF)?;
        let script = format!("#!/bin/sh\n{SCRIPT}\nexec '{program}' \"$@\"\n", program = program.display());
        let script = script
            .replace("DIR", &dir.path().display().to_string())
            .replace("LAB", &std::process::id().to_string());
        write("qemu", &script)?;
        let emulator = dir.path().join("qemu");
        fs::set_permissions(&emulator, fs::Permissions::from_mode(0o755))
            .map_err(LabError::file(&emulator))?;
        let this = Self { dir, emulator, daemon: Mutex::new(None) };
        this.begin()?;
        this.probe()?;
        Ok(this)
    }

    /// Starts a guest without a system and ends it: some machines run a libvirtd, but no guests of it.
    fn probe(&self) -> Result<(), LabError> {
        let emulator = self.emulator.display();
        let xml = format!(
            "<domain type='qemu'><name>probe</name><memory unit='MiB'>32</memory><vcpu>1</vcpu><os><type arch='x86_64' machine='q35'>hvm</type></os><features><acpi/></features>\
             <devices><emulator>{emulator}</emulator></devices></domain>"
        );
        let cannot = |why: LabError| LabError::Missing(format!("libvirt cannot start guests here: {why}"));
        self.create("probe", &xml, None).map_err(cannot)?;
        self.virsh(&["destroy", "probe"]).map(drop)
    }

    /// Starts the daemon, again if it was ended. Its guests run on meanwhile.
    ///
    /// # Errors
    /// If it does not open its socket.
    pub fn begin(&self) -> Result<(), LabError> {
        let log = self.dir.path().join("libvirtd.log");
        let log = fs::File::options().create(true).append(true).open(&log).map_err(LabError::file(&log))?;
        let err = log.try_clone().map_err(LabError::file(self.dir.path()))?;
        let mut command = if geteuid().is_root() {
            let mut command = mortal("unshare");
            command.args(["--mount", "--propagation", "private", "sh", "-c", AS_ROOT]);
            command.arg(self.dir.path()).arg(MOUNTS);
            command
        } else {
            let mut command = mortal("libvirtd");
            self.of_session(&mut command);
            command
        };
        command.stdin(Stdio::null()).stdout(log).stderr(err);
        let child = process::spawn(command)?;
        *self.daemon.lock().unwrap_or_else(PoisonError::into_inner) = Some(Held(child));
        until("libvirtd opens its socket", OPENS, || {
            let answers = self.virsh(&["version"]).is_ok();
            Ok(answers.then_some(()))
        })
    }

    /// The directories of a daemon that root does not run.
    fn of_session(&self, command: &mut Command) {
        command
            .env("XDG_RUNTIME_DIR", self.dir.path().join("run"))
            .env("XDG_CONFIG_HOME", self.dir.path().join("conf"))
            .env("XDG_CACHE_HOME", self.dir.path().join("cache"));
    }

    /// Its socket.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        let below = if geteuid().is_root() { "run/libvirt-sock" } else { "run/libvirt/libvirt-sock" };
        self.dir.path().join(below)
    }

    /// The lines of memtide's configuration that lead to it. They come behind all other keys.
    #[must_use]
    pub fn settings(&self) -> String {
        format!("\n[[libvirt]]\nsocket = {:?}\n", self.socket())
    }

    /// The program that its guests start with.
    #[must_use]
    pub fn emulator(&self) -> &Path {
        &self.emulator
    }

    /// Its process.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.with_daemon(|child| child.id())
    }

    fn with_daemon<T>(&self, act: impl FnOnce(&mut Child) -> T) -> Option<T> {
        let mut daemon = self.daemon.lock().unwrap_or_else(PoisonError::into_inner);
        daemon.as_mut().map(|held| act(&mut held.0))
    }

    /// Kills it, as an OOM killer would. Its guests run on.
    pub fn kill(&self) {
        *self.daemon.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Runs virsh, and returns what it prints.
    ///
    /// # Errors
    /// If it fails.
    pub fn virsh(&self, arguments: &[&str]) -> Result<String, LabError> {
        let virsh = find("virsh").ok_or_else(|| LabError::Missing("virsh is not installed".to_owned()))?;
        let path = if geteuid().is_root() { "system" } else { "session" };
        let uri = format!("qemu+unix:///{path}?socket={}", self.socket().display());
        let mut command = Command::new(virsh);
        command.args(["-q", "-c", &uri]).args(arguments).env("LC_ALL", "C");
        self.of_session(&mut command);
        run(&mut command)
    }

    /// Starts a domain from its XML, in the cgroup whose `cgroup.procs` is given. Returns its process.
    ///
    /// # Errors
    /// If libvirt refuses.
    pub fn create(&self, name: &str, xml: &str, procs: Option<&Path>) -> Result<u32, LabError> {
        let write = |file: &str, text: &str| {
            let path = self.dir.path().join(file);
            fs::write(&path, text).map_err(LabError::file(&path)).map(|()| path)
        };
        // One guest starts at a time.
        static ONE: Mutex<()> = Mutex::new(());
        let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        let line = procs.map_or_else(String::new, |procs| format!("{}\n", procs.display()));
        write("procs", &line)?;
        let xml = write(&format!("{name}.xml"), xml)?;
        // A guest of this name that was killed is forgotten a moment later.
        until("libvirt forgets the last guest of this name", ENDS, || {
            let names = self.virsh(&["list", "--all", "--name"])?;
            Ok((!names.lines().any(|line| line.trim() == name)).then_some(()))
        })?;
        self.virsh(&["create", &xml.to_string_lossy()])?;
        write("procs", "")?;
        let state = if geteuid().is_root() { "run/qemu" } else { "run/libvirt/qemu/run" };
        let path = self.dir.path().join(state).join(format!("{name}.pid"));
        let text = fs::read_to_string(&path).map_err(LabError::file(&path))?;
        text.trim().parse().map_err(|_| LabError::Missing(format!("{} has no number", path.display())))
    }
}

impl Drop for Libvirtd {
    fn drop(&mut self) {
        for name in self.virsh(&["list", "--name"]).unwrap_or_default().lines() {
            let _ended = self.virsh(&["destroy", name.trim()]);
        }
    }
}
