//! What the daemon gives up after its start, so that a mistake in it is worth less.
//!
//! **Problem.** It runs as root to look at everybody's guests, and reads what guests, monitors and local users say. The
//! service of a package is confined by systemd; a daemon that is started by hand is not.
//!
//! **Terms.** *Capabilities*: the parts of root's power. *seccomp*: a list of the system calls that a thread may make. *Landlock*: what
//! of the file system and of other processes a thread may reach. All three belong to a thread, can only become tighter, and are
//! inherited by the threads that it starts.
//!
//! **Rule.** [`Confinement::process`] is called while there is one thread, once everything is open that needs more: it keeps two capabilities at most, and
//! the system calls that memtide makes. Each thread then gives up what it alone does not need:
//!
//! | thread | capabilities | file system | connects |
//! |---|---|---|---|
//! | engine: reads processes, writes journal and claims | both | as its user | Unix sockets |
//! | main ([`monitors`](Confinement::monitors)): speaks with monitors | both | opens nothing to write | Unix sockets |
//! | API ([`api`](Confinement::api)): hears local users | none | none: Landlock without a rule | nowhere |
//! | pressure: waits | both | as its user | Unix sockets |
//!
//! Landlock is for the API alone: a thread under it may not look at a process that is not (`/proc/PID/root`, `exe` and the links in `fd`
//! answer `EACCES`, whatever its capabilities), and to look at QEMUs is what the other threads are for. Threads share their memory: this
//! holds against a mistake in what a thread does, less against one that lets it run foreign code.
//!
//! What the kernel refuses to apply is said, and memtide works without it.

#[cfg(feature = "confine")]
mod capabilities;
#[cfg(feature = "confine")]
mod landlock;
#[cfg(feature = "confine")]
mod seccomp;

/// What was applied, and what not and why: a phrase each.
pub type Applied = Vec<String>;

/// What the threads of a daemon are to give up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Confinement {
    /// All that they can do without.
    On,
    /// Nothing: the configuration says so.
    Off,
}

impl Confinement {
    /// As `confine` of the configuration says.
    #[must_use]
    pub const fn from_key(confine: bool) -> Self {
        if confine { Self::On } else { Self::Off }
    }

    /// Confines this thread and all that it will start. To be called while there is no other.
    #[must_use]
    pub fn process(self) -> Applied {
        match self {
            Self::Off => vec!["nothing (`confine = false`)".to_owned()],
            Self::On => process(),
        }
    }

    /// Confines the thread that speaks with monitors: it opens nothing to write, and changes no file system.
    #[must_use]
    pub fn monitors(self) -> Applied {
        if self == Self::On { monitors() } else { Applied::new() }
    }

    /// Confines the thread that answers the API: it has its socket, and reaches nothing else.
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
    // Last the system calls: the other two need some that it then has no more.
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

    /// All is of one thread: the test's own thread stays as it is.
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
            // What is open stays open.
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
