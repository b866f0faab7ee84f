//! The operator's hold of a guest survives the guest's restart.
//!
//! **Problem.** A guest that starts again is another guest: its process is new. The operator held it by its name.
//!
//! **Rule.** If a guest ends while the operator holds it, and one of the same name starts within [`STARTS_WITHIN`], the engine gives the
//! order again, as if the operator had: it is in the journal like any other. A hold that is over by then has ended.

use std::collections::BTreeMap;

use memtide_model::{GuestId, Hold, Keeps, Moment, Order, Ordered, Snapshot, Span, State};

/// The longest time between the end of a guest and its next start.
const STARTS_WITHIN: Span = Span::from_secs(600);
/// The most guests that are remembered.
const MOST: usize = 1_000;

/// The holds of guests that have ended, by their names.
#[derive(Debug, Default)]
pub(crate) struct Again {
    ended: BTreeMap<String, (Hold, Moment)>,
}

impl Again {
    /// Adds to the orders in `seen` those that are given again, and returns their guests. `state` is the one before this decision.
    pub(crate) fn give_orders(&mut self, state: &State, seen: &mut Snapshot) -> Vec<GuestId> {
        let now = seen.taken_at;
        let by_operator =
            |hold: &Hold| matches!(hold.keeps, Keeps::Size | Keeps::Limit) && !hold.is_over(now);
        for (id, guest) in &state.guests {
            let hold = guest.hold.filter(by_operator);
            if let Some(hold) = hold.filter(|_| seen.guest(id).is_none() && self.ended.len() < MOST) {
                self.ended.insert(id.name().to_owned(), (hold, now));
            }
        }
        if self.ended.is_empty() {
            return Vec::new();
        }
        self.ended.retain(|_, (hold, at)| by_operator(hold) && now.since(*at) < STARTS_WITHIN);
        let started = seen.guests.iter().filter(|guest| !state.guests.contains_key(&guest.id));
        let started: Vec<GuestId> = started.map(|guest| guest.id.clone()).collect();
        let held = started.into_iter().filter_map(|guest| {
            let (hold, _) = self.ended.remove(guest.name())?;
            Some((guest, hold))
        });
        let held: Vec<(GuestId, Hold)> = held.collect();
        // The operator's own orders are newer.
        let orders =
            held.iter().map(|(guest, hold)| Order { guest: guest.clone(), ordered: Ordered::Leave(*hold) });
        seen.orders.splice(..0, orders);
        held.into_iter().map(|(guest, _)| guest).collect()
    }
}
