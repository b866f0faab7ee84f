//! The guests: their command lines, the memory of their processes, and the answers of their monitors.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use memtide_host::{Locked, Mapping, Mappings, ProcFs, Root};
use memtide_model::{
    Absence, Bytes, Config, Fence, GuestId, Outsider, Owner, Span, Told, Withheld, name_matches,
};
use memtide_vmm::libvirt::Daemons;
use memtide_vmm::qemu::{
    Command, CommandLine, ConfiguredGuest, Discovery, Equipment, LEAST_GROWTH, Monitor, MonitorConfig, Peer,
    ProcessFacts, QemuProcess, Qmp, Use, is_held, listener_of, ram_blocks,
};
use memtide_vmm::{Control, Wish};
use serde::Deserialize;
use tokio::task::JoinSet;

use super::launch::Launch;
use super::small::{file_system, kib, text};
use super::within::{EACH, Job, within};
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
    /// The real user of this process.
    pub user: Option<u32>,
    /// Its memory with an empty balloon, as far as it counts.
    pub full: Bytes,
    /// The memory that it claims, if that counts no further than `full`: see `claims`.
    pub claims: Option<Bytes>,
    /// The age of its process.
    pub age: Option<Span>,
    /// Whether its class lets memtide manage it.
    pub managed: bool,
    /// The program that started it.
    pub launch: Launch,
    /// Its monitors, as paths that work from here.
    pub monitors: Vec<PathBuf>,
    /// A monitor whose path is relative to a directory that QEMU has left.
    pub left_behind: Option<LeftBehind>,
    /// Its QMP sockets at which QEMU writes an answer over several lines, as given.
    pub pretty_monitors: Vec<PathBuf>,
    /// Addresses of its monitors on TCP, which memtide does not use.
    pub tcp_monitors: Vec<String>,
    /// The socket of the port for its agent, as a path that works from here.
    pub agent: Option<PathBuf>,
    /// The facts that its cost depends on.
    pub process: ProcessFacts,
    /// Whether a `[[guest]]` of the configuration names its monitor.
    pub is_configured: bool,
    /// Its devices and the kind of its memory; `None` if its command line cannot be read.
    pub equipment: Option<Equipment>,
    /// Files of its memory, with the type of their file system.
    pub memory_files: Vec<(PathBuf, Option<String>)>,
    /// The memory of its process.
    pub status: Option<ProcessStatus>,
    /// Memory of its process that the kernel must keep; `None` if it cannot be read.
    pub locked: Option<Locked>,
    /// Whether its mappings can be read.
    pub mappings: Result<(), Absence>,
    /// Whether its largest private mapping is marked for KSM; `None` if it cannot be read.
    pub marked: Option<bool>,
    /// The most that its QEMU can cost beyond the guest's memory; `None` if its mappings cannot be read.
    pub overhead_bound: Option<Bytes>,
    /// The memory of its process that can be the guest's; `None` if its mappings cannot be read.
    pub ram_mapped: Option<Bytes>,
    /// Why memory that it gives is not the host's, as its mappings or the daemon tell.
    pub withheld: Option<Withheld>,
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
    /// Nobody: no monitor was queried, or none told anything.
    Nobody,
}

/// The memory of a process, from `/proc/PID/status`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessStatus {
    /// `VmSize`: all memory that it has mapped.
    pub mapped: Bytes,
    /// `VmRSS`: its memory that is resident.
    pub resident: Bytes,
    /// `VmSwap`: its memory in swap.
    pub swapped: Bytes,
    /// `HugetlbPages`: its memory from the hugetlbfs pool.
    pub huge: Bytes,
    /// It is stopped by a signal.
    pub stopped: bool,
}

impl GuestFacts {
    /// Whether memtide can take nothing from it because libvirt is in the way: its daemon is not reached, does not know it, or only lets memtide read.
    #[must_use]
    pub fn is_beyond_libvirt(&self) -> bool {
        let is_shut = matches!(
            self.told.balloon.why_not(),
            Some(Absence::OwnedBy(_) | Absence::Forbidden | Absence::Disconnected | Absence::NotYet)
        );
        self.is_of_libvirt() && (is_shut || self.told.fence == Some(Fence::Owned(Owner::LibvirtLetsRead)))
    }

    /// Whether libvirt started it.
    #[must_use]
    pub fn is_of_libvirt(&self) -> bool {
        self.launch.by.is_libvirt()
    }

