//! What can be wrong with an action.

use memtide_model::{Bytes, Deed, GuestId, Request, Span, Subject, TierOrder, Withheld};

/// A guest's huge pages are split at most this often.
pub(super) const SPLITS_EVERY: Span = Span::from_secs(1);

/// A guest's agent is asked at most this often.
pub(super) const ASKS_EVERY: Span = Span::from_millis(50);

/// A promise that an action would break, or a lack of manners.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// Observe mode changes nothing.
    #[error("the plan changes {} in observe mode", subject_name(.0))]
    ActsWhileObserving(Subject),
    /// The plan names a guest that was not seen.
    #[error("the plan changes {0}, which was not seen")]
    UnknownGuest(GuestId),
    /// The host would get none of this guest's memory, or somebody else would lose some.
    #[error("the plan takes memory from {guest}, although {why}")]
    TakesInVain {
        /// The guest.
        guest: GuestId,
        /// Why its memory is withheld.
        why: Withheld,
    },
    /// The host is not yet known to gain what this guest gives, and the step is more than a probe.
    #[error("the plan gives {guest} {target}, less than {least}, before the host has gained from it")]
    MoreThanAProbe {
        /// The guest.
        guest: GuestId,
        /// The size that it would be asked to keep.
        target: Bytes,
        /// The least that it may be asked to keep.
        least: Bytes,
    },
    /// A guest gets at most one request of each mechanism.
    #[error("the plan asks {0} for the same twice")]
    AsksTwice(GuestId),
    /// The plan changes a guest that must be left alone.
    #[error("the plan changes {0}, which must be left alone")]
    NotOurs(GuestId),
    /// The target is below the guaranteed size, or below the least that a balloon may leave.
    #[error("the plan gives {guest} {target}, less than its reservation of {reservation}")]
    BelowReservation {
        /// The guest.
        guest: GuestId,
        /// The size that it would be asked to keep.
        target: Bytes,
        /// Its guaranteed size.
        reservation: Bytes,
    },
    /// The target is above the allowed size.
    #[error("the plan gives {guest} {target}, more than its limit of {limit}")]
    AboveLimit {
        /// The guest.
        guest: GuestId,
        /// The size that it would be asked to keep.
        target: Bytes,
        /// The most it may get.
        limit: Bytes,
    },
    /// A balloon counts in pages.
    #[error("the plan gives {guest} {target}, not a multiple of its step")]
    NotWholePages {
        /// The guest.
        guest: GuestId,
        /// The size that it would be asked to keep.
        target: Bytes,
    },
    /// The plan takes more memory than anybody can want.
    #[error("the plan takes {taken} from {guest}, and at most {wanted} can be wanted from it")]
    Unwanted {
        /// The guest.
        guest: GuestId,
        /// The memory that it would give.
        taken: Bytes,
        /// The most that others can want, less what the plan takes before.
        wanted: Bytes,
    },
    /// The plan takes more memory that a guest uses than others lack.
    #[error(
        "the plan takes {taken} from {guest} that it uses, and others lack at most {lacking} of what they use"
    )]
    TakesInUse {
        /// The guest.
        guest: GuestId,
        /// Memory in use that it would give.
        taken: Bytes,
        /// The most that others can lack of memory in use, less what the plan takes before.
        lacking: Bytes,
    },
    /// A guest without fresh statistics is asked for memory of its fair share.
    #[error("the plan gives {guest} {target}, less than its share of {share}, without fresh statistics")]
    BelowShare {
        /// The guest.
        guest: GuestId,
        /// The size that it would be asked to keep.
        target: Bytes,
        /// Its share, at least.
        share: Bytes,
    },
    /// A guest that makes no progress is asked for more.
    #[error("the plan takes memory from {0}, which makes no progress")]
    TakesFromStuck(GuestId),
    /// The host's memory was not read.
    #[error("the plan changes {0}, and the host's memory was not read")]
    HostNotRead(GuestId),
    /// Strict: the plan promises more memory than there is, and more than before.
    #[error("the plan gives {guest} memory, and promises {after} of {capacity}, up from {before}")]
    OverCommitted {
        /// The guest.
        guest: GuestId,
        /// The guests' worst-case cost, including all that must also fit.
        after: Bytes,
        /// The same before the plan.
        before: Bytes,
        /// All memory that the ledger counts.
        capacity: Bytes,
    },
    /// Elastic: the memory that the plan grants is not there, beside the growth that was just seen.
    #[error("the plan gives {guest} memory, {granted} in all, of {free}, while guests grow by {growth}")]
    Unbacked {
        /// The guest.
        guest: GuestId,
        /// All grants up to this one.
        granted: Bytes,
        /// The growth that was just seen.
        growth: Bytes,
        /// Free memory.
        free: Bytes,
    },
    /// The guests of a tmpfs, or those bound to a NUMA node, may touch more than is free of it.
    #[error(
        "the plan gives {guest} memory, and the guests in its tmpfs or NUMA node may take {needs} more; {free} are free of it"
    )]
    TmpfsFull {
        /// The guest.
        guest: GuestId,
        /// What they may take. Elastic: all grants up to this one, and the growth that was just seen.
        needs: Bytes,
        /// What is free of the tmpfs.
        free: Bytes,
    },
    /// A guest without fresh statistics gains memory.
    #[error("the plan gives {guest} {target}, more than {held}, without fresh statistics")]
    GrowsBlind {
        /// The guest.
        guest: GuestId,
        /// The size that it would be asked to keep.
        target: Bytes,
        /// The memory that it holds.
        held: Bytes,
    },
    /// A grant comes before a change that frees memory.
    #[error("the plan lets {0} grow before {1} shrinks")]
    GrowsBeforeFreed(GuestId, GuestId),
    /// The plan reclaims memory that nobody ordered to reclaim.
    #[error("the plan reclaims memory of {}, which nobody ordered", subject_name(.0))]
    NotOrdered(Subject),
    /// The plan asks the host for something that only a guest can do.
    #[error("the plan asks the host to {0}")]
    NotForTheHost(Request),
    /// The plan asks a guest for something that only the host can do.
    #[error("the plan asks {0} to {1}")]
    NotForAGuest(GuestId, Request),
    /// The plan sets KSM although the operator has not said so, or somebody else sets it.
    #[error("the plan sets KSM, which is not memtide's")]
    KsmIsNotOurs,
    /// The plan lets KSM merge a guest that does not share, or the other way round.
    #[error("the plan shares the memory of {guest}: {shares}, against its class")]
    SharesAgainstItsClass {
        /// The guest.
        guest: GuestId,
        /// What it would do.
        shares: bool,
    },
    /// The plan ends the sharing of a guest's memory, and the host has no room for it.
    #[error("the plan ends the sharing of {guest}, which may need {apart} bytes, and {free} are free")]
    NoRoomToUnmerge {
        /// The guest.
        guest: GuestId,
        /// The bytes that it may need when its merged memory comes apart.
        apart: u128,
        /// The bytes that nobody uses.
        free: u128,
    },
    /// The plan splits the huge pages of a guest although the host sees none that are torn, or cannot split them.
    #[error("the plan splits huge pages of {0}, but no torn ones can be split")]
    NothingTorn(GuestId),
    /// The plan splits the huge pages of a guest too soon after the last time.
    #[error("the plan splits huge pages of {0} twice within {SPLITS_EVERY}")]
    SplitsTooOften(GuestId),
    /// The plan asks an agent that does not answer, or cannot do it.
    #[error("the plan asks the agent in {0} for something that it cannot do")]
    NoAgent(GuestId),
    /// The plan asks an agent too soon after the last time.
    #[error("the plan asks the agent in {0} twice within {ASKS_EVERY}")]
    AsksTooOften(GuestId),
    /// The plan trims page cache that the agent may not drop.
    #[error("the plan trims {bytes} of {guest}, whose agent may drop {droppable}")]
    TrimsNeeded {
        /// The guest.
        guest: GuestId,
        /// The memory that it trims.
        bytes: Bytes,
        /// Page cache that the agent may drop.
        droppable: Bytes,
    },
    /// The plan asks an agent for memory that nobody can want, or for page cache that memtide may not take.
    #[error("the plan asks the agent in {guest} to {deed}, and nobody can want it")]
    AsksForNothing {
        /// The guest.
        guest: GuestId,
        /// What its agent would do.
        deed: Deed,
    },
    /// The plan changes the tier of a guest that may have none, or attaches a second one.
    #[error("the plan asks for {order} of {guest}, which its class, its agent or the host does not allow")]
    TierNotAllowed {
        /// The guest.
        guest: GuestId,
        /// What would be done.
        order: TierOrder,
    },
    /// The plan detaches a tier that the guest still swaps to.
    #[error("the plan detaches the tier of {0}, which swaps to it")]
    DetachesInUse(GuestId),
    /// The plan has more written to tiers than the host has room for.
    #[error(
        "the plan has {guest} write to its tier what takes {takes} of the host's memory, and {room} are free"
    )]
    NoRoomToWrite {
        /// The guest.
        guest: GuestId,
        /// What the host would spend at first.
        takes: Bytes,
        /// What it has.
        room: Bytes,
    },
    /// The plan has a tier read back without room for it on the host.
    #[error(
        "the plan has {guest} read back what {gained} of the host's memory was gained with, and {room} are free"
    )]
    NoRoomToReadBack {
        /// The guest.
        guest: GuestId,
        /// What the host would spend.
        gained: Bytes,
        /// What it has.
        room: Bytes,
    },
    /// The guest's statistics are polled as often already.
    #[error("the plan polls the statistics of {0}, which are polled already")]
    PollsForNothing(GuestId),
    /// Statistics that are never made, or made so often that they cost the guest its CPU.
    #[error("the plan polls the statistics of {guest} every {every}")]
    Interval {
        /// The guest.
        guest: GuestId,
        /// The interval.
        every: Span,
    },
}

fn subject_name(subject: &Subject) -> String {
    subject.guest().map_or_else(|| "the host".to_owned(), ToString::to_string)
}
