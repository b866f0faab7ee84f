//! Starts other programs.
//!
//! Rule: everything that the lab starts ends with it. Children are started with `setpriv --pdeathsig KILL`. The kernel sends
//! this signal when the *thread* that started the child ends. So one thread, which lives as long as the lab, starts all of
//! them.

use std::io;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Sender};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread;

use memtide_host::{Root, Statm};

use crate::error::{LabError, shown};

/// The number of characters shown from the end of a failed command's output.
const SHOWN: usize = 2000;

/// Runs `command` until it finishes, and returns its standard output.
///
/// # Errors
/// If it cannot be started or fails.
pub fn run(command: &mut Command) -> Result<String, LabError> {
    let output = command.stdin(Stdio::null()).output().map_err(LabError::start(command))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() {
        return Ok(text);
    }
    let all = format!("{text}{}", String::from_utf8_lossy(&output.stderr));
    let skip = all.chars().count().saturating_sub(SHOWN);
    Err(LabError::Failed { command: shown(command), output: all.chars().skip(skip).collect() })
}

/// A command that is killed when the lab ends, for whatever reason.
#[must_use]
pub fn mortal(program: &str) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--", program]);
    command
}

/// A process that is killed when this is dropped.
#[derive(Debug)]
pub struct Held(pub Child);

impl Drop for Held {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A process that takes a whole core, until it is dropped.
///
/// # Errors
/// If it cannot be started.
pub fn busy() -> Result<Held, LabError> {
    let mut command = mortal("sh");
    command.args(["-c", "while :; do :; done"]).stdin(Stdio::null());
    spawn(command).map(Held)
}

type Job = (Command, Sender<(Command, io::Result<Child>)>);

/// Starts `command` from the thread that lives as long as the lab.
///
/// # Errors
/// If it cannot be started.
pub fn spawn(command: Command) -> Result<Child, LabError> {
    static SPAWNER: OnceLock<Mutex<Sender<Job>>> = OnceLock::new();
    let spawner = SPAWNER.get_or_init(|| {
        let (jobs, inbox) = mpsc::channel::<Job>();
        thread::spawn(move || {
            for (mut command, answer) in inbox {
                let child = command.spawn();
                // If nobody waits for the answer, the lab itself is ending.
                let _ = answer.send((command, child));
            }
        });
        Mutex::new(jobs)
    });
    let (answer, outcome) = mpsc::channel();
    let jobs = spawner.lock().unwrap_or_else(PoisonError::into_inner).clone();
    jobs.send((command, answer)).map_err(|_| LabError::Interrupted)?;
    let (command, child) = outcome.recv().map_err(|_| LabError::Interrupted)?;
    child.map_err(LabError::start(&command))
}

/// The CPU time that a process has used so far, in seconds.
///
/// # Errors
/// If there is no such process.
pub fn cpu_seconds(pid: u32) -> Result<f64, LabError> {
    let path = std::path::PathBuf::from(format!("/proc/{pid}/stat"));
    let text = std::fs::read_to_string(&path).map_err(LabError::file(&path))?;
    // Fields 14 and 15, counted after the name, which can contain anything.
    let fields = text.rsplit_once(')').map_or("", |(_, fields)| fields).split_whitespace().skip(11).take(2);
    let ticks: u32 = fields.filter_map(|field| field.parse::<u32>().ok()).sum();
    let a_second = u32::try_from(rustix::param::clock_ticks_per_second()).unwrap_or(100);
    Ok(f64::from(ticks) / f64::from(a_second))
}

/// The memory of a process; zeros once it has ended.
#[must_use]
pub fn statm(pid: u32) -> Statm {
    memtide_host::statm(&Root::system(), pid).unwrap_or_default()
}

/// The path of `program`, if it is in the search path.
#[must_use]
pub fn find(program: &str) -> Option<std::path::PathBuf> {
    let path = std::env::var_os("PATH")?;
    // Debian keeps modinfo outside an ordinary user's PATH.
    let places = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]);
    places.map(|place| place.join(program)).find(|file| file.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_command_says_what_it_wrote() {
        let error = run(Command::new("sh").args(["-c", "echo out; echo bad >&2; exit 1"])).unwrap_err();
        assert!(error.to_string().contains("bad"), "{error}");
        assert_eq!(run(Command::new("echo").arg("hi")).unwrap(), "hi\n");
    }

    #[test]
    fn a_child_outlives_the_thread_that_asked_for_it() {
        let started = thread::spawn(|| {
            let mut command = mortal("sleep");
            command.arg("1000");
            spawn(command).unwrap()
        });
        let mut child = started.join().unwrap();
        assert!(child.try_wait().unwrap().is_none());
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn a_program_that_is_not_there_is_an_error() {
        assert!(spawn(Command::new("/nonexistent")).is_err());
        assert!(find("sh").is_some() && find("no-such-program").is_none());
    }
}
