//! Sizes that nobody has proved move no memory.

use memtide_model::{
    Absence, Backend, Balloon, Bytes, Capabilities, Commitment, Config, Cost, Fence, GuestId, GuestSeen,
    GuestStats, HostSeen, Hotplug, Mode, Moment, Plan, Polling, Reading, Snapshot, Span, State, Told,
    WallClock,
};

const MACHINE: Bytes = Bytes::from_mib(4096);
const CLAIM: Bytes = Bytes::from_mib(900 << 10);
const TOUCHED: Bytes = Bytes::from_mib(4);

/// A guest that has touched 4 MiB. Its VMM has told `full` if it is `told`.
fn claims(full: Bytes, told: bool) -> GuestSeen {
    let overhead_bound = Bytes::from_mib(20);
    let told = match told {
        true => Told::nothing(full, Absence::NoBalloon),
        false => Told::claimed(full, Absence::NoControl),
    };
    GuestSeen {
        id: GuestId::new("liar", 9, "boot"),
        pid: 9,
        user: Some(0),
        backend: Backend::new("QEMU"),
        capabilities: Capabilities::BALLOON,
        cost: Cost::of(Reading::now(TOUCHED), Bytes::from_mib(3), overhead_bound, &Absence::Unsupported),
        tmpfs: None,
        withheld: None,
        told,
    }
}

fn bounded(mut guest: GuestSeen, mapped: Option<Bytes>) -> GuestSeen {
    guest.bound_claims(mapped, MACHINE);
    guest
}

#[test]
fn a_size_that_no_vmm_has_told_counts_no_further_than_memory_is_mapped() {
    let mib = Bytes::from_mib;
    let guest = bounded(claims(mib(2048), false), Some(mib(512)));
    assert_eq!((guest.told.full, guest.cost.overhead_bound), (mib(512), mib(20)));
    let all = bounded(claims(mib(512), false), Some(mib(2048)));
    assert_eq!(all.told.full, mib(512), "it claims less than it has mapped");
    let none = bounded(claims(mib(2048), false), Some(Bytes::ZERO));
    assert_eq!(none.told.full, mib(1), "what it has touched beyond its VMM's own memory");
    // Its mappings are not read yet.
    let unread = bounded(claims(mib(2048), false), None);
    assert_eq!((unread.told.full, unread.cost.overhead_bound), (TOUCHED, Bytes::ZERO));
    // Its VMM has told the size.
    let told = bounded(claims(mib(2048), true), Some(Bytes::ZERO));
    assert_eq!((told.told.full, told.told.fence), (mib(2048), None));
}

#[test]
fn a_guest_whose_size_its_vmm_does_not_tell_is_only_observed() {
    let balloon = Balloon { actual: MACHINE, deflate_on_oom: true, free_page_reporting: true };
    let mut guest = claims(Bytes::from_mib(512), false);
    guest.told.balloon = Reading::now(balloon);
    assert_eq!(bounded(guest, Some(Bytes::from_mib(512))).told.fence, Some(Fence::Unproved));
}

#[test]
fn a_guest_that_keeps_more_than_its_size_counts_at_that_and_is_only_observed() {
    let balloon = Balloon { actual: Bytes::from_mib(1024), deflate_on_oom: true, free_page_reporting: true };
    let mut guest = claims(Bytes::from_mib(128), true);
    guest.told.balloon = Reading::now(balloon);
    let seen = bounded(guest.clone(), None);
    let fence = Fence::Contradicts { full: Bytes::from_mib(128) };
    assert_eq!(
        (seen.told.full, seen.actual(), seen.told.fence),
        (balloon.actual, balloon.actual, Some(fence))
    );
    guest.told.full = balloon.actual;
    assert_eq!(bounded(guest.clone(), None), guest, "nothing contradicts");
    guest.told.full = Bytes::from_mib(128);
    guest.told.balloon = Reading::now(Balloon { actual: CLAIM, ..balloon });
    assert_eq!(bounded(guest, None).told.fence, Some(Fence::Oversized { claims: CLAIM }));
}

#[test]
fn a_guest_as_large_as_the_machine_is_believed_and_a_larger_one_is_not() {
    let as_large = Bytes::from_mib(4608);
    assert_eq!(bounded(claims(as_large, true), None).told.full, as_large);
    let larger = as_large.saturating_add(Bytes::from_mib(1));
    let guest = bounded(claims(larger, true), Some(larger));
    assert_eq!(guest.told.fence, Some(Fence::Oversized { claims: larger }));
    assert_eq!((guest.told.full, guest.cost.overhead_bound), (TOUCHED, Bytes::ZERO));
    let claimed = bounded(claims(larger, false), Some(Bytes::ZERO));
    assert_eq!(
        claimed.told.fence,
        Some(Fence::Oversized { claims: larger }),
        "also if only its command line names the size"
    );
}

