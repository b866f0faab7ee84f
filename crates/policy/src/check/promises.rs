//! What no plan may do, not even another policy's. These promises are made to the operator and to the guests.

use memtide_model::{
    Action, Bytes, Deed, GuestId, Keeps, KsmMode, Mode, Ordered, Request, Snapshot, Span, Subject, Tier,
    TierOrder,
};

use super::known::Known;
use super::room::Room;
use super::tmpfs::AllTmpfs;
use super::wanted::{Pledge, Wanted};
use super::witness::DOUBT;
use super::{Bench, DOES_NOT_GROW, Violation, gain, holds, is_ordered_trim, takes};

/// The shortest interval of statistics that may be asked for, and the longest.
const SHORTEST_INTERVAL: Span = Span::from_millis(100);
const LONGEST_INTERVAL: Span = Span::from_secs(3600);
/// A guest that has made no progress for about this long is stuck, and left alone for at least as long. The bounds are an interval of
/// the engine away, because the policy may have seen the last progress one tick later or earlier.
const STUCK: [Span; 2] = [Span::from_millis(6_500), Span::from_millis(8_500)];

impl Bench<'_> {
    /// The promises that an action would break, beside those that were accepted before it.
    pub(super) fn judge(
        &mut self,
        action: &Action,
        shrinks_later: Option<&GuestId>,
        broken: &mut Vec<Violation>,
    ) {
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
            Request::PollStats(_) | Request::Reclaim(_) => {}
            Request::Split => broken.extend(self.judge_split(index)),
            Request::Agent(deed) => broken.extend(self.judge_deed(index, deed)),
            Request::Merge(_) => broken.push(Violation::NotForAGuest(id.clone(), action.request)),
            Request::Share(shares) => broken.extend(self.judge_sharing(index, shares)),
            Request::Tier(order) => broken.extend(self.judge_tier(index, order)),
            Request::SetTarget(target) => self.judge_target(index, target, shrinks_later, broken),
        }
    }

    /// Whether the operator lets memtide govern KSM, and nobody else sets it.
    fn may_govern_ksm(&self) -> bool {
        self.config.ksm.mode == KsmMode::Govern
            && self.seen.host.ksm.fresh().is_some()
            && !self.witness.ksm_is_anothers
    }

    fn may_change(&mut self, index: usize, request: Request) -> bool {
        let (config, witness, seen) = (self.config, self.witness, self.seen);
        let guest = &self.guests[index];
        // It is the guest's own setting that comes back.
        if request.deed() == Some(Deed::ReportPieces(false)) {
            return true;
        }
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
    pub(super) fn apart_by(&self, index: usize, shares: bool) -> u128 {
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
        (!(self.seen.host.splits && is_torn)).then(|| Violation::NothingTorn(guest.seen.id.clone()))
    }

    /// A request to the agent of a guest: it must be able, and must have said that it has as much.
    fn judge_deed(&mut self, index: usize, deed: Deed) -> Option<Violation> {
        let guest = &self.guests[index];
        let id = || guest.seen.id.clone();
        let agent = guest.seen.told.agent.fresh().filter(|agent| match deed {
            Deed::Compact => agent.compacts,
            Deed::ReportPieces(_) => agent.reports_pieces,
            Deed::UseTier(_) | Deed::PageOut(_) => agent.tiers,
            _ => agent.trims,
        });
        let Some(agent) = agent else { return Some(Violation::NoAgent(id())) };
        if let (Deed::Trim(_) | Deed::Compact | Deed::ReportPieces(true) | Deed::PageOut(_), Some(why)) =
            (deed, guest.why_withheld())
        {
            return Some(Violation::TakesInVain { guest: id(), why });
        }
        match deed {
            Deed::Trim(bytes) if !guest.class.squeeze && !is_ordered_trim(self.seen, guest, deed) => {
                Some(Violation::TrimsNeeded { guest: id(), bytes, droppable: Bytes::ZERO })
            }
            Deed::Trim(bytes) if bytes > agent.droppable() => {
                Some(Violation::TrimsNeeded { guest: id(), bytes, droppable: agent.droppable() })
            }
            Deed::LimitCache(share) => {
                let is_right = share == guest.class.cache_limit;
                (!is_right).then(|| Violation::NotOrdered(Subject::Guest(id())))
            }
            Deed::PageOut(bytes) => {
                self.judge_page_out(index, bytes).or_else(|| self.judge_room_to_write(index, bytes))
            }
            Deed::UseTier(false) => self.judge_read_back(index),
            Deed::Trim(_) | Deed::Compact | Deed::ReportPieces(_) | Deed::UseTier(true) => None,
        }
    }

    /// Memory goes to a tier only as far as the class and its size allow.
    fn judge_page_out(&self, index: usize, bytes: Bytes) -> Option<Violation> {
        let guest = &self.guests[index];
        let allowed = self.allowed_in_tier(guest).unwrap_or_default();
        let tier = guest.seen.cost.tier.fresh();
        let fits = tier.is_some_and(|tier| tier.stored.saturating_add(bytes) <= allowed.min(tier.size));
        let deed = Deed::PageOut(bytes);
        (!fits).then(|| Violation::AsksForNothing { guest: guest.seen.id.clone(), deed })
    }

    /// The most of a guest's memory that may lie in a tier; `None`: it gets none.
    fn allowed_in_tier(&self, guest: &Known<'_>) -> Option<Bytes> {
        self.config.tier_of(&guest.class).map(|part| part.of(guest.seen.told.full))
    }

    /// What is written takes the host's memory before anything of it comes back.
    fn judge_room_to_write(&mut self, index: usize, bytes: Bytes) -> Option<Violation> {
        let guest = &self.guests[index];
        let takes = guest.seen.cost.tier.fresh().map_or(bytes, |tier| tier.takes(bytes));
        let (config, witness, seen) = (self.config, self.witness, self.seen);
        let room = self.room.get_or_insert_with(|| Room::new(config, witness, seen, &self.guests));
        let guest = guest.seen.id.clone();
        room.write(takes).err().map(|room| Violation::NoRoomToWrite { guest, takes, room })
    }

    /// What is read back must fit into the host.
    fn judge_read_back(&mut self, index: usize) -> Option<Violation> {
        let guest = &self.guests[index];
        let gained = guest.seen.cost.tier.latest().map_or(Bytes::ZERO, Tier::gained);
        let (config, witness, seen) = (self.config, self.witness, self.seen);
        let room = self.room.get_or_insert_with(|| Room::new(config, witness, seen, &self.guests));
        let guest = guest.seen.id.clone();
        room.give_back(gained).err().map(|room| Violation::NoRoomToReadBack { guest, gained, room })
    }

    fn judge_tier(&self, index: usize, order: TierOrder) -> Option<Violation> {
        let guest = &self.guests[index];
        let id = || guest.seen.id.clone();
        let tier = guest.seen.cost.tier.fresh();
        let agent = guest.seen.told.agent.fresh();
        let may = self.seen.host.tiers
            && match order {
                TierOrder::Attach(size) => {
                    tier.is_none()
                        && self.allowed_in_tier(guest).is_some_and(|allowed| size <= allowed)
                        && agent.is_some_and(|agent| agent.tiers)
                }
                TierOrder::Detach => tier.is_some(),
            };
        if !may {
            return Some(Violation::TierNotAllowed { guest: id(), order });
        }
        let is_in_use = agent.is_none_or(|agent| !agent.memory.tier_total.is_zero());
        (order == TierOrder::Detach && is_in_use).then(|| Violation::DetachesInUse(id()))
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
        match wanted.take(guest, target, self.manners) {
            Ok(()) => tmpfs.count(guest, target),
            Err(violation) if !tmpfs.take(guest, target, self.manners) => broken.push(violation),
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
