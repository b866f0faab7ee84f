//! Which guests are asked at a tick, and for what.
//!
//! **Problem.** A poll costs both sides some fifty microseconds, and the guest an interrupt. To ask a hundred guests four times a
//! second would cost more than all decisions together.
//!
//! **Rule.** A VMM polls its guest's statistics by itself, and can be made to ask at once (*out of turn*). Few quiet guests are asked
//! out of turn, together [`POLLS_PER_SECOND`] times a second, the one that waited longest first. If there are more than [`FEW`],
//! the VMM's own statistics are read as soon as they are due, once a second for each guest, at a tick or between two. That halves
//! the exchanges, and a stall is seen just as early. Statistics that are read between two ticks end the interval if they show want
//! ([`Evidence`]), so ticks of many guests, which cost more, can be fewer. A quiet guest whose statistics are not due waits at most
//! [`LONGEST`].
//!
//! A guest that moves is asked at each tick, out of turn if guests are few. A guest moves if it was asked for a change or changed its
//! size within [`MOVES`] or since the tick before began, or if its footprint changed by more than [`STIR`] since the tick before.
//! A new guest is always asked out of turn. A guest of which an event told is asked at the next tick, at most once in
//! [`LONGEST`].
//!
//! What a process costs is read together with its monitor, and at least every [`LONGEST`]; if guests are few, at each tick.

use memtide_model::{
    Action, BalloonCounters, Bytes, GuestId, GuestSeen, GuestStats, Moment, Polling, Reading, Span, Told,
};
use memtide_policy::belief::evidence::Evidence;
use memtide_policy::belief::need::{dead_band, is_full};

/// Polls a second of few quiet guests together.
const POLLS_PER_SECOND: u64 = 80;
/// Up to this many guests are few: each is asked twice a second.
const FEW: usize = 40;
/// The longest that a quiet guest is not asked if no statistics are due: how long a stall may stay unseen.
const LONGEST: Span = Span::from_millis(1_000);
/// How long a driver's answer may take to reach us: statistics are due this long after the VMM asked for them. A driver that takes
/// longer is asked again at the next look.
const ON_THE_WAY: Span = Span::from_millis(30);
/// A guest counts as moving this long after a change of its target or its size, and at the next tick.
const MOVES: Span = Span::from_millis(600);
/// A footprint that changes by more than this between two ticks is that of a guest that moves.
const STIR: Bytes = Bytes::from_mib(4);

/// What a guest is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask {
    /// What its monitor has.
    InTurn,
    /// Statistics that are made for it.
    OutOfTurn,
}

/// Who was asked when, and who moves.
#[derive(Debug, Default)]
pub struct Asking {
    /// Ordered by identity.
    guests: Vec<(GuestId, Last)>,
    /// Where the guest was that was looked up last: the next one is asked for next.
    cursor: usize,
    began: Option<Moment>,
    /// When the tick before began.
    began_before: Option<Moment>,
}

#[derive(Debug)]
struct Last {
    /// What it is asked for at this tick if it is quiet.
    turn: Option<Ask>,
    asked_at: Moment,
    /// When its footprint was read.
    weighed_at: Moment,
    /// When the VMM's next statistics are due.
    stats_due: Option<Moment>,
    /// The last statistics, and when they were made.
    told: Option<(BalloonCounters, Moment)>,
    moved_at: Option<Moment>,
    /// When it was asked because of an event.
    told_of_at: Option<Moment>,
    stirs: bool,
    /// The target that was asked for last.
    asked_to_keep: Option<Bytes>,
    size: Bytes,
    footprint: Option<Bytes>,
}

impl Asking {
    /// A tick begins: chooses who is asked in turn.
    pub fn begin(&mut self, now: Moment) {
        let elapsed = self.began.map_or(LONGEST, |began| now.since(began)).as_millis();
        self.began_before = self.began.replace(now);
        let few = self.are_few();
        let mut waiting = Vec::new();
        for (_, last) in &mut self.guests {
            last.turn = None;
            match last.stats_due.filter(|_| !few) {
                Some(due) if due <= now => last.turn = Some(Ask::InTurn),
                Some(_) => {}
                None => waiting.push(last),
            }
        }
        let count = waiting.len() as u64;
        let period = (count * 1_000 / POLLS_PER_SECOND).clamp(1, LONGEST.as_millis());
        let quota = usize::try_from((count * elapsed).div_ceil(period)).unwrap_or(usize::MAX);
        waiting.sort_by_key(|last| last.asked_at);
        waiting.into_iter().take(quota).for_each(|last| last.turn = Some(Ask::OutOfTurn));
    }