    /// Whether its memory is made of pages of hugetlbfs.
    #[must_use]
    pub fn is_huge(&self) -> bool {
        let memory = self.equipment.iter().flat_map(|equipment| &equipment.memory);
        let held = self.status.map_or(Bytes::ZERO, |status| status.huge);
        memory.into_iter().any(|memory| memory.hugetlb)
            || self.memory_files.iter().any(|(_, kind)| kind.as_deref() == Some("hugetlbfs"))
            || self.withheld == Some(Withheld::HugePages)
            || !held.is_zero()
    }

    /// Why memory that it gives is not the host's, as far as anything tells.
    #[must_use]
    pub fn why_withheld(&self) -> Option<Withheld> {
        let equipment = || self.equipment.as_ref().and_then(Equipment::withheld);
        let locked = || self.locked.and_then(|locked| locked.withheld(self.full));
        let huge = || self.is_huge().then_some(Withheld::HugePages);
        self.withheld.clone().or_else(equipment).or_else(locked).or_else(huge)
    }

    /// Whether free page reporting may be advised: if QEMU discards free pages, the host gains them, and nobody else loses anything.
    #[must_use]
    pub fn may_report(&self) -> bool {
        // The command line does not tell a template from a file of QEMU's own.
        let memory = self.equipment.iter().flat_map(|equipment| &equipment.memory);
        let may_be_private = || memory.into_iter().any(|memory| memory.path.is_some() && !memory.shared);
        self.why_withheld().is_none() && !(self.mappings.is_err() && may_be_private())
    }
}

/// The result of the search for guests.
pub(super) struct Found {
    /// The processes, with the guest of the configuration that each is.
    pub(super) processes: Vec<(QemuProcess, Option<ConfiguredGuest>)>,
    /// Why the search failed.
    pub(super) failed: Option<String>,
    /// Guests of the configuration without a process.
    pub(super) unmatched: Vec<Unmatched>,
}

/// The facts of the guests.
pub(super) struct Seen {
    pub(super) guests: Vec<GuestFacts>,
    pub(super) left_out: usize,
    /// Those of other users.
    pub(super) outside: Vec<Outsider>,
    /// What took too long to read.
    pub(super) slow: Vec<String>,
}

/// Finds the guests, and those of the configuration that only their listening socket shows.
pub(super) fn find(root: &Root, configured: &[ConfiguredGuest], daemon: &Daemon) -> Found {
    let mut discovery = Discovery::new(&root.path(Path::new("/proc")));
    let failed = discovery.scan().err().map(|error| format!("{error}: {}", error.source));
    let mut named: BTreeMap<u32, ConfiguredGuest> = BTreeMap::new();
    let mut unmatched = Vec::new();
    for guest in configured {
        match process_of(&mut discovery, guest, daemon) {
            Ok(pid) => {
                named.entry(pid).or_insert_with(|| guest.clone());
            }
            Err(why) => {
                let (name, qmp) = (guest.name.clone(), guest.qmp.clone());
                unmatched.extend(trouble(&guest.qmp, &why).map(|why| Unmatched { name, qmp, why }));
            }
        }
    }
    let processes =
        discovery.processes().map(|process| (process.clone(), named.get(&process.pid).cloned())).collect();
    Found { processes, failed, unmatched }
}

/// The process of a configured guest: as the daemon tells, which holds its monitor, or as the kernel tells.
fn process_of(discovery: &mut Discovery, guest: &ConfiguredGuest, daemon: &Daemon) -> Result<u32, Absence> {
    let told = match daemon {
        Daemon::Runs { guests, .. } => guests.iter().find(|(_, seen)| seen.id.name() == guest.name),
        _ => None,
    };
    let adopted = told.and_then(|(&pid, _)| Some(discovery.adopt(pid).ok()??.pid));
    adopted.map_or_else(|| discovery.owner_of(&guest.qmp), Ok)
}

/// The problem with the socket of a configured guest without a process. There is none if a process listens that has no time to accept.
fn trouble(path: &Path, why: &Absence) -> Option<SocketTrouble> {
    let is_no_socket = || fs::metadata(path).is_ok_and(|there| !there.file_type().is_socket());
    let is_gone = || fs::metadata(path).is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound);
    Some(match why {
        Absence::ControlTaken => return None,
        Absence::Unsupported => SocketTrouble::NoGuest(listener_of(path).ok()?.0),
        _ if is_no_socket() => SocketTrouble::NoSocket,
        Absence::Forbidden => SocketTrouble::Forbidden,
        _ if is_gone() => SocketTrouble::Gone,
        _ => SocketTrouble::Unheard,
    })
}

