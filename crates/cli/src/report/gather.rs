//! What a report tells, gathered from one decision after the other, in bounded memory.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use anyhow::Result;
use memtide_api::past;
use memtide_engine::{Event, EventKind, LastTick, Past, Recorded};
use memtide_model::{Bytes, GuestId, HostPart, Moment, Names, Parts, Reason, Request, Span, WallClock};

use super::stalls::Stalls;
use super::thinned::{Point, Thinned};

/// The most points of the host's course.
const HOST_POINTS: usize = 600;
/// The most points of all guests' courses together, and of one.
const GUEST_POINTS: usize = 24_000;
const ONE_GUESTS_POINTS: usize = 120;
/// The most events: of those that are less grave, the newest stay.
const MOST_EVENTS: usize = 2_000;
const MOST_GRAVE: usize = 1_000;
/// The most guests, and places where nothing was recorded.
const MOST_GUESTS: usize = 2_000;
const MOST_SILENCES: usize = 100;
/// Longer than the time between two decisions.
const SILENCE: Span = Span::from_secs(10);

/// The host at one moment.
#[derive(Clone, Copy, Debug, Default)]
pub struct HostPoint {
    /// The memory of each part, in the order of [`HostPart::ALL`].
    pub parts: [Bytes; 5],
    /// The sum of the guests' full sizes.
    pub promised: Bytes,
}

/// A guest at one moment.
#[derive(Clone, Copy, Debug)]
pub struct GuestPoint {
    /// What it keeps.
    pub actual: Bytes,
    /// What it uses, if it told.
    pub used: Option<Bytes>,
    /// What it costs the host, if that is known.
    pub cost: Option<Bytes>,
}

/// Changes of a guest's size for one reason.
#[derive(Clone, Copy, Debug, Default)]
pub struct Moved {
    /// How often.
    pub times: u64,
    /// By how much its target was raised, all times together.
    pub granted: Bytes,
    /// By how much it was lowered.
    pub asked: Bytes,
}

/// A guest in the time of the report.
#[derive(Debug)]
pub struct Guest {
    /// As the status shows it.
    pub name: String,
    /// Its class.
    pub class: String,
    /// Its full size.
    pub full: Bytes,
    /// Its parts when it was last seen.
    pub parts: Parts,
    /// Its state then, in words.
    pub state: String,
    /// When it was last seen.
    pub last_seen: WallClock,
    /// Its course.
    pub course: Thinned<GuestPoint>,
    /// The target that was accepted last; `None` before the first.
    target: Option<Bytes>,
    /// The changes of its size by their reasons.
    pub moved: BTreeMap<&'static str, Moved>,
    /// How often its kernel killed programs.
    pub kills: u64,
}

/// What a report tells.
#[derive(Debug)]
pub struct Gathered {
    /// The first and the last decision.
    pub times: (WallClock, WallClock),
    /// The number of decisions.
    pub decisions: u64,
    /// Those that could not be read.
    pub unread: Vec<String>,
    /// The versions that decided.
    pub versions: BTreeSet<String>,
    /// What to know of decisions of another version.
    pub differs: BTreeSet<String>,
    /// Where nothing was recorded, and for how long.
    pub silences: Vec<(WallClock, Span)>,
    /// The host in a sentence, at the end.
    pub sentence: Option<String>,
    /// Its capacity at the end.
    pub capacity: Bytes,
    /// Its course.
    pub host: Thinned<HostPoint>,
    /// Memory in bytes times milliseconds: what the guests were promised, and what they cost.
    weighed: (u128, u128, u64),
    /// The guests.
    pub guests: BTreeMap<GuestId, Guest>,
    /// Whether guests are left out, because there are more than a report shows.
    pub leaves_out: bool,
    /// The stalls.
    pub stalls: Stalls,
    /// The grave events, the others, and how many of these were dropped.
    grave: Vec<Event>,
    others: VecDeque<Event>,
    /// The number of events of each kind.
    pub counts: BTreeMap<EventKind, u64>,
    guest_points: usize,
    run: u32,
    before: Option<(Moment, WallClock, Bytes, Bytes)>,
}

