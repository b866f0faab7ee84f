//! The decision: gathers the guests, runs the four stages and writes down what came out.

use std::sync::Arc;

use memtide_model::{
    Absence, Backend, Bounds, Bytes, Change, Class, Commitment, Config, Decision, GuestId, GuestReport,
    GuestSeen, GuestState, HostReport, HostState, Mode, Moment, PAGE_4K, Plan, Reason, Report, Savings,
    Snapshot, Span, State, StatsPolling, Verdict,
};

use crate::demand::{self, Demand, dead_band};
use crate::entitlement::{Claim, Fill, Idle, SelfDeflations, fill};
use crate::ledger::{Entry, Ledger};
use crate::{host_state, pacing, phases, squeeze, stuck, surge};

/// The reaction time before any was measured, and its bounds.
const FIRST_REACTION: Span = Span::from_secs(1);
const SHORTEST_REACTION: Span = Span::from_millis(500);
const LONGEST_REACTION: Span = Span::from_secs(3);
/// How long surges and reaction times are remembered.
const SURGE_MEMORY: Span = Span::from_secs(600);
/// A guest that never gave statistics is left alone so long after it was first seen, or after its polling began: it boots.
const BOOTS: Span = Span::from_secs(15);
/// One whose polling never begins is left alone so long.
const NEVER_POLLED: Span = Span::from_secs(60);

/// What holds for all guests at this decision.
#[derive(Clone, Debug)]
pub struct Scene {
    /// The moment of the snapshot.
    pub now: Moment,
    /// What the ledger promises.
    pub commitment: Commitment,
    /// Strict: how many self-deflations must fit.
    pub self_deflations: u32,
    /// The ledger before the decision.
    pub ledger: Ledger,
    /// How short the host is.
    pub host: HostState,
    /// What the commitment and the guests lack.
    pub wanted: Bytes,
    /// What guests need and do not hold.
    pub unmet: Bytes,
    /// What is wanted cannot wait.
    pub urgent: bool,
    /// The host is low and not covered.
    pub emergency: bool,
    /// Every guest is entitled to its limit.
    pub ample: bool,
}

/// A guest and all that the stages found out about it.
#[derive(Debug)]
pub struct Guest<'a> {
    /// What is seen of it.
    pub seen: &'a GuestSeen,
    /// What was remembered of it.
    pub before: &'a GuestState,
    /// What is to be remembered.
    pub next: Box<GuestState>,
    /// The name of its class.
    pub class_name: &'a Arc<str>,
    /// Its class.
    pub class: &'a Class,
    /// The least and the most it may get.
    pub bounds: Bounds,
    /// Its side of the ledger.
    pub entry: Entry,
    /// Why it is left alone; `None` for a guest that can be changed.
    pub left_alone: Option<Verdict>,
    /// Stage 1.
    pub demand: Demand,
    /// The cache that it gets back and its back-off, where it squealed.
    pub squeal: Option<(Bytes, Span)>,
    /// Whether its cache was squeezed by this decision.
    pub squeezed: bool,
    /// Whether this decision sets the interval of its statistics.
    pub polled_now: bool,
    /// Stage 2.
    pub entitlement: Bytes,
}

impl<'a> Guest<'a> {
    fn new(
        config: &'a Config,
        seen: &'a GuestSeen,
        before: Option<&'a GuestState>,
        blank: &'a GuestState,
        now: Moment,
    ) -> Self {
        let (class_name, class) = config.class_of(seen.id.name());
        let first_seen = before.map_or(now, |before| before.first_seen);
        let before = before.unwrap_or(blank);
        let entry = believed(Entry::new(seen, before), seen, before, now);
        let footprint = seen.footprint.fresh().copied().or(before.footprint);
        let reset_at = if seen.reset { Some(now) } else { before.reset_at };
        let next = GuestState { first_seen, actual: seen.actual(), footprint, reset_at, ..before.clone() };
        Self {
            seen,
            before,
            next: Box::new(next),
            class_name,
            class,
            bounds: bounds(class, seen),
            entry,
            left_alone: why_left_alone(seen, class),
            demand: Demand::default(),
            squeal: None,
            squeezed: false,
            polled_now: false,
            entitlement: entry.held,
        }
    }

    /// Whether its size may be changed.
    #[must_use]
    pub const fn is_managed(&self) -> bool {
        self.left_alone.is_none()
    }

    /// Whether it may deflate its own balloon.
    #[must_use]
    pub fn deflates_itself(&self) -> bool {
        self.seen.balloon.latest().is_some_and(|balloon| balloon.deflate_on_oom)
    }