/// A guest at work that could use more memory, and one whose page cache is cold.
fn neighbours() -> Vec<GuestSeen> {
    let neighbour = |name: &str, used: u64, cache: u64| {
        let mib = Bytes::from_mib;
        let actual = mib(1024);
        let stats = GuestStats {
            total: Some(actual),
            free: Some(mib(1024 - used - cache)),
            available: Some(mib(1024 - used)),
            disk_caches: Some(mib(cache)),
            major_faults: Some(0),
            alloc_stalls: Some(0),
            ..GuestStats::default()
        };
        let balloon = Balloon { actual, deflate_on_oom: true, free_page_reporting: true };
        let mut guest = claims(mib(2048), true);
        guest.id = GuestId::new(name, 1, "boot");
        guest.cost = Cost::of(Reading::now(mib(used + cache)), mib(10), mib(30), &Absence::Unsupported);
        guest.told.balloon = Reading::now(balloon);
        guest.told.stats = Reading::now(stats);
        guest.told.polling = Polling::Every(Span::from_secs(1));
        guest
    };
    vec![neighbour("busy", 980, 30), neighbour("calm", 200, 600)]
}

/// Half a minute of decisions beside these guests. The plans, without anything about the liar.
fn plans(commitment: Commitment, beside: &[GuestSeen]) -> Vec<Plan> {
    let config = Config { mode: Mode::Manage, commitment, ..Config::default() };
    let mut state = State::default();
    let mut plans = Vec::new();
    for second in 0..30_u64 {
        let mut guests = [neighbours(), beside.to_vec()].concat();
        for guest in &mut guests {
            let target = state.guests.get(&guest.id).and_then(|guest| guest.target);
            if let (Reading::Fresh { value, .. }, Some(target)) = (&mut guest.told.balloon, target) {
                value.actual = target;
            }
        }
        guests.sort_by(|a, b| a.id.cmp(&b.id));
        let others = Bytes::sum(beside.iter().filter_map(|guest| guest.cost.footprint.latest().copied()));
        let other = Bytes::from_mib(600).saturating_sub(others);
        let seen = Snapshot {
            taken_at: Moment::from_millis(60_000 + second * 1_000),
            wall: WallClock(0),
            host: HostSeen::of(MACHINE, other),
            guests,
            tmpfs: Vec::new(),
            orders: Vec::new(),
        };
        let decision = crate::common::decide(&config, &state, &seen);
        state = decision.state;
        let mut plan = decision.plan;
        plan.actions.retain(|action| action.guest().is_some_and(|id| id.name() != "liar"));
        plans.push(plan);
    }
    plans
}

#[test]
fn a_claim_of_900_gib_by_a_process_of_4_mib_moves_no_byte_in_either_commitment() {
    let balloon = Balloon { actual: CLAIM, deflate_on_oom: true, free_page_reporting: false };
    let mut with_a_monitor = claims(CLAIM, true);
    with_a_monitor.told.balloon = Reading::now(balloon);
    with_a_monitor.told.stats =
        Reading::now(GuestStats { available: Some(Bytes::ZERO), ..GuestStats::default() });
    let mut that_plugs = claims(Bytes::from_mib(512), true);
    that_plugs.told.hotplug = Reading::now(Hotplug { requested: CLAIM, plugged: Bytes::ZERO, most: CLAIM });
    that_plugs.told.full = TOUCHED;
    let mut with_a_code_buffer = claims(TOUCHED, true);
    with_a_code_buffer.cost.overhead_bound = CLAIM;
    for commitment in [Commitment::Strict, Commitment::Elastic] {
        let without = plans(commitment, &[]);
        assert!(without.iter().any(|plan| !plan.actions.is_empty()), "there is something to disturb");
        for (liar, mapped) in [
            (claims(CLAIM, false), None),
            (claims(CLAIM, false), Some(Bytes::ZERO)),
            (claims(CLAIM, false), Some(CLAIM)),
            (claims(CLAIM, true), None),
            (with_a_monitor.clone(), Some(CLAIM)),
            (that_plugs.clone(), Some(CLAIM)),
            (with_a_code_buffer.clone(), Some(CLAIM)),
        ] {
            let liar = bounded(liar, mapped);
            assert_eq!(
                plans(commitment, std::slice::from_ref(&liar)),
                without,
                "{commitment:?} beside {liar:?}"
            );
        }
    }
    // The rule is what keeps it from that.
    assert_ne!(plans(Commitment::Strict, &[with_a_monitor]), plans(Commitment::Strict, &[]));
}
