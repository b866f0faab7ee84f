//! The rights that the daemon gives up after its start, so that a bug in it does less harm.
//!
//! **Problem.** The daemon runs as root to look at all users' guests, and it reads data from guests, monitors and local users. systemd
//! confines the service of a package, but not a daemon that is started by hand.
//!
//! **Terms.** *Capabilities*: the parts of root's power. *seccomp*: a list of the system calls that a thread may make. *Landlock*: the
//! parts of the file system and the other processes that a thread may reach. All three belong to a thread, can only become tighter,
//! and are inherited by the threads that it starts.
//!
//! **Rule.** [`Confinement::process`] is called while there is one thread, after everything that needs more rights is open. It keeps
//! at most two capabilities, and the system calls that memtide makes. Each thread then gives up the rights that it does not need:
//!
//! | thread | capabilities | file system | connects |
//! |---|---|---|---|
//! | engine: reads processes, writes locks | both | as its user | Unix sockets |
//! | main ([`monitors`](Confinement::monitors)): speaks with monitors | both | opens nothing for writing | Unix sockets |
//! | API ([`api`](Confinement::api)): hears local users | none | none: Landlock without a rule | nowhere |
//! | pressure: waits | both | as its user | Unix sockets |
//! | journal: speaks with the helper that writes it | both | as its user | Unix sockets |
//! | ksm: reads processes | both | as its user | Unix sockets |
//!
//! Landlock is only for the API: a thread under Landlock may not look at a process that is not under it (`/proc/PID/root`, `exe` and
//! the links in `fd` return `EACCES`, whatever the thread's capabilities are), and the other threads must look at QEMUs. Threads share
//! their memory. So this confines a thread with a bug in its own actions, but less a thread that runs foreign code.
//!
//! If the kernel refuses to apply something, memtide reports it and works without it.

#[cfg(feature = "confine")]
mod capabilities;
#[cfg(feature = "confine")]
mod landlock;
#[cfg(feature = "confine")]
mod seccomp;

use std::path::Path;

/// The applied measures, and the failed ones with the reason: one phrase each.
pub type Applied = Vec<String>;

/// The rights that the threads of a daemon give up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Confinement {
    /// All rights that they do not need.
    On,
    /// Nothing, because of the configuration.
    Off,
}

impl Confinement {
    /// The value of `confine` in the configuration.
    #[must_use]
    pub const fn from_key(confine: bool) -> Self {
        if confine { Self::On } else { Self::Off }
    }

    /// Confines this thread and all threads that it will start. Must be called while there is no other thread.
    #[must_use]
    pub fn process(self) -> Applied {
        match self {
            Self::Off => vec!["nothing (`confine = false`)".to_owned()],
            Self::On => process(),
        }
    }

    /// Confines a helper that writes to cgroups: it reads `/proc`, writes below the cgroups' mount points, and does nothing else.
    #[must_use]
    pub fn helper(self) -> Applied {
        if self == Self::On { helper() } else { Applied::new() }
    }

    /// Confines the helper that splits huge pages: it reads files, calls memory of processes cold, and does nothing else. Landlock would keep
    /// it from looking at other processes.
    #[must_use]
    pub fn splitter(self) -> Applied {
        if self == Self::On { splitter() } else { Applied::new() }
    }

    /// Confines the helper that sets KSM: it reads and writes `/sys/kernel/mm/ksm`, and does nothing else.
    #[must_use]
    pub fn merger(self) -> Applied {
        if self == Self::On { merger() } else { Applied::new() }
    }

    /// Confines the helper that makes tiers: it makes, sets, opens and removes zram devices, and does nothing else.
    #[must_use]
    pub fn tier_maker(self) -> Applied {
        if self == Self::On { tier_maker() } else { Applied::new() }
    }

    /// Confines the helper that asks the kernel about sockets, once it has opened its own: it reads no file, and does nothing else.
    #[must_use]
    pub fn listener(self) -> Applied {
        if self == Self::On { listener() } else { Applied::new() }
    }

