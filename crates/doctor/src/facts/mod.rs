//! The facts about a host and its guests, and the reasons for facts that could not be seen.
//!
//! All files are read below a [`Root`], so a captured tree can be diagnosed like the running system. Guests are found as the
//! daemon finds them. If a daemon answers, its knowledge of a guest is used. A guest that the daemon does not know is
//! queried through its own monitor: once, briefly, and never for a change.
//!
//! Everything that a stranger can delay is read within time limits: see `within`.

mod cgroups;
mod claims;
mod guest;
mod host;
mod launch;
mod others;
mod small;
mod uml;
mod within;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Instant;

use memtide_host::{Accounts, Root};
use memtide_model::{Bytes, Config, GuestSeen, Mode, Outsider, Outsiders};
use memtide_vmm::libvirt::{ConfiguredDaemon, Daemons};
use memtide_vmm::qemu::ConfiguredGuest;

use crate::quote::shell;

pub use cgroups::{CgroupFacts, MemoryCgroups};
pub use guest::{GuestFacts, Informant, LeftBehind, ProcessStatus};
pub use host::{HostFacts, Journal, Sight, Swap, SwapKind, Thp};
pub use launch::Launch;
pub use others::{NoSocket, OtherKind, OtherVmm};
pub use uml::{ImageFacts, InstanceFacts, MemoryFile, TmpfsFacts};

/// The input: the places to look at, and the facts that are known already.
#[derive(Debug)]
pub struct Question {
    /// Where `/proc` and `/sys` are.
    pub root: Root,
    /// The configuration of decisions.
    pub config: Config,
    /// Name patterns of memtide's guests.
    pub discover: Vec<String>,
    /// Guests with a monitor for memtide alone.
    pub configured: Vec<ConfiguredGuest>,
    /// Daemons of libvirt besides those that memtide finds.
    pub libvirt: Vec<ConfiguredDaemon>,
    /// The directory of the journal.
    pub journal: PathBuf,
    /// The most that the journal may take.
    pub journal_max: Bytes,
    /// The daemon.
    pub daemon: Daemon,
    /// The configuration file.
    pub configuration: Configuration,
    /// The problem of the configuration; the default one is used then.
    pub trouble: Option<Trouble>,
    /// The user who runs doctor.
    pub user: u32,
}

/// The configuration file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Configuration {
    /// Its path, even if the file does not exist.
    pub path: PathBuf,
    /// Whether it differs from the file that commands read by default.
    pub is_named: bool,
}

/// Why the configuration could not be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// The file has a mistake.
    Refused(String),
    /// The file exists, but this user cannot read it.
    Unreadable(String),
}

/// The state of the daemon, and its knowledge.
#[derive(Clone, Debug)]
pub enum Daemon {
    /// Nobody answers on this socket.
    None {
        /// The socket.
        socket: PathBuf,
    },
    /// A process took the connection, but did not answer: a daemon that is stopped, or hangs.
    Silent {
        /// The socket.
        socket: PathBuf,
    },
    /// A daemon may answer there, but this user has no access to the socket.
    Forbidden {
        /// The socket.
        socket: PathBuf,
    },
    /// A process answers there, but not like this version.
    Strange {
        /// The socket.
        socket: PathBuf,
        /// The difference.
        why: String,
    },
    /// It answers.
    Runs {
        /// Its version.
        version: String,
        /// Whether it may act.
        mode: Mode,
        /// Its knowledge of its guests, by process.
        guests: BTreeMap<u32, GuestSeen>,
    },
}

/// All facts.
#[derive(Clone, Debug)]
pub struct Facts {
    /// The user who runs doctor.
    pub user: u32,
    /// Whether memtide may act: the mode of the running daemon, or else of the configuration.
    pub mode: Mode,
    /// The configuration of decisions.
    pub config: Config,
    /// The configuration file.
    pub configuration: Configuration,
    /// The problem of the configuration.
    pub trouble: Option<Trouble>,
    /// The daemon.
    pub daemon: Daemon,
    /// The host.
    pub host: HostFacts,
    /// memtide's guests, ordered by name.
    pub guests: Vec<GuestFacts>,
    /// memtide's UML instances, ordered by name.
    pub instances: Vec<InstanceFacts>,
    /// The number of guests that `discover` leaves out.
    pub left_out: usize,
    /// Guests that only their users leave out.
    pub outsiders: Outsiders,
    /// Why the search for guests failed.
    pub no_guests: Option<String>,
    /// Processes that run guests and are not among these.
    pub others: Vec<OtherVmm>,
    /// What took too long to read.
    pub slow: Vec<String>,
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

/// Why the socket of a configured guest cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SocketTrouble {
    /// The path does not exist.
    Gone,
    /// The path is not a socket. A QEMU that listens there would delete it.
    NoSocket,
    /// This user may not connect.
    Forbidden,
    /// Nobody listens.
    Unheard,
    /// This process listens, and runs no guest.
    NoGuest(u32),
}

