//! The rule of qmemman, the memory manager of Qubes OS.
//!
//! **Problem.** A desktop runs many guests, and the user works in one or two of them. The guests should have nearly all of the host's
//! memory, and the busiest ones most of it.
//!
//! **Rule.** A guest prefers 1.3 times its memory in use, at least 200 MiB and at most its full size. 50 MiB stay free.
//!
//! - *Enough memory* for all preferences: each guest gets its preference and a part of the rest in proportion to it. If that exceeds a
//!   guest's full size, the other guests divide the excess evenly. 0.1 % is left out for rounding.
//! - *Too little*: guests with more than they prefer (donors) give all of the difference, unless it is less than 10 MiB. The free memory,
//!   less these gifts, goes to the other guests in proportion to their preferences. So if the gifts exceed the free memory, the other
//!   guests get nothing in this round, but in a later one.
//!
//! A round is carried out only if it moves more than 150 MiB in total, or gives more than 15 MiB to a guest below its preference, or if
//! less than 35 MiB are free. Guests that give come first. If a guest's growth would leave less than 45 MiB free, qmemman waits 0.1 s, up
//! to five times. Then it gives this guest the free memory, and ends the round. Donors that have given nothing are left out of the next
//! rounds until they give memory or need some.
//!
//! **When.** A guest reports its memory in use after a change of more than 30000 KiB (half of that if it rises above 10/13 of the guest's
//! size). A round begins at each report, and when a guest comes or goes.
//!
//! **Left out.** qmemman also makes room for a guest before it starts; here guests start without asking. Dom0's boost of 350 MiB: there is
//! no dom0. Xen's cost of each page: the memory for guests already excludes all overheads.
//!
//! **Differences.** Xen's guests never have more memory than the host, so qmemman never meets free memory below zero. Guests of KVM can
//! start that way. If so, a donor never waits, and after five waits without success nothing counts as free. Guests of Qubes OS look at
//! their memory every 0.1 s; QEMU polls its guests once a second.
//!
//! **A guest without statistics** is left alone until its first report. After that, its last report counts. Its memory is not free.
//!
//! **Source.** QubesOS/qubes-core-admin: `qubes/qmemman/algo.py` (preferences and rounds), `qubes/qmemman/systemstate.py` (the least of a
//! round, the order and the waits); QubesOS/qubes-linux-utils: `qmemman/meminfo-writer.c` and `qmemman/qubes-meminfo-writer.service` (when
//! a guest reports).

use memtide_model::{Bytes, Span};

/// How often guests report statistics: QEMU's shortest interval. Guests of Qubes OS report every 0.1 s.
pub const POLL_EVERY: Span = Span::from_secs(1);
/// How long a round waits before it reads again (`BALLOON_DELAY`).
pub const WAIT: Span = Span::from_millis(100);
/// How often a round waits for one guest's turn.
const TRIES: u32 = 5;

/// A guest's preference as a multiple of its memory in use (`CACHE_FACTOR`).
const CACHE_FACTOR: f64 = 1.3;
/// The least that a guest prefers, in bytes (`MIN_PREFMEM`).
const LEAST_PREFERENCE: i64 = mib(200);
/// The reserve that stays free, in bytes (`XEN_FREE_MEM_LEFT`).
const KEPT: i64 = mib(50);
/// The free memory that each request must leave, in bytes: nine tenths of [`KEPT`].
const LEAST_KEPT: i64 = mib(45);
/// A round that moves more than this is carried out, in bytes (`MIN_TOTAL_MEMORY_TRANSFER`).
const LEAST_TRANSFER: i64 = mib(150);
/// A round that gives more than this to a guest below its preference is also carried out, in bytes (`MIN_MEM_CHANGE_WHEN_UNDER_PREF`).
const LEAST_HELP: i64 = mib(15);
/// A smaller gift is left out, in bytes.
const LEAST_GIFT: i64 = mib(10);
/// The part of each computed size that is actually given.
const ROUNDING: f64 = 0.999;
/// A guest reports a larger change of its memory in use, in bytes: the service's threshold is 30000 KiB.
const LEAST_NEWS: u64 = 30_000 << 10;

const fn mib(mib: i64) -> i64 {
    mib << 20
}

/// A guest, as qmemman sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Guest {
    /// Its size (`mem_current`).
    pub current: Bytes,
    /// Its last target (`last_target`).
    pub target: Bytes,
    /// Its full size (`mem_max`).
    pub max: Bytes,
    /// Its memory in use in its last report (`mem_used`); `None` before the first report.
    pub used: Option<Bytes>,
    /// Whether it has given nothing of its last gift (`no_progress`).
    pub stuck: bool,
}

