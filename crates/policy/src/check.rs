//! The promises that a plan must keep, tested independently of the decision.
//!
//! This file shares no function with the stages of the decision. It computes the ledger again, in its own way, from the
//! snapshot and the state *before* the decision. It runs in tests, in the simulator, and in the daemon before anything is
//! applied. A plan with a violation is not applied.

use memtide_model::{
    Action, Bytes, Commitment, Commits, Config, GuestId, GuestSeen, GuestState, Hold, Keeps, Limit, Mode,
    Moment, Ordered, Plan, Reason, Request, Snapshot, Span, State, Subject,
};

/// A guest's huge pages are split at most this often.
const SPLITS_EVERY: Span = Span::from_secs(5);

/// A promise that a plan would break.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// Observe mode changes nothing.
    #[error("the plan changes {} in observe mode", subject_name(.0))]
    ActsWhileObserving(Subject),
    /// The plan names a guest that was not seen.
    #[error("the plan changes {0}, which was not seen")]
    UnknownGuest(GuestId),
    /// A guest gets at most one target.
    #[error("the plan gives {0} two targets")]
    TwoTargets(GuestId),
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
    /// Strict: the plan promises more memory than there is, and more than before.
    #[error("the plan promises {after} of {capacity}, up from {before}")]
    OverCommitted {
        /// The guests' worst-case cost, including all that must also fit.
        after: Bytes,
        /// The same before the plan.
        before: Bytes,
        /// All memory that the ledger counts.
        capacity: Bytes,
    },
    /// Elastic: the plan grants memory while the present joint growth does not fit into free memory, reserve included.
    #[error("the plan grants memory while a surge of {surge} does not fit into {free}")]
    SurgeUnbacked {
        /// The joint growth within one reaction time.
        surge: Bytes,
        /// Free memory.
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
    /// The plan splits the huge pages of a guest although the host sees none that are torn, or cannot split them.
    #[error("the plan splits huge pages of {0}, but no torn ones can be split")]
    NothingTorn(GuestId),
    /// The plan splits the huge pages of a guest too soon after the last time.
    #[error("the plan splits huge pages of {0} twice within {SPLITS_EVERY}")]
    SplitsTooOften(GuestId),
    /// An interval of zero switches the polling off.
    #[error("the plan switches off the statistics of {0}")]
    PollsNever(GuestId),
}

/// The promises that a plan breaks; empty if the plan may be applied.
#[must_use]
pub fn check(config: &Config, state: &State, seen: &Snapshot, plan: &Plan) -> Vec<Violation> {
    let mut found = Vec::new();
    // Every promise is about a plan's changes; most plans of a quiet host change nothing.
    if plan.actions.is_empty() {
        return found;
    }
    let mut guests = known(state, seen);
    let mut grown: Option<&GuestId> = None;
    let mut foreign_may_end: Option<bool> = None;
    for action in &plan.actions {
        if config.mode == Mode::Observe {
            found.push(Violation::ActsWhileObserving(action.subject.clone()));
        }
        if matches!(action.request, Request::Reclaim(_)) && !is_ordered(seen, action) {
            found.push(Violation::NotOrdered(action.subject.clone()));
        }
        let Some(id) = action.guest() else {
            if !matches!(action.request, Request::Reclaim(_)) {
                found.push(Violation::NotForTheHost(action.request));
            }
            continue;
        };
        let Ok(index) = seen.guests.binary_search_by(|guest| guest.id.cmp(id)) else {
            found.push(Violation::UnknownGuest(id.clone()));
            continue;
        };
        let hold = hold_on(seen, &guests[index]);
        let ends = is_foreign(hold, seen.taken_at)
            && *foreign_may_end.get_or_insert_with(|| others_run_dry(config, state, seen, &guests))
            && stays_or_shrinks(&guests[index], action.request);
        let guest = &mut guests[index];
        if must_be_left_alone(config, guest.seen) || (breaks(config, hold, guest, action.request) && !ends) {
            found.push(Violation::NotOurs(id.clone()));
        }
        match action.request {
            Request::PollStats(every) if every.as_millis() == 0 => {
                found.push(Violation::PollsNever(id.clone()));
            }
            Request::PollStats(_) | Request::Reclaim(_) => {}
            Request::Split => found.extend(one_split(seen, guest)),
            Request::SetTarget(target) => {
                if guest.target.replace(target).is_some() {
                    found.push(Violation::TwoTargets(id.clone()));
                }
                one_target(config, guest, target, &action.reason, &mut found);
                match grown {
                    Some(first) if target < guest.pending => {
                        found.push(Violation::GrowsBeforeFreed(first.clone(), id.clone()));
                    }
                    None if target > guest.pending => grown = Some(id),
                    _ => {}
                }
            }
        }
    }
    promises(config, state, seen, &guests, &mut found);
    found
}