    /// Whether guests are so few that each is asked out of turn, and none needs a look between two ticks.
    pub fn are_few(&self) -> bool {
        self.guests.len() <= FEW
    }

    /// Whether a guest is asked at this tick, and for what.
    pub fn ask(&mut self, guest: &GuestId) -> Option<Ask> {
        let (few, before, now) = (self.are_few(), self.began_before, self.began?);
        let Some(last) = self.last(guest) else { return Some(Ask::OutOfTurn) };
        let ask = match last.moves(before, now) {
            true if few => Ask::OutOfTurn,
            true => Ask::InTurn,
            false => last.turn?,
        };
        last.asked_at = now;
        Some(ask)
    }

    /// Those whose statistics are due between two ticks, in their order: they are asked in turn now.
    pub fn due(&mut self, now: Moment) -> Vec<GuestId> {
        let is_due = |last: &Last| last.stats_due.is_some_and(|due| due <= now);
        let due = self.guests.iter_mut().filter(|(_, last)| is_due(last));
        due.map(|(id, last)| {
            last.asked_at = now;
            id.clone()
        })
        .collect()
    }

    /// Takes note of what a guest told between two ticks; of nothing if it has not answered yet. Whether it shows want: by its
    /// counters, or because it took more than it was asked to keep.
    pub fn heard(&mut self, guest: &GuestId, told: &Told, now: Moment) -> bool {
        let (Some(last), Reading::Fresh { value, .. }) = (self.last(guest), &told.stats) else {
            return false;
        };
        let most = last.asked_to_keep.map_or(last.size, |target| target.max(last.size));
        let takes = told.balloon.fresh().is_some_and(|balloon| {
            balloon.deflate_on_oom && balloon.actual > most.saturating_add(dead_band(told.full))
        });
        let before = last.told.take();
        last.hears(&told.stats, told.polling, now);
        let (Some((before, since)), Some((_, made))) = (before, &last.told) else { return takes };
        let evidence =
            Evidence::of_balloon(Some(&before), value, made.since(since), is_full(value, told.full));
        takes || evidence.is_squeal() || evidence.kills
    }

    /// Whether the footprint of a guest is to be read at this tick.
    pub fn weigh(&mut self, guest: &GuestId) -> bool {
        let (few, now) = (self.are_few(), self.began.unwrap_or_default());
        let Some(last) = self.last(guest) else { return true };
        let was_asked = last.asked_at > last.weighed_at;
        let weighs = few || was_asked || now.since(last.weighed_at) >= LONGEST;
        if weighs {
            last.weighed_at = now;
        }
        weighs
    }

    /// An event has told of a guest.
    pub fn told_of(&mut self, guest: &GuestId) {
        let (now, few) = (self.began.unwrap_or_default(), self.are_few());
        let Some(last) = self.last(guest) else { return };
        // A guest may produce as many events as it likes.
        if last.told_of_at.is_none_or(|at| now.since(at) >= LONGEST) {
            last.told_of_at = Some(now);
            last.turn.get_or_insert(if few { Ask::OutOfTurn } else { Ask::InTurn });
        }
    }

    /// A change was asked of a guest.
    pub fn changed(&mut self, action: &Action, now: Moment) {
        if let Some(last) = action.guest().and_then(|guest| self.last(guest)) {
            last.moved_at = Some(now);
            if let Some(target) = action.request.size() {
                last.asked_to_keep = Some(target);
            }
        }
    }

    /// Notes what all guests look like at the end of observing.
    pub fn note(&mut self, guests: &[GuestSeen], now: Moment) {
        self.keep_only(guests, now);
        assert_eq!(self.guests.len(), guests.len(), "each guest has a row");
        for (guest, (_, last)) in guests.iter().zip(&mut self.guests) {
            let (size, footprint) = (guest.actual(), guest.cost.footprint.fresh().copied());
            if last.size != size {
                last.moved_at = Some(now);
            }
            last.stirs = match (last.footprint, footprint) {
                (Some(before), Some(now)) => before.abs_diff(now) > STIR,
                _ => false,
            };
            (last.size, last.footprint) = (size, footprint);
            last.hears(&guest.told.stats, guest.told.polling, now);
        }
    }

    /// Has one row for each of `guests` (ordered by identity).
    fn keep_only(&mut self, guests: &[GuestSeen], now: Moment) {
        if self.guests.iter().map(|(id, _)| id).eq(guests.iter().map(|guest| &guest.id)) {
            return;
        }
        let mut before = std::mem::take(&mut self.guests).into_iter().peekable();
        for guest in guests {
            while before.next_if(|(id, _)| *id < guest.id).is_some() {}
            let known = before.next_if(|(id, _)| *id == guest.id);
            self.guests.push(known.unwrap_or_else(|| (guest.id.clone(), Last::new(guest, now))));
        }
    }

