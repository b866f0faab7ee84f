//! The daemon as an operator starts it: a child with its own configuration file, queried through its socket.

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use memtide_api::view::{GuestDetail, Status};
use memtide_api::{Client, ClientError};
use rustix::process::{Pid, Signal, kill_process};

use crate::error::LabError;
use crate::machine::places::SocketDir;
use crate::machine::process;
use crate::wait::until;

/// The longest time for the daemon to open its socket, to make its first decision, or to end.
const PATIENCE: Duration = Duration::from_secs(20);

/// The end of a configuration that lets memtide merge the equal memory of its guests.
pub const SHARES: &str = "ksm = { mode = \"govern\" }\n[class.default]\nshare = true\n";

/// The end of a configuration that lets memtide keep half of each guest's memory in a compressed tier.
pub const TIER: &str = "[class.default]\ntier = \"50%\"\n";

/// Its files.
const CONFIGURATION: &str = "memtide.toml";
const LOG: &str = "memtide.log";

/// A running daemon. Dropping it kills it.
#[derive(Debug)]
pub struct Daemon {
    dir: PathBuf,
    socket: PathBuf,
    program: PathBuf,
    child: Child,
    /// The directory of the socket; kept as long as it is.
    _sockets: SocketDir,
}

impl Daemon {
    /// The program `memtide` that was built together with this one.
    ///
    /// # Errors
    /// If it was not built.
    pub fn program() -> Result<PathBuf, LabError> {
        let exe = std::env::current_exe().unwrap_or_default();
        // Tests lie one directory deeper than programs, in `deps`.
        let mut beside = exe.ancestors().skip(1).take(2).map(|dir| dir.join("memtide"));
        beside.find(|program| program.is_file()).ok_or_else(|| {
            LabError::Missing(format!("no memtide beside {}: cargo build -p memtide", exe.display()))
        })
    }

    /// Starts a daemon with its files in `dir` and with `configuration` (socket and journal are added). Waits for its first
    /// decision.
    ///
    /// # Errors
    /// If it cannot be started or does not come up. The error then contains the end of its log.
    pub fn start(dir: &Path, configuration: &str) -> Result<Self, LabError> {
        let program = Self::program()?;
        let sockets = SocketDir::within(dir, "memtide.sock")?;
        let socket = sockets.join("memtide.sock");
        let file = dir.join(CONFIGURATION);
        let text = with_places(dir, &socket, configuration);
        fs::write(&file, text).map_err(LabError::file(&file))?;
        let log = dir.join(LOG);
        let out = File::options().create(true).append(true).open(&log).map_err(LabError::file(&log))?;
        let err = out.try_clone().map_err(LabError::file(&log))?;
        let mut command = process::mortal(&program.to_string_lossy());
        command.args(["run", "--config"]).arg(&file);
        // A separate process group: Ctrl-C is for the lab, which stops the daemon in order.
        command.stdin(Stdio::null()).stdout(out).stderr(err).process_group(0);
        let child = process::spawn(command)?;
        let mut daemon = Self { dir: dir.to_owned(), socket, program, child, _sockets: sockets };
        until("memtide's first decision", PATIENCE, || {
            daemon.check_alive()?;
            Ok(daemon.status().ok().filter(|status| status.decided_at.is_some()).map(|_| ()))
        })?;
        Ok(daemon)
    }

    /// Gives it a new configuration, as an operator would: a new file and SIGHUP.
    ///
    /// # Errors
    /// If the file cannot be written, or the daemon has ended.
    pub fn configure(&mut self, configuration: &str) -> Result<(), LabError> {
        let file = self.dir.join(CONFIGURATION);
        let text = with_places(&self.dir, &self.socket, configuration);
        fs::write(&file, text).map_err(LabError::file(&file))?;
        self.check_alive()?;
        self.signal(Signal::HUP)
    }

    /// Runs a command of the program against this daemon. Returns its standard output.
    ///
    /// # Errors
    /// If it fails. The error contains its output.
    pub fn command(&self, arguments: &[&str]) -> Result<String, LabError> {
        let mut command = process::mortal(&self.program.to_string_lossy());
        command.args(arguments).arg("--socket").arg(&self.socket);
        process::run(&mut command)
    }