impl Guest {
    /// Its memory, including all that it may take at any time (`mem_actual`).
    fn holds(&self) -> i64 {
        signed(self.current.max(self.target))
    }

    /// Its preference, if it takes part; `None` before its first report, and while it is stuck.
    fn preference(&self) -> Option<i64> {
        if self.stuck {
            return None;
        }
        let used = float(signed(self.used?)) * CACHE_FACTOR;
        Some(whole(used.min(float(signed(self.max))).max(float(LEAST_PREFERENCE))))
    }

    /// Lets a stuck guest take part again if it has given its gift, or needs memory.
    fn forgive(&mut self) {
        let asked = Self { stuck: false, ..*self };
        let Some(preference) = asked.preference() else { return };
        if self.holds() <= signed(self.target) + KEPT / 2 || self.holds() < preference {
            self.stuck = false;
        }
    }
}

/// Whether a guest of this `size` reports `used`, if its last report was `last`.
#[must_use]
pub fn reports(last: Option<Bytes>, used: Bytes, size: Bytes) -> bool {
    let Some(last) = last.filter(|last| !last.is_zero()) else { return true };
    let change = used.abs_diff(last).get();
    let (used_kib, size_kib) = (used.get() >> 10, size.get() >> 10);
    change > LEAST_NEWS || (used > last && used_kib / 10 > size_kib.div_ceil(13) && change > LEAST_NEWS / 2)
}

/// A round of requests in progress. A guest is identified by its index in the slice of guests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Round {
    requests: Vec<(usize, i64)>,
    next: usize,
    tries: u32,
    /// The memory of each guest at the start.
    held: Vec<i64>,
}

/// The outcome of a round so far.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Turn {
    /// The targets to write, in their order. The guests' `target` fields already contain them.
    pub targets: Vec<(usize, Bytes)>,
    /// Whether the round continues after [`WAIT`].
    pub waits: bool,
}

/// Begins a round, if there is anything significant to do. `for_guests` is the host's memory for guests.
#[must_use]
pub fn begin(for_guests: Bytes, guests: &mut [Guest]) -> Option<Round> {
    guests.iter_mut().for_each(Guest::forgive);
    let free = free(for_guests, guests);
    let requests = balance(free - KEPT, guests);
    let held = guests.iter().map(Guest::holds).collect();
    is_significant(free, guests, &requests).then_some(Round { requests, next: 0, tries: TRIES, held })
}

/// Carries a round out as far as there is free memory. The guests must be the same as at the start of the round. The caller updates their
/// `current` first; this function changes their `target` and `stuck`.
#[must_use]
pub fn carry_out(for_guests: Bytes, guests: &mut [Guest], round: &mut Round) -> Turn {
    let mut free = free(for_guests, guests);
    let mut turn = Turn { targets: Vec::new(), waits: false };
    while let Some(&(i, size)) = round.requests.get(round.next) {
        let held = guests[i].holds();
        let gives = size < held;
        // If free memory is below zero, a donor does not wait for others.
        let fits = free - (size - held) >= LEAST_KEPT || (gives && free < 0);
        let size = if round.tries == 0 {
            blame(guests, round);
            round.requests.truncate(round.next + 1);
            (free.max(0) + held - KEPT).clamp(0, signed(guests[i].max))
        } else if fits {
            size
        } else {
            round.tries -= 1;
            turn.waits = true;
            return turn;
        };
        let target = unsigned(size);
        if target != guests[i].target {
            guests[i].target = target;
            turn.targets.push((i, target));
        }
        free += held - guests[i].holds();
        round.next += 1;
        round.tries = TRIES;
    }
    turn
}

/// Marks stuck donors: they come before the waiting guest, are far above their targets and have given nothing.
fn blame(guests: &mut [Guest], round: &Round) {
    for &(i, _) in &round.requests[..round.next] {
        let held = guests[i].holds();
        guests[i].stuck |= held > signed(guests[i].target) + KEPT / 4 && held == round.held[i];
    }
}

/// Free memory. Memory that was granted to a guest but not yet taken is not free.
fn free(for_guests: Bytes, guests: &[Guest]) -> i64 {
    signed(for_guests) - guests.iter().map(Guest::holds).sum::<i64>()
}