    fn last(&mut self, guest: &GuestId) -> Option<&mut Last> {
        let is_at = |at: usize| self.guests.get(at).is_some_and(|(id, _)| id == guest);
        self.cursor = match self.cursor {
            at if is_at(at) => at,
            at if is_at(at + 1) => at + 1,
            _ => self.guests.binary_search_by(|(id, _)| id.cmp(guest)).ok()?,
        };
        self.guests.get_mut(self.cursor).map(|(_, last)| last)
    }
}

impl Last {
    /// Of a guest that is seen for the first time.
    fn new(guest: &GuestSeen, now: Moment) -> Self {
        Self {
            turn: None,
            asked_at: now,
            weighed_at: now,
            stats_due: None,
            told: None,
            moved_at: Some(now),
            told_of_at: None,
            stirs: false,
            asked_to_keep: None,
            size: guest.actual(),
            footprint: guest.cost.footprint.fresh().copied(),
        }
    }

    /// Whether it moves `now`, where the tick before this one began at `before`.
    fn moves(&self, before: Option<Moment>, now: Moment) -> bool {
        self.stirs
            || self.moved_at.is_some_and(|at| now.since(at) < MOVES || before.is_some_and(|tick| at >= tick))
    }

    fn hears(&mut self, stats: &Reading<GuestStats>, polling: Polling, now: Moment) {
        self.told = match stats {
            Reading::Fresh { value, age } => Some((value.into(), now.before(*age))),
            _ => None,
        };
        self.stats_due = stats_due(stats, polling, now);
    }
}