    /// Confines the helper that writes the journal: it reads and writes files below `dir`, and does nothing else.
    #[must_use]
    pub fn writer(self, dir: &Path) -> Applied {
        if self == Self::On { writer(dir) } else { Applied::new() }
    }

    /// Confines `memtide audit` once everything is open: it copies memory of other processes, and does nothing else.
    #[must_use]
    pub fn auditor(self) -> Applied {
        if self == Self::On { auditor() } else { Applied::new() }
    }

    /// Confines the thread that speaks with monitors. It opens nothing for writing, and changes no file system.
    #[must_use]
    pub fn monitors(self) -> Applied {
        if self == Self::On { monitors() } else { Applied::new() }
    }

    /// Confines `memtide web` once its port is bound: it connects to Unix sockets, and does nothing else.
    #[must_use]
    pub fn web(self) -> Applied {
        if self == Self::On { web() } else { Applied::new() }
    }

    /// Confines the thread that answers the API. It has its socket, and reaches nothing else.
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
fn helper() -> Applied {
    // seccomp comes last: the other two need system calls that seccomp then denies.
    vec![landlock::cgroups_only(), capabilities::keep_dac_override(), seccomp::apply(seccomp::Part::Helper)]
}

#[cfg(feature = "confine")]
fn splitter() -> Applied {
    vec![capabilities::keep_for_splits(), seccomp::apply(seccomp::Part::Splitter)]
}

#[cfg(feature = "confine")]
fn merger() -> Applied {
    // seccomp comes last: the other two need system calls that seccomp then denies.
    vec![landlock::ksm_only(), capabilities::keep_none(), seccomp::apply(seccomp::Part::Helper)]
}

#[cfg(feature = "confine")]
fn tier_maker() -> Applied {
    // seccomp comes last: the other two need system calls that seccomp then denies.
    vec![landlock::tiers_only(), capabilities::keep_none(), seccomp::apply(seccomp::Part::TierMaker)]
}

#[cfg(feature = "confine")]
fn web() -> Applied {
    // seccomp comes last: the other two need system calls that seccomp then denies.
    vec![landlock::deny_all(), capabilities::keep_none(), seccomp::apply(seccomp::Part::Monitors)]
}

#[cfg(feature = "confine")]
fn listener() -> Applied {
    // seccomp comes last: the other two need system calls that seccomp then denies.
    vec![landlock::deny_all(), capabilities::keep_none(), seccomp::apply(seccomp::Part::Api)]
}

#[cfg(feature = "confine")]
fn writer(dir: &Path) -> Applied {
    // seccomp comes last: the other two need system calls that seccomp then denies.
    vec![
        landlock::writes_below(dir),
        capabilities::keep_dac_override(),
        seccomp::apply(seccomp::Part::Writer),
    ]
}

#[cfg(feature = "confine")]
fn auditor() -> Applied {
    vec![capabilities::keep_ptrace(), seccomp::apply(seccomp::Part::Auditor)]
}

#[cfg(feature = "confine")]
fn monitors() -> Applied {
    vec![seccomp::apply(seccomp::Part::Monitors)]
}

#[cfg(feature = "confine")]
fn api() -> Applied {
    vec![format!("API: {}", listener().join(", "))]
}

#[cfg(not(feature = "confine"))]
fn process() -> Applied {
    vec!["nothing (built without the feature `confine`)".to_owned()]
}

#[cfg(not(feature = "confine"))]
fn helper() -> Applied {
    Applied::new()
}

#[cfg(not(feature = "confine"))]
fn splitter() -> Applied {
    Applied::new()
}

#[cfg(not(feature = "confine"))]
fn merger() -> Applied {
    Applied::new()
}

#[cfg(not(feature = "confine"))]
fn tier_maker() -> Applied {
    Applied::new()
}

#[cfg(not(feature = "confine"))]
fn web() -> Applied {
    Applied::new()
}

#[cfg(not(feature = "confine"))]
fn listener() -> Applied {
    Applied::new()
}

#[cfg(not(feature = "confine"))]
fn writer(_dir: &Path) -> Applied {
    Applied::new()
}

#[cfg(not(feature = "confine"))]
fn auditor() -> Applied {
    Applied::new()
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
    use memtide_testing::Mortal;
    use rustix::fs::{FlockOperation, OFlags};
    use rustix::io::Errno;
    use std::fs::{self, File};
    use std::net::TcpListener;
    use std::os::unix::net::{UnixListener, UnixStream};
    use std::process::Command;

    #[test]
    fn the_helper_that_splits_looks_at_processes_and_writes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let child = Mortal::start(Command::new("/bin/sleep").arg("600"));
        let (root, pid) = (memtide_host::Root::system(), child.id());
        let start = memtide_host::start_time(&root, pid).unwrap();
        let confined = std::thread::spawn(move || {
            let applied = Confinement::On.splitter();
            assert!(!applied.iter().any(|phrase| phrase.contains("not ")), "{applied:?}");
            assert!(fs::write(dir.path().join("file"), "text").is_err());
            assert!(UnixStream::pair().is_err() && UnixStream::connect(dir.path().join("socket")).is_err());
            assert!(Command::new("/bin/true").spawn().is_err());
            let within = std::time::Duration::from_secs(60);
            (dir, memtide_host::can_split(), memtide_host::split(&root, pid, start, 0, within))
        });
        let (_dir, can, split) = confined.join().unwrap();
        drop(child);
        // Without root, or on an old kernel, the rights are not there in the first place.
        if can.is_ok() {
            assert_eq!(split.unwrap().next, None);
        }
    }

