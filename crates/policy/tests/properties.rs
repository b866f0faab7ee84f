//! Properties of every decision, on random hosts with random states.
//!
//! A failure prints its smallest input. The usual run draws the same 256 cases for each property each time. `PROPTEST_CASES=10000 cargo test -p
//! memtide-policy --test properties` searches among others, and finds some: CONTRIBUTING.md lists the properties that hold only nearly always.
#![allow(clippy::unwrap_used, reason = "what a test does not find fails it")]

#[path = "common/random.rs"]
mod random;

use std::collections::BTreeMap;

use memtide_model::{
    Bounds, Bytes, Config, GuestId, GuestReport, GuestSeen, GuestState, GuestStats, Keeps, PAGE_4K, Plan,
    Proof, Reading, Report, Request, Snapshot, Span, State, Subject,
};

use memtide_policy::share::tiers::{Bid, SelfDeflations, fill};
use memtide_policy::{Violation, offers};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use random::{Table, case, decide, quiet_case};

const PAGE: Bytes = PAGE_4K.bytes();

fn settings() -> ProptestConfig {
    let searches = std::env::var_os("PROPTEST_CASES").is_some();
    let rng_seed = if searches { RngSeed::Random } else { RngSeed::Fixed(2026) };
    ProptestConfig { failure_persistence: None, rng_seed, ..ProptestConfig::default() }
}

fn targets(plan: &Plan) -> BTreeMap<GuestId, Bytes> {
    let target = |request| match request {
        Request::SetTarget(target) => Some(target),
        _ => None,
    };
    plan.actions.iter().filter_map(|a| target(a.request).map(|t| (a.guest().unwrap().clone(), t))).collect()
}

/// Whether a guest's size follows from the water-fill.
fn takes_part(config: &Config, after: &State, seen: &Snapshot, guest: &GuestSeen) -> bool {
    let (_, class) = config.class_of(guest.id.name(), guest.user);
    let stuck = after.guests.get(&guest.id).and_then(|guest| guest.stuck.until);
    let is_vain = |state: &GuestState| matches!(state.gain.proof, Proof::Vain { .. });
    class.manage
        && guest.has_driver()
        && guest.told.balloon.fresh().is_some()
        && guest.told.fence.is_none()
        && guest.capabilities.can_be_set
        && after.guests.get(&guest.id).is_none_or(|guest| guest.hold.is_none())
        && !after.guests.get(&guest.id).is_some_and(|state| is_vain(state))
        && stuck.is_none_or(|until| until <= seen.taken_at)
}

/// The bounds of its class, and at least 32 MiB besides the plugged memory.
fn bounds(config: &Config, guest: &GuestSeen) -> Bounds {
    let of_class = Bounds::of(config.class_of(guest.id.name(), guest.user).1, guest.told.full);
    let plugged = guest.told.hotplug.latest().map_or(Bytes::ZERO, |hotplug| hotplug.plugged);
    let least = plugged.saturating_add(Bytes::from_mib(32)).min(guest.told.full);
    Bounds::new(of_class.reservation().max(least), of_class.limit().max(least)).unwrap()
}

fn knows(guest: &GuestSeen) -> bool {
    guest.has_driver() && guest.told.stats.fresh().is_some_and(|stats| stats.available.is_some())
}

/// The guest's actual or target, whichever is larger.
fn held(guest: &GuestSeen, line: &GuestReport) -> Bytes {
    line.reach.saturating_sub(guest.cost.overhead_bound).saturating_sub(guest.unplugged_request())
}

fn rank(report: &Report) -> BTreeMap<&GuestId, (Bytes, Bytes)> {
    report.guests.iter().map(|guest| (&guest.id, (guest.entitlement, guest.demand))).collect()
}

