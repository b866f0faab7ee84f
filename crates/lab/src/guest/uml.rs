//! An instance of User Mode Linux.
//!
//! Its first serial line is the channel to the helper: a pair of connected sockets, one end of which the instance inherits. Its console is for
//! memtide as well as for the lab: each has a socket of its own for the answers.

use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::time::Duration;

use memtide_model::Bytes;
use memtide_vmm::uml::wire::{Answer, LONGEST, request};
use memtide_vmm::uml::{Kernel, Plug, Step};
use rustix::io::{FdFlags, fcntl_getfd, fcntl_setfd};

use super::{GuestBuilder, lock};
use crate::error::LabError;
use crate::guest::channel::Channel;
use crate::machine::lab::Run;
use crate::machine::places::SocketDir;
use crate::machine::uml_kernel;

/// The name of UML's program, for errors.
const UML: &str = "linux.uml";
/// Where instances keep their memory: a tmpfs on any Linux.
const MEMORY: &str = "/dev/shm";
/// The longest wait for an answer of the console. A step of 1 GiB takes less than a second.
const ANSWER: Duration = Duration::from_secs(10);

/// The UML of one instance.
#[derive(Debug)]
pub(super) struct Uml {
    name: String,
    /// The path of its console.
    console: PathBuf,
    lab: Mutex<Lab>,
    /// The descriptor of its memory file, once it was found.
    memory_file: Mutex<Option<PathBuf>>,
    /// The directory of the sockets; kept as long as they are.
    sockets: SocketDir,
}

/// The lab's end of the console.
#[derive(Debug)]
struct Lab {
    socket: Option<UnixDatagram>,
    plug: Plug,
}

impl GuestBuilder {
    /// Adds UML and its arguments. The last value is the instance's end of the channel, to be kept until the instance has started.
    ///
    /// # Errors
    /// If UML cannot be installed.
    pub(super) fn add_uml(
        &self,
        command: &mut Command,
        run: &Run,
    ) -> Result<(Uml, Channel, UnixStream), LabError> {
        let program = uml_kernel::ensure(run.lab().cache(), self.uml_kernel, &|text| eprintln!("{text}"))?;
        let initrd = run.lab().uml_initrd()?;
        let sockets = SocketDir::within(run.path(), &format!("{}/mconsole", self.name))?;
        let (ours, its) = UnixStream::pair().map_err(LabError::file(Path::new(UML)))?;
        inherit(&its).map_err(LabError::file(Path::new(UML)))?;
        command
            .arg(program)
            .arg(format!("mem={}M", self.memory.whole_mib()))
            .arg(format!("umid={}", self.name));
        command.arg(format!("uml_dir={}", sockets.join("").display()));
        command.arg(format!("initrd={}", initrd.display())).args(["con=null", "con0=null,fd:1", "ssl=null"]);
        command.arg(format!("ssl0=fd:{}", its.as_raw_fd()));
        command.args(["lab.control=/dev/ttyS0", "quiet", "panic=-1"]);
        if self.agent {
            command.args(["ssl1=pty", "memtide_agent=/dev/ttyS1"]);
        }
        if let Some(disk) = &self.disk {
            command.arg(format!("ubd0r={}", disk.path.display()));
        }
        command.args(&self.more).env("TMPDIR", self.memory_dir.as_deref().unwrap_or(Path::new(MEMORY)));
        let channel = Channel::over(&self.name, ours, Path::new(UML))?;
        let uml = Uml {
            name: self.name.clone(),
            console: sockets.join(&self.name).join("mconsole"),
            lab: Mutex::new(Lab { socket: None, plug: Plug::new(self.memory) }),
            memory_file: Mutex::new(None),
            sockets,
        };
        Ok((uml, channel, its))
    }
}

/// Lets children inherit a socket.
fn inherit(socket: &UnixStream) -> std::io::Result<()> {
    let flags = fcntl_getfd(socket)?;
    Ok(fcntl_setfd(socket, flags.difference(FdFlags::CLOEXEC))?)
}

impl Uml {
    /// The path of its console.
    pub(super) fn console(&self) -> &Path {
        &self.console
    }

