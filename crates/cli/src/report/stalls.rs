//! Stalls of guests, and how fast they were answered.
//!
//! **Terms.** A *stall* begins with the decision that sees it, and lasts as long as the policy remembers it. It is *granted* with the first target above
//! what the guest has that its VMM accepts, and *answered* when the guest has that memory, to within 4 MiB.

use std::collections::BTreeMap;

use memtide_engine::{LastTick, Past};
use memtide_model::{Bytes, GuestId, GuestReport, Moment, Names, Span, WallClock};

/// At most this many stalls are kept with their times. All are counted.
const MOST: usize = 100_000;

/// A stall.
#[derive(Clone, Debug)]
pub struct Stall {
    /// The guest, as the status shows it.
    pub guest: String,
    /// When it was seen.
    pub wall: WallClock,
    at: Moment,
    /// What the guest had.
    pub had: Bytes,
    wants: Option<Bytes>,
    /// It had its full size: there was nothing to grant.
    pub was_full: bool,
    /// The time until more was granted; `None` if nothing was.
    pub granted: Option<Span>,
    /// The time until the guest had it; `None` if it never did.
    pub answered: Option<Span>,
    /// The last state of the guest while it stalled.
    pub state: String,
}

/// Stalls under way, and those that are over.
#[derive(Debug, Default)]
pub struct Stalls {
    open: BTreeMap<GuestId, Stall>,
    /// Those that are over, in the order of their ends.
    pub over: Vec<Stall>,
    /// All of them.
    pub count: u64,
}

impl Stalls {
    /// Takes the next decision.
    pub fn take(&mut self, past: &Past) {
        let Some(last) = &past.published.last else { return };
        let (now, names) = (last.seen.taken_at, last.report.names());
        self.begin(last, &names);
        for (action, answer) in last.plan.actions.iter().zip(&last.answers) {
            let stall = action.guest().and_then(|guest| self.open.get_mut(guest));
            let (Some(stall), Some(size)) = (stall, action.request.size()) else { continue };
            let actual = action.guest().and_then(|id| last.seen.guest(id)).map(|guest| guest.actual());
            if answer.is_accepted() && actual.is_some_and(|actual| size > actual) {
                stall.granted.get_or_insert(now.since(stall.at));
                stall.wants = Some(size);
            }
        }
        let mut ended = Vec::new();
        for (id, stall) in &mut self.open {
            let actual = last.seen.guest(id).map(|guest| guest.actual());
            let has = actual
                .zip(stall.wants)
                .is_some_and(|(actual, wants)| actual.saturating_add(GuestReport::NEAR) >= wants);
            if has {
                stall.answered = Some(now.since(stall.at));
            } else if let Some(report) = last.report.guests.iter().find(|guest| guest.id == *id) {
                stall.state = report.in_words(&names, now);
            }
            let lasts = last
                .state
                .guests
                .get(id)
                .and_then(|guest| guest.stalled)
                .is_some_and(|(_, until)| until > now);
            // A guest can have what was granted before its stall is forgotten: that is one stall.
            if actual.is_none() || !lasts {
                ended.push(id.clone());
            }
        }
        ended.iter().for_each(|id| self.end(id));
    }

    fn begin(&mut self, last: &LastTick, names: &Names<'_>) {
        let now = last.seen.taken_at;
        for (id, guest) in &last.state.guests {
            let stalls = guest.stalled.is_some_and(|(_, until)| until > now);
            if !stalls || self.open.contains_key(id) {
                continue;
            }
            self.count += 1;
            let (had, full) =
                last.seen.guest(id).map(|guest| (guest.actual(), guest.told.full)).unwrap_or_default();
            let stall = Stall {
                guest: names.name(id),
                wall: last.seen.wall,
                at: now,
                had,
                wants: None,
                was_full: had.saturating_add(GuestReport::NEAR) >= full,
                granted: None,
                answered: None,
                state: String::new(),
            };
            self.open.insert(id.clone(), stall);
        }
    }

    fn end(&mut self, id: &GuestId) {
        if let Some(stall) = self.open.remove(id)
            && self.over.len() < MOST
        {
            self.over.push(stall);
        }
    }

    /// Ends all that are under way, because the journal ends there.
    pub fn finish(&mut self) {
        let open: Vec<GuestId> = self.open.keys().cloned().collect();
        open.iter().for_each(|id| self.end(id));
    }

    /// How many have such a time, and the median, the 95th percentile and the longest of these times.
    pub fn times(&self, of: fn(&Stall) -> Option<Span>) -> Option<(usize, [Span; 3])> {
        let mut times: Vec<Span> = self.over.iter().filter_map(of).collect();
        times.sort_unstable();
        let last = times.len().checked_sub(1)?;
        // The nearest rank.
        let rank = |percent: usize| times[(times.len() * percent).div_ceil(100).saturating_sub(1)];
        Some((times.len(), [rank(50), rank(95), times[last]]))
    }
}