proptest! {
    #![proptest_config(settings())]

    /// The sum of reach never rises above the capacity, reservation ≤ target ≤ limit, and every other promise of `check`.
    #[test]
    fn a_plan_keeps_its_promises(case in case()) {
        let mut state = State::default();
        for step in 0..case.moments.len() {
            let seen = case.seen(step, &state);
            let decision = decide(&case.config, &state, &seen);
            let broken = random::broken(&case.config, &state, &seen, &decision.plan);
            prop_assert!(broken.is_empty(), "{broken:?}\n{}", Table(&decision.report));
            state = decision.state;
            // What people are shown of it.
            for guest in &seen.guests {
                let offered = offers(&case.config, &state, &seen, &guest.id).unwrap();
                let sum = Bytes::sum(offered.offers.iter().map(|offer| offer.bought));
                prop_assert!(sum <= guest.told.full.max(guest.actual()), "{offered:?}");
            }
        }
    }

    /// reservation ≤ entitlement ≤ limit, for guests whose size follows from the water-fill.
    #[test]
    fn an_entitlement_lies_within_its_bounds(case in case()) {
        let (state, seen) = case.warmed();
        let decision = decide(&case.config, &state, &seen);
        for (guest, report) in seen.guests.iter().zip(&decision.report.guests) {
            if knows(guest) && takes_part(&case.config, &decision.state, &seen, guest) {
                let bounds = bounds(&case.config, guest);
                let given = report.entitlement;
                prop_assert!(given.saturating_add(PAGE) > bounds.reservation(), "{}", Table(&decision.report));
                prop_assert!(given <= bounds.limit(), "{}", Table(&decision.report));
            }
        }
    }

    /// More shares never mean less of the memory that a guest needs, except for the page of rounding.
    #[test]
    fn more_shares_never_mean_less_memory(case in case(), index in 0_usize..12, more in 1_u32..5000) {
        let index = index % case.shapes.len();
        let (state, seen) = case.warmed();
        // The guest has a class of its own, so that no other guest's shares change.
        let mut alone = case.config.clone();
        let name = case.name(index);
        let mut class = alone.class_of(&name, None).1.clone();
        class.patterns = vec![name];
        alone.classes.insert("alone".into(), class.clone());
        let mut richer = alone.clone();
        class.shares += more;
        richer.classes.insert("alone".into(), class);
        let few = decide(&alone, &state, &seen);
        let many = decide(&richer, &state, &seen);
        let id = case.id(index);
        if let (Some((few_given, demand)), Some((many_given, _))) =
            (rank(&few.report).get(&id), rank(&many.report).get(&id))
        {
            let (few_useful, many_useful) = (few_given.min(demand), many_given.min(demand));
            prop_assert!(
                many_useful.saturating_add(PAGE) >= *few_useful,
                "{id}: {many_useful} < {few_useful}\n{}\n{}", Table(&few.report), Table(&many.report)
            );
        }
    }

    /// Other names in the same order give the same decision.
    #[test]
    fn names_do_not_matter(case in case()) {
        let (state, seen) = case.warmed();
        let renamed = |id: &GuestId| {
            let (place, suffix) = id.name().split_once('-').unwrap();
            GuestId::new(&format!("host-{place}x-{suffix}"), id.start() + 7, "another boot")
        };
        let mut state_renamed = state.clone();
        state_renamed.guests = state.guests.iter().map(|(id, guest)| (renamed(id), guest.clone())).collect();
        let mut seen_renamed = seen.clone();
        for guest in &mut seen_renamed.guests {
            guest.id = renamed(&guest.id);
        }
        for order in &mut seen_renamed.orders {
            order.guest = renamed(&order.guest);
        }
        let mut plain = decide(&case.config, &state, &seen);
        for action in &mut plain.plan.actions {
            action.subject = Subject::Guest(renamed(action.guest().unwrap()));
        }
        let other = decide(&case.config, &state_renamed, &seen_renamed);
        prop_assert_eq!(plain.plan, other.plan);
        prop_assert_eq!(plain.report.host, other.report.host);
    }

    /// Guests in another order get the same entitlements. Exceptions: the page that goes to the first of equal remainders, and
    /// caches of equal size, of which the first is squeezed.
    #[test]
    fn the_order_of_the_guests_does_not_matter(case in case()) {
        let (state, seen) = case.warmed();
        let last = 99;
        let turned = |id: &GuestId| {
            let (place, suffix) = id.name().split_once('-').unwrap();
            let place: u64 = place.trim_start_matches("vm").parse().unwrap();
            GuestId::new(&format!("vm{:02}-{suffix}", last - place), 1, "boot")
        };
        let mut state_turned = state.clone();
        state_turned.guests = state.guests.iter().map(|(id, guest)| (turned(id), guest.clone())).collect();
        let mut seen_turned = seen.clone();
        for guest in &mut seen_turned.guests {
            guest.id = turned(&guest.id);
        }
        for order in &mut seen_turned.orders {
            order.guest = turned(&order.guest);
        }
        seen_turned.guests.reverse();
        let plain = decide(&case.config, &state, &seen);
        let other = decide(&case.config, &state_turned, &seen_turned);
        let mut caches: Vec<Bytes> = plain.report.guests.iter().map(|g| g.cache).collect();
        caches.sort_unstable();
        prop_assume!(caches.windows(2).all(|pair| pair[0] < pair[1] || pair[0].is_zero()));
        let others = rank(&other.report);
        for (id, (given, demand)) in rank(&plain.report) {
            let (turned_given, turned_demand) = others[&turned(id)];
            prop_assert_eq!(demand, turned_demand, "{}", id);
            prop_assert!(
                given.abs_diff(turned_given) <= PAGE.saturating_add(PAGE),
                "{id}: {given} or {turned_given}\n{}\n{}", Table(&plain.report), Table(&other.report)
            );
        }
    }

    /// If guests are quiet and reach their targets at once, the host becomes quiet, too, for at least 100 ticks.
    #[test]
    fn a_fixed_point_is_quiet(case in quiet_case()) {
        let mut state = State::default();
        let mut seen = case.seen(0, &state);
        let (mut tick, mut last_change) = (0, 0);
        while tick < last_change + 100 {
            tick += 1;
            seen.taken_at = seen.taken_at.after(Span::from_secs(1));
            let decision = decide(&case.config, &state, &seen);
            for (id, target) in targets(&decision.plan) {
                let guest = seen.guests.iter_mut().find(|guest| guest.id == id).unwrap();
                obey(guest, target);
                last_change = tick;
            }
            state = decision.state;
            prop_assert!(
                last_change <= QUIET_AFTER,
                "changed at {tick} s: {:#?}\n{}", decision.plan, Table(&decision.report)
            );
        }
    }

    /// A guest without fresh statistics never gains unless the operator released it, and is not squeezed while every demand fits.
    #[test]
    fn a_silent_guest_neither_gains_nor_loses(case in case()) {
        let mut case = case;
        for class in case.config.classes.values_mut() {
            // Idle memory of guests that must not be squeezed counts beside the demands of the others.
            class.squeeze = true;
        }
        let (state, seen) = case.warmed();
        let decision = decide(&case.config, &state, &seen);
        let report = &decision.report;
        let inside = |guest: &&GuestSeen| takes_part(&case.config, &decision.state, &seen, guest);
        let reports = rank(report);
        let fits = seen.guests.iter().filter(inside).all(|guest| {
            let (given, demand) = reports[&guest.id];
            given.saturating_add(PAGE) > demand
        });
        let targets = targets(&decision.plan);
        let released = |guest: &&GuestSeen| {
            decision.state.guests[&guest.id].hold.is_some_and(|hold| hold.keeps == Keeps::Limit)
        };
        for guest in seen.guests.iter().filter(|guest| !knows(guest) && !released(guest)) {
            let Some(target) = targets.get(&guest.id) else { continue };
            let limit = bounds(&case.config, guest).limit();
            let pending = state.guests.get(&guest.id).and_then(|g| g.target).unwrap_or(guest.actual());
            let line = report.guests.iter().find(|line| line.id == guest.id).unwrap();
            prop_assert!(*target <= held(guest, line), "{} gains\n{}", guest.id, Table(report));
            if fits {
                let least = pending.min(guest.actual()).min(limit).saturating_sub(PAGE);
                prop_assert!(*target >= least, "{} loses\n{}", guest.id, Table(report));
            }
        }
    }

    /// False statistics do not harm neighbours: a guest that uses no more than the shares alone would give it keeps that, as far as it has
    /// it.
    #[test]
    fn lies_win_nothing(case in case(), liar in 0_usize..12, lies in lies()) {
        let mut seen = case.seen(0, &State::default());
        prop_assume!(!seen.guests.is_empty());
        seen.orders.clear();
        let liar = liar % seen.guests.len();
        seen.guests[liar].told.stats = Reading::now(lies);
        let decision = decide(&case.config, &State::default(), &seen);
        let report = &decision.report;
        let fair = fair_shares(&case.config, &seen, report);
        for (index, (guest, line)) in seen.guests.iter().zip(&report.guests).enumerate() {
            let Some(used) = line.used.filter(|_| index != liar) else { continue };
            if takes_part(&case.config, &decision.state, &seen, guest) {
                let in_use = bounds(&case.config, guest).clamp(used.saturating_add(line.headroom));
                let due = in_use.min(fair[index]).min(held(guest, line)).min(touched(guest, line));
                let given = line.entitlement;
                prop_assert!(given.saturating_add(PAGE) >= due, "{}: {given} < {due}\n{}", line.id, Table(report));
            }
        }
    }

    /// The same inputs give the same decision, even after the state went through the journal.
    #[test]
    fn a_replay_decides_the_same(case in case()) {
        let (state, seen) = case.warmed();
        let written = serde_json::to_string(&state).unwrap();
        let read: State = serde_json::from_str(&written).unwrap();
        prop_assert_eq!(&read, &state);
        let first = decide(&case.config, &state, &seen);
        prop_assert_eq!(&decide(&case.config, &state, &seen), &first);
        prop_assert_eq!(&decide(&case.config, &read, &seen), &first);
    }

    /// Numbers at the edge of 64 bits are handled like any others.
    #[test]
    fn no_number_is_too_large(case in case(), edges in vec((0_usize..12, 0_usize..16, edge()), 1..12)) {
        let mut state = State::default();
        for step in 0..case.moments.len() {
            let mut seen = case.seen(step, &state);
            for (guest, field, value) in &edges {
                distort(&mut seen, *guest, *field, *value);
            }
            let decision = decide(&case.config, &state, &seen);
            let broken = random::broken(&case.config, &state, &seen, &decision.plan);
            // At the edge of 64 bits, sums of the policy end at the edge, and those of the check do not: they can disagree about the end of a
            // hold. A guest whose numbers contradict each other can be asked for more than the others lack: the check refuses that.
            let is_expected =
                |broken: &Violation| matches!(broken, Violation::NotOurs(_) | Violation::Unwanted { .. });
            let broken: Vec<_> = broken.into_iter().filter(|(_, broken)| !is_expected(broken)).collect();
            prop_assert!(broken.is_empty(), "{broken:?}\n{}", Table(&decision.report));
            state = decision.state;
        }
    }
}

