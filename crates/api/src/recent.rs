//! `GET /v1/history`: the host's last ten minutes and what happened in them, for clients that may not read the journal.
//!
//! **Problem.** Members of the socket's group cannot read the journal, so what they see would begin when they start to look.
//!
//! **Rule.** A point of the host's ledger about every second, and the events of the decisions, in the words of `memtide report`. Both are bounded: by
//! time, and by [`MOST_EVENTS`] and [`MOST_TEXT`], whatever happens and however many guests there are. That is about 0.25 MiB. The oldest go first.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use memtide_engine::{Board, Event, EventKind, Published};
use memtide_model::{Bytes, HostReport, HostState, Moment, Span, WallClock};
use serde::{Deserialize, Serialize};

/// How long points stay.
pub const KEPT: Span = Span::from_secs(600);
/// The least time between two points.
const POINT: Span = Span::from_millis(900);
/// The most events that stay; together they have at most [`MOST_TEXT`] bytes of text.
pub const MOST_EVENTS: usize = 600;
/// See [`MOST_EVENTS`].
pub const MOST_TEXT: usize = 96 << 10;

/// The answer to `GET /v1/history`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastMinutes {
    /// The moment of the last decision. The answer holds everything up to it.
    pub now: Moment,
    /// The time of the last decision, for people.
    pub wall: WallClock,
    /// The host's memory, the oldest point first.
    pub points: Vec<HostPoint>,
    /// What happened, the oldest event first.
    pub events: Vec<Happened>,
    /// Whether older events than these are forgotten.
    pub forgot: bool,
}

/// The host's memory at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostPoint {
    /// The moment, by the host's boot clock.
    pub at: Moment,
    /// The host's ledger, as in the status.
    pub capacity: Bytes,
    /// The cost of the guests.
    pub footprints: Bytes,
    /// The rest of torn huge pages.
    pub torn: Bytes,
    /// Everything except guests.
    pub other: Bytes,
    /// The remaining memory.
    pub free: Bytes,
    /// Memory kept free of guests.
    pub reserve: Bytes,
    /// The shortage of memory.
    pub state: HostState,
    /// How long programs of the host have waited for memory since its boot, in microseconds.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub some_us: Option<u64>,
    /// For how long all of them have waited.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub full_us: Option<u64>,
}

impl HostPoint {
    fn of(published: &Published) -> Option<Self> {
        let last = published.last.as_ref()?;
        let HostReport { capacity, footprints, torn, other, free, reserve, state, .. } = last.report.host;
        let pressure = last.seen.host.pressure.latest();
        let (some_us, full_us) = (pressure.map(|it| it.some_us), pressure.map(|it| it.full_us));
        Some(Self {
            at: last.seen.taken_at,
            capacity,
            footprints,
            torn,
            other,
            free,
            reserve,
            state,
            some_us,
            full_us,
        })
    }
}

/// Something that happened with a decision.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Happened {
    /// The moment, by the host's boot clock.
    pub at: Moment,
    /// The time, for people.
    pub wall: WallClock,
    /// What kind of thing happened.
    pub kind: EventKind,
    /// The guest, as the status shows it; `None` if it is about the host.
    pub guest: Option<String>,
    /// What happened, as a sentence; that of a guest goes on after its name.
    pub says: String,
}

impl Happened {
    fn of(event: Event) -> Self {
        let Event { at, wall, kind, guest, text, place: _ } = event;
        let says = says(kind, guest.is_some(), &text);
        Self { at, wall, kind, guest, says }
    }

    fn text(&self) -> usize {
        self.says.len() + self.guest.as_ref().map_or(0, String::len)
    }
}