    /// How long after it was asked for memory it has now given the last of it, where that is now.
    fn arrived_after(&self, now: Moment) -> Option<Span> {
        let arrived = self.before.stuck.progress_at.is_some()
            && self.before.actual > self.entry.target
            && stuck::at_target(&self.entry);
        self.before.target_set_at.filter(|_| arrived).map(|at| now.since(at))
    }

    /// By how much its footprint grew since the last decision.
    fn growth(&self) -> Bytes {
        match (self.seen.footprint.fresh(), self.before.footprint) {
            (Some(now), Some(before)) => now.saturating_sub(before),
            _ => Bytes::ZERO,
        }
    }

    /// Whether its balloon inflates on our behalf.
    #[must_use]
    pub fn inflates(&self) -> bool {
        let under_way = self.entry.actual > self.entry.target.saturating_add(stuck::TOLERANCE);
        under_way || (self.before.target.is_some() && self.before.actual > self.entry.actual)
    }

    /// Whether it makes no progress and is left out.
    #[must_use]
    pub fn is_stuck(&self, now: Moment) -> bool {
        stuck::is_stuck(&self.next.stuck, now)
    }

    /// Whether memory can be had from it.
    #[must_use]
    pub fn is_donor(&self, now: Moment) -> bool {
        let silent = self.before.stats_at.is_none() && self.demand.used.is_none();
        let polled_since = match self.before.polled_at {
            None if self.seen.polling == StatsPolling::Unknown => Some(self.next.first_seen),
            polled_at => polled_at,
        };
        let booting = match polled_since {
            Some(at) => now.since(at) < BOOTS,
            None => now.since(self.next.first_seen) < NEVER_POLLED,
        };
        self.is_managed() && !(silent && booting) && !self.is_stuck(now)
    }

    /// Remembers that it is asked to keep `target`.
    fn is_asked(&mut self, target: Bytes, reason: Reason, now: Moment) {
        if self.before.target != Some(target) {
            let distance = self.entry.actual.abs_diff(target);
            // Somebody who is on the way already, and does not get on, does not begin anew with each correction.
            let same_way = (target > self.entry.actual) == (self.entry.target > self.entry.actual);
            let since = self.next.stuck.progress_at.filter(|_| same_way).unwrap_or(now);
            self.next.stuck.distance = distance;
            self.next.stuck.progress_at = (distance > stuck::TOLERANCE).then_some(since);
        }
        self.next.target = Some(target);
        self.next.target_set_at = Some(now);
        self.next.last_reason = Some((now, reason));
    }

    /// What it needs or is guaranteed and does not hold, within its limit, headroom for growth that is over not counted: what may be taken
    /// from others for it.
    #[must_use]
    pub fn lacks(&self) -> Bytes {
        if !self.is_managed() || self.demand.used.is_none() {
            return Bytes::ZERO;
        }
        self.bounds.clamp(self.demand.lean()).saturating_sub(self.entry.held)
    }

    /// What it uses and the headroom that no guest can do without; nothing where that is not known.
    fn modest(&self) -> Bytes {
        match self.demand.used {
            Some(used) => used.saturating_add(demand::headroom_floor(self.seen.full)).min(self.entry.held),
            None => Bytes::ZERO,
        }
    }

    /// Whether it lacks memory that it uses, or stalls for want of it.
    #[must_use]
    pub fn lacks_firmly(&self) -> bool {
        !self.lacks().is_zero() && (self.demand.stalls || self.demand.firm() > self.entry.held)
    }
}

/// After a reset QEMU goes on reporting the old actual until the new driver has moved the balloon. For
/// [`demand::RESET_SETTLES`] it is believed only where the guest cannot have more available than that, or, without
/// statistics, where it changes; else the guest counts with its full size.
fn believed(entry: Entry, seen: &GuestSeen, before: &GuestState, now: Moment) -> Entry {
    let doubtful = match seen.stats.fresh().and_then(|stats| stats.available) {
        Some(available) => available > entry.actual,
        None => entry.actual == before.actual || before.actual == seen.full,
    };
    let lately = before.reset_at.is_some_and(|at| now.since(at) < demand::RESET_SETTLES);
    if seen.reset || !lately || !doubtful {
        return entry;
    }
    let target = before.target.map_or(seen.full, |_| entry.target);
    let footprint = seen.footprint.latest().copied().unwrap_or(seen.full.saturating_add(entry.beyond));
    let self_deflation = Bytes::ZERO;
    Entry { target, actual: seen.full, held: seen.full, footprint, self_deflation, ..entry }
}