/// A host becomes quiet within this many seconds: an elastic one with little room gives a little every five seconds.
const QUIET_AFTER: u64 = 2000;

/// The guest keeps exactly `target`. It gives touched memory that it does not use first, then its cache, then untouched memory,
/// and its programs' memory only if nothing else is left.
fn obey(guest: &mut GuestSeen, target: Bytes) {
    let before = guest.actual();
    let Reading::Fresh { value: balloon, .. } = &mut guest.told.balloon else { return };
    balloon.actual = target;
    let most = target.saturating_add(guest.cost.overhead_bound);
    if let Reading::Fresh { value, .. } = &mut guest.cost.footprint {
        *value = most.min(*value);
    }
    let Reading::Fresh { value: stats, .. } = &mut guest.told.stats else { return };
    let used = before.saturating_sub(stats.available.unwrap_or_default()).min(target);
    if let Reading::Fresh { value, .. } = &mut guest.cost.footprint {
        let needs = guest.cost.overhead.saturating_add(used);
        let freed = before.saturating_sub(target).min(value.saturating_sub(needs));
        *value = value.saturating_sub(freed);
    }
    let available = target.saturating_sub(used);
    let cache = stats.disk_caches.unwrap_or_default().min(available);
    stats.available = Some(available);
    stats.disk_caches = Some(cache);
    stats.free = Some(available.saturating_sub(cache));
}

