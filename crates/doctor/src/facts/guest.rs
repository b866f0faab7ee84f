//! The guests: their command lines, the memory of their processes, and the answers of their monitors.

use std::collections::HashMap;
use std::fs::{self, File};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use memtide_host::{Mapping, Mappings, ProcFs, Root};
use memtide_model::{Absence, Bytes, Config, GuestId, Span, Told, Withheld, name_matches};
use memtide_vmm::Wish;
use memtide_vmm::qemu::{
    Command, CommandLine, ConfiguredGuest, Discovery, Equipment, LEAST_GROWTH, Monitor, MonitorConfig, Owner,
    ProcessFacts, QemuProcess, Qmp, Use, is_held, ram_blocks,
};
use serde::Deserialize;
use tokio::task::JoinSet;

use super::small::{file_system, kib, text};
use super::{Daemon, SocketTrouble, Unmatched};

/// The deadline of a monitor. A free monitor answers within milliseconds.
const DEADLINE: Duration = Duration::from_secs(3);
/// The number of monitors queried at once: fewer than the limit of open files.
const AT_ONCE: usize = 128;
/// The memory of a QEMU guest without `-m`.
const DEFAULT_MEMORY: Bytes = Bytes::from_mib(128);

/// One guest.
#[derive(Clone, Debug)]
pub struct GuestFacts {
    /// Its name.
    pub name: String,
    /// Its process.
    pub pid: u32,
    /// Its owner.
    pub owner: Owner,
    /// Its memory with an empty balloon.
    pub full: Bytes,
    /// The age of its process.
    pub age: Option<Span>,
    /// Whether its class lets memtide manage it.
    pub managed: bool,
    /// Its monitors, as paths that work from here.
    pub monitors: Vec<PathBuf>,
    /// A monitor whose path is relative to a directory that QEMU has left.
    pub left_behind: Option<LeftBehind>,
    /// Addresses of its monitors on TCP, which memtide does not use.
    pub tcp_monitors: Vec<String>,
    /// The socket of the port for its agent, as a path that works from here.
    pub agent: Option<PathBuf>,
    /// The facts that its cost depends on.
    pub process: ProcessFacts,
    /// Its devices and the kind of its memory; `None` if its command line cannot be read.
    pub equipment: Option<Equipment>,
    /// Files of its memory, with the type of their file system.
    pub memory_files: Vec<(PathBuf, Option<String>)>,
    /// The memory of its process.
    pub status: Option<ProcessStatus>,
    /// Whether its mappings can be read.
    pub mappings: Result<(), Absence>,
    /// Whether its largest private mapping is marked for KSM; `None` if it cannot be read.
    pub marked: Option<bool>,
    /// The most that its QEMU can cost beyond the guest's memory; `None` if its mappings cannot be read.
    pub overhead_bound: Option<Bytes>,
    /// The file of which its memory is a private mapping, if QEMU did not create it for this guest alone.
    pub private_file: Option<String>,
    /// The source of the following facts.
    pub informant: Informant,
    /// The facts about its balloon and statistics, or the reason why there are none.
    pub told: Told,
    /// The version of QEMU, if it was queried.
    pub qemu: Option<(u32, u32)>,
}

/// A monitor whose path is relative to a directory that QEMU has left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftBehind {
    /// Its path on the command line.
    pub path: PathBuf,
    /// The likely place of its socket, if there is one.
    pub found: Option<PathBuf>,
}

/// The source of a guest's balloon facts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Informant {
    /// Its own monitor.
    Monitor,
    /// The daemon, which queries that monitor anyway.
    Daemon,
    /// Nobody was queried.
    Nobody,
}

/// The memory of a process, from `/proc/PID/status`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessStatus {
    /// `VmLck`: locked memory, including memory that VFIO pins.
    pub locked: Bytes,
    /// `VmPin`: memory that cannot be moved.
    pub pinned: Bytes,
    /// `VmSwap`: its memory in swap.
    pub swapped: Bytes,
    /// `HugetlbPages`: its memory from the hugetlbfs pool.
    pub huge: Bytes,
    /// It is stopped by a signal.
    pub stopped: bool,
}

impl GuestFacts {
    /// Whether libvirt started it.
    #[must_use]
    pub fn is_of_libvirt(&self) -> bool {
        self.owner == Owner::Libvirt
    }
}

/// The result of the search for guests.
pub(super) struct Seen {
    pub(super) guests: Vec<GuestFacts>,
    pub(super) left_out: usize,
    pub(super) failed: Option<String>,
    pub(super) unmatched: Vec<Unmatched>,
}