    /// Runs a command on its console.
    ///
    /// # Errors
    /// If the console is gone, silent, or refuses.
    pub(super) fn ask(&self, command: &str) -> Result<String, LabError> {
        self.ask_at(&mut lock(&self.lab), command)
    }

    /// The memory that the instance keeps.
    ///
    /// # Errors
    /// As [`Uml::ask`].
    pub(super) fn actual(&self) -> Result<Bytes, LabError> {
        self.look(&mut lock(&self.lab))
    }

    /// Moves to `target` in one step, as far as the instance can.
    ///
    /// # Errors
    /// As [`Uml::ask`].
    pub(super) fn set_target(&self, target: Bytes) -> Result<(), LabError> {
        let mut lab = lock(&self.lab);
        let actual = self.look(&mut lab)?;
        let step = match actual > target {
            true => Step::Take(actual.saturating_sub(target)),
            false => Step::Give(target.saturating_sub(actual)),
        };
        step.command().map_or(Ok(()), |command| self.ask_at(&mut lab, &command).map(drop))
    }

    /// The memory that its memory file holds; zero if it has ended.
    pub(super) fn blocks(&self, pid: u32, memory: Bytes) -> Bytes {
        let mut file = lock(&self.memory_file);
        if file.is_none() {
            *file = memory_file(pid, memory);
        }
        let meta = file.as_ref().and_then(|path| fs::metadata(path).ok());
        Bytes::new(meta.map_or(0, |meta| meta.blocks().saturating_mul(512)))
    }

    fn look(&self, lab: &mut Lab) -> Result<Bytes, LabError> {
        let meminfo = self.ask_at(lab, "proc meminfo")?;
        let kernel = Kernel::default().with_meminfo(&meminfo);
        lab.plug.see(&kernel.ok_or_else(|| self.error("no meminfo".to_owned()))?);
        Ok(lab.plug.actual())
    }

    fn ask_at(&self, lab: &mut Lab, command: &str) -> Result<String, LabError> {
        let failed = |error: std::io::Error| self.error(format!("{command}: {error}"));
        if lab.socket.is_none() {
            lab.socket = Some(self.connect().map_err(failed)?);
        }
        let (Some(socket), Some(request)) = (&lab.socket, request(command)) else {
            return Err(self.error(format!("no command: {command}")));
        };
        let mut answer = Answer::default();
        let mut exchange = || {
            socket.send(&request)?;
            let mut buffer = [0; LONGEST];
            loop {
                let got = socket.recv(&mut buffer)?;
                let added = answer.add(buffer.get(..got).unwrap_or_default());
                if let Some(complete) = added.map_err(|_| std::io::Error::other("no reply of mconsole"))? {
                    return Ok(complete);
                }
            }
        };
        match exchange() {
            Ok(complete) => complete.map_err(|why| self.error(format!("{command}: {}", why.trim()))),
            Err(error) => {
                // A late answer must not be taken for the next one.
                lab.socket = None;
                Err(failed(error))
            }
        }
    }

    fn connect(&self) -> std::io::Result<UnixDatagram> {
        let path = self.sockets.join(&format!("{}.lab", self.name));
        if path.exists() {
            fs::remove_file(&path)?;
        }
        let socket = UnixDatagram::bind(&path)?;
        socket.set_read_timeout(Some(ANSWER))?;
        socket.connect(&self.console)?;
        Ok(socket)
    }

    fn error(&self, why: String) -> LabError {
        LabError::Load { guest: self.name.clone(), why }
    }
}

/// The descriptor of the memory file: a deleted file of at least the instance's size.
fn memory_file(pid: u32, memory: Bytes) -> Option<PathBuf> {
    let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).ok()?;
    descriptors.flatten().map(|entry| entry.path()).find(|path| {
        let is_deleted = fs::read_link(path).is_ok_and(|link| link.to_string_lossy().ends_with(" (deleted)"));
        is_deleted && fs::metadata(path).is_ok_and(|meta| meta.is_file() && meta.len() >= memory.get())
    })
}
