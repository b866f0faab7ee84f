//! What happened with a decision, one sentence each.

use std::fmt;

use memtide_model::{
    Answer, Bytes, GuestId, GuestState, GuestStats, Keeps, Moment, Names, Order, Ordered, Plan, Snapshot,
    State, WallClock, counted,
};
use serde::{Deserialize, Serialize};

use crate::board::{LastTick, Published};
use crate::step::Step;

/// Something that happened with a decision, or shortly before it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// The place of the decision in the journal.
    pub place: usize,
    /// The moment of the decision; of a note, its own.
    pub at: Moment,
    /// The time of the decision, for people.
    pub wall: WallClock,
    /// What kind of thing happened.
    pub kind: EventKind,
    /// The guest, as the status shows it; `None` if it is about the host, or a note.
    pub guest: Option<String>,
    /// What happened, without the guest's name.
    pub text: String,
}

/// A kind of event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EventKind {
    /// A program was killed for lack of memory, or a whole guest.
    Kill,
    /// A guest stalled for lack of memory.
    Stall,
    /// A guest gets more memory.
    Grant,
    /// Any other change that a mechanism accepted.
    Change,
    /// A change failed, or the check refused it.
    Failure,
    /// The operator gave an order.
    Order,
    /// The host's shortage of memory changed.
    Host,
    /// A guest came.
    Came,
    /// A guest went.
    Went,
    /// A note in the journal, such as the start of a daemon.
    Note,
}

impl EventKind {
    /// All kinds, the gravest first.
    pub const ALL: [Self; 10] = [
        Self::Kill,
        Self::Stall,
        Self::Grant,
        Self::Change,
        Self::Failure,
        Self::Order,
        Self::Host,
        Self::Came,
        Self::Went,
        Self::Note,
    ];
}

/// As typed on a command line.
impl fmt::Display for EventKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Kill => "kill",
            Self::Stall => "stall",
            Self::Grant => "grant",
            Self::Change => "change",
            Self::Failure => "failure",
            Self::Order => "order",
            Self::Host => "host",
            Self::Came => "came",
            Self::Went => "went",
            Self::Note => "note",
        })
    }
}

/// For people: `web: stalled …`, or the text alone.
impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.guest {
            Some(guest) => write!(f, "{guest}: {}", self.text),
            None => f.write_str(&self.text),
        }
    }
}

/// What the note of a killed guest has after its name. A note is only text, so this tells it from others.
const IS_GONE: &str = " is gone: ";

/// The note of a guest that was killed, and how.
pub(crate) fn note_of_kill(guest: &str, how: &str) -> String {
    format!("{guest}{IS_GONE}{how}")
}

/// Of a decision, what events are made of.
#[derive(Clone, Copy)]
pub(super) struct Decided<'a> {
    seen: &'a Snapshot,
    plan: &'a Plan,
    answers: &'a [Answer],
    /// What is free on the host.
    free: Bytes,
}

impl<'a> Decided<'a> {
    pub(super) const fn by(step: &'a Step) -> Self {
        Self {
            seen: &step.seen,
            plan: &step.plan,
            answers: step.answers.as_slice(),
            free: step.report.host.free,
        }
    }

    const fn at(last: &'a LastTick) -> Self {
        Self {
            seen: &last.seen,
            plan: &last.plan,
            answers: last.answers.as_slice(),
            free: last.report.host.free,
        }
    }
}

impl Published {
    /// What happened with the last decision, in the words of a journal's events. `before` is what was published with the decision before it; without it,
    /// nobody knows who came and went.
    #[must_use]
    pub fn happened(&self, before: Option<&Self>) -> Vec<Event> {
        let Some(last) = &self.last else { return Vec::new() };
        let before = before.and_then(|before| before.last.as_ref());
        let nothing = State::default();
        of(Decided::at(last), before.map_or(&nothing, |before| &before.state), &last.state, Vec::new())
    }
}

/// Gathers the events of one step.
struct Gathering<'a> {
    step: Decided<'a>,
    names: Names<'a>,
    events: Vec<Event>,
}

/// The events of a decision between two states, and the notes before it.
pub(super) fn of(
    step: Decided<'_>,
    before: &State,
    after: &State,
    notes: Vec<(Moment, String)>,
) -> Vec<Event> {
    let ids = step.seen.guests.iter().map(|guest| &guest.id).chain(before.guests.keys());
    let mut gathering = Gathering { step, names: Names::of(ids), events: Vec::new() };
    gathering.notes(notes);
    // The first decision of a run knows nothing of what was before.
    if before.decided_at.is_some() {
        gathering.comings_and_goings(before);
        gathering.kills(before);
        gathering.host(before, after);
    }
    gathering.orders();
    gathering.stalls(before, after);
    gathering.actions();
    gathering.events
}

