//! The promises that a plan must keep, tested independently of the decision, action by action.
//!
//! The check shares no function with the stages of the decision, and does not see the policy's state. It works from the snapshot, the
//! configuration, the operator's orders and a record of its own ([`witness`]). The reason of an action proves nothing. The check runs in
//! tests, in the simulator, and in the daemon before anything is applied.
//!
//! **Rule.** The actions are judged in their order, each beside those that were accepted before it. A refused action is not carried out, and
//! its guest stays as it is. So one grant too many costs that grant, and never the memory that other actions free.
//!
//! **Property.** Carrying out the accepted actions, and no others, keeps every promise.

mod gain;
mod holds;
mod in_use;
mod known;
mod room;
mod tmpfs;
mod wanted;
pub mod witness;

use memtide_model::{
    Action, Bytes, Config, Deed, GuestId, Keeps, KsmMode, Mechanism, Mode, Ordered, Plan, Polling, Request,
    Snapshot, Span, Subject, Withheld, Witness,
};

use self::known::{Known, known};
use self::room::Room;
use self::tmpfs::AllTmpfs;
use self::wanted::{Pledge, Wanted};
use self::witness::DOUBT;

/// The shortest interval of statistics that may be asked for, and the longest.
const SHORTEST_INTERVAL: Span = Span::from_millis(100);
const LONGEST_INTERVAL: Span = Span::from_secs(3600);
/// A guest that has made no progress for about this long is stuck, and left alone for at least as long. The bounds are an interval of
/// the engine away, because the policy may have seen the last progress one tick later or earlier.
const STUCK: [Span; 2] = [Span::from_millis(6_500), Span::from_millis(8_500)];
/// A guest that is asked to grow and has not grown for this long may be set back to its size, and left out of the shares.
pub(crate) const DOES_NOT_GROW: Span = Span::from_secs(4);

/// A guest's huge pages are split at most this often.
const SPLITS_EVERY: Span = Span::from_secs(1);

/// A guest's agent is asked at most this often.
const ASKS_EVERY: Span = Span::from_millis(50);

/// A promise that an action would break.
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

/// The promises that actions of a plan would break, each with the place of its action. Empty: the whole plan may be carried out.
/// `witness` must have looked at `seen`.
#[must_use]
pub fn check(config: &Config, witness: &Witness, seen: &Snapshot, plan: &Plan) -> Vec<(usize, Violation)> {
    // Every promise is about a plan's changes; most plans of a quiet host change nothing.
    if plan.actions.is_empty() {
        return Vec::new();
    }
    let mut bench = Bench::new(config, witness, seen);
    let last_shrink = bench.last_shrink(plan);
    let mut found = Vec::new();
    for (place, action) in plan.actions.iter().enumerate() {
        let shrinks_later = last_shrink.filter(|(last, _)| place < *last).map(|(_, guest)| guest);
        let mut broken = Vec::new();
        bench.judge(action, shrinks_later, &mut broken);
        if broken.is_empty() {
            bench.accept(action);
        }
        found.extend(broken.into_iter().map(|violation| (place, violation)));
    }
    found
}

fn subject_name(subject: &Subject) -> String {
    subject.guest().map_or_else(|| "the host".to_owned(), ToString::to_string)
}

/// Everything that the actions of a plan are judged by. The parts that only some plans need are made when they are needed.
struct Bench<'a> {
    config: &'a Config,
    witness: &'a Witness,
    seen: &'a Snapshot,
    guests: Vec<Known<'a>>,
    /// The mechanisms of the accepted actions, for each guest.
    asked: Vec<Vec<Mechanism>>,
    /// Memory that nobody uses, less what comes apart by accepted actions.
    unused: Option<u128>,
    room: Option<Room>,
    tmpfs: Option<AllTmpfs>,
    wanted: Option<Wanted>,
    pledge: Option<Pledge>,
    may_end_holds: Option<bool>,
}