/// Whether the list of the configuration leaves a guest out because of its user. A daemon of another user has another list for the same words: what
/// it shows counts. A process that has ended by now has no user.
pub(super) fn is_outside(config: &Config, daemon: &Daemon, pid: u32, user: Option<u32>) -> bool {
    let is_known = matches!(daemon, Daemon::Runs { guests, .. } if guests.contains_key(&pid));
    !is_known && user.is_some() && !config.users.have(user)
}

/// The guests to gather facts of.
pub(super) struct Chosen<'a> {
    /// The patterns of their names.
    pub(super) discover: &'a [String],
    /// The processes that were found.
    pub(super) processes: Vec<(QemuProcess, Option<ConfiguredGuest>)>,
    /// The daemons that speak for libvirt's among them.
    pub(super) libvirt: Daemons,
}

/// A guest and the way to ask it that libvirt offers.
type ToAsk = (GuestId, GuestFacts, Option<Box<dyn Control>>);

/// Gathers the facts of the guests that were found, as far as they can be read by the moment `by`.
pub(super) async fn look(root: &Root, config: &Config, daemon: &Daemon, of: Chosen<'_>, by: Instant) -> Seen {
    let Chosen { discover, processes: found, mut libvirt } = of;
    let before = found.len();
    let (outside, ours): (Vec<_>, Vec<_>) = found
        .into_iter()
        .filter(|(process, configured)| {
            let name = process.id.name();
            configured.is_some() || discover.iter().any(|pattern| name_matches(pattern, name))
        })
        .partition(|(process, configured)| {
            configured.is_none() && is_outside(config, daemon, process.pid, process.user)
        });
    let left_out = before - ours.len() - outside.len();
    let outsider =
        |(process, _): (QemuProcess, _)| Outsider::new(process.id.name(), process.pid, process.user);
    let outside = outside.into_iter().map(outsider).collect();
    let files = each(root, &ours, by, |root, process, _| Files::read(root, process));
    let memory = each(root, &ours, by, Memory::read);
    let mut slow = Vec::new();
    let mut guests = Vec::new();
    for (((process, configured), files), memory) in ours.into_iter().zip(files).zip(memory) {
        let name = configured.as_ref().map_or(process.id.name(), |guest| guest.name.as_str());
        let of_it = |what: &str| format!("the {what} of {name} (process {})", process.pid);
        if files.is_none() {
            slow.push(of_it("command line and files"));
        }
        let memory = memory.unwrap_or(Err(Absence::Overran));
        if matches!(memory, Err(Absence::Overran)) {
            slow.push(of_it("mappings"));
        }
        let files = files.unwrap_or_else(|| Files::unread(&process));
        let is_held = files.is_held;
        let mut guest = of_process(&process, name, files, memory);
        guest.managed = config.class_of(name, process.user).1.manage;
        if let Some(ours) = &configured {
            guest.monitors = vec![ours.qmp.clone()];
            guest.is_configured = true;
            guest.left_behind = None;
            if !guest.is_of_libvirt() {
                guest.told = Told::claimed(guest.full, Absence::NotYet);
            }
        }
        tell_from(daemon, &mut guest);
        let way = (guest.is_of_libvirt() && *root == Root::system()).then(|| libvirt.control(&process));
        let may_ask = guest.informant == Informant::Nobody && configured.is_none() && !guest.is_of_libvirt();
        if may_ask && is_held {
            guest.told = Told::claimed(guest.full, Absence::ControlTaken);
        }
        guests.push((process.id, guest, way));
    }
    let mut guests = ask_monitors(root, guests).await;
    guests.sort_by(|a, b| (&a.name, a.pid).cmp(&(&b.name, b.pid)));
    Seen { guests, left_out, outside, slow }
}

