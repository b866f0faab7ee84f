//! libvirt: the guests whose monitors it keeps for itself, reached over its daemons.
//!
//! From the outside in:
//!
//! 1. [`Daemons`] knows where daemons listen, and makes the ways to their guests. Discovery is QEMU's: libvirt's guests are QEMU processes.
//! 2. `control` is the way to one guest; `picture` what is known of it and when what is asked; `play` whether it is worth asking.
//! 3. `daemon` is one daemon with its connections and the events of its domains; `description` reads a domain's XML.
//! 4. `connection` is one connection: calls, deadlines, answers, events. `protocol` has the procedures, `xdr` the encoding.
//!
//! Rules. A QEMU that libvirt owns is never spoken to past libvirt. Guests are asked one by one, each within its own deadline: one frozen QEMU holds up libvirt's
//! calls for many domains for as long as it is frozen. Everything that a daemon says is bounded. [docs/libvirt.md](../../../docs/libvirt.md) is the manual.

mod connection;
mod control;
mod daemon;
mod description;
mod picture;
mod play;
mod protocol;
mod terms;
mod xdr;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use control::OfLibvirt;
pub use terms::{TermsError, set_terms};

use control::LibvirtControl;
use daemon::{Daemon, Owner, Place};
use memtide_model::Owner as Whose;

use crate::backend::Control;
use crate::qemu::{DEFAULT_MEMORY, Launcher, QemuProcess};

/// The sockets of the modular and of the old daemon, in this order: if both run, virtqemud has the guests.
const SOCKETS: [&str; 2] = ["virtqemud-sock", "libvirt-sock"];
/// The directory of the daemons of root.
const OF_ROOT: &str = "/run/libvirt";

/// A daemon that the configuration names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConfiguredDaemon {
    /// Its socket; `None`: the daemons that memtide finds by itself.
    pub socket: Option<PathBuf>,
    /// The operator accepts that libvirt notes `custom-monitor` as a taint of its guests: memtide then reads all counters of their balloon drivers.
    pub monitor_commands: bool,
}

/// The daemons of this host.
#[derive(Debug, Default)]
pub struct Daemons {
    configured: Vec<ConfiguredDaemon>,
    known: BTreeMap<Place, Arc<Daemon>>,
}

impl Daemons {
    /// Those that memtide finds, and those that the configuration names.
    #[must_use]
    pub fn new(configured: Vec<ConfiguredDaemon>) -> Self {
        Self { configured, known: BTreeMap::new() }
    }

    /// The way to the guest of a QEMU that libvirt owns.
    #[must_use]
    pub fn control(&mut self, process: &QemuProcess) -> Box<dyn Control> {
        self.control_of(OfLibvirt {
            pid: process.pid,
            user: process.user,
            uuid: process.uuid.clone(),
            full: process.facts.memory.unwrap_or(DEFAULT_MEMORY),
            owner: (process.launcher == Launcher::Ovirt).then_some(Whose::Ovirt),
        })
    }

    /// The same for a process that is known otherwise.
    #[must_use]
    pub fn control_of(&mut self, process: OfLibvirt) -> Box<dyn Control> {
        let daemons = self.of_user(process.user);
        Box::new(LibvirtControl::new(process, daemons))
    }

    /// The daemons that may have guests of `user`. Those that nobody uses any more are forgotten.
    fn of_user(&mut self, user: Option<u32>) -> Vec<Arc<Daemon>> {
        let places = self.places(user);
        self.known.retain(|place, daemon| places.contains(place) || Arc::strong_count(daemon) > 1);
        let daemon =
            |place: Place| Arc::clone(self.known.entry(place.clone()).or_insert_with(|| Daemon::new(place)));
        places.into_iter().map(daemon).collect()
    }

    /// Where the daemon of a guest may listen: at the places that the configuration names, as root, or as the guest's user.
    fn places(&self, user: Option<u32>) -> Vec<Place> {
        let named = self.configured.iter().filter_map(|daemon| {
            let monitor_commands = daemon.monitor_commands;
            Some(Place { socket: daemon.socket.clone()?, owner: Owner::Named, monitor_commands })
        });
        let mut places: Vec<Place> = named.collect();
        let others = self.configured.iter().filter(|daemon| daemon.socket.is_none());
        let monitor_commands = others.into_iter().any(|daemon| daemon.monitor_commands);
        let mut add = |directory: &Path, owner| {
            let at = |name| Place { socket: directory.join(name), owner, monitor_commands };
            places.extend(SOCKETS.map(at));
        };
        add(Path::new(OF_ROOT), Owner::Root);
        if let Some(user) = user.filter(|user| *user != 0) {
            add(&Path::new("/run/user").join(user.to_string()).join("libvirt"), Owner::User(user));
        }
        places
    }
}
