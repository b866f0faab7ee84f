//! What is simulated: a host, its guests, and what goes wrong when. A scenario file, a recorded journal and the search all come
//! down to a [`Setup`].

use std::sync::Arc;

use memtide_guest::Spec;
use memtide_model::{Bytes, Config, Fence, Span};

/// A host with guests, for some time.
#[derive(Clone, Debug, PartialEq)]
pub struct Setup {
    /// How long it is simulated.
    pub lasts: Span,
    /// What all random numbers follow from.
    pub seed: u64,
    /// The host.
    pub host: HostSpec,
    /// The guests.
    pub guests: Vec<GuestSetup>,
    /// What goes wrong, and when.
    pub faults: Vec<Fault>,
    /// memtide's configuration. Its classes also give the other managers' guests their shares.
    pub config: Config,
}

/// The host, or the memory cgroup that plays it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostSpec {
    /// All of its memory.
    pub memory: Bytes,
    /// What others than guests use, at the least.
    pub other: Bytes,
    /// What others use at the most: a new amount in between every `noise_every`.
    pub other_most: Bytes,
    /// How often the use of others changes.
    pub noise_every: Span,
    /// What others were recorded to use, from these times on; it replaces the bounds above if there is any.
    pub recorded_other: Arc<[(Span, Bytes)]>,
    /// The size of its swap; zero: it has none.
    pub swap: Bytes,
    /// What happens once everything is full.
    pub when_full: WhenFull,
}

/// What happens once a host's memory and swap are full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhenFull {
    /// The OOM killer ends the largest guest.
    Kill,
    /// Nothing: it is only counted.
    Count,
}

/// A guest and when it is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuestSetup {
    /// Its name; unique.
    pub name: String,
    /// What it is made of.
    pub spec: Arc<Spec>,
    /// When it starts.
    pub arrives: Span,
    /// When it ends; `None`: never.
    pub leaves: Option<Span>,
}

/// Something that goes wrong.
#[derive(Clone, Debug, PartialEq)]
pub struct Fault {
    /// When it begins.
    pub at: Span,
    /// How long it lasts, where that matters.
    pub lasts: Span,
    /// The guest, by its number; `None`: the host or the daemon.
    pub guest: Option<usize>,
    /// What it is.
    pub kind: FaultKind,
}

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// The VMM refuses every change.
    Refuses,
    /// The VMM takes changes, and the driver does nothing.
    Stuck,
    /// The driver reports something untrue.
    Lies(Lie),
    /// The driver answers no requests for statistics.
    Silent,
    /// The guest is reset, and boots for as long as the fault lasts.
    Reset,
    /// The guest deflates its own balloon to its full size and keeps the memory free.
    SelfDeflates,
    /// The process ends, and comes back under its name once the fault is over.
    Vanishes,
    /// The guest must be left alone.
    Fenced(Fence),
    /// The monitor answers too late: readings are old, and changes fail.
    Late,
    /// Changes are carried out, but the answer is lost.
    Lost,
    /// Somebody else sets the balloon's target to this.
    Foreign(Bytes),
    /// The footprint cannot be read.
    Unreadable,
    /// The host's memory cannot be read: the last reading stands.
    HostUnreadable,
    /// The wall clock jumps by the fault's length.
    ClockJumps,
    /// The host is suspended for the fault's length: time goes on, and nobody lives.
    Suspended,
    /// The daemon is killed, and another one starts once the fault is over.
    DaemonKilled,
    /// The journal cannot be written.
    DiskFull,
}

/// What a lying driver says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lie {
    /// Nothing is available or free.
    NothingAvailable,
    /// All that it keeps is available.
    AllAvailable,
    /// Allocations stall all the time.
    Stalls,
    /// Programs are killed all the time.
    Kills,
    /// Its page cache is scanned all the time.
    Scans,
    /// Each field is a random number.
    Random,
}

impl Default for HostSpec {
    fn default() -> Self {
        Self {
            memory: Bytes::from_mib(4096),
            other: Bytes::ZERO,
            other_most: Bytes::ZERO,
            noise_every: Span::from_secs(5),
            recorded_other: Arc::from([]),
            swap: Bytes::ZERO,
            when_full: WhenFull::Kill,
        }
    }
}

impl Setup {
    /// The end of the last fault, or of the last arrival or departure of a guest: from then on everything must become right.
    #[must_use]
    pub fn calm_from(&self) -> Span {
        let faults = self.faults.iter().map(|fault| match fault.kind {
            // Its length is how far the clock jumps.
            FaultKind::ClockJumps => fault.at.as_millis(),
            _ => fault.at.as_millis().saturating_add(fault.lasts.as_millis()),
        });
        let comes_and_goes = self.guests.iter().flat_map(|guest| [Some(guest.arrives), guest.leaves]);
        let moves = comes_and_goes.flatten().filter(|at| *at < self.lasts).map(Span::as_millis);
        Span::from_millis(faults.chain(moves).max().unwrap_or(0))
    }
}
