//! What memtide remembers of its own acts, once their answers are known.
//!
//! **Rule.** A decision remembers what was seen, and nothing of its plan. This notes what became of each action: a target, a step of the
//! search and an interval only if they were accepted, a split and a deed of an agent also if they failed: they are watched like one that
//! returned nothing. If nobody knows whether a target was taken over, no movement of that balloon is blamed on somebody else for [`DOUBT`].
//! A hold ends once its guest has been told.
//!
//! **Property.** An action that was not tried leaves no trace.

use memtide_model::{
    Action, AgentAsked, Answer, Asked, BackOff, Bytes, Deed, GuestSeen, GuestState, Moment, PagedOut, Plan,
    Request, Snapshot, Span, State, Takes, Tier, TierOrder,
};

use crate::belief::{gain, search};
use crate::constants::{FIRST_PAUSE, LONGEST_PAUSE, TOLERANCE};

/// How long a balloon may follow a command whose answer is unknown.
pub const DOUBT: Span = Span::from_secs(30);

/// Notes in `state`, which has seen `seen`, what became of the actions of `plan`. An action without an answer was not tried.
pub fn hears(state: &mut State, seen: &Snapshot, plan: &Plan, answers: &[Answer]) {
    for (action, answer) in plan.actions.iter().zip(answers).filter(|(_, answer)| **answer != Answer::Refused)
    {
        let Some(id) = action.guest() else { continue };
        let guest = state.guests.entry(id.clone()).or_default();
        let heard = Heard { action, is_done: answer.is_accepted(), seen: seen.guest(id), now: seen.taken_at };
        heard.note(guest);
    }
}

/// An action that was tried.
struct Heard<'a> {
    action: &'a Action,
    /// It was carried out; otherwise nobody knows.
    is_done: bool,
    seen: Option<&'a GuestSeen>,
    now: Moment,
}

impl Heard<'_> {
    fn note(&self, guest: &mut GuestState) {
        let Action { request, reason, expects, .. } = self.action;
        let (request, reason) = (*request, *reason);
        let bytes = expects.map_or(Bytes::ZERO, |expects| expects.bytes);
        match request {
            Request::SetTarget(target) if self.is_done => {
                self.note_target(guest, target);
                guest.took_pieces = self.action.takes == Some(Takes::Pieces);
                guest.last_reason = Some((self.now, reason));
            }
            Request::SetTarget(_) => guest.doubt_until = Some(self.now.after(DOUBT)),
            Request::PollStats(_) if self.is_done => {
                guest.polled_before = guest.polled_before.or_else(|| Some(self.seen?.told.polling));
                guest.polled_at = Some(self.now);
            }
            Request::Reclaim(_) if self.is_done => guest.last_reason = Some((self.now, reason)),
            Request::Split => guest.splits.asked = Some(Asked { at: self.now, torn: bytes, least: bytes }),
            Request::Agent(deed) => {
                let ended =
                    self.seen.and_then(|seen| seen.told.agent.latest()).map_or(0, |agent| agent.ended);
                guest.agent.asked = Some(AgentAsked { at: self.now, deed, bytes, ended });
                if let (Deed::PageOut(bytes), Some(tier)) = (deed, self.tier()) {
                    guest.tier.watched = Some(PagedOut { bytes, since: self.now, read: tier.read });
                    guest.tier.trusted = guest.tier.trusted.saturating_add(bytes);
                }
            }
            Request::Share(_) => guest.share_asked_at = Some(self.now),
            Request::Tier(order) => self.note_tier(guest, order),
            Request::PollStats(_) | Request::Reclaim(_) | Request::Merge(_) => {}
        }
        if let Some(Takes::Cache(taken)) = self.action.takes.filter(|_| self.is_done) {
            search::take(&mut guest.search, taken, self.now);
        }
        if self.action.ends_hold && self.is_done {
            guest.hold = None;
        }
    }

    fn tier(&self) -> Option<&Tier> {
        self.seen?.cost.tier.latest()
    }

    fn note_tier(&self, guest: &mut GuestState, order: TierOrder) {
        guest.tier.asked_at = Some(self.now);
        match order {
            TierOrder::Attach(_) if self.is_done => {
                (guest.tier.back_off, guest.tier.wanted_at) = (BackOff::default(), Some(self.now));
            }
            TierOrder::Attach(_) => {
                guest.tier.vain = guest.tier.vain.again(self.now, FIRST_PAUSE, LONGEST_PAUSE)
            }
            TierOrder::Detach => {}
        }
    }

    fn note_target(&self, guest: &mut GuestState, target: Bytes) {
        let actual = self.seen.map_or(guest.actual, GuestSeen::actual);
        if guest.target != Some(target) {
            let distance = actual.abs_diff(target);
            // A guest that makes no progress does not start anew when its target is corrected in the same direction.
            let before = guest.target.unwrap_or(actual);
            let same_way = (target > actual) == (before > actual);
            let since = guest.stuck.progress_at.filter(|_| same_way).unwrap_or(self.now);
            guest.stuck.distance = distance;
            guest.stuck.progress_at = (distance > TOLERANCE).then_some(since);
        }
        if let Some(seen) = self.seen {
            guest.gain = gain::asked(&guest.gain, seen, target);
        }
        guest.target = Some(target);
        (guest.target_set_at, guest.target_set_from) = (Some(self.now), actual);
    }
}