/// The shares if every guest needed all that it may have, without self-deflations.
fn fair_shares(config: &Config, seen: &Snapshot, report: &Report) -> Vec<Bytes> {
    let beyond = seen.guests.iter().zip(&report.guests).map(|(guest, line)| {
        line.reach.max(line.footprint.unwrap_or_default()).saturating_sub(held(guest, line))
    });
    let everything = for_guests(report).saturating_sub(Bytes::sum(beyond));
    let everybody: Vec<Bid> = seen.guests.iter().map(|guest| equal_need(config, guest)).collect();
    fill(everything, &everybody, SelfDeflations::default())
}

fn for_guests(report: &Report) -> Bytes {
    let host = &report.host;
    host.capacity.saturating_sub(Bytes::sum([host.reserve, host.other, host.torn]))
}

/// A bid for everything that the guest may have.
fn equal_need(config: &Config, guest: &GuestSeen) -> Bid {
    let (_, class) = config.class_of(guest.id.name(), guest.user);
    let bounds = bounds(config, guest);
    let limit = if knows(guest) { bounds.limit() } else { bounds.limit().min(guest.actual()) };
    let least = bounds.reservation().min(limit);
    Bid { sizes: [least, limit, limit, limit, limit], shares: class.shares, self_full: Bytes::ZERO }
}