impl<'a> Bench<'a> {
    fn new(config: &'a Config, witness: &'a Witness, seen: &'a Snapshot) -> Self {
        let guests = known(config, witness, seen);
        Self {
            asked: vec![Vec::new(); guests.len()],
            unused: None,
            config,
            witness,
            seen,
            guests,
            room: None,
            tmpfs: None,
            wanted: None,
            pledge: None,
            may_end_holds: None,
        }
    }

    fn index_of(&self, id: &GuestId) -> Option<usize> {
        self.seen.guests.binary_search_by(|guest| guest.id.cmp(id)).ok()
    }

    /// The last action that takes memory, and its guest.
    fn last_shrink(&self, plan: &'a Plan) -> Option<(usize, &'a GuestId)> {
        plan.actions.iter().enumerate().rev().find_map(|(place, action)| {
            let (Some(id), Some(target)) = (action.guest(), action.request.size()) else {
                return None;
            };
            takes(&self.guests[self.index_of(id)?], target).then_some((place, id))
        })
    }

    fn judge(&mut self, action: &Action, shrinks_later: Option<&GuestId>, broken: &mut Vec<Violation>) {
        if self.config.mode == Mode::Observe {
            broken.push(Violation::ActsWhileObserving(action.subject.clone()));
        }
        if matches!(action.request, Request::Reclaim(_)) && !is_ordered(self.seen, action) {
            broken.push(Violation::NotOrdered(action.subject.clone()));
        }
        let Some(id) = action.guest() else {
            if let Request::Merge(_) = action.request {
                if !self.may_govern_ksm() {
                    broken.push(Violation::KsmIsNotOurs);
                }
                return;
            }
            if !matches!(action.request, Request::Reclaim(_)) {
                broken.push(Violation::NotForTheHost(action.request));
            }
            return;
        };
        let Some(index) = self.index_of(id) else { return broken.push(Violation::UnknownGuest(id.clone())) };
        if self.asked[index].contains(&action.request.mechanism()) {
            broken.push(Violation::AsksTwice(id.clone()));
        }
        if !self.may_change(index, action.request) {
            broken.push(Violation::NotOurs(id.clone()));
        }
        match action.request {
            Request::PollStats(every) if every < SHORTEST_INTERVAL || every > LONGEST_INTERVAL => {
                broken.push(Violation::Interval { guest: id.clone(), every });
            }
            Request::PollStats(every) if !needs_poll(&self.guests[index], every) => {
                broken.push(Violation::PollsForNothing(id.clone()));
            }
            Request::PollStats(_) | Request::Reclaim(_) => {}
            Request::Split => broken.extend(self.judge_split(index)),
            Request::Agent(deed) => broken.extend(self.judge_deed(index, deed)),
            Request::Merge(_) => broken.push(Violation::NotForAGuest(id.clone(), action.request)),
            Request::Share(shares) => broken.extend(self.judge_sharing(index, shares)),
            Request::SetTarget(target) => self.judge_target(index, target, shrinks_later, broken),
        }
    }

    /// Whether the operator lets memtide govern KSM, and nobody else sets it.
    fn may_govern_ksm(&self) -> bool {
        self.config.ksm.mode == KsmMode::Govern
            && self.seen.host.ksm.fresh().is_some()
            && !self.witness.ksm_is_anothers
    }

    fn accept(&mut self, action: &Action) {
        let Some(index) = action.guest().and_then(|id| self.index_of(id)) else { return };
        self.asked[index].push(action.request.mechanism());
        if let (Request::Share(shares), Some(unused)) = (action.request, self.unused) {
            self.unused = Some(unused.saturating_sub(self.apart_by(index, shares)));
        }
    }

    fn may_change(&mut self, index: usize, request: Request) -> bool {
        let (config, witness, seen) = (self.config, self.witness, self.seen);
        let guest = &self.guests[index];
        if guest.must_be_left_alone() {
            return false;
        }
        if !holds::breaks(guest, request) {
            return true;
        }
        holds::is_foreign(guest.hold(), seen.taken_at)
            && holds::stays_or_shrinks(guest, request)
            && (holds::kills(guest, seen.taken_at)
                || *self
                    .may_end_holds
                    .get_or_insert_with(|| holds::may_end(config, witness, seen, &self.guests)))
    }