/// What `read` reads of each process; `None` for those that take too long.
fn each<T: Send + 'static>(
    root: &Root,
    processes: &[(QemuProcess, Option<ConfiguredGuest>)],
    by: Instant,
    read: fn(&Root, &QemuProcess, Instant) -> T,
) -> Vec<Option<T>> {
    let job = |process: &QemuProcess| {
        let (root, process) = (root.clone(), process.clone());
        Box::new(move |until| read(&root, &process, until)) as Job<T>
    };
    within(processes.iter().map(|(process, _)| job(process)).collect(), EACH, by)
}

/// The processes of the guests that were found.
pub(super) fn pids(found: &[(QemuProcess, Option<ConfiguredGuest>)]) -> BTreeSet<u32> {
    found.iter().map(|(process, _)| process.pid).collect()
}

/// What the small files of a process tell.
#[derive(Default)]
struct Files {
    tcp_monitors: Vec<String>,
    launch: Launch,
    memory_files: Vec<(PathBuf, Option<String>)>,
    status: Option<ProcessStatus>,
    locked: Option<Locked>,
    age: Option<Span>,
    left_behind: Option<LeftBehind>,
    /// Whether each of its monitors serves a client.
    is_held: bool,
}

impl Files {
    fn read(root: &Root, process: &QemuProcess) -> Self {
        let pid = process.pid;
        let proc_fs = ProcFs::new(&root.path(Path::new("/proc")));
        let cmdline = proc_fs.cmdline(pid).unwrap_or_default();
        let paths = process.equipment.memory.iter().filter_map(|memory| memory.path.clone());
        Self {
            tcp_monitors: CommandLine::parse(&cmdline).tcp_monitors,
            launch: Launch::of(process.launcher, &cmdline, process.id.name()),
            memory_files: paths.map(|path| (path.clone(), kind_of(root, pid, &path))).collect(),
            status: text(&root.process(pid, "status")).ok().map(|text| status(&text)),
            locked: Locked::read(root, pid).ok(),
            age: age(root, process.id.start()),
            left_behind: left_behind(root, process),
            is_held: is_held(&proc_fs, pid, &process.bound),
        }
    }

    /// What is known of a process whose files could not be read in time.
    fn unread(process: &QemuProcess) -> Self {
        Self { launch: Launch::of(process.launcher, &[], process.id.name()), ..Self::default() }
    }
}

/// What the mappings of a process tell.
struct Memory {
    costs: Mappings,
    /// Whether KSM may scan the largest private mapping: the guest's memory, unless that is shared.
    marked: Option<bool>,
}

impl Memory {
    fn read(root: &Root, process: &QemuProcess, until: Instant) -> Result<Self, Absence> {
        let mapped =
            Mapping::read_until(root, process.pid, until).map_err(|error| match error.absence() {
                why @ (Absence::Forbidden | Absence::Overran) => why,
                _ => Absence::Gone,
            })?;
        let blocks = ram_blocks(process, process.facts.memory.unwrap_or(DEFAULT_MEMORY));
        let costs = Mappings::of_guest(&mapped, &blocks, &process.device_files, None);
        Ok(Self { costs, marked: marked(&mapped) })
    }
}