/// The beginning of the words of a request, and what a sentence about its guest has in their place.
const OF_A_GUEST: [(&str, &str); 17] = [
    ("target ", "is to keep "),
    ("poll statistics ", "has its statistics polled "),
    ("stop polling statistics", "is no longer polled for statistics"),
    ("reclaim ", "is to give "),
    ("split its torn huge pages", "has its torn huge pages split"),
    ("let KSM merge its memory", "may have its memory merged by KSM"),
    ("keep its memory from KSM", "keeps its memory from KSM"),
    ("attach a tier ", "gets a tier "),
    ("detach its tier", "loses its tier"),
    ("trim ", "is asked to trim "),
    ("compact ", "is asked to compact "),
    ("limit page cache ", "is asked to limit its page cache "),
    ("no limit of page cache", "is asked to lift the limit of its page cache"),
    ("report ", "is asked to report "),
    ("swap to ", "is asked to swap to "),
    ("read its tier back", "is asked to read its tier back"),
    ("write ", "is asked to write "),
];

/// The text of an event in the words of a log: a sentence, which goes on after a guest's name if it is about one.
#[must_use]
pub fn says(kind: EventKind, of_guest: bool, text: &str) -> String {
    match (kind, of_guest) {
        (EventKind::Failure, true) => format!("is as it was, since this failed: {text}"),
        (EventKind::Failure, false) => format!("this failed: {text}"),
        (_, true) => in_a_sentence(text),
        (_, false) => text.to_owned(),
    }
}

/// The text of a change in the words of a log: a sentence that goes on after its guest's name.
fn in_a_sentence(text: &str) -> String {
    let said =
        OF_A_GUEST.iter().find_map(|(begins, says)| Some(format!("{says}{}", text.strip_prefix(begins)?)));
    said.unwrap_or_else(|| text.to_owned())
}

/// A handle to what a daemon remembers of the last minutes; its clones show the same.
#[derive(Clone, Debug, Default)]
pub struct Recent(Arc<Mutex<Kept>>);

#[derive(Debug, Default)]
struct Kept {
    /// The board's own data: nothing is copied.
    last: Option<Arc<Published>>,
    points: VecDeque<HostPoint>,
    events: VecDeque<Happened>,
    text: usize,
    forgot: bool,
}

impl Recent {
    /// What happens on `board` from now on.
    #[must_use]
    pub fn of(board: &Board) -> Self {
        let recent = Self::default();
        let remembers = recent.clone();
        board.on_publish(move |published| remembers.push(published));
        recent
    }

    /// Takes over a decision.
    pub fn push(&self, published: &Arc<Published>) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(point) = HostPoint::of(published) else { return };
        let last = kept.last.replace(Arc::clone(published));
        if last
            .as_ref()
            .and_then(|last| last.last.as_ref())
            .is_some_and(|last| last.seen.taken_at >= point.at)
        {
            return;
        }
        if kept.points.back().is_none_or(|last| point.at.since(last.at) >= POINT) {
            kept.points.push_back(point);
        }
        for event in published.happened(last.as_deref()) {
            let event = Happened::of(event);
            kept.text += event.text();
            kept.events.push_back(event);
        }
        kept.forget(point.at);
    }

    /// What is remembered of the time after `since`, or all of it.
    #[must_use]
    pub fn after(&self, since: Option<Moment>) -> LastMinutes {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_later = |at: Moment| since.is_none_or(|since| at > since);
        let last = kept.last.as_ref().and_then(|published| published.last.as_ref());
        LastMinutes {
            now: last.map(|last| last.seen.taken_at).unwrap_or_default(),
            wall: last.map(|last| last.seen.wall).unwrap_or_default(),
            points: kept.points.iter().filter(|point| is_later(point.at)).copied().collect(),
            events: kept.events.iter().filter(|event| is_later(event.at)).cloned().collect(),
            forgot: kept.forgot,
        }
    }

    /// The events after one moment up to another.
    #[must_use]
    pub fn events_between(&self, after: Moment, until: Moment) -> Vec<Happened> {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let newest = kept.events.iter().rev().skip_while(|event| event.at > until);
        let mut events: Vec<Happened> = newest.take_while(|event| event.at > after).cloned().collect();
        events.reverse();
        events
    }
}