    fn judge_sharing(&mut self, index: usize, shares: bool) -> Option<Violation> {
        let guest = &self.guests[index];
        let id = guest.seen.id.clone();
        if !self.may_govern_ksm() {
            return Some(Violation::KsmIsNotOurs);
        }
        if guest.class.share != shares {
            return Some(Violation::SharesAgainstItsClass { guest: id, shares });
        }
        let apart = self.apart_by(index, shares);
        let free = *self.unused.get_or_insert_with(|| {
            let others = u128::from(self.seen.host.beside_guests().get());
            let used = self.guests.iter().map(Known::costs).sum::<u128>() + others;
            u128::from(self.seen.host.capacity.get()).saturating_sub(used)
        });
        (apart > free).then_some(Violation::NoRoomToUnmerge { guest: id, apart, free })
    }

    /// The memory that a guest needs if it shares no longer.
    fn apart_by(&self, index: usize, shares: bool) -> u128 {
        let saved = self.guests[index].seen.cost.merged.latest().copied().unwrap_or_default();
        let apart = self.seen.host.ksm.fresh().map_or(saved, |host| host.apart(saved));
        if shares { 0 } else { u128::from(apart.get()) }
    }

    fn judge_split(&self, index: usize) -> Option<Violation> {
        let guest = &self.guests[index];
        if let Some(why) = guest.why_withheld() {
            return Some(Violation::TakesInVain { guest: guest.seen.id.clone(), why });
        }
        let is_torn = self.seen.torn_of(guest.seen).is_some_and(|torn| !torn.is_zero());
        if !(self.seen.host.splits && is_torn) {
            return Some(Violation::NothingTorn(guest.seen.id.clone()));
        }
        let is_soon = guest.record.split_at.is_some_and(|at| self.seen.taken_at.since(at) < SPLITS_EVERY);
        is_soon.then(|| Violation::SplitsTooOften(guest.seen.id.clone()))
    }

    /// A request to the agent of a guest: it must be able, must have said that it has as much, and must not be asked too often.
    fn judge_deed(&mut self, index: usize, deed: Deed) -> Option<Violation> {
        let guest = &self.guests[index];
        let id = || guest.seen.id.clone();
        let agent = guest.seen.told.agent.fresh().filter(|agent| match deed {
            Deed::Compact => agent.compacts,
            Deed::ReportPieces(_) => agent.reports_pieces,
            _ => agent.trims,
        });
        let Some(agent) = agent else { return Some(Violation::NoAgent(id())) };
        if let (Deed::Trim(_) | Deed::Compact | Deed::ReportPieces(true), Some(why)) =
            (deed, guest.why_withheld())
        {
            return Some(Violation::TakesInVain { guest: id(), why });
        }
        if guest.record.agent_asked_at.is_some_and(|at| self.seen.taken_at.since(at) < ASKS_EVERY) {
            return Some(Violation::AsksTooOften(id()));
        }
        match deed {
            Deed::Trim(bytes) if bytes > agent.droppable() => {
                Some(Violation::TrimsNeeded { guest: id(), bytes, droppable: agent.droppable() })
            }
            Deed::LimitCache(share) => {
                let is_right = share == guest.class.cache_limit;
                (!is_right).then(|| Violation::NotOrdered(Subject::Guest(id())))
            }
            Deed::ReportPieces(false) => None,
            Deed::Trim(_) | Deed::Compact | Deed::ReportPieces(true) => self.judge_freeing(index, deed),
        }
    }