/// When the VMM's next statistics are due; `None` if it does not poll them often enough, or if the driver is silent.
fn stats_due(stats: &Reading<GuestStats>, polling: Polling, now: Moment) -> Option<Moment> {
    let (Reading::Fresh { age, .. }, Polling::Every(every)) = (stats, polling) else {
        return None;
    };
    (every <= LONGEST && *age <= every.doubled()).then(|| now.before(*age).after(every).after(ON_THE_WAY))
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;
    use memtide_model::{Absence, Backend, Balloon, Capabilities, Cost, GuestStats, Reason, Request, Told};

    fn but(mut guest: GuestSeen, change: impl FnOnce(&mut GuestSeen)) -> GuestSeen {
        change(&mut guest);
        guest
    }

    fn guest(number: u64, actual: u64, footprint: u64) -> GuestSeen {
        let balloon =
            Balloon { actual: Bytes::from_mib(actual), deflate_on_oom: false, free_page_reporting: false };
        GuestSeen {
            id: GuestId::new(&format!("vm-{number:04}"), 1, "boot"),
            pid: 1,
            user: None,
            backend: Backend::new("QEMU"),
            capabilities: Capabilities::BALLOON,
            cost: Cost::of(
                Reading::now(Bytes::from_mib(footprint)),
                Bytes::ZERO,
                Bytes::ZERO,
                &Absence::Unsupported,
            ),
            tmpfs: None,
            withheld: None,
            told: Told {
                claimed: false,
                full: Bytes::from_mib(1024),
                balloon: Reading::now(balloon),
                hotplug: Reading::absent(Absence::Unsupported),
                stats: Reading::absent(Absence::Unsupported),
                agent: Reading::unsupported(),
                disks: Reading::unsupported(),
                merges: Reading::unsupported(),
                polling: Polling::Off,
                reset: false,
                fence: None,
                terms: None,
            },
        }
    }

    fn target(guest: &GuestId, mib: u64) -> Action {
        Action::of(guest.clone(), Request::SetTarget(Bytes::from_mib(mib)), Reason::Release)
    }

    /// Who is asked at each of the ticks, `every` milliseconds apart, of guests that look as `seen` says.
    fn asked(ticks: u64, every: u64, seen: impl Fn(u64) -> Vec<GuestSeen>) -> Vec<Vec<String>> {
        let mut asking = Asking::default();
        let mut all = Vec::new();
        for tick in 0..ticks {
            let (now, guests) = (Moment::from_millis(10_000 + tick * every), seen(tick));
            asking.begin(now);
            let of_this: Vec<_> = guests.iter().filter(|guest| asking.ask(&guest.id).is_some()).collect();
            all.push(of_this.into_iter().map(|guest| guest.id.name().to_owned()).collect());
            asking.note(&guests, now);
        }
        all
    }

    #[test]
    fn a_guest_of_which_an_event_told_is_asked_at_the_next_tick_and_a_flood_changes_nothing() {
        let guests: Vec<GuestSeen> = (0..100).map(|number| guest(number, 1024, 300)).collect();
        let mut asking = Asking::default();
        let mut asked = Vec::new();
        for tick in 0..40 {
            let now = Moment::from_millis(10_000 + tick * 50);
            asking.begin(now);
            // A flood of events begins.
            if tick >= 30 {
                asking.told_of(&guests[7].id);
            }
            asked.push(guests.iter().filter_map(|guest| asking.ask(&guest.id)).count());
            asking.note(&guests, now);
        }
        assert_eq!(asked[30], asked[29] + 1, "{asked:?}");
        assert_eq!(asked[31], asked[29], "{asked:?}");
    }

    #[test]
    fn few_guests_are_asked_at_each_tick() {
        let rounds = asked(20, 250, |_| (0..20).map(|number| guest(number, 500, 300)).collect());
        assert!(rounds.iter().all(|round| round.len() == 20), "{rounds:?}");
    }

    #[test]
    fn many_guests_are_asked_in_turn_and_none_later_than_it_may() {
        let rounds = asked(40, 250, |_| (0..400).map(|number| guest(number, 500, 300)).collect());
        // Once nobody is new any more: a quarter in each 250 ms of a second.
        assert!(rounds[10..].iter().all(|round| round.len() == 100), "{:?}", rounds[11].len());
        for four in rounds[10..].chunks(4).filter(|four| four.len() == 4) {
            let different: BTreeSet<&String> = four.iter().flatten().collect();
            assert_eq!(different.len(), 400);
        }
    }

    #[test]
    fn of_many_guests_new_statistics_are_read_once_each() {
        let mut asking = Asking::default();
        let mut asks = Vec::new();
        let stats_at = |age: u64, number: u64| {
            but(guest(number, 500, 300), |guest| {
                guest.told.stats =
                    Reading::Fresh { value: GuestStats::default(), age: Span::from_millis(age) };
                guest.told.polling = Polling::Every(Span::from_secs(1));
            })
        };
        let mut last_read: BTreeMap<u64, u64> = BTreeMap::new();
        for tick in 0..80 {
            let now = 10_000 + tick * 250;
            asking.begin(Moment::from_millis(now));
            // The driver of each answers at a moment of its own in each second.
            let newest = |number: u64| now - (now - number * 10) % 1_000;
            let mut seen = Vec::new();
            for number in 0..100 {
                let ask = asking.ask(&guest(number, 500, 300).id);
                let read = last_read.entry(number).or_insert_with(|| newest(number));
                if let Some(ask) = ask.filter(|_| tick >= 10) {
                    asks.push((ask, *read == newest(number)));
                }
                if ask.is_some() {
                    *read = newest(number);
                }
                seen.push(stats_at(now - *read, number));
            }
            asking.note(&seen, Moment::from_millis(now));
        }
        assert_eq!(asks.len(), 100 * 70 / 4);
        assert!(asks.iter().all(|&ask| ask == (Ask::InTurn, false)), "{asks:?}");
    }

    #[test]
    fn between_two_ticks_statistics_of_many_are_read_when_due_and_show_want() {
        let counted = |major_faults: u64| GuestStats {
            major_faults: Some(major_faults),
            free: Some(Bytes::ZERO),
            ..GuestStats::default()
        };
        let stats = |major_faults: u64, age: u64| Reading::Fresh {
            value: counted(major_faults),
            age: Span::from_millis(age),
        };
        let polling = Polling::Every(Span::from_secs(1));
        let guests: Vec<GuestSeen> = (0..100)
            .map(|number| {
                but(guest(number, 500, 300), |guest| {
                    guest.told.stats = stats(7, number * 10);
                    guest.told.polling = polling;
                })
            })
            .collect();
        let told = |stats: Reading<GuestStats>, actual: u64| Told {
            stats,
            polling,
            balloon: Reading::now(Balloon {
                actual: Bytes::from_mib(actual),
                deflate_on_oom: true,
                free_page_reporting: false,
            }),
            ..Told::nothing(Bytes::from_mib(1024), Absence::NotYet)
        };
        let mut asking = Asking::default();
        let at = |millis: u64| Moment::from_millis(10_000 + millis);
        asking.note(&guests, at(0));
        asking.note(&guests, at(1_000));
        // Due 1,030 ms after they were made: those of at least 730 ms.
        let due = asking.due(at(1_300));
        assert_eq!(due.len(), 27);
        let [first, second, third, fourth] = [&due[0], &due[1], &due[2], &due[3]];
        assert!(!asking.heard(first, &told(stats(7, 100), 500), at(1_300)), "nothing happened");
        assert!(asking.heard(second, &told(stats(1_000, 100), 500), at(1_300)), "a thousand faults");
        assert!(asking.heard(fourth, &told(stats(7, 100), 600), at(1_300)), "it deflated its own balloon");
        let late = Reading::Stale { value: counted(7), age: Span::from_secs(1), why: Absence::Timeout };
        assert!(!asking.heard(third, &told(late, 500), at(1_300)));
        let again = asking.due(at(1_310));
        assert!(!again.contains(first), "none is due twice");
        assert!(again.contains(third), "what comes late is heard");
        assert!(asking.heard(third, &told(stats(1_000, 100), 500), at(1_310)));
        assert!(asking.due(at(2_300)).contains(first));
        asking.changed(&target(first, 600), at(2_300));
        assert!(!asking.heard(first, &told(stats(7, 100), 600), at(2_310)), "it was asked to");
    }

    #[test]
    fn who_moves_is_asked_at_each_tick() {
        let seen = |tick: u64| {
            let shrinks = guest(1, 500 - tick, 300);
            let grows = guest(2, 500, 300 + 5 * tick);
            let others = (3..400).map(|number| guest(number, 500, 300));
            [guest(0, 500, 300), shrinks, grows].into_iter().chain(others).collect()
        };
        let rounds = asked(40, 250, seen);
        let times = |name: &str| rounds[10..].iter().filter(|round| round.iter().any(|n| n == name)).count();
        assert_eq!((times("vm-0001"), times("vm-0002")), (30, 30));
        assert!((7..=8).contains(&times("vm-0200")), "{}", times("vm-0200"));
    }

    /// Of guests whose statistics are polled: what "vm-0000" is asked for at each of the ticks after a change of its target, and
    /// whether its footprint is read.
    fn after_a_change(count: u64, target: u64, every: u64) -> Vec<(Option<Ask>, bool)> {
        let polled = |number| {
            but(guest(number, 500, 300), |guest| {
                guest.told.stats =
                    Reading::Fresh { value: GuestStats::default(), age: Span::from_millis(100) };
                guest.told.polling = Polling::Every(Span::from_secs(1));
            })
        };
        let mut asking = Asking::default();
        let guests: Vec<GuestSeen> = (0..count).map(polled).collect();
        let at = |tick: u64| Moment::from_millis(10_000 + tick * every);
        let mut tick = |number: u64| {
            asking.begin(at(number));
            let ask = asking.ask(&guests[0].id);
            let weighs = asking.weigh(&guests[0].id);
            asking.note(&guests, at(number));
            if number == 8 {
                asking.changed(&self::target(&guests[0].id, target), at(number));
            }
            (ask, weighs)
        };
        (0..12).map(&mut tick).skip(9).collect()
    }

    #[test]
    fn of_many_guests_nobody_is_asked_out_of_turn_after_a_change() {
        let (out, asked) = ((Some(Ask::OutOfTurn), true), (Some(Ask::InTurn), true));
        for target in [400, 600] {
            assert_eq!(after_a_change(100, target, 250)[..2], [asked, asked]);
            assert_eq!(after_a_change(10, target, 250), [out, out, out]);
        }
        assert_eq!(after_a_change(100, 600, 700)[0], asked, "at the next tick, however late");
    }

    #[test]
    fn of_many_guests_footprints_are_read_with_the_monitor_and_each_second() {
        let mut asking = Asking::default();
        // Nobody polls the first one's statistics; the second one cannot be asked.
        let guests: Vec<GuestSeen> = (0..100).map(|number| guest(number, 500, 300)).collect();
        let (mut reads, mut with_monitor) = ([0; 2], true);
        for tick in 0..44 {
            let now = Moment::from_millis(10_000 + tick * 250);
            asking.begin(now);
            let asked = asking.ask(&guests[0].id).is_some();
            let weighs = [0, 1].map(|number| asking.weigh(&guests[number].id));
            if tick >= 4 {
                with_monitor &= weighs[0] || !asked;
                reads = [reads[0] + usize::from(weighs[0]), reads[1] + usize::from(weighs[1])];
            }
            asking.note(&guests, now);
        }
        assert!(with_monitor && (10..=14).contains(&reads[0]) && reads[1] == 10, "{reads:?}");
    }
}