    /// What no helper may do, whatever its right is.
    fn has_no_other_right() {
        assert!(UnixStream::pair().is_err() && TcpListener::bind("127.0.0.1:0").is_err());
        assert!(Command::new("/bin/true").spawn().is_err());
        let me = rustix::process::getpid();
        assert_eq!(rustix::process::kill_process(me, rustix::process::Signal::URG), Err(Errno::NOSYS));
        assert!(fs::read("/etc/passwd").is_err(), "no other file");
    }

    /// Applies `confine` in a thread of its own, and then does `work`. Skips the test if the kernel lacks a part of it.
    fn in_a_helper(confine: impl FnOnce() -> Applied + Send + 'static, work: impl FnOnce() + Send + 'static) {
        let confined = std::thread::spawn(move || {
            let applied = confine();
            let lacks = applied.iter().any(|phrase| phrase.contains("not "));
            if !lacks {
                work();
            }
            lacks.then_some(applied)
        });
        if let Some(applied) = confined.join().expect("what a helper may do") {
            memtide_testing::skipped(&format!("this kernel does not apply all of it: {applied:?}"));
        }
    }

    #[test]
    fn the_helper_that_asks_about_sockets_asks_and_does_nothing_else() {
        let Ok(mut kernel) = memtide_host::SocketDiagnosis::open() else {
            return memtide_testing::skipped("this kernel has no socket diagnosis");
        };
        in_a_helper(
            || Confinement::On.listener(),
            move || {
                let _answered = kernel.waiting(&[]).expect("an answer of the kernel");
                assert!(memtide_host::SocketDiagnosis::open().is_err(), "no other socket");
                has_no_other_right();
            },
        );
    }

    #[test]
    fn the_helper_that_writes_the_journal_writes_there_and_nowhere_else() {
        let dir = tempfile::tempdir().unwrap();
        let (ours, outside) = (dir.path().join("ours"), dir.path().join("outside"));
        fs::create_dir(&ours).unwrap();
        let at = ours.clone();
        in_a_helper(
            move || Confinement::On.writer(&at),
            move || {
                let file = ours.join("journal/000001.mtj");
                fs::create_dir(ours.join("journal")).unwrap();
                fs::write(&file, "text").unwrap();
                assert_eq!(fs::read_to_string(&file).unwrap(), "text");
                File::options().write(true).open(&file).unwrap().set_len(2).unwrap();
                fs::remove_file(&file).unwrap();
                assert!(fs::write(&outside, "text").is_err());
                assert!(std::os::unix::fs::symlink(&outside, ours.join("link")).is_err());
                has_no_other_right();
            },
        );
    }