/// The bounds of a guest: those of its class, and no less than a balloon can leave it. What virtio-mem has plugged lies
/// outside the balloon's reach.
fn bounds(class: &Class, seen: &GuestSeen) -> Bounds {
    let of_class = Bounds::of(class, seen.full);
    let plugged = seen.hotplug.latest().map_or(Bytes::ZERO, |hotplug| hotplug.plugged);
    let least = plugged.saturating_add(Config::LEAST_TARGET).min(seen.full);
    Bounds::new(of_class.reservation().max(least), of_class.limit().max(least))
        .expect("both were raised to the same least size")
}

fn why_left_alone(seen: &GuestSeen, class: &Class) -> Option<Verdict> {
    if seen.backend == Backend::QemuOfLibvirt {
        return Some(Verdict::NoBalloon(Absence::OwnedByLibvirt));
    }
    if !class.manage {
        return Some(Verdict::NotManaged);
    }
    if seen.reset {
        return Some(Verdict::Reset);
    }
    if let Some(fence) = seen.fence {
        return Some(Verdict::Fenced(fence));
    }
    seen.balloon.why_not().map(|why| Verdict::NoBalloon(why.clone()))
}

/// Chooses the next changes. Reads no clock, file, environment or randomness.
#[must_use]
pub fn decide(config: &Config, state: &State, seen: &Snapshot) -> Decision {
    let now = seen.taken_at;
    let blank = GuestState::default();
    let mut remembered = state.guests.iter().peekable();
    let mut before = |id: &GuestId| {
        // Both are in order: a merge, where searching for each would cost more than all the rest of its gathering.
        // Equality is tried first, since it is one comparison of pointers as a rule.
        while remembered.next_if(|(other, _)| *other != id && *other < id).is_some() {}
        match remembered.peek() {
            Some((other, guest)) if *other == id => Some(&***guest),
            _ => state.guests.get(id).map(|guest| &**guest),
        }
    };
    // One pass over all guests where it can be one: ten thousand do not fit into a processor's cache.
    let mut arrived = None;
    let gathered = seen.guests.iter().map(|guest| {
        let guest = Guest::new(config, guest, before(&guest.id), &blank, now);
        arrived = arrived.max(guest.arrived_after(now));
        guest
    });
    let mut guests: Vec<Guest<'_>> = gathered.collect();
    let elapsed = state.decided_at.map_or(Span::ZERO, |at| now.since(at));
    let reaction = reaction(state, arrived, elapsed);
    let mut joint_growth = Bytes::ZERO;
    for guest in &mut guests {
        let growth = guest.growth();
        joint_growth = joint_growth.saturating_add(growth);
        guest.next.surge = surge::observe(guest.before.surge, growth, elapsed, reaction, SURGE_MEMORY);
        guest.next.inflating_at = if guest.inflates() { Some(now) } else { guest.before.inflating_at };
        guest.demand =
            demand::estimate(guest.seen, &guest.entry, guest.before, &mut guest.next, now, reaction);
        (guest.next.squeeze, guest.squeal) = squeeze::listen(guest.before, &mut guest.demand, now);
        if !(guest.class.squeeze && guest.demand.has_signs) {
            guest.demand.cache = guest.demand.cache_held;
        }
        guest.next.stuck = match guest.seen.fence {
            Some(_) => stuck::wait(guest.before, now),
            None => stuck::judge(&guest.entry, guest.before, now),
        };
    }
    let joint_surge = surge::observe(state.joint_surge, joint_growth, elapsed, reaction, SURGE_MEMORY);
    let mut scene = survey(config, state, seen, &guests, joint_surge.peak.max(state.joint_surge.recent));
    squeeze_caches(&mut scene, &mut guests);
    entitle(config, &mut scene, &mut guests);
    let (plan, about) = match config.mode {
        Mode::Observe => (Plan::default(), Vec::new()),
        Mode::Manage => phases::order(&scene, &guests, pacing::wishes(&scene, &guests)),
    };
    remember(&mut guests, &plan, &about, now);
    let report = report(config, &scene, &guests);
    let state = State {
        decided_at: Some(now),
        host: scene.host,
        swap: seen.host.swap.fresh().copied().or(state.swap),
        pressure: seen.host.pressure.fresh().copied().or(state.pressure),
        joint_surge,
        reaction: Some(reaction),
        guests: guests.into_iter().map(|guest| (guest.seen.id.clone(), guest.next)).collect(),
    };
    Decision { plan, state, report }
}