    /// Kills it with SIGKILL, as the kernel's OOM killer would.
    ///
    /// # Errors
    /// If it has already ended.
    pub fn kill(mut self) -> Result<(), LabError> {
        self.check_alive()?;
        self.child.kill().and_then(|()| self.child.wait()).map_err(LabError::file(&self.program))?;
        Ok(())
    }

    /// The directory of its journal.
    #[must_use]
    pub fn journal(&self) -> PathBuf {
        self.dir.join("journal")
    }

    /// Its log so far.
    ///
    /// # Errors
    /// If the log cannot be read.
    pub fn log(&self) -> Result<String, LabError> {
        let log = self.dir.join(LOG);
        fs::read_to_string(&log).map_err(LabError::file(&log))
    }

    /// The output of a command of `memtide` for people: `status`, `explain GUEST`.
    ///
    /// # Errors
    /// If the command fails.
    pub fn says(&self, arguments: &[&str]) -> Result<String, LabError> {
        let config = self.dir.join(CONFIGURATION);
        process::run(Command::new(&self.program).args(arguments).arg("--config").arg(config))
    }

    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Its status of the host and all guests.
    ///
    /// # Errors
    /// If it does not answer.
    pub fn status(&self) -> Result<Status, LabError> {
        self.client().status().map_err(|error| self.silent(error))
    }

    /// Its status of one guest.
    ///
    /// # Errors
    /// If it does not answer, or does not know the guest.
    pub fn guest(&self, name: &str) -> Result<GuestDetail, LabError> {
        let detail = self.client().guest(name).map_err(|error| self.silent(error))?;
        detail.ok_or_else(|| LabError::Missing(format!("memtide knows no guest {name}")))
    }

    /// Waits until `look` accepts its status of the guest `name`.
    ///
    /// # Errors
    /// If this does not happen before the deadline.
    pub fn until<T>(
        &self,
        what: &str,
        deadline: Duration,
        name: &str,
        mut look: impl FnMut(&GuestDetail) -> Option<T>,
    ) -> Result<T, LabError> {
        until(what, deadline, || Ok(self.guest(name).ok().and_then(|detail| look(&detail))))
    }

    /// Fails if it has ended, with the end of its log.
    ///
    /// # Errors
    /// If it has ended.
    pub fn check_alive(&mut self) -> Result<(), LabError> {
        let Some(status) = self.child.try_wait().map_err(LabError::file(&self.program))? else {
            return Ok(());
        };
        let log = fs::read_to_string(self.dir.join(LOG)).unwrap_or_default();
        let last: Vec<&str> = log.lines().rev().take(5).collect();
        let output = format!("{status}; {}", last.into_iter().rev().collect::<Vec<_>>().join("\n"));
        Err(LabError::Failed { command: "memtide run".to_owned(), output })
    }

    /// Stops it as an operator would, with SIGTERM.
    ///
    /// # Errors
    /// If it has already ended, or does not end.
    pub fn stop(mut self) -> Result<(), LabError> {
        self.check_alive()?;
        self.signal(Signal::TERM)?;
        until("memtide's end", PATIENCE, || self.child.try_wait().map_err(LabError::file(&self.program)))?;
        Ok(())
    }

    fn signal(&self, signal: Signal) -> Result<(), LabError> {
        let Some(pid) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) else { return Ok(()) };
        // It is our own child and nobody has waited for it, so the id is still its own.
        kill_process(pid, signal).map_err(|error| LabError::file(&self.program)(error.into()))
    }

    fn client(&self) -> Client {
        Client::at(&self.socket).with_deadline(PATIENCE)
    }

    fn silent(&self, error: ClientError) -> LabError {
        LabError::file(&self.socket)(std::io::Error::other(error))
    }
}

/// The configuration with the paths of its socket and its journal.
fn with_places(dir: &Path, socket: &Path, configuration: &str) -> String {
    let (socket, journal) = (socket.display(), dir.join("journal"));
    format!("socket = \"{socket}\"\njournal = {{ dir = \"{}\" }}\n{configuration}", journal.display())
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // If it has already ended, there is nothing to kill.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