/// The sizes to ask for, those that free memory first. `free` is the memory to distribute.
fn balance(free: i64, guests: &[Guest]) -> Vec<(usize, i64)> {
    let known: Vec<(usize, i64)> =
        guests.iter().enumerate().filter_map(|(i, guest)| Some((i, guest.preference()?))).collect();
    let needed: i64 = known.iter().map(|&(i, preference)| preference - guests[i].holds()).sum();
    if free - needed > 0 {
        with_enough(free - needed, guests, &known)
    } else {
        with_too_little(free, guests, &known)
    }
}

fn with_enough(available: i64, guests: &[Guest], known: &[(usize, i64)]) -> Vec<(usize, i64)> {
    let preferences = float(known.iter().map(|&(_, preference)| preference).sum());
    let max = |i: usize| signed(guests[i].max);
    // The excess beyond full sizes, and the number of guests that can take some of it.
    let (mut left, mut takers) = (0, 0);
    let mut sizes: Vec<(usize, i64)> = Vec::with_capacity(known.len());
    for &(i, preference) in known {
        let part = float(preference) / preferences * float(available);
        let size = whole(ROUNDING * (float(preference) + part));
        if size > max(i) {
            left += size - max(i);
        } else {
            takers += 1;
        }
        sizes.push((i, size.min(max(i))));
    }
    while left > 0 && takers > 0 {
        let bonus = whole(ROUNDING * (float(left) / float(takers)));
        left = 0;
        for (i, size) in sizes.iter_mut().filter(|(i, size)| *size < max(*i)) {
            if *size + bonus >= max(*i) {
                left += *size + bonus - max(*i);
                takers -= 1;
            }
            *size = (*size + bonus).min(max(*i));
        }
    }
    let (mut give, take): (Vec<_>, Vec<_>) =
        sizes.into_iter().partition(|&(i, size)| size < guests[i].holds());
    give.extend(take);
    give
}

fn with_too_little(free: i64, guests: &[Guest], known: &[(usize, i64)]) -> Vec<(usize, i64)> {
    let gives = |&(i, preference): &(usize, i64)| {
        let held = guests[i].holds();
        preference < held || held >= signed(guests[i].max)
    };
    let (donors, others): (Vec<_>, Vec<_>) = known.iter().copied().partition(gives);
    let mut requests = donors;
    requests.retain(|&(i, preference)| guests[i].holds() - preference >= LEAST_GIFT);
    // The sign is the original's: gifts are not distributed before they have arrived.
    let rest = free - requests.iter().map(|&(i, preference)| guests[i].holds() - preference).sum::<i64>();
    if rest < 0 {
        return requests;
    }
    let preferences = float(others.iter().map(|&(_, preference)| preference).sum());
    requests.extend(others.into_iter().map(|(i, preference)| {
        let size = float(guests[i].holds()) + float(preference) / preferences * float(rest);
        (i, whole(ROUNDING * size).min(signed(guests[i].max)))
    }));
    requests
}

/// Whether a round is worth it.
fn is_significant(free: i64, guests: &[Guest], requests: &[(usize, i64)]) -> bool {
    if KEPT - free > LEAST_HELP {
        return true;
    }
    let change = |&(i, size): &(usize, i64)| size - signed(guests[i].target);
    let helps = requests.iter().any(|request| {
        let guest = &guests[request.0];
        let target = signed(guest.target);
        let below = target > 0 && guest.preference().is_some_and(|preference| target < preference);
        below && change(request) > LEAST_HELP
    });
    helps
        || requests.iter().map(|request| change(request).abs()).sum::<i64>() + (free - KEPT).abs()
            > LEAST_TRANSFER
}

fn signed(bytes: Bytes) -> i64 {
    i64::try_from(bytes.get()).unwrap_or(i64::MAX)
}

fn unsigned(bytes: i64) -> Bytes {
    Bytes::new(u64::try_from(bytes).unwrap_or(0))
}

/// Exact below 8 PiB.
fn float(bytes: i64) -> f64 {
    bytes as f64
}