    #[test]
    fn the_helper_that_reclaims_writes_to_cgroups_and_nowhere_else() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        in_a_helper(
            || Confinement::On.helper(),
            move || {
                assert!(fs::read("/proc/self/stat").is_ok());
                assert!(fs::write(&file, "text").is_err());
                assert!(fs::write("/sys/kernel/mm/ksm/run", "1").is_err());
                has_no_other_right();
            },
        );
    }

    #[test]
    fn the_helper_that_sets_ksm_writes_there_and_nowhere_else() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        in_a_helper(
            || Confinement::On.merger(),
            move || {
                assert!(fs::write(&file, "text").is_err());
                assert!(fs::read("/proc/self/stat").is_err());
                assert!(fs::write("/sys/kernel/mm/transparent_hugepage/enabled", "never").is_err());
                has_no_other_right();
            },
        );
    }

    #[test]
    fn the_helper_that_makes_tiers_makes_them_and_nothing_else() {
        let root = memtide_host::Root::system();
        if memtide_host::zram::can_make(&root).is_err() {
            return memtide_testing::skipped("no zram, or no right to make devices");
        }
        in_a_helper(
            || Confinement::On.tier_maker(),
            move || {
                let (size, pid) = (memtide_model::Bytes::from_mib(64), std::process::id());
                let made = memtide_host::zram::make(&root, pid, 1, size);
                let (device, file) = made.unwrap();
                drop(file);
                // Without this right it would take the kernel's default.
                fs::read(root.sys(format!("block/zram{device}/comp_algorithm"))).unwrap();
                memtide_host::zram::remove(&root, device).unwrap();
                assert!(fs::write("/sys/kernel/mm/ksm/run", "1").is_err());
                assert!(fs::read("/proc/self/stat").is_err());
                has_no_other_right();
            },
        );
    }

    #[test]
    fn the_audit_opens_nothing_and_keeps_one_right() {
        in_a_helper(
            || Confinement::On.auditor(),
            || {
                let kept = rustix::thread::capabilities(None).map(|sets| sets.permitted);
                // It may no longer ask for its capabilities either.
                assert_eq!(kept, Err(Errno::NOSYS));
                has_no_other_right();
            },
        );
    }

    /// `fcntl` can make the kernel send a signal to any process of the same user when a descriptor becomes ready.
    fn sends_no_signal() -> std::io::Result<()> {
        let (socket, _other) = UnixStream::pair()?;
        let with_signals = OFlags::from_bits_retain(libc::O_ASYNC.cast_unsigned());
        for flags in [with_signals, with_signals | OFlags::NONBLOCK] {
            assert_eq!(rustix::fs::fcntl_setfl(&socket, flags), Err(Errno::NOSYS));
        }
        rustix::fs::fcntl_setfl(&socket, OFlags::NONBLOCK)?;
        assert!(rustix::fs::fcntl_getfl(&socket)?.contains(OFlags::NONBLOCK));
        socket.try_clone()?;
        // The record locks of POSIX are another command that no list has.
        assert_eq!(rustix::fs::fcntl_lock(&socket, FlockOperation::NonBlockingLockShared), Err(Errno::NOSYS));
        Ok(())
    }

    /// Everything happens in a separate thread, so the test's own thread stays unconfined.
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
            sends_no_signal().unwrap();
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

#[cfg(all(test, not(feature = "confine")))]
mod tests {
    use super::*;

    #[test]
    fn a_build_without_it_says_so() {
        assert_eq!(Confinement::On.process(), ["nothing (built without the feature `confine`)"]);
    }
}
