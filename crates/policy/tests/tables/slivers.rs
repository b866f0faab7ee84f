//! Less than a dead band (16 MiB of a guest of 1024) is left alone, unless it is all that a guest can get.

use memtide_model::{Class, Config, GuestSeen};

use super::{known, targets, tick, with_classes};
use crate::common::{guest, mib, snapshot};

/// "a" is guaranteed all of its 1024.
fn guaranteed() -> Config {
    with_classes(&[("a", Class { reservation: mib(1024), ..Class::default() })])
}

/// The decision about guests that are known already.
fn decided(config: &Config, capacity: u64, guests: &[GuestSeen]) -> Vec<(String, u64)> {
    let state = known(config, &snapshot(1000, capacity, guests.to_vec()));
    let decision = tick(config, &state, &snapshot(60_000, capacity, guests.to_vec()));
    targets(&decision).into_iter().map(|(name, target)| (name.to_owned(), target)).collect()
}

#[test]
fn one_who_waits_gets_the_slivers_of_others() {
    // "a" lacks 44. Nothing is spare, and the other four are entitled to 44 less than they hold together: 11 each.
    let guests = [
        guest("a", 980, 900),
        guest("b", 504, 100),
        guest("c", 504, 100),
        guest("d", 504, 100),
        guest("e", 504, 100),
    ];
    let capacity = 980 + 4 * 504 + 5 * 60;
    assert_eq!(
        decided(&guaranteed(), capacity, &guests),
        ["b", "c", "d", "e"].map(|name| (name.to_owned(), 493))
    );
    // "a" can have the spare memory, and then lacks less than a dead band.
    assert_eq!(decided(&guaranteed(), capacity + 30, &guests), [("a".to_owned(), 1010)]);
}

#[test]
fn one_who_lacks_little_is_left_with_it() {
    // "a" lacks 14, less than a dead band; nothing is spare.
    let guests = [guest("a", 1010, 900), guest("b", 504, 100)];
    let decided = decided(&guaranteed(), 1010 + 504 + 120, &guests);
    assert!(decided.iter().all(|(name, _)| name != "a"), "{decided:?}");
}

#[test]
fn a_sliver_is_granted_where_no_more_than_another_one_is_left() {
    // "a" lacks 24: 10 are spare, and "b", which cannot be changed, gives nothing. 14 remain.
    let mut b = guest("b", 504, 500);
    b.told.fence = Some(memtide_model::Fence::Paused);
    let guests = [guest("a", 1000, 900), b.clone()];
    assert_eq!(decided(&guaranteed(), 1000 + 504 + 120 + 10, &guests), [("a".to_owned(), 1010)]);
    // It lacks 44: a grant of 10 would leave 34.
    let guests = [guest("a", 980, 900), b];
    assert_eq!(decided(&guaranteed(), 980 + 504 + 120 + 10, &guests), []);
}