impl Gathered {
    /// Gathers from the decisions from place `first` up to, but not with, `end`.
    pub fn gather(recorded: &mut Recorded, first: usize, end: usize) -> Result<Self> {
        let wall = |place: usize| recorded.moment(place).map_or(WallClock(0), |(_, wall)| wall);
        let times = (wall(first), wall(end.saturating_sub(1)).max(wall(first)));
        let guests = recorded.show(first).ok().and_then(|past| Some(past.published.last?.seen.guests.len()));
        let mut gathered = Self::new(times, guests.unwrap_or(1));
        let mut newest = None;
        for place in first..end {
            match recorded.show(place) {
                Ok(past) => {
                    gathered.take(&past);
                    newest = Some(past);
                }
                Err(error @ memtide_engine::journal::JournalError::Io { .. }) => return Err(error.into()),
                Err(error) => gathered.unread.push(error.to_string()),
            }
        }
        gathered.unread.truncate(MOST_SILENCES);
        gathered.sentence = newest.and_then(|past| past::status(&past).in_a_sentence());
        gathered.stalls.finish();
        Ok(gathered)
    }

    fn new(times: (WallClock, WallClock), guests: usize) -> Self {
        Self {
            times,
            decisions: 0,
            unread: Vec::new(),
            versions: BTreeSet::new(),
            differs: BTreeSet::new(),
            silences: Vec::new(),
            sentence: None,
            capacity: Bytes::ZERO,
            host: Thinned::new((times.0.0, times.1.0), HOST_POINTS),
            weighed: (0, 0, 0),
            guests: BTreeMap::new(),
            leaves_out: false,
            stalls: Stalls::default(),
            grave: Vec::new(),
            others: VecDeque::new(),
            counts: BTreeMap::new(),
            guest_points: (GUEST_POINTS / guests.max(1)).clamp(8, ONE_GUESTS_POINTS),
            run: 0,
            before: None,
        }
    }

    fn take(&mut self, past: &Past) {
        let Some(last) = &past.published.last else { return };
        self.decisions += 1;
        self.versions.insert(past.version.clone());
        self.differs.extend(past.differs.as_ref().map(ToString::to_string));
        if let Some(silence) = past.silence.filter(|_| self.decisions > 1) {
            self.run += 1;
            if self.silences.len() < MOST_SILENCES {
                self.silences.push((last.seen.wall, silence));
            }
        }
        self.host(last);
        let names = last.report.names();
        for report in &last.report.guests {
            if let Some(seen) = last.seen.guest(&report.id) {
                self.guest(last, (report, seen), &names);
            }
        }
        self.moves(last);
        self.stalls.take(past);
        past.events.iter().for_each(|event| self.event(event, last));
    }

    fn host(&mut self, last: &LastTick) {
        let host = &last.report.host;
        let promised = Bytes::sum(last.report.guests.iter().map(|guest| guest.full));
        let (at, wall) = (last.seen.taken_at, last.seen.wall);
        if let Some((before, _, promised, cost)) = self.before {
            let passed = at.since(before);
            if passed <= SILENCE {
                let millis = u128::from(passed.as_millis());
                self.weighed.0 += u128::from(promised.get()) * millis;
                self.weighed.1 += u128::from(cost.get()) * millis;
                self.weighed.2 += passed.as_millis();
            }
        }
        self.before = Some((at, wall, promised, host.footprints));
        self.capacity = host.capacity;
        let what = HostPoint { parts: HostPart::ALL.map(|part| host.of_part(part)), promised };
        self.host.push(Point { at: wall.0, value: host.free.get(), run: self.run, what });
    }

    fn guest(
        &mut self,
        last: &LastTick,
        (report, seen): (&memtide_model::GuestReport, &memtide_model::GuestSeen),
        names: &Names<'_>,
    ) {
        if !self.guests.contains_key(&report.id) && self.guests.len() >= MOST_GUESTS {
            self.leaves_out = true;
            return;
        }
        let (times, points) = (self.times, self.guest_points);
        let parts = Parts::of(seen, report);
        let guest = self.guests.entry(report.id.clone()).or_insert_with(|| Guest {
            name: names.name(&report.id),
            class: report.class.to_string(),
            full: report.full,
            parts,
            state: String::new(),
            last_seen: last.seen.wall,
            course: Thinned::new((times.0.0, times.1.0), points),
            target: None,
            moved: BTreeMap::new(),
            kills: 0,
        });
        (guest.full, guest.parts, guest.last_seen) = (report.full, parts, last.seen.wall);
        guest.state = report.in_words(names, last.seen.taken_at);
        let what = GuestPoint { actual: report.actual, used: report.used, cost: report.footprint };
        guest.course.push(Point { at: last.seen.wall.0, value: report.actual.get(), run: self.run, what });
    }