    /// What an agent frees must be wanted by others, or by the operator. Each request is judged by itself.
    fn judge_freeing(&mut self, index: usize, deed: Deed) -> Option<Violation> {
        let (config, witness, seen) = (self.config, self.witness, self.seen);
        let guest = &self.guests[index];
        let (bytes, may) = match deed {
            Deed::Trim(bytes) => (bytes, guest.class.squeeze),
            _ => (Bytes::ZERO, true),
        };
        let wanted = self.wanted.get_or_insert_with(|| Wanted::new(config, witness, seen, &self.guests));
        let tmpfs = self.tmpfs.get_or_insert_with(|| AllTmpfs::new(config, witness, seen, &self.guests));
        let is_wanted = may && (wanted.is_wanted_from(guest, bytes) || tmpfs.is_wanted_from(guest, bytes));
        let is_right = is_wanted || is_ordered_trim(seen, guest, deed);
        (!is_right).then(|| Violation::AsksForNothing { guest: guest.seen.id.clone(), deed })
    }

    fn judge_target(
        &mut self,
        index: usize,
        target: Bytes,
        shrinks_later: Option<&GuestId>,
        broken: &mut Vec<Violation>,
    ) {
        let guest = &self.guests[index];
        let id = || guest.seen.id.clone();
        if target != guest.whole_pages(target) {
            broken.push(Violation::NotWholePages { guest: id(), target });
        }
        // A guest that starts outside its bounds returns step by step: a step towards them is no violation.
        let reservation = guest.reservation();
        if target < reservation && target < guest.pending && !may_stay(guest, target, self.seen) {
            broken.push(Violation::BelowReservation { guest: id(), target, reservation });
        }
        let limit = guest.limit();
        // Writing the old target again, or the size that the guest keeps, promises nothing new.
        if target > limit && target > guest.pending && target != guest.whole_pages(guest.keeps) {
            broken.push(Violation::AboveLimit { guest: id(), target, limit });
        }
        let takes = takes(guest, target);
        let raises = target > guest.held();
        if self.seen.host.missed.is_some() && (raises || (takes && target < guest.whole_pages(limit))) {
            return broken.push(Violation::HostNotRead(id()));
        }
        if takes {
            self.judge_shrink(index, target, broken);
        } else if raises {
            self.judge_grant(index, target, shrinks_later, broken);
        }
    }

    fn judge_shrink(&mut self, index: usize, target: Bytes, broken: &mut Vec<Violation>) {
        let (config, witness, seen) = (self.config, self.witness, self.seen);
        let guest = &self.guests[index];
        let id = || guest.seen.id.clone();
        if let Some(why) = guest.why_withheld() {
            return broken.push(Violation::TakesInVain { guest: id(), why });
        }
        let least = gain::least(guest.seen, &guest.record).map(|least| guest.whole_pages(least));
        if let Some(least) = least.filter(|least| target < *least) {
            broken.push(Violation::MoreThanAProbe { guest: id(), target, least });
        }
        if is_stuck(guest, seen) {
            broken.push(Violation::TakesFromStuck(id()));
        }
        if target >= guest.whole_pages(guest.limit()) {
            return;
        }
        if guest.available().is_none() {
            let pledge = self.pledge.get_or_insert_with(|| Pledge::new(config, witness, seen, &self.guests));
            let tmpfs = self.tmpfs.get_or_insert_with(|| AllTmpfs::new(config, witness, seen, &self.guests));
            let share = tmpfs.pledge(guest).map_or(pledge.of(guest), |share| share.min(pledge.of(guest)));
            if target < share {
                broken.push(Violation::BelowShare { guest: id(), target, share });
            }
        }
        if !broken.is_empty() || is_ordered_fetch(seen, guest, target) {
            return;
        }
        let wanted = self.wanted.get_or_insert_with(|| Wanted::new(config, witness, seen, &self.guests));
        let tmpfs = self.tmpfs.get_or_insert_with(|| AllTmpfs::new(config, witness, seen, &self.guests));
        match wanted.take(guest, target) {
            Ok(()) => tmpfs.count(guest, target),
            Err(violation) if !tmpfs.take(guest, target) => broken.push(violation),
            Err(_) => {}
        }
    }

