//! What takes long to read of a guest's process: its mappings, its shared files, its cgroup. On a thread of its own, each process within a time
//! budget; one that overruns tells nothing this time ([`within`]).

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use memtide_host::{Cgroup, HostError, Locked, Mapping, Mappings, Root, SharedRam, within};
use memtide_model::{Absence, Bytes, Fact, GuestId, Reading};
use memtide_vmm::Found;

use super::facts;

/// The longest that one process is read. The kernel walks the page tables of a guest of 100 GiB in small pages in about half a second.
const BUDGET: Duration = Duration::from_secs(2);

/// An order to read one process.
pub(super) struct Order {
    /// The guest.
    pub(super) guest: GuestId,
    /// What is read.
    pub(super) part: Part,
}

/// What is read of a process.
pub(super) enum Part {
    /// Everything; `all` is the guest's RAM together, if its VMM tells more than its options.
    All { found: Arc<Found>, all: Option<Bytes> },
    /// The leftovers of torn huge pages, of a guest that has this cgroup.
    Torn(Arc<Cgroup>),
}

/// What was read.
pub(super) struct Surveyed {
    pub(super) guest: GuestId,
    pub(super) findings: Findings,
}

/// What was read of one guest.
pub(super) enum Findings {
    /// Everything, or why nothing.
    All(Result<Box<Process>, Absence>),
    /// The leftovers of torn huge pages.
    Torn(Reading<Bytes>),
}

/// What was read of a process.
pub(super) struct Process {
    /// The shared files that hold its memory.
    pub(super) shared: SharedRam,
    pub(super) mappings: Result<Mappings, Absence>,
    pub(super) locked: Locked,
    /// Its cgroup, if it has one of its own.
    pub(super) cgroup: Result<Arc<Cgroup>, Absence>,
    pub(super) torn: Reading<Bytes>,
}

/// The thread. It ends when this is dropped, and nobody waits for it.
pub(super) struct Survey {
    orders: Sender<Order>,
    surveyed: Receiver<Surveyed>,
}

impl Survey {
    /// Starts the thread.
    pub(super) fn start(root: &Root) -> Self {
        let (orders, ordered) = channel();
        let (results, surveyed) = channel();
        let root = root.clone();
        let work = move || survey(&root, &ordered, &results);
        if let Err(error) = thread::Builder::new().name("survey".to_owned()).spawn(work) {
            tracing::error!("memtide cannot read the mappings of guests: {error}");
        }
        Self { orders, surveyed }
    }

    /// Orders a reading. The caller orders no second one of a guest before the first one is there.
    pub(super) fn order(&self, order: Order) {
        // Without the thread, the guests' mappings count as unread.
        let _sent = self.orders.send(order);
    }

    /// The next thing that was read, if it is there by then.
    pub(super) fn next_by(&self, deadline: Instant) -> Option<Surveyed> {
        let left = deadline.saturating_duration_since(Instant::now());
        self.surveyed.recv_timeout(left).ok()
    }
}

/// Reads until nobody orders.
fn survey(root: &Root, orders: &Receiver<Order>, results: &Sender<Surveyed>) {
    for Order { guest, part } in orders {
        let findings = match part {
            Part::All { found, all } => {
                let root = root.clone();
                let read = within(found.process.pid, BUDGET, move || Process::read(&root, &found, all));
                let read = read.ok_or(Absence::Overran);
                Findings::All(read.and_then(|read| read.map(Box::new).map_err(|error| error.absence())))
            }
            Part::Torn(cgroup) => Findings::Torn(torn(&cgroup)),
        };
        if results.send(Surveyed { guest, findings }).is_err() {
            return;
        }
    }
}

impl Process {
    fn read(root: &Root, found: &Found, all: Option<Bytes>) -> Result<Self, HostError> {
        let process = &found.process;
        let pid = process.pid;
        let cgroup = own_cgroup(root, pid).map(Arc::new);
        Ok(Self {
            shared: SharedRam::find(root, pid, &found.process.shared)?,
            mappings: Mapping::read_until(root, pid, Instant::now() + BUDGET)
                .map(|mapped| Mappings::of_guest(&mapped, &process.ram, &process.devices, all))
                .map_err(|error| error.absence()),
            locked: Locked::read(root, pid)?,
            torn: cgroup.as_deref().map_or_else(|why| Reading::absent(why.clone()), torn),
            cgroup,
        })
    }
}

impl Process {
    /// What its mappings show, for people. `told`: all RAM that it must have mapped.
    pub(super) fn facts(&self, told: Bytes) -> Result<Vec<Fact>, Absence> {
        self.mappings.as_ref().map(|mappings| facts::of(mappings, &self.locked, told)).map_err(Clone::clone)
    }
}

/// The leftovers of torn huge pages in a cgroup.
fn torn(cgroup: &Cgroup) -> Reading<Bytes> {
    cgroup.torn().map_or_else(|error| Reading::absent(error.absence()), Reading::now)
}

/// The cgroup of a guest that has one of its own.
fn own_cgroup(root: &Root, pid: u32) -> Result<Cgroup, Absence> {
    let cgroup = Cgroup::of(root, pid).and_then(|cgroup| match cgroup {
        Some(cgroup) if cgroup.is_only_of(pid)? => Ok(Some(cgroup)),
        _ => Ok(None),
    });
    cgroup.map_err(|error| error.absence())?.ok_or(Absence::Unsupported)
}
