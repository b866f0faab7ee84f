//! The description of a simulation: a host, its guests, and their faults. Scenario files, recorded journals and the search all produce a
//! [`Setup`].

use std::num::NonZeroU32;
use std::sync::Arc;

use memtide_guest::Spec;
use memtide_model::{Bytes, Config, Fence, Moment, Span, TmpfsId};

/// Virtual time begins this long after the host's boot.
pub const BEGINS: Moment = Moment::from_millis(60_000);

/// The number of the host's tmpfs, if it has one.
pub(crate) const TMPFS: TmpfsId = TmpfsId(1);

/// A host with guests, for some time.
#[derive(Clone, Debug, PartialEq)]
pub struct Setup {
    /// The time to simulate.
    pub lasts: Span,
    /// The seed of all random numbers.
    pub seed: u64,
    /// The host.
    pub host: HostSpec,
    /// The guests.
    pub guests: Vec<GuestSetup>,
    /// The faults.
    pub faults: Vec<Fault>,
    /// memtide's configuration. Its classes also give the other managers' guests their shares.
    pub config: Config,
}

/// The host, or the memory cgroup that plays it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostSpec {
    /// All of its memory.
    pub memory: Bytes,
    /// The least memory that others than guests use.
    pub other: Bytes,
    /// The most memory that others use. Every `noise_every`, they use a new amount in between.
    pub other_most: Bytes,
    /// How often the use of others changes.
    pub noise_every: Span,
    /// The recorded use of others, with the moment from which each amount holds. If there is any, it replaces the bounds above.
    pub recorded_other: Arc<[(Span, Bytes)]>,
    /// The size of its swap; zero if it has none.
    pub swap: Bytes,
    /// Whether memtide can make it split torn huge pages.
    pub splits: bool,
    /// Whether memtide can make compressed tiers. Guests get one only if their class allows it.
    pub tiers: bool,
    /// The behaviour when everything is full.
    pub when_full: WhenFull,
    /// The size of the tmpfs that holds some guests' memory; `None`: it has none.
    pub tmpfs: Option<Bytes>,
    /// Its processors, if they can be short.
    pub processors: Option<ProcessorsSpec>,
}

/// The processors that guests, balloons and others share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessorsSpec {
    /// How many there are.
    pub number: NonZeroU32,
    /// How many others would keep busy all the time.
    pub busy: u32,
}

/// The behaviour when a host's memory and swap are full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhenFull {
    /// The OOM killer ends the largest guest.
    Kill,
    /// Nothing: the excess is only counted.
    Count,
}

/// A guest, with its start and end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuestSetup {
    /// Its unique name.
    pub name: String,
    /// Its description.
    pub spec: Arc<Spec>,
    /// The part of its programs' memory that equals that of other guests; `None`: nothing.
    pub equal: Option<EqualMemory>,
    /// Whether its memory is a file in the host's tmpfs, as that of a UML instance.
    pub in_tmpfs: bool,
    /// When it starts.
    pub arrives: Span,
    /// When it ends; `None`: never.
    pub leaves: Option<Span>,
}

/// Memory of a guest's programs that equals that of each other guest with such memory, so that KSM can merge it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EqualMemory {
    /// Its size.
    pub size: Bytes,
    /// How often the guest writes to all of it, so that it comes apart; `None`: never. Afterwards it is equal again.
    pub changes_every: Option<Span>,
}

/// Something that goes wrong.
#[derive(Clone, Debug, PartialEq)]
pub struct Fault {
    /// When it begins.
    pub at: Span,
    /// How long it lasts, if that matters.
    pub lasts: Span,
    /// The guest's index; `None`: the host or the daemon.
    pub guest: Option<usize>,
    /// Its kind.
    pub kind: FaultKind,
}

/// The kinds of faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// The VMM refuses every change.
    Refuses,
    /// The VMM accepts changes, but the driver does nothing.
    Stuck,
    /// The driver reports something untrue.
    Lies(Lie),
    /// The driver answers no requests for statistics.
    Silent,
    /// The guest is reset, and boots for the length of the fault.
    Reset,
    /// The guest deflates its own balloon completely, and leaves the memory free.
    SelfDeflates,
    /// The process ends, and returns under its name when the fault is over.
    Vanishes,
    /// The guest must be left alone.
    Fenced(Fence),
    /// The monitor answers too late: readings are old, and changes time out.
    Late,
    /// Changes are carried out, but the answer is lost.
    Lost,
    /// Somebody else sets the balloon's target to this value.
    Foreign(Bytes),
    /// The footprint cannot be read.
    Unreadable,
    /// Nothing is known of the guest but its footprint: its VMM does not answer, and its mappings are not read.
    Unknown,
    /// The VMM tells this size.
    TellsSize(Bytes),
    /// The facts say that taking memory from the guest brings the host nothing.
    SaidPinned,
    /// The host's memory cannot be read: the last reading remains.
    HostUnreadable,
    /// The wall clock jumps by the fault's length.
    ClockJumps,
    /// The host is suspended for the fault's length: time passes, but nothing runs.
    Suspended,
    /// The daemon is killed, and another one starts when the fault is over.
    DaemonKilled,
    /// The journal cannot be written.
    DiskFull,
}

/// The lies of a driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lie {
    /// Nothing is available or free.
    NothingAvailable,
    /// All memory that it keeps is available.
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
            splits: true,
            tiers: true,
            when_full: WhenFull::Kill,
            tmpfs: None,
            processors: None,
        }
    }
}

impl Setup {
    /// The end of the last fault, or the last arrival or departure of a guest. From then on everything must become right.
    #[must_use]
    pub fn calm_from(&self) -> Span {
        let faults = self.faults.iter().map(|fault| match fault.kind {
            // The length is the distance of the jump.
            FaultKind::ClockJumps => fault.at.as_millis(),
            _ => fault.at.as_millis().saturating_add(fault.lasts.as_millis()),
        });
        let comes_and_goes = self.guests.iter().flat_map(|guest| [Some(guest.arrives), guest.leaves]);
        let moves = comes_and_goes.flatten().filter(|at| *at < self.lasts).map(Span::as_millis);
        Span::from_millis(faults.chain(moves).max().unwrap_or(0))
    }
}