/// Finds the guests and gathers their facts.
pub(super) async fn look(
    root: &Root,
    config: &Config,
    discover: &[String],
    configured: &[ConfiguredGuest],
    daemon: &Daemon,
) -> Seen {
    let proc = root.path(Path::new("/proc"));
    let mut discovery = Discovery::new(&proc);
    let failed = discovery.scan().err().map(|error| format!("{error}: {}", error.source));
    let mut left_out = 0;
    let owners = owners(&mut discovery, configured, daemon);
    let mut guests = Vec::new();
    for process in discovery.processes() {
        let ours = owners.get(&process.pid).copied();
        let name = ours.map_or(process.id.name(), |guest| guest.name.as_str());
        if ours.is_none() && !discover.iter().any(|pattern| name_matches(pattern, name)) {
            left_out += 1;
            continue;
        }
        let mut guest = of_process(root, process, name);
        guest.managed = config.class_of(name).1.manage;
        if let Some(ours) = ours {
            guest.monitors = vec![ours.qmp.clone()];
            if !guest.is_of_libvirt() {
                guest.told = Told::nothing(guest.full, Absence::NotYet);
            }
        }
        tell_from(daemon, &mut guest);
        let is_held = || is_held(&ProcFs::new(&proc), process.pid, &process.bound);
        if guest.informant == Informant::Nobody && ours.is_none() && !guest.is_of_libvirt() && is_held() {
            guest.told = Told::nothing(guest.full, Absence::ControlTaken);
        }
        guests.push((process.id.clone(), guest));
    }
    let unmatched = configured
        .iter()
        .filter(|guest| !owners.values().any(|owned| owned == guest))
        .filter_map(unmatched)
        .collect();
    let mut guests = ask_monitors(root, guests).await;
    guests.sort_by(|a, b| (&a.name, a.pid).cmp(&(&b.name, b.pid)));
    Seen { guests, left_out, failed, unmatched }
}

/// The processes of configured guests: as the daemon tells, which holds their monitors, or as the kernel tells.
fn owners<'a>(
    discovery: &mut Discovery,
    configured: &'a [ConfiguredGuest],
    daemon: &Daemon,
) -> HashMap<u32, &'a ConfiguredGuest> {
    let told = |name: &str| match daemon {
        Daemon::Runs { guests, .. } => guests.iter().find(|(_, seen)| seen.id.name() == name),
        _ => None,
    };
    let mut owner_of = |guest: &ConfiguredGuest| {
        let Some((&pid, _)) = told(&guest.name) else { return discovery.owner_of(&guest.qmp).ok() };
        Some(discovery.adopt(pid).ok()??.pid)
    };
    configured.iter().filter_map(|guest| Some((owner_of(guest)?, guest))).collect()
}

/// The problem with the socket of a configured guest without a process. There is none if a process listens.
fn unmatched(guest: &ConfiguredGuest) -> Option<Unmatched> {
    let is_no_socket = |path| fs::metadata(path).is_ok_and(|there| !there.file_type().is_socket());
    let why = match UnixStream::connect(&guest.qmp) {
        Ok(_) => return None,
        Err(_) if is_no_socket(&guest.qmp) => SocketTrouble::NoSocket,
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => SocketTrouble::Forbidden,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => SocketTrouble::Gone,
        Err(_) => SocketTrouble::Unheard,
    };
    Some(Unmatched { name: guest.name.clone(), qmp: guest.qmp.clone(), why })
}

/// The facts from the files of a process.
fn of_process(root: &Root, process: &QemuProcess, name: &str) -> GuestFacts {
    let assumed = process.facts.memory.unwrap_or(DEFAULT_MEMORY);
    let mapped = Mapping::read_all(root, process.pid).ok();
    let ram = ram_blocks(process, assumed);
    let costs = mapped.as_deref().map(|mapped| Mappings::of_guest(mapped, &ram, &process.device_files, None));
    let ram_like = costs.as_ref().map(|costs| costs.ram_like).filter(|size| !size.is_zero());
    let full = ram_like.filter(|_| process.facts.is_of_unknown_size()).unwrap_or(assumed);
    let cmdline = text(&root.process(process.pid, "cmdline")).ok();
    let equipment = cmdline.as_ref().map(|_| process.equipment.clone());
    let line = cmdline.map(|cmdline| CommandLine::parse(cmdline.as_bytes())).unwrap_or_default();
    let paths =
        equipment.iter().flat_map(|equipment| &equipment.memory).filter_map(|memory| memory.path.clone());
    let why = match (process.owner, process.monitors.is_empty()) {
        (Owner::Libvirt, _) => Absence::OwnedBy("libvirt".to_owned()),
        (_, true) => Absence::NoControl,
        _ => Absence::NotYet,
    };
    GuestFacts {
        name: name.to_owned(),
        pid: process.pid,
        owner: process.owner,
        full,
        age: age(root, process.id.start()),
        managed: true,
        monitors: process.monitors.clone(),
        left_behind: left_behind(root, process),
        tcp_monitors: line.tcp_monitors,
        agent: process.agent.clone(),
        process: process.facts.clone(),
        memory_files: paths.map(|path| (path.clone(), file_system(root, "self", &path))).collect(),
        equipment,
        status: text(&root.process(process.pid, "status")).ok().map(|text| status(&text)),
        mappings: mappings(root, process.pid),
        marked: mapped.as_deref().and_then(marked),
        overhead_bound: costs.as_ref().map(|costs| costs.other_bound(LEAST_GROWTH)),
        private_file: costs.and_then(|costs| match costs.withheld {
            Some(Withheld::PrivateFile(path)) => Some(path),
            _ => None,
        }),
        informant: Informant::Nobody,
        told: Told::nothing(full, why),
        qemu: None,
    }
}