#[allow(
    clippy::cast_possible_truncation,
    reason = "an amount of memory, cut to whole bytes as the original does"
)]
fn whole(bytes: f64) -> i64 {
    bytes as i64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(mib: u64) -> Bytes {
        Bytes::from_mib(mib)
    }

    /// A guest that has reached its target.
    fn guest(size: u64, used: u64) -> Guest {
        Guest {
            current: bytes(size),
            target: bytes(size),
            max: bytes(4096),
            used: Some(bytes(used)),
            stuck: false,
        }
    }

    fn in_mib(requests: &[(usize, i64)]) -> Vec<(usize, i64)> {
        requests.iter().map(|&(i, size)| (i, size >> 20)).collect()
    }

    fn balanced(for_guests: u64, guests: &[Guest]) -> Vec<(usize, i64)> {
        in_mib(&balance(free(bytes(for_guests), guests) - KEPT, guests))
    }

    #[test]
    fn enough_memory_is_divided_by_preferences() {
        // Preferences 650 and 1300. Free: 4000 − 2000 − 50 = 1950. The first can give 350, the second needs 300: 2000. As 1:2 → 0.999 ×
        // (650 + 666.7) = 1315.4 and 0.999 × (1300 + 1333.3) = 2630.7.
        let guests = [guest(1000, 500), guest(1000, 1000)];
        assert_eq!(balanced(4000, &guests), [(0, 1315), (1, 2630)]);
        // The second takes at most 1200: 1430.7 are left over, and 0.999 of that goes to the first: 2744.6.
        let guests = [guests[0], Guest { max: bytes(1200), ..guests[1] }];
        assert_eq!(balanced(4000, &guests), [(0, 2744), (1, 1200)]);
        assert_eq!(balanced(4000, &[]), []);
    }

    #[test]
    fn donors_come_first() {
        // Preferences 1300 and 650. Free: 10. The second gives 2350, the first needs 800: 1560. As 2:1 → 0.999 × (1300 + 1040) =
        // 2337.7 and 0.999 × (650 + 520) = 1168.8.
        assert_eq!(balanced(3560, &[guest(500, 1000), guest(3000, 500)]), [(1, 1168), (0, 2337)]);
    }

    #[test]
    fn with_too_little_memory_gifts_are_handed_out_a_round_later() {
        // Preferences 650 and 2600. Free: 0. The first can give 350, the second needs 1600. Nothing is free for it yet: 0 − 350.
        assert_eq!(balanced(2050, &[guest(1000, 500), guest(1000, 2000)]), [(0, 650)]);
        // Then 350 are free. As 650:2600 → 0.999 × (650 + 70) = 719.3 and 0.999 × (1000 + 280) = 1278.7.
        assert_eq!(balanced(2050, &[guest(650, 500), guest(1000, 2000)]), [(0, 719), (1, 1278)]);
        // Free: 0. The first could give 9, less than 10, so nothing is distributed: 0.999 × 1000.
        assert_eq!(balanced(1709, &[guest(659, 500), guest(1000, 2000)]), [(1, 999)]);
    }

    #[test]
    fn a_preference_has_bounds_and_needs_a_report() {
        let preference = |guest: Guest| guest.preference().map(|bytes| bytes >> 20);
        // 1.3 × 100 = 130 < 200; 1.3 × 4000 = 5200 > 4096.
        assert_eq!(preference(guest(1000, 100)), Some(200));
        assert_eq!(preference(guest(1000, 4000)), Some(4096));
        assert_eq!(preference(Guest { used: None, ..guest(1000, 0) }), None);
        assert_eq!(preference(Guest { stuck: true, ..guest(1000, 100) }), None);
        // The silent guest's memory is not free. Free: 2050 − 2000 − 50 = 0. The first could give 350, but gets all of it back: 0.999 ×
        // 1000.
        let silent = Guest { used: None, ..guest(1000, 0) };
        assert_eq!(balanced(2050, &[guest(1000, 500), silent]), [(0, 999)]);
    }

    #[test]
    fn a_small_round_is_left_out() {
        // Preferences 520 each, free: 0. 0.999 × (520 + 480) = 999: changes of 1 and 1.
        let even = [guest(1000, 400), guest(1000, 400)];
        assert_eq!(begin(bytes(2050), &mut even.clone()), None);
        // 36 free are 14 too little; 34 are 16 too little, more than 15.
        assert_eq!(begin(bytes(2036), &mut even.clone()), None);
        assert!(begin(bytes(2034), &mut even.clone()).is_some());
        // 0.999 × (520 + 549) = 1068: 68 + 68 moved, and 138 more than needed are free: 274 > 150.
        assert!(begin(bytes(2188), &mut even.clone()).is_some());
        // Preferences 1040 and 260, free: 0. 0.999 × (1040 + 16) = 1054.9 and 0.999 × (260 + 4) = 263.7. Only 34.9 and 36.3 move, but the
        // first is below its preference and gains more than 15.
        assert!(begin(bytes(1370), &mut [guest(1020, 800), guest(300, 200)]).is_some());
        // From 1041, above its preference: 0.999 × (1040 + 32.8) = 1071.7, and no guest is below its preference.
        assert_eq!(begin(bytes(1391), &mut [guest(1041, 800), guest(300, 200)]), None);
    }

    /// One guest below its preference of 650, and one donor. Free: 50. The donor gives 980 and the first needs 150: 830. As 650:520 → 0.999
    /// × (650 + 461.1) = 1110 and 0.999 × (520 + 368.9) = 888.
    fn needy_and_giver() -> ([Guest; 2], Round) {
        let mut guests = [guest(500, 500), guest(1500, 400)];
        let round = begin(bytes(2050), &mut guests).unwrap();
        (guests, round)
    }

    fn turn(guests: &mut [Guest], round: &mut Round) -> (Vec<(usize, u64)>, bool) {
        let turn = carry_out(bytes(2050), guests, round);
        (turn.targets.iter().map(|&(i, target)| (i, target.whole_mib())).collect(), turn.waits)
    }

    #[test]
    fn a_guest_that_grows_waits_for_donors() {
        let (mut guests, mut round) = needy_and_giver();
        assert_eq!(turn(&mut guests, &mut round), (vec![(1, 888)], true));
        // Free: 2050 − 500 − 1200 = 350 < 610 + 45.
        guests[1].current = bytes(1200);
        assert_eq!(turn(&mut guests, &mut round), (vec![], true));
        // Free: 2050 − 500 − 888 = 662; 52 remain.
        guests[1].current = guests[1].target;
        assert_eq!(turn(&mut guests, &mut round), (vec![(0, 1110)], false));
    }

    #[test]
    fn five_waits_are_enough() {
        let (mut guests, mut round) = needy_and_giver();
        assert_eq!(turn(&mut guests, &mut round), (vec![(1, 888)], true));
        guests[1].current = bytes(1200);
        for _ in 2..=5 {
            assert_eq!(turn(&mut guests, &mut round), (vec![], true));
        }
        // It gets the free memory: 500 + 350 − 50. The other guest has given something, so it is not stuck.
        assert_eq!(turn(&mut guests, &mut round), (vec![(0, 800)], false));
        assert!(!guests[1].stuck);
    }

    #[test]
    fn a_guest_that_gives_nothing_is_left_out_until_it_does() {
        let (mut guests, mut round) = needy_and_giver();
        while turn(&mut guests, &mut round).1 {}
        // Free: 50. The first gets 500 + 50 − 50, its present size.
        assert_eq!((guests[0].target, guests[1].stuck), (bytes(500), true));
        // Alone, it needs 150, and nothing is free.
        assert_eq!(begin(bytes(2050), &mut guests), None);
        assert!(guests[1].stuck);
        // 900 is within 25 of 888.
        guests[1].current = bytes(900);
        assert!(begin(bytes(2050), &mut guests).is_some());
        assert!(!guests[1].stuck);
        // So is a guest that needs more than it has: 1.3 × 1300 = 1690.
        guests[1] = Guest { current: bytes(1500), used: Some(bytes(1300)), stuck: true, ..guests[1] };
        guests[1].forgive();
        assert!(!guests[1].stuck);
    }

    #[test]
    fn with_less_than_nothing_free_all_give_at_once() {
        // Preferences 390 each. Free: 1000 − 1600 − 50 = −650, and they can give 820: 170. 0.999 × (390 + 85) = 474.5.
        let mut guests = [guest(800, 300), guest(800, 300)];
        let mut round = begin(bytes(1000), &mut guests).unwrap();
        let turn = carry_out(bytes(1000), &mut guests, &mut round);
        let targets: Vec<u64> = turn.targets.iter().map(|(_, target)| target.whole_mib()).collect();
        assert_eq!((targets, turn.waits), (vec![474, 474], false));
    }

    #[test]
    fn guests_report_large_changes() {
        let kib = |base: u64, more: u64| Bytes::from_kib((base << 10) + more);
        assert!(reports(None, bytes(1), bytes(1300)));
        assert!(!reports(Some(bytes(100)), kib(100, 30_000), bytes(1300)));
        assert!(reports(Some(bytes(100)), kib(100, 30_001), bytes(1300)));
        assert!(reports(Some(kib(100, 30_001)), bytes(100), bytes(1300)));
        // 10/13 of 1300 are 1000. A rise of 20 MiB is more than 15000 KiB and less than 30000.
        assert!(reports(Some(bytes(981)), bytes(1001), bytes(1300)));
        assert!(!reports(Some(bytes(970)), bytes(990), bytes(1300)));
        assert!(!reports(Some(bytes(1021)), bytes(1001), bytes(1300)));
    }
}