impl Kept {
    fn forget(&mut self, now: Moment) {
        while self.points.front().is_some_and(|point| now.since(point.at) > KEPT) {
            self.points.pop_front();
        }
        while self.events.len() > MOST_EVENTS || self.text > MOST_TEXT {
            let Some(gone) = self.events.pop_front() else { break };
            self.text -= gone.text();
            self.forgot = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use memtide_engine::Recorded;
    use memtide_model::{Deed, Request, Share, TierOrder};

    use super::*;

    #[test]
    fn every_request_about_a_guest_becomes_a_sentence_about_it() {
        let mib = Bytes::from_mib;
        let deeds = [
            Deed::Trim(mib(1)),
            Deed::Compact,
            Deed::LimitCache(Some(Share::percent(10).unwrap())),
            Deed::LimitCache(None),
            Deed::ReportPieces(true),
            Deed::ReportPieces(false),
            Deed::UseTier(true),
            Deed::UseTier(false),
            Deed::PageOut(mib(1)),
        ];
        let requests = [
            Request::SetTarget(mib(1)),
            Request::PollStats(Span::from_secs(1)),
            Request::PollStats(Span::ZERO),
            Request::Reclaim(mib(1)),
            Request::Split,
            Request::Share(true),
            Request::Share(false),
            Request::Tier(TierOrder::Attach(mib(1))),
            Request::Tier(TierOrder::Detach),
        ];
        for request in requests.into_iter().chain(deeds.map(Request::Agent)) {
            let says = in_a_sentence(&request.to_string());
            let verb = says.split(' ').next().unwrap();
            assert!(["is", "has", "may", "keeps", "gets", "loses"].contains(&verb), "{says}");
        }
        assert_eq!(
            in_a_sentence("stalled for lack of memory at 1 GiB"),
            "stalled for lack of memory at 1 GiB"
        );
    }

    fn run() -> Recorded {
        Recorded::open(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../traces/demo-elastic.mtj")).unwrap()
    }

    #[test]
    fn the_events_of_a_live_run_are_those_of_its_journal() {
        let (recent, mut recorded) = (Recent::default(), run());
        let mut expected = Vec::new();
        while let Some(past) = recorded.next().unwrap() {
            recent.push(&Arc::new(past.published));
            // Notes are only in journals.
            expected.extend(
                past.events.into_iter().filter(|event| event.kind != EventKind::Note).map(Happened::of),
            );
        }
        let told = recent.after(None);
        let kept = told.events.len();
        assert!(kept > 100);
        assert_eq!(told.events, expected[expected.len() - kept..]);
        assert!(told.events.iter().any(|event| event.says.starts_with("is to keep ")));
        assert!(told.points.windows(2).all(|two| two[1].at.since(two[0].at) >= POINT));
        let middle = told.events[kept / 2].at;
        let later = recent.after(Some(middle));
        assert_eq!(later.events, recent.events_between(middle, told.now));
        assert!(
            later.events.iter().all(|event| event.at > middle)
                && later.points.iter().all(|point| point.at > middle)
        );
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let (recent, mut recorded) = (Recent::default(), run());
        let (mut all, mut shift) = (Vec::new(), Span::ZERO);
        while let Some(past) = recorded.next().unwrap() {
            all.push(past.published);
        }
        // The same two minutes, over and over.
        for _ in 0..8 {
            for published in &all {
                let mut published = published.clone();
                let last = published.last.as_mut().unwrap();
                last.seen.taken_at = last.seen.taken_at.after(shift);
                recent.push(&Arc::new(published));
            }
            shift = shift.plus(Span::from_secs(140));
        }
        let told = recent.after(None);
        assert!(told.forgot && told.events.len() <= MOST_EVENTS);
        assert!(told.events.iter().map(Happened::text).sum::<usize>() <= MOST_TEXT);
        let most = usize::try_from(KEPT.as_millis() / POINT.as_millis()).unwrap();
        assert!(told.points.len() <= most + 1 && told.now.since(told.points[0].at) <= KEPT);
        let size = serde_json::to_vec(&told).unwrap().len();
        assert!(size < 300 << 10, "{size}");
        assert!(
            told.events.iter().any(|event| told.now.since(event.at) < Span::from_secs(5)),
            "the newest stay"
        );
    }
}