/// `-daemonize` makes QEMU leave the directory of its start for its root.
fn left_behind(root: &Root, process: &QemuProcess) -> Option<LeftBehind> {
    let link = |name| fs::read_link(root.process(process.pid, name)).ok();
    let path = process.bound.iter().find(|path| path.is_relative())?.clone();
    link("cwd").filter(|cwd| Some(cwd) == link("root").as_ref())?;
    let is_there = |place: &&PathBuf| {
        place.ends_with(&path) && fs::metadata(place).is_ok_and(|there| there.file_type().is_socket())
    };
    Some(LeftBehind { found: process.monitors.iter().find(is_there).cloned(), path })
}

fn age(root: &Root, start: u64) -> Option<Span> {
    let uptime = text(&root.proc("uptime")).ok()?;
    let seconds: u64 = uptime.split(['.', ' ']).next()?.parse().ok()?;
    let started = start / rustix::param::clock_ticks_per_second().max(1);
    Some(Span::from_secs(seconds.saturating_sub(started)))
}

fn status(text: &str) -> ProcessStatus {
    let size = |key| kib(text, key).unwrap_or(Bytes::ZERO);
    let state = text.lines().find_map(|line| line.strip_prefix("State:")).unwrap_or_default().trim();
    ProcessStatus {
        locked: size("VmLck"),
        pinned: size("VmPin"),
        swapped: size("VmSwap"),
        huge: size("HugetlbPages"),
        stopped: state.starts_with(['T', 't']),
    }
}

/// The kernel checks the permission to trace when `smaps` is opened.
fn mappings(root: &Root, pid: u32) -> Result<(), Absence> {
    match File::open(root.process(pid, "smaps")) {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => Err(Absence::Forbidden),
        Err(_) => Err(Absence::Gone),
    }
}

/// Whether KSM may scan the largest private mapping of a process: the guest's memory, unless that is shared.
fn marked(mappings: &[Mapping]) -> Option<bool> {
    let private = mappings.iter().filter(|mapping| mapping.is_private && mapping.writable);
    private.max_by_key(|mapping| mapping.size()).map(|largest| largest.is_mergeable)
}

/// Takes over the running daemon's knowledge of the guest.
fn tell_from(daemon: &Daemon, guest: &mut GuestFacts) {
    let Daemon::Runs { guests, .. } = daemon else { return };
    let Some(seen) = guests.get(&guest.pid) else { return };
    guest.full = seen.told.full;
    guest.told = seen.told.clone();
    guest.informant = Informant::Daemon;
}

/// Queries the monitors of guests that the daemon does not know.
async fn ask_monitors(root: &Root, guests: Vec<(GuestId, GuestFacts)>) -> Vec<GuestFacts> {
    // Only process numbers of the running system belong to processes that can listen.
    let live = *root == Root::system();
    let mut done = Vec::with_capacity(guests.len());
    let mut asked = JoinSet::new();
    for (id, mut guest) in guests {
        // A connection to a monitor that another client holds would stay in its queue.
        let is_told = guest.told.balloon.why_not() != Some(&Absence::NotYet);
        if is_told || guest.is_of_libvirt() || guest.monitors.is_empty() {
            done.push(guest);
            continue;
        }
        if asked.len() >= AT_ONCE {
            done.extend(asked.join_next().await.and_then(Result::ok));
        }
        asked.spawn(async move {
            ask(id, &mut guest, live).await;
            guest
        });
    }
    while let Some(guest) = asked.join_next().await {
        done.extend(guest.ok());
    }
    done
}

async fn ask(id: GuestId, guest: &mut GuestFacts, live: bool) {
    let peer = live.then_some(guest.pid);
    let mut monitor = Monitor::new(MonitorConfig {
        guest: id,
        paths: guest.monitors.clone(),
        peer,
        use_as: Use::Brief,
        memory: Some(guest.full),
    });
    guest.informant = Informant::Monitor;
    guest.told = monitor.poll(Wish::default(), DEADLINE).await;
    guest.full = guest.told.full;
    let answered = guest.told.balloon.latest().is_some_and(|balloon| !balloon.free_page_reporting);
    // The version matters only if an old one would explain a missing feature.
    let lacks_counters = guest.told.stats.latest().is_some_and(|stats| stats.alloc_stalls.is_none());
    if answered || lacks_counters {
        for path in &guest.monitors {
            guest.qemu = version(path, peer).await;
            if guest.qemu.is_some() {
                break;
            }
        }
    }
}

#[derive(Deserialize)]
struct Version {
    qemu: Numbers,
}

#[derive(Deserialize)]
struct Numbers {
    major: u32,
    minor: u32,
}

async fn version(path: &Path, peer: Option<u32>) -> Option<(u32, u32)> {
    let by = Instant::now() + DEADLINE;
    let mut qmp = Qmp::connect(path, peer, by).await.ok()?;
    let Version { qemu } = qmp.execute(Command::plain("query-version"), by).await.ok()?;
    Some((qemu.major, qemu.minor))
}