    fn judge_grant(
        &mut self,
        index: usize,
        target: Bytes,
        shrinks_later: Option<&GuestId>,
        broken: &mut Vec<Violation>,
    ) {
        let (config, witness, seen) = (self.config, self.witness, self.seen);
        let guest = &self.guests[index];
        if let Some(later) = shrinks_later {
            broken.push(Violation::GrowsBeforeFreed(guest.seen.id.clone(), later.clone()));
        }
        if guest.available().is_none() && !guest.is_released() {
            let (guest, held) = (guest.seen.id.clone(), guest.held());
            broken.push(Violation::GrowsBlind { guest, target, held });
        }
        let tmpfs = self.tmpfs.get_or_insert_with(|| AllTmpfs::new(config, witness, seen, &self.guests));
        let room = self.room.get_or_insert_with(|| Room::new(config, witness, seen, &self.guests));
        // A grant that the host refuses counts in the tmpfs: that errs on the safe side.
        if broken.is_empty()
            && let Err(violation) = tmpfs.grant(guest, target).and_then(|()| room.grant(guest, index, target))
        {
            broken.push(violation);
        }
    }
}

/// Whether the operator ordered this request.
fn is_ordered(seen: &Snapshot, action: &Action) -> bool {
    seen.orders.iter().any(|order| match (order.ordered, action.request) {
        (Ordered::Reclaim(ordered), Request::Reclaim(asked)) => {
            action.guest() == Some(&order.guest) && asked <= ordered
        }
        _ => false,
    })
}

/// Whether the operator ordered the guest's agent to drop at least this much.
fn is_ordered_trim(seen: &Snapshot, guest: &Known<'_>, deed: Deed) -> bool {
    seen.orders.iter().any(|order| match (order.ordered, deed) {
        (Ordered::Trim(ordered), Deed::Trim(asked)) => order.guest == guest.seen.id && asked <= ordered,
        _ => false,
    })
}

/// Whether a guest's statistics are polled less often than this, or were never polled for memtide.
fn needs_poll(guest: &Known<'_>, every: Span) -> bool {
    match guest.seen.told.polling {
        Polling::Off => true,
        Polling::Every(present) => present > every || !guest.record.is_polled,
        Polling::Unknown => false,
    }
}

/// Whether the operator ordered the guest's balloon to take at least this much, and the guest calls as much available, with what it already gives.
fn is_ordered_fetch(seen: &Snapshot, guest: &Known<'_>, target: Bytes) -> bool {
    let takes = guest.pending.min(guest.keeps).saturating_sub(target);
    let is_ordered = seen.orders.iter().any(|order| match order.ordered {
        // A target is a whole number of pages.
        Ordered::Fetch(ordered) => order.guest == guest.seen.id && guest.whole_pages(takes) <= ordered,
        _ => false,
    });
    let gives = guest.keeps.saturating_sub(target);
    is_ordered && guest.available().is_some_and(|available| gives <= available)
}

/// Whether a guest must give memory for `target`: it is below its last target, and below its size.
fn takes(guest: &Known<'_>, target: Bytes) -> bool {
    target < guest.pending && target < guest.whole_pages(guest.keeps)
}

/// Whether `target` is the guest's present size, and the operator or its own balloon keeps it from growing.
fn may_stay(guest: &Known<'_>, target: Bytes, seen: &Snapshot) -> bool {
    let now = seen.taken_at;
    let is_held = guest.hold().is_some_and(|hold| hold.keeps == Keeps::Size);
    let has_waited = guest.record.written_at.is_none_or(|at| now.since(at) >= DOES_NOT_GROW);
    let does_not_grow = has_waited || guest.stuck_for(now).is_none_or(|stuck| stuck >= DOES_NOT_GROW);
    target == guest.whole_pages(guest.keeps) && (is_held || does_not_grow)
}

/// Whether a guest is certainly in the pause that follows a lack of progress.
fn is_stuck(guest: &Known<'_>, seen: &Snapshot) -> bool {
    let now = seen.taken_at;
    // After a write without a known result, nobody knows which target the guest follows.
    let is_doubted = guest.record.doubted_at.is_some_and(|at| now.since(at) < DOUBT);
    !is_doubted && guest.stuck_for(now).is_some_and(|stuck| stuck >= STUCK[0] && stuck < STUCK[1])
}
