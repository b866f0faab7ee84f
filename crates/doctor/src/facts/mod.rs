//! What was seen of a host and its guests; and what could not be seen, and why.
//!
//! All files are read below a [`Root`], so that a captured tree can be diagnosed as well as the running system. Guests are
//! found as the daemon finds them. Where a daemon answers, what it knows of a guest is taken from it; a guest that it does
//! not know is asked through its own monitor: once, briefly, and never for a change.

mod cgroups;
mod guest;
mod host;
mod small;

use std::collections::BTreeMap;
use std::path::PathBuf;

use memtide_host::Root;
use memtide_model::{Bytes, Config, GuestSeen, Mode};
use memtide_vmm::qemu::ConfiguredGuest;

use crate::quote::shell;

pub use cgroups::{CgroupFacts, LimitKind, LimitedCgroup, MemoryCgroups};
pub use guest::{GuestFacts, Informant, ProcessStatus};
pub use host::{HostFacts, Journal, Ksm, Sight, Swap, SwapKind, Thp};

/// What is to be looked at, and what is known already.
#[derive(Debug)]
pub struct Question {
    /// Where `/proc` and `/sys` are.
    pub root: Root,
    /// What decisions depend on.
    pub config: Config,
    /// Patterns of the names of guests that are memtide's.
    pub discover: Vec<String>,
    /// Guests whose monitor is memtide's alone.
    pub configured: Vec<ConfiguredGuest>,
    /// The directory of the journal.
    pub journal: PathBuf,
    /// The most that the journal may take.
    pub journal_max: Bytes,
    /// The daemon.
    pub daemon: Daemon,
    /// The file of the configuration.
    pub configuration: Configuration,
    /// What is wrong with the configuration; then it is the default one.
    pub trouble: Option<Trouble>,
    /// The user who asks.
    pub user: u32,
}

/// The file of the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Configuration {
    /// Its path, whether it is there or not.
    pub path: PathBuf,
    /// Whether it is another one than commands read by themselves.
    pub is_named: bool,
}

/// Why the configuration could not be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// It says something that is not understood.
    Refused(String),
    /// It is there, and this user may not read it.
    Unreadable(String),
}

/// Whether a daemon runs, and what it knows.
#[derive(Clone, Debug)]
pub enum Daemon {
    /// Nobody answers on this socket.
    None {
        /// The socket.
        socket: PathBuf,
    },
    /// Somebody took the connection, and was silent: a daemon that is stopped, or hangs.
    Silent {
        /// The socket.
        socket: PathBuf,
    },
    /// Somebody may answer there, but the socket is not this user's.
    Forbidden {
        /// The socket.
        socket: PathBuf,
    },
    /// Somebody answers there, and not as this version does.
    Strange {
        /// The socket.
        socket: PathBuf,
        /// What was wrong.
        why: String,
    },
    /// It answers.
    Runs {
        /// Its version.
        version: String,
        /// Whether it may act.
        mode: Mode,
        /// What it knows of its guests, by process.
        guests: BTreeMap<u32, GuestSeen>,
    },
}

/// All that was seen.
#[derive(Clone, Debug)]
pub struct Facts {
    /// The user who asks.
    pub user: u32,
    /// Whether memtide may act: the running daemon's mode, else the configured one.
    pub mode: Mode,
    /// What decisions depend on.
    pub config: Config,
    /// The file of the configuration.
    pub configuration: Configuration,
    /// What is wrong with the configuration.
    pub trouble: Option<Trouble>,
    /// The daemon.
    pub daemon: Daemon,
    /// The host.
    pub host: HostFacts,
    /// The guests that are memtide's, ordered by name.
    pub guests: Vec<GuestFacts>,
    /// How many guests `discover` leaves out.
    pub left_out: usize,
    /// Why guests could not be looked for.
    pub no_guests: Option<String>,
    /// Guests of the configuration that have no process.
    pub unmatched: Vec<Unmatched>,
    /// The memory cgroups of the guests.
    pub cgroups: CgroupFacts,
}

/// A guest of the configuration without a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unmatched {
    /// Its name.
    pub name: String,
    /// Its socket.
    pub qmp: PathBuf,
    /// What is wrong with the socket.
    pub why: SocketTrouble,
}

/// Why nobody is spoken with at the socket of a configured guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SocketTrouble {
    /// The path is not there.
    Gone,
    /// Something else than a socket is there, which a QEMU that listens at this path would delete.
    NoSocket,
    /// This user may not connect.
    Forbidden,
    /// Nobody listens.
    Unheard,
}

impl Facts {
    /// Whether a daemon answers and may act.
    #[must_use]
    pub const fn is_managed(&self) -> bool {
        matches!(self.daemon, Daemon::Runs { mode: Mode::Manage, .. })
    }

    /// How a shell runs this command of memtide as root, with this configuration.
    #[must_use]
    pub fn as_root(&self, command: &str) -> String {
        let Configuration { path, is_named } = &self.configuration;
        let named =
            if *is_named { format!(" --config {}", shell(&path.to_string_lossy())) } else { String::new() };
        format!("sudo memtide {command}{named}")
    }

    /// How a shell starts a daemon with this configuration; the service reads the usual file.
    #[must_use]
    pub fn start(&self) -> Vec<String> {
        let service = (!self.configuration.is_named).then(|| "sudo systemctl start memtide".to_owned());
        service.into_iter().chain([self.as_root("run")]).collect()
    }

    /// What the guests were promised together.
    #[must_use]
    pub fn promised(&self) -> Bytes {
        Bytes::sum(self.guests.iter().map(|guest| guest.full))
    }
}

/// Looks at the host and its guests.
pub async fn gather(question: Question) -> Facts {
    let Question {
        root,
        config,
        discover,
        configured,
        journal,
        journal_max,
        daemon,
        configuration,
        trouble,
        user,
    } = question;
    let mut host = host::look(&root);
    host.journal = host::journal(&root, journal, journal_max);
    let mode = match &daemon {
        Daemon::Runs { mode, .. } => *mode,
        _ => config.mode,
    };
    let seen = guest::look(&root, &config, &discover, &configured, &daemon).await;
    let memory = host.memory.value().map_or(Bytes::MAX, |memory| memory.total);
    let cgroups = cgroups::look(&root, &seen.guests, memory);
    Facts {
        user,
        mode,
        config,
        configuration,
        trouble,
        daemon,
        host,
        guests: seen.guests,
        left_out: seen.left_out,
        no_guests: seen.failed,
        unmatched: seen.unmatched,
        cgroups,
    }
}