/// The guests with their remembered states. Both are in order of identity, so that the next remembered guest is usually the one looked for.
fn known<'a>(state: &'a State, seen: &'a Snapshot) -> Vec<Known<'a>> {
    let mut remembered = state.guests.iter().peekable();
    let guests = seen.guests.iter().map(|guest| {
        while remembered.next_if(|(id, _)| **id < guest.id).is_some() {}
        let before = match remembered.next_if(|(id, _)| **id == guest.id) {
            Some((_, before)) => Some(before),
            None => state.guests.get(&guest.id),
        };
        Known::new(before.map(|before| &**before), guest, seen.taken_at)
    });
    guests.collect()
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

/// The promises that a split of a guest's huge pages breaks.
fn one_split(seen: &Snapshot, guest: &mut Known<'_>) -> Option<Violation> {
    let id = || guest.seen.id.clone();
    let is_torn = seen.torn_of(guest.seen).is_some_and(|torn| !torn.is_zero());
    if !(seen.host.splits && is_torn) {
        return Some(Violation::NothingTorn(id()));
    }
    let last = guest.before.and_then(|before| before.splits.asked).map(|asked| asked.at);
    let is_soon = last.is_some_and(|at| seen.taken_at.since(at) < SPLITS_EVERY);
    if is_soon || std::mem::replace(&mut guest.splits, true) {
        return Some(Violation::SplitsTooOften(guest.seen.id.clone()));
    }
    None
}

fn subject_name(subject: &Subject) -> String {
    subject.guest().map_or_else(|| "the host".to_owned(), ToString::to_string)
}

fn must_be_left_alone(config: &Config, guest: &GuestSeen) -> bool {
    let (_, class) = config.class_of(guest.id.name());
    !class.manage
        || !guest.capabilities.can_be_set
        || guest.told.fence.is_some()
        || guest.told.reset
        || guest.told.balloon.fresh().is_none()
}

/// The last order about a guest, if it is still active.
fn hold_on(seen: &Snapshot, guest: &Known<'_>) -> Option<Hold> {
    let said = seen.orders.iter().rev().filter(|order| order.guest == guest.seen.id);
    let hold = said
        .filter_map(|order| match order.ordered {
            Ordered::Leave(hold) => Some(Some(hold)),
            Ordered::Manage => Some(None),
            Ordered::Reclaim(_) => None,
        })
        .next()
        .unwrap_or_else(|| guest.before.and_then(|before| before.hold));
    hold.filter(|hold| hold.until.is_none_or(|until| until > seen.taken_at))
}

/// Whether a change moves a guest that is left alone. A held guest may be asked to keep its present size. A released guest
/// may grow, or shrink to its limit.
fn breaks(config: &Config, hold: Option<Hold>, guest: &Known<'_>, request: Request) -> bool {
    let Some(hold) = hold else { return false };
    let stays = |target| target == whole_pages(guest, guest.keeps);
    match (hold.keeps, request) {
        // It only takes what the guest does not keep anyway.
        (_, Request::Reclaim(_)) => false,
        (_, Request::Split) => true,
        (Keeps::Size, Request::SetTarget(target)) => !stays(target),
        (Keeps::Limit, Request::SetTarget(target)) => {
            let least = whole_pages(guest, guest.pending.min(limit_of(config, guest)));
            target < least && !stays(target)
        }
        (Keeps::Limit, Request::PollStats(_)) => false,
        (Keeps::Foreign { .. }, _) | (Keeps::Size, Request::PollStats(_)) => true,
    }
}

/// Whether a guest is held because somebody else moved its balloon, and no operator's hold is running.
fn is_foreign(hold: Option<Hold>, now: Moment) -> bool {
    match hold {
        Some(Hold { keeps: Keeps::Foreign { held_until, .. }, .. }) => {
            held_until.is_none_or(|until| until <= now)
        }
        _ => false,
    }
}

/// A guest whose foreign hold ends is granted nothing yet.
fn stays_or_shrinks(guest: &Known<'_>, request: Request) -> bool {
    match request {
        Request::SetTarget(target) => target <= guest.keeps,
        Request::PollStats(_) | Request::Reclaim(_) | Request::Split => true,
    }
}

/// Whether guests that are not held run dry, and lack more than can be granted now and the others hold idle. A held guest
/// never counts: no guest gives for its own lack.
fn others_run_dry(config: &Config, state: &State, seen: &Snapshot, guests: &[Known<'_>]) -> bool {
    let (mut lacks, mut idle) = (0_u128, 0_u128);
    for guest in guests {
        let hold = hold_on(seen, guest);
        let released = hold.is_some_and(|hold| hold.keeps == Keeps::Limit);
        if must_be_left_alone(config, guest.seen) || (hold.is_some() && !released) {
            continue;
        }
        let Some(left) = guest.left() else { continue };
        let headroom = (u128::from(guest.seen.told.full.get()) / 32).clamp(16 << 20, 512 << 20);
        let growth = guest.grew_by(left);
        if left < headroom / 2 + growth {
            lacks += headroom + growth - left;
        } else if !released && gives(seen, guest) {
            idle += guest.idle(config, left, headroom);
        }
    }
    let capacity = u128::from(seen.host.capacity.get());
    let fixed =
        u128::from(seen.host.beside_guests().get()) + u128::from(config.reserve_of(seen.host.capacity).get());
    let taken = match config.commitment {
        Commitment::Strict => {
            let k = usize::try_from(config.self_deflations).unwrap_or(usize::MAX);
            strict_need(k, guests, Known::held)
        }
        Commitment::Elastic => {
            let costs: u128 = guests.iter().map(Known::costs).sum();
            costs + u128::from(state.growth.recent.get())
        }
    };
    lacks > capacity.saturating_sub(fixed).saturating_sub(taken) + idle
}

/// Whether a guest may be asked for memory: it is not stuck, and nobody else can have moved its balloon.
fn gives(seen: &Snapshot, guest: &Known<'_>) -> bool {
    guest.before.is_none_or(|before| {
        before.lifted_at.is_none() && before.stuck.until.is_none_or(|until| until <= seen.taken_at)
    })
}

/// The largest multiple of the guest's step that is not above `bytes`.
fn whole_pages(guest: &Known<'_>, bytes: Bytes) -> Bytes {
    Bytes::new(bytes.get() - bytes.get() % guest.seen.capabilities.step.bytes().get())
}

/// A guest as the promises see it.
struct Known<'a> {
    seen: &'a GuestSeen,
    /// The remembered state.
    before: Option<&'a GuestState>,
    /// The memory that it keeps.
    keeps: Bytes,
    /// The last target that it was asked to keep.
    pending: Bytes,
    /// The target that the plan sets.
    target: Option<Bytes>,
    /// Whether the plan splits its huge pages.
    splits: bool,
}

impl<'a> Known<'a> {
    fn new(before: Option<&'a GuestState>, seen: &'a GuestSeen, now: Moment) -> Self {
        let keeps = match seen.told.balloon.latest() {
            Some(balloon) if !seen.told.reset && balloon.actual < seen.told.full => balloon.actual,
            _ => seen.told.full,
        };
        // For 10 s after a reset, QEMU may still report the old actual. It is doubtful if more than that is available in the
        // guest; without statistics, as long as it does not change.
        let doubtful = before.is_some_and(|before| {
            let lately = before.reset_at.is_some_and(|at| now.since(at).as_millis() < 10_000);
            let told = seen.told.stats.fresh().and_then(|stats| stats.available);
            let unmoved = before.actual == keeps || before.actual == seen.told.full;
            lately && told.map_or(unmoved, |available| available > keeps)
        });
        let keeps = if doubtful { seen.told.full } else { keeps };
        let drives = seen.told.balloon.latest().is_some() && !seen.told.reset;
        let asked = before.and_then(|before| before.target).filter(|_| drives);
        Self {
            seen,
            before,
            keeps,
            pending: asked.map_or(keeps, |target| target.min(seen.told.full)),
            target: None,
            splits: false,
        }
    }

    /// The memory that it may use without asking, before the plan.
    fn held(&self) -> Bytes {
        self.pending.max(self.keeps)
    }

    /// The same after the plan. A lowered target returns no memory yet: no grant may rely on it.
    fn held_after(&self) -> Bytes {
        self.held().max(self.target.unwrap_or_default())
    }

    /// Its available memory plus its pending grant; unknown without fresh statistics.
    fn left(&self) -> Option<u128> {
        let available = self.seen.told.stats.fresh()?.available?;
        Some(u128::from(available.get()) + u128::from(self.held().get().saturating_sub(self.keeps.get())))
    }

    /// Its recent growth, or its growth since the last decision; at most a quarter of its size.
    fn grew_by(&self, left: u128) -> u128 {
        let Some(before) = self.before.filter(|before| before.stats_at.is_some()) else { return 0 };
        let used = u128::from(self.held().get()).saturating_sub(left);
        let growth = used.saturating_sub(u128::from(before.used.get()));
        growth.max(u128::from(before.growth.recent.get())).min(u128::from(self.seen.told.full.get()) / 4)
    }

    /// Held memory beyond used memory, page cache, `headroom` and reservation. Elastic: only memory that the host backs.
    fn idle(&self, config: &Config, left: u128, headroom: u128) -> u128 {
        let number = |bytes: Option<Bytes>| u128::from(bytes.unwrap_or_default().get());
        let stats = self.seen.told.stats.fresh();
        let free = number(stats.and_then(|stats| stats.free));
        let droppable = number(stats.and_then(|stats| stats.available)).saturating_sub(free);
        let caches = stats.and_then(|stats| stats.disk_caches);
        let cache = caches.map_or(droppable, |caches| droppable.min(u128::from(caches.get())));
        let held = u128::from(self.held().get());
        let touched = match config.commitment {
            Commitment::Strict => held,
            Commitment::Elastic => {
                held.min(self.costs().saturating_sub(u128::from(self.seen.cost.overhead.get())))
            }
        };
        let needs = held.saturating_sub(left) + cache + headroom;
        touched.saturating_sub(needs.max(u128::from(reservation_of(config, self).get())))
    }

    /// Its worst-case cost if it holds `held`.
    fn reach(&self, held: Bytes) -> u128 {
        let plug = match self.seen.told.hotplug.latest() {
            Some(plug) => u128::from(plug.requested.get()).saturating_sub(u128::from(plug.plugged.get())),
            None => 0,
        };
        u128::from(held.get()) + u128::from(self.seen.cost.overhead_bound.get()) + plug
    }

    /// Its cost now; its worst-case cost if that is unknown.
    fn costs(&self) -> u128 {
        let reach = self.reach(self.held());
        let seen = self.seen.cost.footprint.latest().map_or(reach, |bytes| u128::from(bytes.get()));
        match self.seen.capabilities.commits {
            Commits::WhenTouched => seen,
            Commits::WhenGranted => {
                seen.max(u128::from(self.held().get()) + u128::from(self.seen.cost.overhead.get()))
            }
        }
    }

    fn deflates_itself(&self) -> bool {
        self.seen.told.balloon.latest().is_some_and(|balloon| balloon.deflate_on_oom)
    }

    /// The memory that no balloon may take: memory plugged by virtio-mem, and 32 MiB for the kernel.
    fn least(&self) -> Bytes {
        let plugged = self.seen.told.hotplug.latest().map_or(0, |plug| plug.plugged.get());
        Bytes::new(plugged.saturating_add(32 << 20)).min(self.seen.told.full)
    }
}

/// The least that a guest may be asked to keep.
fn reservation_of(config: &Config, guest: &Known<'_>) -> Bytes {
    let (_, class) = config.class_of(guest.seen.id.name());
    whole_pages(guest, class.reservation.min(guest.seen.told.full).max(guest.least()))
}

/// The most that a guest may be given.
fn limit_of(config: &Config, guest: &Known<'_>) -> Bytes {
    let (_, class) = config.class_of(guest.seen.id.name());
    match class.limit {
        Limit::At(limit) if limit < guest.seen.told.full => {
            limit.max(reservation_of(config, guest)).max(guest.least())
        }
        _ => guest.seen.told.full,
    }
}

fn one_target(
    config: &Config,
    guest: &Known<'_>,
    target: Bytes,
    reason: &Reason,
    found: &mut Vec<Violation>,
) {
    let id = || guest.seen.id.clone();
    if target != whole_pages(guest, target) {
        found.push(Violation::NotWholePages { guest: id(), target });
    }
    // A target that only follows the actual, or repeats the pending target, is no new promise.
    let may_follow = matches!(
        reason,
        Reason::StuckAt { .. }
            | Reason::SelfDeflation { .. }
            | Reason::Reset { .. }
            | Reason::Held { .. }
            | Reason::HoldEnds { .. }
    );
    let follows = may_follow
        && (target == whole_pages(guest, guest.keeps) || target == whole_pages(guest, guest.pending));
    let reservation = reservation_of(config, guest);
    // A guest that starts outside its bounds returns step by step: a step towards them is no violation.
    if target < reservation && target <= guest.pending && !follows {
        found.push(Violation::BelowReservation { guest: id(), target, reservation });
    }
    let limit = limit_of(config, guest);
    if target > limit && target >= guest.pending && !follows {
        found.push(Violation::AboveLimit { guest: id(), target, limit });
    }
    let held = guest.held();
    let blind = guest.seen.told.stats.fresh().is_none_or(|stats| stats.available.is_none());
    if blind && target > held && *reason != Reason::Release {
        found.push(Violation::GrowsBlind { guest: id(), target, held });
    }
}

/// The commitment before and after the plan.
fn promises(
    config: &Config,
    state: &State,
    seen: &Snapshot,
    guests: &[Known<'_>],
    found: &mut Vec<Violation>,
) {
    let capacity = seen.host.capacity;
    let fixed = u128::from(seen.host.beside_guests().get()) + u128::from(config.reserve_of(capacity).get());
    match config.commitment {
        Commitment::Strict => {
            let k = usize::try_from(config.self_deflations).unwrap_or(usize::MAX);
            let spare = u128::from(capacity.get()).saturating_sub(fixed);
            let before = strict_need(k, guests, Known::held);
            let after = strict_need(k, guests, Known::held_after);
            let reach = strict_need(0, guests, Known::held_after);
            let rises = |before, after| after > before && after > spare;
            // A guest that would deflate its own balloon may be granted the memory that it would take.
            let allowed = || reach <= spare && !rises(before, need_beside_deflations(k, guests));
            if rises(before, after) && !allowed() {
                found.push(Violation::OverCommitted {
                    after: narrow(fixed + after),
                    before: narrow(fixed + before),
                    capacity,
                });
            }
        }
        Commitment::Elastic => {
            let grants = guests.iter().any(|guest| guest.held_after() > guest.held());
            let costs: u128 = guests.iter().map(Known::costs).sum();
            // The reserve is for growth, too.
            let free = u128::from(capacity.get())
                .saturating_sub(u128::from(seen.host.beside_guests().get()) + costs);
            let surge = elastic_surge(state, guests);
            if grants && surge > free {
                found.push(Violation::SurgeUnbacked { surge: narrow(surge), free: narrow(free) });
            }
        }
    }
}

/// The need after the plan if up to k guests that grow, may deflate their own balloons and have less than three eighths of their size
/// available count as doing so: one after the other, the guest that lowers the need most.
fn need_beside_deflations(k: usize, guests: &[Known<'_>]) -> u128 {
    let in_want = |guest: &Known<'_>| {
        let available = guest.seen.told.stats.fresh().and_then(|stats| stats.available);
        guest.deflates_itself()
            && guest.held_after() > guest.held()
            && available.is_some_and(|available| available < guest.seen.told.full.mul_div(3, 8))
    };
    let growing: Vec<&GuestId> =
        guests.iter().filter(|guest| in_want(guest)).map(|guest| &guest.seen.id).collect();
    let mut deflating: Vec<&GuestId> = Vec::new();
    let need = |deflating: &[&GuestId]| {
        strict_need(k, guests, |guest| match deflating.contains(&&guest.seen.id) {
            true => guest.held(),
            false => guest.held_after(),
        })
    };
    let mut least = need(&deflating);
    for _ in 0..k.min(growing.len()) {
        let with = |id| {
            let mut more = deflating.clone();
            more.push(id);
            (need(&more), id)
        };
        let next = growing.iter().filter(|id| !deflating.contains(*id)).map(|id| with(*id)).min();
        match next {
            Some((lower, id)) if lower < least => {
                least = lower;
                deflating.push(id);
            }
            _ => break,
        }
    }
    least
}

/// Σ reach (or footprint if that is larger), plus the k largest self-deflations. Each guest holds `held`.
fn strict_need<'a>(k: usize, guests: &[Known<'a>], held: impl Fn(&Known<'a>) -> Bytes) -> u128 {
    let mut need = 0;
    let mut own: Vec<u64> = Vec::new();
    for guest in guests {
        let held = held(guest);
        let footprint = guest.seen.cost.footprint.latest().map_or(0, |bytes| u128::from(bytes.get()));
        need += guest.reach(held).max(footprint);
        if guest.deflates_itself() {
            own.push(guest.seen.told.full.get().saturating_sub(held.get()));
        }
    }
    own.sort_unstable();
    need + own.iter().rev().take(k).map(|bytes| u128::from(*bytes)).sum::<u128>()
}

/// The recent joint growth, limited to the growth that the guests can reach after the plan.
fn elastic_surge(state: &State, guests: &[Known<'_>]) -> u128 {
    let could = guests.iter().map(|guest| {
        let most = if guest.deflates_itself() { guest.seen.told.full } else { guest.held_after() };
        guest.reach(most).saturating_sub(guest.costs())
    });
    u128::from(state.growth.recent.get()).min(could.sum())
}

fn narrow(bytes: u128) -> Bytes {
    Bytes::new(u64::try_from(bytes).unwrap_or(u64::MAX))
}