/// The time from a decision to memory returned: the longest of those that ended now, and a decaying memory of earlier ones.
fn reaction(state: &State, arrived: Option<Span>, elapsed: Span) -> Span {
    let before = state.reaction.unwrap_or(FIRST_REACTION).as_millis();
    let forgotten = before.saturating_mul(elapsed.as_millis()) / SURGE_MEMORY.as_millis();
    let remembered = Span::from_millis(before.saturating_sub(forgotten));
    remembered.max(arrived.unwrap_or_default()).clamp(SHORTEST_REACTION, LONGEST_REACTION)
}

/// The ledger, the host's state, and what is wanted.
fn survey(config: &Config, state: &State, seen: &Snapshot, guests: &[Guest<'_>], surge_peak: Bytes) -> Scene {
    let single = guests.iter().map(|guest| guest.entry.exposure().min(guest.next.surge.peak)).max();
    let ledger = Ledger::new(
        config,
        seen,
        guests.iter().map(|guest| &guest.entry),
        surge_peak,
        single.unwrap_or_default(),
    );
    let host = host_state::judge(config, state, &seen.host, &ledger, seen.taken_at);
    let unmet = Bytes::sum(guests.iter().map(Guest::lacks));
    let uncovered = match config.commitment {
        Commitment::Strict => !ledger.room.short.is_zero(),
        Commitment::Elastic => true,
    };
    let starving = guests.iter().any(Guest::lacks_firmly);
    Scene {
        now: seen.taken_at,
        commitment: config.commitment,
        self_deflations: config.self_deflations,
        ledger,
        host,
        wanted: unmet.saturating_sub(ledger.room.spare).saturating_add(ledger.room.short),
        unmet,
        urgent: starving || (uncovered && host >= HostState::Hard),
        emergency: uncovered && host == HostState::Low,
        ample: false,
    }
}

/// Squeezes page caches where idle memory alone does not cover what is wanted.
fn squeeze_caches(scene: &mut Scene, guests: &mut [Guest<'_>]) {
    let idle = |guest: &Guest<'_>| guest.entry.held.saturating_sub(guest.demand.lean());
    let covered = Bytes::sum(guests.iter().filter(|guest| guest.is_donor(scene.now)).map(idle));
    let gap = scene.wanted.saturating_sub(covered);
    if gap.is_zero() {
        return;
    }
    let mut squeezable: Vec<usize> = (0..guests.len())
        .filter(|i| {
            let guest = &guests[*i];
            let at_target = stuck::at_target(&guest.entry);
            guest.class.squeeze
                && guest.is_donor(scene.now)
                && guest.lacks() <= dead_band(guest.seen.full)
                && squeeze::may_step(
                    &guest.next.squeeze,
                    &guest.demand,
                    scene.host,
                    at_target,
                    scene.urgent,
                    scene.now,
                )
        })
        .collect();
    squeezable.sort_by(|&a, &b| guests[b].demand.cache.cmp(&guests[a].demand.cache).then(a.cmp(&b)));
    let caches = Bytes::sum(squeezable.iter().map(|&i| guests[i].demand.cache));
    let mut left = gap;
    for index in squeezable {
        if left.is_zero() {
            break;
        }
        let Guest { demand, next, squeezed, .. } = &mut guests[index];
        let step = if scene.urgent {
            demand.cache.mul_div(gap.min(caches).get(), caches.get())
        } else {
            squeeze::gentle_step(demand)
        };
        left = left.saturating_sub(step);
        squeeze::take(&mut next.squeeze, demand, step, scene.now);
        *squeezed = true;
    }
}

/// Stage 2 for all guests that take part in it.
fn entitle(config: &Config, scene: &mut Scene, guests: &mut [Guest<'_>]) {
    let inside: Vec<usize> = (0..guests.len()).filter(|i| takes_part(&guests[*i], scene.now)).collect();
    let mut outside = vec![true; guests.len()];
    for &i in &inside {
        outside[i] = false;
    }
    let selfs_outside: Vec<Bytes> = guests
        .iter()
        .zip(&outside)
        .filter(|(_, out)| **out)
        .map(|(guest, _)| guest.entry.self_deflation)
        .collect();
    let selfs = self_deflations(config, &selfs_outside);
    let pool = pool(scene, guests, &outside);
    let mut claims: Vec<Claim> = inside.iter().map(|&i| claim(&guests[i])).collect();
    let mut fill = Fill::new(pool, &claims, selfs);
    if !fill.meets_all() {
        for (claim, &i) in claims.iter_mut().zip(&inside) {
            claim.demand = guests[i].demand.lean();
            if guests[i].class.squeeze {
                claim.idle = Idle::Last;
            }
        }
        fill = Fill::new(pool, &claims, selfs);
    }
    let shares = fill.shares();
    scene.ample =
        inside.iter().zip(&shares).all(|(&i, share)| *share >= claims_limit(&guests[i]).round_down(PAGE_4K));
    for (&i, share) in inside.iter().zip(&shares) {
        guests[i].entitlement = *share;
    }
    if guests.iter().any(|guest| guest.is_managed() && guest.entitlement < guest.modest()) {
        spare_the_modest(scene, guests);
    }
}

/// A guest that uses no more than the shares alone would give it is never asked for what it uses: guests that are stuck,
/// were reset, cannot be resized or hold more than their share must not take it out on their neighbours. Where that
/// leaves too little, the commitment waits: breaking it later is better than killing in a guest now. Self-deflations
/// that might come take nothing that a guest uses either: one guest larger than the pool would leave nothing to others.
fn spare_the_modest(scene: &Scene, guests: &mut [Guest<'_>]) {
    let pool = scene.ledger.for_guests().saturating_sub(fixed_costs(guests, &vec![false; guests.len()]));
    let equal_need: Vec<Claim> =
        guests.iter().map(|guest| Claim { demand: guest.bounds.limit(), ..claim(guest) }).collect();
    let fair = fill(pool, &equal_need, SelfDeflations::default());
    for (guest, fair) in guests.iter_mut().zip(fair).filter(|(guest, _)| guest.is_managed()) {
        guest.entitlement = guest.entitlement.max(guest.modest().min(fair)).round_down(PAGE_4K);
    }
}

fn self_deflations<'a>(config: &Config, outside: &'a [Bytes]) -> SelfDeflations<'a> {
    let k = if config.commitment == Commitment::Strict { config.self_deflations } else { 0 };
    SelfDeflations { k, outside }
}

/// Whether a guest's size follows from the water-fill; the others keep what they hold.
fn takes_part(guest: &Guest<'_>, now: Moment) -> bool {
    guest.is_managed() && !guest.is_stuck(now)
}

/// A guest without fresh statistics is offered no more than it holds.
fn claims_limit(guest: &Guest<'_>) -> Bytes {
    if guest.demand.used.is_some() {
        guest.bounds.limit()
    } else {
        guest.bounds.limit().min(guest.entry.held)
    }
}

fn claim(guest: &Guest<'_>) -> Claim {
    let limit = claims_limit(guest);
    let bounds =
        Bounds::new(guest.bounds.reservation().min(limit), limit).expect("the smaller of both is no larger");
    Claim {
        bounds,
        demand: guest.demand.total(),
        shares: guest.class.shares,
        idle: Idle::Taxed(guest.class.idle_tax),
        self_full: if guest.deflates_itself() { guest.seen.full } else { Bytes::ZERO },
    }
}

/// What the guests that take part may keep together.
///
/// Strict: what is left for guests, less all overheads and what the others hold. Elastic: what they hold now and the room
/// beside it; where the room is short, less what is short, twice as much while the strict measure is not reached: memory
/// that a guest holds without using it frees nothing when it is taken away.
fn pool(scene: &Scene, guests: &[Guest<'_>], outside: &[bool]) -> Bytes {
    let strict = scene.ledger.for_guests().saturating_sub(fixed_costs(guests, outside));
    if scene.commitment == Commitment::Strict {
        return strict;
    }
    let held =
        Bytes::sum(guests.iter().zip(outside).filter(|(_, out)| !**out).map(|(guest, _)| guest.entry.held));
    let room = scene.ledger.room;
    if room.short.is_zero() {
        return held.saturating_add(room.spare).max(strict.saturating_sub(scene.ledger.keep_free));
    }
    let once = held.saturating_sub(room.short);
    let twice = once.saturating_sub(room.short);
    twice.max(strict.saturating_sub(scene.ledger.keep_free).min(once))
}

/// What the water-fill cannot change: all that comes on top of what guests hold, and what those outside it hold.
fn fixed_costs(guests: &[Guest<'_>], outside: &[bool]) -> Bytes {
    Bytes::sum(guests.iter().zip(outside).map(|(guest, out)| {
        let cost = guest.entry.strict_cost();
        if *out { cost } else { cost.saturating_sub(guest.entry.held) }
    }))
}

/// Writes down what the next decision must know.
fn remember(guests: &mut [Guest<'_>], plan: &Plan, about: &[usize], now: Moment) {
    for (action, &index) in plan.actions.iter().zip(about) {
        let guest = &mut guests[index];
        match action.change {
            Change::SetTarget(target) => guest.is_asked(target, action.reason, now),
            Change::PollStats(_) => {
                guest.polled_now = true;
                let found = guest.before.polled_before.unwrap_or(guest.seen.polling);
                guest.next.polled_before = Some(found);
                guest.next.polled_at = Some(now);
            }
        }
    }
}

fn report(config: &Config, scene: &Scene, guests: &[Guest<'_>]) -> Report {
    let ledger = &scene.ledger;
    let breach = match config.commitment {
        Commitment::Strict => ledger.room.short,
        Commitment::Elastic => ledger.surge.saturating_sub(ledger.free()),
    };
    let mut savings = Savings::default();
    let reported = guests.iter().map(|guest| {
        save(&mut savings, guest);
        guest_report(config, scene, guest)
    });
    let guests = reported.collect();
    let host = HostReport {
        capacity: ledger.capacity,
        reserve: ledger.reserve,
        footprints: ledger.footprints,
        other: ledger.other,
        free: ledger.free(),
        state: scene.host,
        reach: ledger.reach,
        self_deflation: ledger.self_deflation,
        surge: ledger.surge,
        room: ledger.room.spare,
        breach,
        unmet: scene.unmet,
        savings,
    };
    Report { host, guests }
}

/// Adds what could be had from `guest`.
fn save(savings: &mut Savings, guest: &Guest<'_>) {
    let Some(stats) = guest.seen.stats.fresh() else { return };
    let Some(balloon) = guest.seen.balloon.latest() else { return };
    let resident = guest.entry.footprint.saturating_sub(guest.seen.overhead_bound);
    let beyond_use = resident.saturating_sub(guest.demand.used.unwrap_or_default());
    let free = stats.free.unwrap_or_default().min(beyond_use);
    if !balloon.free_page_reporting {
        savings.free_page_reporting = savings.free_page_reporting.saturating_add(free);
    }
    let headroom = guest.demand.headroom;
    savings.ballooning = savings.ballooning.saturating_add(beyond_use.saturating_sub(headroom));
}

fn guest_report(config: &Config, scene: &Scene, guest: &Guest<'_>) -> GuestReport {
    let entry = &guest.entry;
    GuestReport {
        id: guest.seen.id.clone(),
        class: Arc::clone(guest.class_name),
        footprint: guest.seen.footprint.latest().copied(),
        reach: entry.reach(),
        actual: entry.actual,
        full: guest.seen.full,
        used: guest.demand.used,
        cache: guest.demand.cache,
        headroom: guest.demand.headroom,
        demand: guest.demand.total().min(guest.bounds.limit()),
        entitlement: guest.entitlement,
        target: guest.next.target,
        verdict: verdict(config, scene, guest),
    }
}

fn verdict(config: &Config, scene: &Scene, guest: &Guest<'_>) -> Verdict {
    let changed_to = guest.next.target.filter(|_| guest.next.target_set_at == Some(scene.now));
    if let Some(verdict) = &guest.left_alone {
        return verdict.clone();
    }
    if config.mode == Mode::Observe {
        return Verdict::Observed;
    }
    if let Some(target) = changed_to {
        return if target >= guest.entry.target { Verdict::Grown } else { Verdict::Shrunk };
    }
    let stuck = &guest.next.stuck;
    if let Some(until) = stuck.until.filter(|until| scene.now < *until) {
        let since = stuck.progress_at.map_or(Span::ZERO, |at| scene.now.since(at));
        return Verdict::Stuck { since, until, uncooperative: stuck.uncooperative };
    }
    if guest.polled_now {
        return Verdict::PollingStarted;
    }
    if guest.demand.used.is_none() {
        return Verdict::NoStats(guest.seen.stats.why_not().cloned().unwrap_or(Absence::Unsupported));
    }
    if !stuck::at_target(&guest.entry) {
        return Verdict::UnderWay;
    }
    if guest.lacks() > dead_band(guest.seen.full) {
        return Verdict::WaitsForMemory { lacks: guest.lacks() };
    }
    match guest.next.squeeze.rest_until.filter(|until| scene.now < *until) {
        Some(until) => Verdict::Resting { until },
        None => Verdict::Steady,
    }
}