/// The part of its memory that the host backs.
fn touched(guest: &GuestSeen, line: &GuestReport) -> Bytes {
    let held = held(guest, line);
    line.footprint.map_or(held, |cost| cost.saturating_sub(guest.cost.overhead).min(held))
}

fn lies() -> impl Strategy<Value = GuestStats> {
    let size = || {
        option::weighted(
            0.9,
            prop_oneof![(0_u64..8192).prop_map(Bytes::from_mib), any::<u64>().prop_map(Bytes::new)],
        )
    };
    let count = || option::weighted(0.9, any::<u64>());
    (size(), size(), size(), size(), [count(), count(), count(), count(), count()]).prop_map(
        |(total, free, available, disk_caches, [stalls, direct, scans, faults, kills])| GuestStats {
            total,
            free,
            available,
            disk_caches,
            alloc_stalls: stalls,
            direct_scans: direct,
            async_scans: scans,
            major_faults: faults,
            oom_kills: kills,
            ..GuestStats::default()
        },
    )
}

fn edge() -> impl Strategy<Value = u64> {
    prop_oneof![Just(u64::MAX), Just(u64::MAX - 4095), Just(1 << 63), Just(0), Just(1), any::<u64>()]
}

/// Sets one number of a snapshot.
fn distort(seen: &mut Snapshot, guest: usize, field: usize, value: u64) {
    let bytes = Bytes::new(value);
    match field {
        0 => seen.host.capacity = bytes,
        1 => seen.host.other = bytes,
        2 => seen.taken_at = memtide_model::Moment::from_millis(value),
        _ => {}
    }
    let guests = seen.guests.len().max(1);
    let Some(guest) = seen.guests.get_mut(guest % guests) else { return };
    match field {
        3 => guest.told.full = bytes,
        4 => guest.cost.footprint = Reading::now(bytes),
        5 => guest.cost.overhead_bound = bytes,
        _ => {}
    }
    if let (6, Reading::Fresh { value, .. }) = (field, &mut guest.told.balloon) {
        value.actual = bytes;
    }
    if let (7, Reading::Fresh { value, .. }) = (field, &mut guest.told.hotplug) {
        value.requested = bytes;
    }
    let Reading::Fresh { value: stats, .. } = &mut guest.told.stats else { return };
    match field {
        8 => stats.available = Some(bytes),
        9 => stats.free = Some(bytes),
        10 => stats.disk_caches = Some(bytes),
        11 => stats.alloc_stalls = Some(value),
        12 => stats.async_scans = Some(value),
        13 => stats.swapped_in = Some(bytes),
        14 => stats.total = Some(bytes),
        15 => stats.oom_kills = Some(value),
        _ => {}
    }
}