impl Gathering<'_> {
    fn push(&mut self, kind: EventKind, guest: Option<&GuestId>, text: String) {
        let guest = guest.map(|guest| self.names.name(guest));
        let (at, wall) = (self.step.seen.taken_at, self.step.seen.wall);
        self.events.push(Event { place: 0, at, wall, kind, guest, text });
    }

    fn notes(&mut self, notes: Vec<(Moment, String)>) {
        for (at, text) in notes {
            let kind = if text.contains(IS_GONE) { EventKind::Kill } else { EventKind::Note };
            self.push(kind, None, text);
            if let Some(event) = self.events.last_mut() {
                event.at = at;
            }
        }
    }

    fn comings_and_goings(&mut self, before: &State) {
        for guest in self.step.seen.guests.iter().filter(|guest| !before.guests.contains_key(&guest.id)) {
            self.push(EventKind::Came, Some(&guest.id), format!("is a new guest of {}", guest.told.full));
        }
        for id in before.guests.keys().filter(|id| self.step.seen.guest(id).is_none()) {
            self.push(EventKind::Went, Some(id), "is gone".to_owned());
        }
    }

    fn kills(&mut self, before: &State) {
        for guest in &self.step.seen.guests {
            let now = guest.told.stats.fresh().and_then(|stats: &GuestStats| stats.oom_kills);
            let counters = before.guests.get(&guest.id).and_then(|known| known.counters);
            let was = counters.and_then(|counters| counters.oom_kills);
            if let (Some(now), Some(was)) = (now, was)
                && let Some(kills @ 1..) = now.checked_sub(was)
            {
                let text = format!("lost {} to its kernel, for lack of memory", counted(kills, "program"));
                self.push(EventKind::Kill, Some(&guest.id), text);
            }
        }
    }

    fn host(&mut self, before: &State, after: &State) {
        let (was, now, free) = (before.host, after.host, self.step.free);
        if was != now {
            self.push(EventKind::Host, None, format!("the host went from {was} to {now}, with {free} free"));
        }
    }

    fn orders(&mut self) {
        for Order { guest, ordered } in &self.step.seen.orders {
            let ordered = match ordered {
                Ordered::Leave(hold) => match hold.keeps {
                    Keeps::Limit => "gets its limit, and is then left alone".to_owned(),
                    _ => "is left alone".to_owned(),
                },
                Ordered::Manage => "is managed again".to_owned(),
                Ordered::Reclaim(bytes) => format!("is to give {bytes} from its cgroup"),
                Ordered::Trim(bytes) => format!("is to give {bytes} of its page cache"),
                Ordered::Fetch(bytes) => format!("is to give {bytes} of its free memory"),
            };
            self.push(EventKind::Order, Some(guest), format!("{ordered}: the operator's order"));
        }
    }

    /// Stalls that begin: what the policy remembers of them lasts for a while.
    fn stalls(&mut self, before: &State, after: &State) {
        let now = self.step.seen.taken_at;
        for (id, guest) in &after.guests {
            let Some(seen) = self.step.seen.guest(id) else { continue };
            let before = before.guests.get(id);
            let was = before.and_then(|guest| guest.stalled).filter(|(_, until)| *until > now);
            if guest.stalled.is_some() && was.is_none() {
                let target = before.and_then(|guest| guest.target);
                self.push(EventKind::Stall, Some(id), stall(guest, target, seen.actual(), now));
            }
        }
    }

    fn actions(&mut self) {
        for (place, action) in self.step.plan.actions.iter().enumerate() {
            let (request, reason) = (&action.request, &action.reason);
            let said = format!("{request}: {reason}");
            match self.step.answers.get(place) {
                Some(Answer::Failed(why)) => {
                    self.push(EventKind::Failure, action.guest(), format!("{said} (failed: {why})"));
                }
                Some(Answer::Refused) => {
                    self.push(EventKind::Failure, action.guest(), format!("{said} (the check refused it)"));
                }
                Some(Answer::Accepted | Answer::Yielded(_)) => {
                    let seen = action.guest().and_then(|id| self.step.seen.guest(id));
                    let grants = request.size().zip(seen).is_some_and(|(size, seen)| size > seen.actual());
                    let kind =
                        if grants && !reason.only_stops() { EventKind::Grant } else { EventKind::Change };
                    self.push(kind, action.guest(), said);
                }
                None => {}
            }
        }
    }
}

/// The size at which a guest stalled that had this `target` and `has` this size now: what it took back by itself, it took because it stalled.
fn stall(guest: &GuestState, target: Option<Bytes>, has: Bytes, now: Moment) -> String {
    let stalled = "stalled for lack of memory at";
    let took = guest.deflated_at.is_some_and(|at| at >= now);
    match target.filter(|target| took && *target < has) {
        Some(target) => format!("{stalled} {target}, and took back {} by itself", has.saturating_sub(target)),
        None => format!("{stalled} {has}"),
    }
}
