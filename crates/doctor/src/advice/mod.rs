//! How to start a guest differently, in the words of the program that starts it.
//!
//! **Problem.** Most people never type QEMU's options. Libvirt, Proxmox or Incus does, and drops what was added by hand at the next start.
//!
//! **Rule.** A launcher's own setting comes first (`own`, `libvirt`). If it has none, QEMU's options go where the launcher takes options
//! from its users (`raw`). If it takes none, the advice says so. A line leaves alone what is set already, and works as it stands.
//!
//! Names of guests come from outside: in lines for a shell, they are quoted.

mod libvirt;
mod own;
mod raw;

pub(crate) use libvirt::domain;
use memtide_vmm::qemu::Launcher;
pub(crate) use raw::monitor;

use crate::facts::GuestFacts;
use crate::finding::Fix;
use crate::quote::file_name;

/// A change of how a guest is started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change<'a> {
    /// A balloon device, with all that memtide can use.
    Balloon,
    /// The balloon deflates when the guest runs out of memory.
    DeflateOnOom,
    /// The guest reports free pages.
    Reporting,
    /// QEMU polls the balloon's statistics.
    Polling,
    /// A monitor, or one more, at this path: see [`socket_of`].
    Monitor(&'a str),
    /// A port for memtide's agent.
    AgentPort,
    /// A port for a device that is plugged while the guest runs.
    RootPort,
    /// Its memory is not locked.
    Unlocked,
    /// Its memory is not in a pool of huge pages.
    NoHugePages,
    /// Without a device of the host: `vfio-pci 0000:65:00.0`.
    Without(&'a str),
    /// Its memory does not start as a copy of a file that other guests use.
    OwnMemory,
    /// Its memory is not in a file on a disk.
    NotOnDisk,
    /// Its memory is not touched at its start.
    NoPrealloc,
    /// A limit for translated code.
    TranslationLimit,
    /// KSM may merge its memory.
    Mergeable,
    /// KSM may not merge its memory.
    NotMergeable,
    /// Its memory is not shared with other processes.
    Private,
}

/// A socket for the guest, with this end of its name, where the guest's QEMU may make one: Incus and LXD confine it to a directory of its own.
#[must_use]
pub fn socket_of(guest: &GuestFacts, end: &str) -> String {
    let name = file_name(&guest.name);
    match &guest.launch.directory {
        Some(directory) => format!("{}/{name}{end}", directory.display()),
        None => format!("/run/vm/{name}{end}"),
    }
}

/// The way to make a change: the place, and the lines to type there.
#[must_use]
pub fn fix(guest: &GuestFacts, change: Change<'_>) -> Fix {
    let launcher = guest.launch.by;
    let of_libvirt = guest.is_of_libvirt();
    let known = if of_libvirt { libvirt::fix(guest, change) } else { own::fix(guest, change) };
    let known = known.or_else(|| if of_libvirt { None } else { raw::fix(guest, change) });
    known.unwrap_or_else(|| Fix {
        place: format!("{} has no setting for this", launcher.name()),
        lines: vec!["leave the guest as it is, or start it with QEMU's own options".to_owned()],
    })
}

/// Lines for a shell that act from the next start.
fn shell_lines(lines: impl IntoIterator<Item = String>) -> Fix {
    at("a shell (from the next start)", lines)
}

fn at(place: impl Into<String>, lines: impl IntoIterator<Item = String>) -> Fix {
    Fix { place: place.into(), lines: lines.into_iter().collect() }
}

/// The options of a balloon device that memtide advises for this guest.
fn balloon_options(guest: &GuestFacts) -> Vec<&'static str> {
    let reporting = guest.may_report().then_some("free-page-reporting");
    ["deflate-on-oom"].into_iter().chain(reporting).collect()
}

/// Whether the change makes the guest's balloon report free pages if it can.
const fn is_of_balloon(change: Change<'_>) -> bool {
    matches!(change, Change::Balloon | Change::DeflateOnOom | Change::Reporting)
}

/// The command of Incus or LXD, for the guest's project.
fn client(guest: &GuestFacts) -> String {
    let command = if guest.launch.by == Launcher::Lxd { "lxc" } else { "incus" };
    match &guest.launch.project {
        Some(project) => format!("{command} --project {}", crate::quote::shell(project)),
        None => command.to_owned(),
    }
}

/// A change that Incus and LXD make only while the guest is stopped.
fn while_stopped(guest: &GuestFacts, line: String) -> Fix {
    let (client, name) = (client(guest), crate::quote::shell(&guest.launch.name));
    at("a shell", [format!("{client} stop {name}"), line, format!("{client} start {name}")])
}
