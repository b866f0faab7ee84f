//! Free memory that the operator wants back.

use memtide_model::{Config, GuestSeen, Hold, Keeps, Order, Ordered, Reading, Space, Tmpfs, TmpfsId};

use super::{deflating, known, targets, tick, told};
use crate::common::{OVERHEAD, config, elastic, guest, id, mib, snapshot, stats};

/// It keeps 1024, uses 100, and has 400 of page cache. With the 80 that its kernel keeps free, it needs 580.
fn cached() -> GuestSeen {
    told(deflating(guest("a", 1024, 100)), |s| *s = stats(mib(1024), mib(100), mib(400)))
}

/// The targets of a decision on an ample host that was ordered to fetch this much.
fn ordered(config: &Config, guest: &GuestSeen, bytes: u64) -> Vec<u64> {
    let seen = |millis| snapshot(millis, 8_192, vec![guest.clone()]);
    let mut then = seen(60_000);
    then.orders.push(Order { guest: id("a"), ordered: Ordered::Fetch(mib(bytes)) });
    let decision = tick(config, &known(config, &seen(1_000)), &then);
    targets(&decision).iter().map(|(_, target)| *target).collect()
}

#[test]
fn a_balloon_takes_it_although_nobody_lacks_any() {
    for config in [config(), elastic()] {
        assert_eq!(ordered(&config, &cached(), 60), [964]);
    }
}

#[test]
fn the_guest_keeps_what_it_needs() {
    for config in [config(), elastic()] {
        assert_eq!(ordered(&config, &cached(), 1_000), [580]);
    }
    let small = told(deflating(guest("a", 580, 100)), |s| *s = stats(mib(580), mib(100), mib(400)));
    assert_eq!(ordered(&elastic(), &small, 60), [1024], "it has nothing to spare, and gets what is spare");
}

#[test]
fn a_guest_that_is_held_or_may_not_deflate_its_own_balloon_stays_as_it_is() {
    let strict = told(guest("a", 1024, 100), |s| *s = stats(mib(1024), mib(100), mib(400)));
    assert_eq!(ordered(&elastic(), &strict, 60), []);
    let mut then = snapshot(60_000, 8_192, vec![cached()]);
    let hold = Hold { keeps: Keeps::Size, until: None };
    then.orders.push(Order { guest: id("a"), ordered: Ordered::Leave(hold) });
    then.orders.push(Order { guest: id("a"), ordered: Ordered::Fetch(mib(60)) });
    let state = known(&elastic(), &snapshot(1_000, 8_192, vec![cached()]));
    assert_eq!(targets(&tick(&elastic(), &state, &then)), []);
}

#[test]
fn a_guest_that_gives_more_to_others_than_was_ordered_does_so() {
    // "b" uses all that it keeps and lacks its headroom; nothing is free.
    let lacks = deflating(guest("b", 600, 600));
    let seen =
        |millis| snapshot(millis, 1024 + 600 + 2 * OVERHEAD.whole_mib(), vec![cached(), lacks.clone()]);
    let of_a = |order: Option<u64>| {
        let mut then = seen(60_000);
        then.orders.extend(order.map(|bytes| Order { guest: id("a"), ordered: Ordered::Fetch(mib(bytes)) }));
        let decision = tick(&config(), &known(&config(), &seen(1_000)), &then);
        targets(&decision).into_iter().find(|(name, _)| *name == "a").map(|(_, target)| target)
    };
    let gives = of_a(None).unwrap();
    assert!((965..1_024).contains(&gives), "{gives}");
    assert_eq!(of_a(Some(16)), Some(gives));
    assert_eq!(of_a(Some(60)), Some(964));
}

#[test]
fn a_guest_that_gives_for_its_tmpfs_gives_what_was_ordered() {
    // "b" lacks its headroom. Nothing is free of the tmpfs of both, and much of the host.
    let seen = |millis| {
        let mut seen = snapshot(millis, 8_192, vec![cached(), deflating(guest("b", 600, 600))]);
        seen.guests.iter_mut().for_each(|guest| guest.tmpfs = Some(TmpfsId(26)));
        let space = Reading::now(Space { size: mib(1_624), free: mib(0) });
        seen.tmpfs = vec![Tmpfs { id: TmpfsId(26), at: "/dev/shm".to_owned(), space }];
        seen
    };
    let of_a = |order: Option<u64>| {
        let mut then = seen(60_000);
        then.orders.extend(order.map(|bytes| Order { guest: id("a"), ordered: Ordered::Fetch(mib(bytes)) }));
        let decision = tick(&config(), &known(&config(), &seen(1_000)), &then);
        targets(&decision).into_iter().find(|(name, _)| *name == "a").map(|(_, target)| target)
    };
    let gives = of_a(None).unwrap();
    assert!((581..1_024).contains(&gives), "{gives}");
    assert_eq!(of_a(Some(1_000)), Some(580));
}