impl Facts {
    /// Whether a daemon answers and manages.
    #[must_use]
    pub const fn is_managed(&self) -> bool {
        matches!(self.daemon, Daemon::Runs { mode: Mode::Manage, .. })
    }

    /// The shell command that runs this memtide command as root, with this configuration.
    #[must_use]
    pub fn as_root(&self, command: &str) -> String {
        let Configuration { path, is_named } = &self.configuration;
        let named =
            if *is_named { format!(" --config {}", shell(&path.to_string_lossy())) } else { String::new() };
        format!("sudo memtide {command}{named}")
    }

    /// The shell commands that start a daemon with this configuration. The service reads the default file.
    #[must_use]
    pub fn start(&self) -> Vec<String> {
        let service = (!self.configuration.is_named).then(|| "sudo systemctl start memtide".to_owned());
        service.into_iter().chain([self.as_root("run")]).collect()
    }

    /// The memory promised to all guests in total.
    #[must_use]
    pub fn promised(&self) -> Bytes {
        let guests = self.guests.iter().map(|guest| guest.full);
        Bytes::sum(guests.chain(self.instances.iter().map(|instance| instance.memory)))
    }
}

/// Looks at the host and its guests.
pub async fn gather(question: Question) -> Facts {
    let Question {
        root,
        config,
        discover,
        configured,
        libvirt,
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
    let by = Instant::now() + within::ALL;
    let memory = host.memory.value().map_or(Bytes::MAX, |memory| memory.total);
    let mut searched = search(&root, &config, &discover, &configured, &daemon, memory, by);
    let guest::Found { processes, failed, unmatched } = searched.guests;
    let pids = guest::pids(&processes);
    let others = others::beside(&pids, others::parents(&root, &pids), searched.others);
    let found = guest::Chosen { discover: &discover, processes, libvirt: Daemons::new(libvirt) };
    let mut seen = guest::look(&root, &config, &daemon, found, by).await;
    seen.guests.iter_mut().for_each(|guest| claims::bound(guest, memory));
    searched.slow.extend(seen.slow);
    searched.outside.extend(seen.outside);
    let mut outsiders = Outsiders::of(searched.outside);
    if !outsiders.listed.is_empty() {
        Accounts::read(&root).tell(&mut outsiders, &config.users);
    }
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
        instances: searched.instances,
        left_out: seen.left_out,
        outsiders,
        no_guests: failed,
        others,
        slow: searched.slow,
        unmatched,
        cgroups,
    }
}

/// What the searches through all processes have found.
struct Searched {
    guests: guest::Found,
    instances: Vec<InstanceFacts>,
    others: Vec<OtherVmm>,
    /// The instances of other users.
    outside: Vec<Outsider>,
    /// The searches that took too long.
    slow: Vec<String>,
}

/// The result of one search.
enum Part {
    Guests(guest::Found),
    Instances((Vec<InstanceFacts>, Vec<Outsider>)),
    Others(Option<Vec<OtherVmm>>),
}

/// Searches for guests, for UML instances and for other VMMs at the same time, on a host with `memory`.
fn search(
    root: &Root,
    config: &Config,
    discover: &[String],
    configured: &[ConfiguredGuest],
    daemon: &Daemon,
    memory: Bytes,
    by: Instant,
) -> Searched {
    let guests = {
        let (root, configured, daemon) = (root.clone(), configured.to_vec(), daemon.clone());
        Box::new(move |_| Part::Guests(guest::find(&root, &configured, &daemon))) as within::Job<Part>
    };
    let instances = {
        let (root, config, discover) = (root.clone(), config.clone(), discover.to_vec());
        let daemon = daemon.clone();
        Box::new(move |_| Part::Instances(uml::look(&root, &config, &discover, &daemon, memory)))
            as within::Job<Part>
    };
    let others = {
        let root = root.clone();
        Box::new(move |until| Part::Others(others::look(&root, until))) as within::Job<Part>
    };
    let nothing = guest::Found { processes: Vec::new(), failed: None, unmatched: Vec::new() };
    let mut all = Searched {
        guests: nothing,
        instances: Vec::new(),
        others: Vec::new(),
        outside: Vec::new(),
        slow: Vec::new(),
    };
    let names = ["the guests of this host", "the UML instances of this host", "other VMMs of this host"];
    let parts = within::within(vec![guests, instances, others], within::SEARCH, by);
    for (part, name) in parts.into_iter().zip(names) {
        match part {
            Some(Part::Guests(guests)) => all.guests = guests,
            Some(Part::Instances((instances, outside))) => {
                (all.instances, all.outside) = (instances, outside)
            }
            Some(Part::Others(Some(others))) => all.others = others,
            Some(Part::Others(None)) | None => all.slow.push(name.to_owned()),
        }
    }
    all
}
