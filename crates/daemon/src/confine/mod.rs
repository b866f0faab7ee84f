//! The rights that the daemon gives up after its start, so that a bug in it is worth less.
//!
//! **Problem.** The daemon runs as root to look at all users' guests, and reads input from guests, monitors and local users.
//! systemd confines a package's service; nothing confines a daemon that is started by hand.
//!
//! **Terms.** *Capabilities*: the parts of root's power. *seccomp*: a list of the system calls that a thread may make.
//! *Landlock*: the files and processes that a thread may reach. All three belong to a thread, can only become tighter, and
//! are inherited by the threads that it starts.
//!
//! **Rule.** [`Confinement::process`] is called while there is one thread, and after everything is open that needs more
//! rights. It keeps at most two capabilities, and the system calls that memtide makes. Each thread then gives up the rights
//! that it does not need:
//!
//! | thread | capabilities | file system | connects |
//! |---|---|---|---|
//! | engine: reads processes, writes journal and claims | both | as its user | Unix sockets |
//! | main ([`monitors`](Confinement::monitors)): talks to monitors | both | opens nothing to write | Unix sockets |
//! | API ([`api`](Confinement::api)): serves local users | none | none: Landlock without a rule | nowhere |
//! | pressure: waits | both | as its user | Unix sockets |
//!
//! Only the API uses Landlock: a thread under Landlock may not look at a process that is not under it (`/proc/PID/root`,
//! `exe` and the links in `fd` answer `EACCES`, whatever its capabilities), but the other threads must look at QEMUs.
//! Threads share their memory: this protects against a bug in a thread's actions, but less against a bug that runs foreign
//! code.
//!
//! memtide logs a confinement that the kernel refuses, and works without it.

#[cfg(feature = "confine")]
mod capabilities;
#[cfg(feature = "confine")]
mod landlock;
#[cfg(feature = "confine")]
mod seccomp;

/// The applied confinements, and the failed ones with their reasons: a phrase each.
pub type Applied = Vec<String>;

/// The confinement of a daemon's threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Confinement {
    /// All rights that the threads do not need.
    On,
    /// Nothing, because of the configuration.
    Off,
}

impl Confinement {
    /// As set by `confine` in the configuration.
    #[must_use]
    pub const fn from_key(confine: bool) -> Self {
        if confine { Self::On } else { Self::Off }
    }

    /// Confines this thread and all threads that it starts later. Call it while there is no other thread.
    #[must_use]
    pub fn process(self) -> Applied {
        match self {
            Self::Off => vec!["nothing (`confine = false`)".to_owned()],
            Self::On => process(),
        }
    }

    /// Confines the thread that talks to monitors: it opens nothing to write, and changes no file system.
    #[must_use]
    pub fn monitors(self) -> Applied {
        if self == Self::On { monitors() } else { Applied::new() }
    }

    /// Confines the thread of the API: it has its socket, and reaches nothing else.
    #[must_use]
    pub fn api(self) -> Applied {
        if self == Self::On { api() } else { Applied::new() }
    }
}

#[cfg(feature = "confine")]
fn process() -> Applied {
    vec![capabilities::keep_needed(), seccomp::apply(seccomp::Part::Process)]
}

#[cfg(feature = "confine")]
fn monitors() -> Applied {
    vec![seccomp::apply(seccomp::Part::Monitors)]
}

#[cfg(feature = "confine")]
fn api() -> Applied {
    // System calls come last: the other two need some that are forbidden afterwards.
    let applied = [landlock::deny_all(), capabilities::keep_none(), seccomp::apply(seccomp::Part::Api)];
    vec![format!("API: {}", applied.join(", "))]
}

#[cfg(not(feature = "confine"))]
fn process() -> Applied {
    vec!["nothing (built without the feature `confine`)".to_owned()]
}

#[cfg(not(feature = "confine"))]
fn monitors() -> Applied {
    Applied::new()
}

#[cfg(not(feature = "confine"))]
fn api() -> Applied {
    Applied::new()
}

#[cfg(all(test, feature = "confine"))]
mod tests {
    use super::*;
    use std::fs::{self, File};
    use std::net::TcpListener;
    use std::os::unix::net::{UnixListener, UnixStream};
    use std::process::Command;

    /// Everything happens in one new thread: the test's own thread stays unconfined.
    #[test]
    fn a_thread_can_do_less_with_each_step() {
        let dir = tempfile::tempdir().unwrap();
        let (file, socket) = (dir.path().join("file"), dir.path().join("socket"));
        let listener = UnixListener::bind(&socket).unwrap();
        let confined = std::thread::spawn(move || {
            let first = Confinement::On.process();
            assert!(!first.iter().any(|phrase| phrase.contains("not ")), "{first:?}");
            assert!(TcpListener::bind("127.0.0.1:0").is_err());
            assert!(Command::new("/bin/true").spawn().is_err());
            assert!(UnixListener::bind(dir.path().join("another")).is_err());
            fs::write(&file, "text").unwrap();
            std::thread::spawn(|| {}).join().unwrap();

            let second = Confinement::On.monitors();
            assert!(fs::write(&file, "other").is_err() && fs::remove_file(&file).is_err());
            assert!(File::create(dir.path().join("new")).is_err());
            assert_eq!(fs::read_to_string(&file).unwrap(), "text");
            let mut client = UnixStream::connect(&socket).unwrap();

            let third = Confinement::On.api();
            assert!(fs::read_to_string(&file).is_err() && UnixStream::connect(&socket).is_err());
            // Open descriptors stay open.
            let (mut served, _) = listener.accept().unwrap();
            std::io::Write::write_all(&mut served, b"answer").unwrap();
            drop(served);
            assert_eq!(std::io::read_to_string(&mut client).unwrap(), "answer");
            (dir, [second, third].concat())
        });
        let (_dir, applied) = confined.join().unwrap();
        assert_eq!(applied.len(), 2, "{applied:?}");
    }
}