/// The facts of a process.
fn of_process(
    process: &QemuProcess,
    name: &str,
    files: Files,
    memory: Result<Memory, Absence>,
) -> GuestFacts {
    let assumed = process.facts.memory.unwrap_or(DEFAULT_MEMORY);
    let (memory, mappings) = match memory {
        Ok(memory) => (Some(memory), Ok(())),
        Err(why) => (None, Err(why)),
    };
    let costs = memory.as_ref().map(|memory| &memory.costs);
    let ram_like = costs.map(|costs| costs.ram_like).filter(|size| !size.is_zero());
    let full = ram_like.filter(|_| process.facts.is_of_unknown_size()).unwrap_or(assumed);
    let why = match process.monitors.is_empty() {
        true => process.launcher.why_no_monitor(),
        false => Absence::NotYet,
    };
    GuestFacts {
        is_configured: false,
        name: name.to_owned(),
        pid: process.pid,
        user: process.user,
        full,
        claims: None,
        age: files.age,
        managed: true,
        launch: files.launch,
        monitors: process.monitors.clone(),
        left_behind: files.left_behind,
        pretty_monitors: process.pretty_monitors.clone(),
        tcp_monitors: files.tcp_monitors,
        agent: process.agent.clone(),
        process: process.facts.clone(),
        memory_files: files.memory_files,
        equipment: Some(process.equipment.clone()),
        status: files.status,
        locked: files.locked,
        mappings,
        marked: memory.as_ref().and_then(|memory| memory.marked),
        overhead_bound: costs.map(|costs| costs.other_bound(LEAST_GROWTH)),
        ram_mapped: costs.map(|costs| costs.ram_mapped),
        withheld: costs.and_then(|costs| costs.withheld.clone()).or_else(|| process.withheld.clone()),
        informant: Informant::Nobody,
        told: Told::claimed(full, why),
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

pub(super) fn status(text: &str) -> ProcessStatus {
    let size = |key| kib(text, key).unwrap_or(Bytes::ZERO);
    let state = text.lines().find_map(|line| line.strip_prefix("State:")).unwrap_or_default().trim();
    ProcessStatus {
        mapped: size("VmSize"),
        resident: size("VmRSS"),
        swapped: size("VmSwap"),
        huge: size("HugetlbPages"),
        stopped: state.starts_with(['T', 't']),
    }
}

/// The type of the file system of a file of the process `pid`; `None` if it cannot be found out, and for a memfd, which is on none.
fn kind_of(root: &Root, pid: u32, path: &Path) -> Option<String> {
    let Some(number) = descriptor(pid, path) else { return file_system(root, "self", path) };
    let file = fs::read_link(root.process(pid, &format!("fd/{number}"))).ok()?;
    // The kernel shows a memfd as `/memfd:NAME (deleted)`.
    let is_memfd = file.to_string_lossy().starts_with("/memfd:");
    (!is_memfd && file.is_absolute()).then(|| file_system(root, "self", &file)).flatten()
}

/// The number of the descriptor that a path of the process stands for: `/proc/self/fd/7`, `/dev/fd/7`.
fn descriptor(pid: u32, path: &Path) -> Option<u32> {
    let own = format!("/proc/{pid}/fd");
    let number = ["/proc/self/fd", "/dev/fd", &own].iter().find_map(|dir| path.strip_prefix(dir).ok())?;
    number.to_str()?.parse().ok()
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
    guest.withheld = guest.withheld.take().or_else(|| seen.withheld.clone());
}

/// Queries the monitors of guests that the daemon does not know.
async fn ask_monitors(root: &Root, guests: Vec<ToAsk>) -> Vec<GuestFacts> {
    // Only process numbers of the running system belong to processes that can listen.
    let live = *root == Root::system();
    let mut done = Vec::with_capacity(guests.len());
    let mut asked = JoinSet::new();
    for (id, mut guest, way) in guests {
        if let Some(way) = way.filter(|_| guest.informant == Informant::Nobody) {
            ask_libvirt(way, &mut guest).await;
        }
        // A connection to a monitor that another client holds would stay in its queue.
        let is_told =
            guest.informant == Informant::Daemon || guest.told.balloon.why_not() != Some(&Absence::NotYet);
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

/// Asks a guest over libvirt's daemon.
async fn ask_libvirt(mut way: Box<dyn Control>, guest: &mut GuestFacts) {
    guest.told = way.observe(Wish::default(), DEADLINE).await;
    guest.full = guest.told.full;
    if has_told(&guest.told) {
        guest.informant = Informant::Monitor;
    }
}

async fn ask(id: GuestId, guest: &mut GuestFacts, live: bool) {
    let peer =
        live.then_some(if guest.is_configured { Peer::IsNamed(guest.pid) } else { Peer::Names(guest.pid) });
    let mut monitor = Monitor::new(MonitorConfig {
        guest: id,
        paths: guest.monitors.clone(),
        peer,
        use_as: Use::Brief,
        memory: Some(guest.full),
    });
    guest.told = monitor.poll(Wish::default(), DEADLINE).await;
    guest.full = guest.told.full;
    if has_told(&guest.told) {
        guest.informant = Informant::Monitor;
    }
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

/// Whether a monitor told anything about the guest's balloon, if only that it has none or that its driver does not run.
const fn has_told(told: &Told) -> bool {
    matches!(told.balloon.why_not(), None | Some(Absence::NoBalloon | Absence::NoDriver))
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

async fn version(path: &Path, peer: Option<Peer>) -> Option<(u32, u32)> {
    let by = Instant::now() + DEADLINE;
    let mut qmp = Qmp::connect(path, peer, by).await.ok()?;
    let Version { qemu } = qmp.execute(Command::plain("query-version"), by).await.ok()?;
    Some((qemu.major, qemu.minor))
}