    /// The changes of sizes that were accepted.
    fn moves(&mut self, last: &LastTick) {
        for (action, answer) in last.plan.actions.iter().zip(&last.answers) {
            let guest = action.guest().and_then(|id| self.guests.get_mut(id).zip(last.seen.guest(id)));
            let (Some((guest, seen)), Request::SetTarget(target)) = (guest, action.request) else { continue };
            if !answer.is_accepted() {
                continue;
            }
            let before = guest.target.replace(target).unwrap_or_else(|| seen.actual());
            let moved = guest.moved.entry(why(&action.reason)).or_default();
            moved.times += 1;
            if !action.reason.only_stops() {
                moved.granted = moved.granted.saturating_add(target.saturating_sub(before));
                moved.asked = moved.asked.saturating_add(before.saturating_sub(target));
            }
        }
    }

    fn event(&mut self, event: &Event, last: &LastTick) {
        *self.counts.entry(event.kind).or_default() += 1;
        if event.kind == EventKind::Kill
            && let Some(name) = &event.guest
        {
            let names = last.report.names();
            let is_it = |id: &GuestId| names.name(id) == *name;
            let id = last.report.guests.iter().map(|guest| &guest.id).find(|id| is_it(id));
            if let Some(guest) = id.and_then(|id| self.guests.get_mut(id)) {
                guest.kills += 1;
            }
        }
        if is_grave(event.kind) && self.grave.len() < MOST_GRAVE {
            return self.grave.push(event.clone());
        }
        self.others.push_back(event.clone());
        if self.others.len() > MOST_EVENTS {
            self.others.pop_front();
        }
    }

    /// The events that stayed, the oldest first, and how many did not.
    pub fn events(&self) -> (Vec<&Event>, u64) {
        let mut events: Vec<&Event> = self.grave.iter().chain(&self.others).collect();
        events.sort_by_key(|event| event.place);
        let dropped = self.counts.values().sum::<u64>() - events.len() as u64;
        (events, dropped)
    }

    /// What the guests were promised and what they cost, on average; `None` if no time passed.
    pub fn means(&self) -> Option<(Bytes, Bytes)> {
        let (promised, cost, millis) = self.weighed;
        let mean = |sum: u128| u64::try_from(sum.checked_div(u128::from(millis))?).ok().map(Bytes::new);
        Some((mean(promised)?, mean(cost)?))
    }
}

/// Whether the first events of a kind stay, and not the newest.
pub const fn is_grave(kind: EventKind) -> bool {
    matches!(
        kind,
        EventKind::Kill | EventKind::Failure | EventKind::Order | EventKind::Host | EventKind::Note
    )
}

/// Why a size was changed, in a few words without numbers.
pub const fn why(reason: &Reason) -> &'static str {
    match reason {
        Reason::Demand { .. } => "needed more",
        Reason::Stall { .. } => "stalled",
        Reason::Ample { .. } => "the host had room",
        Reason::OverEntitlement { .. } | Reason::OverShare { .. } => "had more than its share",
        Reason::IdleMemory { .. } => "had idle memory",
        Reason::SqueezeStep { .. } => "cold page cache",
        Reason::Squeal { .. } => "needed its page cache back",
        Reason::Emergency { .. } => "emergency of the host",
        Reason::OverLimit { .. } => "had more than its limit",
        Reason::SelfDeflation { .. } => "deflated its own balloon",
        Reason::Reset { .. } => "was reset",
        Reason::StuckAt { .. } => "made no progress",
        Reason::Held { .. } => "held by the operator",
        Reason::HoldEnds { .. } => "a hold ended",
        Reason::Torn { .. } => "torn huge pages",
        Reason::ColdCache { .. } => "cold page cache, dropped by its agent",
        Reason::FreePieces { .. } | Reason::PiecesUnwanted => "free memory in small pieces",
        Reason::ToTier { .. } => "cold memory of its programs, compressed",
        Reason::CompressesBadly { .. } => "its memory does not compress",
        Reason::TierInVain => "what lay in its tier did not compress, or was in use",
        Reason::TierLost => "its guest cannot swap to its tier",
        Reason::TierUnwanted => "its tier is not needed any more",
        Reason::TmpfsShort { .. } => "its tmpfs or NUMA node was short",
        Reason::CacheLimit => "its class limits page cache",
        Reason::Ksm(_) => "merging of equal pages",
        Reason::Ordered => "ordered by the operator",
        Reason::NeedStats => "statistics",
        Reason::Release => "released",
        Reason::InVain { .. } => "giving brought the host nothing",
    }
}
