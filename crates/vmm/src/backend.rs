//! The border between memtide and a kind of VMM.
//!
//! **Terms.** A [`Backend`] finds the guests of one kind of VMM. A [`Control`] is the way to one of them: it observes the guest and carries
//! requests out. The [`Fleet`](crate::Fleet) owns both and calls them. If a control is late, the fleet returns its last reading.
//!
//! **Rule.** A backend never decides. It answers in the types of `memtide-model`: memory that the *guest keeps*, in bytes, or the reason
//! why a number is missing. It trusts nothing from a guest or a VMM: texts, numbers and lengths are bounded.
//! docs/backend.md shows how to write one.

use std::error::Error;
use std::future::Future;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::pin::Pin;
use std::time::Duration;

use memtide_host::{DeviceFile, RamBlock};
use memtide_model::{
    Absence, Backend as Vmm, Bytes, Capabilities, Fact, GuestId, Request, Told, Users, Withheld,
};

use crate::round::Patience;

/// An answer that comes later.
pub type Later<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The guests of one kind of VMM.
pub trait Backend: Send {
    /// Opens what the process cannot open later, once, before the daemon gives its rights up. Returns what its helper does, or why there is none, in a
    /// phrase for the log and the status; `None` if it needs none, as when the daemon does not `manage`.
    fn open(&mut self, _manages: bool) -> Option<String> {
        None
    }

    /// Looks for guests. Returns all that there are; `None` if nothing has changed since the last call. Called every two seconds, and with
    /// `ended` as soon as the process of a guest has ended. Must not wait for a guest. The fleet keeps the first `Found` of each identity,
    /// and calls [`control`](Backend::control) for it until it has a control.
    ///
    /// # Errors
    /// If the guests cannot be listed. The known ones stay as they are.
    fn discover(&mut self, ended: bool) -> Result<Option<Vec<Found>>, DiscoverError>;

    /// Only guests of these users are shown; `None`: those of all. Of another user's guest, a backend needs no more than its name, its process and its
    /// user, and must read no file that it names: any user may start programs that look like guests. The next [`discover`](Backend::discover) returns all guests.
    fn admit(&mut self, _users: Option<&Users>) {}

    /// Makes the way to a guest of the last [`discover`](Backend::discover). Must not wait for the guest: the control connects later.
    ///
    /// # Errors
    /// The reason why memtide leaves this guest alone for now. The fleet calls this again later, each time after a longer wait of up to a
    /// minute.
    fn control(&mut self, guest: &GuestId) -> Result<Box<dyn Control>, Absence>;

    /// Everything that is wrong with the backend's own configuration at the moment, one line each.
    fn warnings(&self) -> Vec<String> {
        Vec::new()
    }
}

/// The way to one guest. It lives in the guest's own task, so a guest that hangs delays nobody else.
pub trait Control: Send {
    /// Asks the guest's VMM, within `deadline`. Every missing value has a reason.
    fn observe(&mut self, wish: Wish, deadline: Duration) -> Later<'_, Told>;

    /// Carries a request out, within `deadline`. `Ok` means that the VMM accepted it, not that the guest has followed.
    ///
    /// # Errors
    /// If the VMM refuses or does not answer. After a timeout nobody knows whether the request was carried out.
    fn apply(&mut self, request: Request, deadline: Duration) -> Later<'_, Result<(), Absence>>;

    /// Plugs a block device of the host as the guest's tier, within `deadline`.
    ///
    /// # Errors
    /// As [`apply`](Control::apply), or if this VMM has no way to do so.
    fn attach(&mut self, _tier: TierDevice, _deadline: Duration) -> Later<'_, Result<(), Absence>> {
        Box::pin(async { Err(Absence::Unsupported) })
    }

    /// Waits for the next event that is worth an early look at the guest. Dropping the future must lose no event. A VMM without events
    /// waits forever.
    fn next_event(&mut self) -> Later<'_, ()> {
        Box::pin(std::future::pending())
    }

    /// Makes the next [`observe`](Control::observe) look for its answers together with other guests' controls. Saves wake-ups.
    fn be_patient(&mut self, _patience: Patience) {}
}

/// A block device of the host for a guest.
#[derive(Debug)]
pub struct TierDevice {
    /// It, open for reading and writing past the page cache.
    pub file: OwnedFd,
    /// Its path.
    pub path: PathBuf,
}

/// What an observation should do besides reading.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wish {
    /// Ask the guest for new statistics, and wait some milliseconds for them. Only if memtide set the polling interval: the polling of
    /// others is never disturbed.
    pub refresh_stats: bool,
    /// Ask for the sizes of the guest's memory, even if they are not due: its process has mapped more.
    pub sizes: bool,
    /// Keep a connection open after the observation, until somebody else needs it.
    pub keep_open: bool,
}

/// A guest that a backend found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// The guest's identity.
    pub id: GuestId,
    /// Its VMM, for people.
    pub vmm: Vmm,
    /// What memtide can do with it.
    pub capabilities: Capabilities,
    /// Memory that the guest keeps with an empty balloon, until its VMM says otherwise.
    pub full: Bytes,
    /// Why the host gains nothing from memory that it gives, according to its command line.
    pub withheld: Option<Withheld>,
    /// The process that runs it.
    pub process: Process,
    /// What is known of it before anybody was asked, for people.
    pub facts: Vec<Fact>,
    /// The configuration names this guest, so it is shown whatever guests the operator wants to see.
    pub is_configured: bool,
}

/// The process that runs a guest, and everything that is needed to find out what it costs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Process {
    /// Its number.
    pub pid: u32,
    /// Its real user, as the kernel says; `None` if it did not. A guest without a known user is only shown if the configuration names it.
    pub user: Option<u32>,
    /// The pieces of guest RAM.
    pub ram: Vec<RamBlock>,
    /// The files with memory of other devices.
    pub devices: Vec<DeviceFile>,
    /// The most that its virtio-mem devices can plug: the sizes of their pieces in `ram`.
    pub virtio_mem: Bytes,
    /// Its size is unknown: until its VMM tells it, the RAM that it has mapped counts. `ram` is empty.
    pub is_of_unknown_size: bool,
    /// The file or directory of RAM that is mapped privately. It may be the template of other guests, as long as the mappings are not known.
    pub private_file: Option<PathBuf>,
    /// The NUMA node of the host that all of it is bound to by the command line.
    pub node: Option<u32>,
    /// The files among them that are shared: their blocks are the guest's cost.
    pub shared: Vec<PathBuf>,
    /// What the VMM's stacks, heaps and queues may grow by in any case.
    pub least_growth: Bytes,
    /// The buffer that the VMM fills with translated code, as long as the process's mappings are not known.
    pub code_buffer: Bytes,
}

/// Why guests cannot be listed.
#[derive(Debug, thiserror::Error)]
#[error("cannot look for guests of {vmm}")]
pub struct DiscoverError {
    /// The VMM.
    pub vmm: Vmm,
    /// The cause.
    #[source]
    pub source: Box<dyn Error + Send + Sync>,
}
