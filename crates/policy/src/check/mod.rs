//! The promises that a plan must keep, tested independently of the decision, action by action.
//!
//! The check shares no function with the stages of the decision, and does not see the policy's state. It works from the snapshot, the
//! configuration, the operator's orders and a record of its own ([`witness`]). The reason of an action proves nothing. The check runs in
//! tests, in the simulator, and in the daemon before anything is applied.
//!
//! **Rule.** The actions are judged in their order, each beside those that were accepted before it. A refused action is not carried out, and
//! its guest stays as it is. So one grant too many costs that grant, and never the memory that other actions free.
//!
//! **Property.** Carrying out the accepted actions, and no others, keeps every promise.

mod gain;
mod holds;
mod in_use;
mod known;
mod manners;
mod promises;
mod room;
mod tmpfs;
mod violation;
mod wanted;
pub mod witness;

use memtide_model::{
    Action, Bytes, Config, Deed, GuestId, Mechanism, Ordered, Plan, Request, Snapshot, Span, Witness,
};

use self::known::{Known, known};
use self::room::Room;
use self::tmpfs::AllTmpfs;
pub use self::violation::Violation;
use self::wanted::{Pledge, Wanted};

/// A guest that is asked to grow and has not grown for this long may be set back to its size, and left out of the shares.
pub(crate) const DOES_NOT_GROW: Span = Span::from_secs(4);

/// The promises and manners that actions of a plan would break, each with the place of its action. Empty: the whole plan may be carried out.
/// `witness` must have looked at `seen`.
#[must_use]
pub fn check(config: &Config, witness: &Witness, seen: &Snapshot, plan: &Plan) -> Vec<(usize, Violation)> {
    judge(Bench::new(config, witness, seen, true), plan)
}

/// The same without memtide's own manners: what every policy must keep.
#[must_use]
pub fn check_promises(
    config: &Config,
    witness: &Witness,
    seen: &Snapshot,
    plan: &Plan,
) -> Vec<(usize, Violation)> {
    judge(Bench::new(config, witness, seen, false), plan)
}

fn judge(mut bench: Bench<'_>, plan: &Plan) -> Vec<(usize, Violation)> {
    // Every promise is about a plan's changes; most plans of a quiet host change nothing.
    if plan.actions.is_empty() {
        return Vec::new();
    }
    let last_shrink = bench.last_shrink(plan);
    let mut found = Vec::new();
    for (place, action) in plan.actions.iter().enumerate() {
        let shrinks_later = last_shrink.filter(|(last, _)| place < *last).map(|(_, guest)| guest);
        let mut broken = Vec::new();
        bench.judge(action, shrinks_later, &mut broken);
        if broken.is_empty() && bench.manners {
            broken.extend(bench.minds(action));
        }
        if broken.is_empty() {
            bench.accept(action);
        }
        found.extend(broken.into_iter().map(|violation| (place, violation)));
    }
    found
}

/// Everything that the actions of a plan are judged by. The parts that only some plans need are made when they are needed.
struct Bench<'a> {
    config: &'a Config,
    witness: &'a Witness,
    seen: &'a Snapshot,
    /// Whether memtide's own manners count, too.
    manners: bool,
    guests: Vec<Known<'a>>,
    /// The mechanisms of the accepted actions, for each guest.
    asked: Vec<Vec<Mechanism>>,
    /// Memory that nobody uses, less what comes apart by accepted actions.
    unused: Option<u128>,
    room: Option<Room>,
    tmpfs: Option<AllTmpfs>,
    wanted: Option<Wanted>,
    pledge: Option<Pledge>,
    may_end_holds: Option<bool>,
}

impl<'a> Bench<'a> {
    fn new(config: &'a Config, witness: &'a Witness, seen: &'a Snapshot, manners: bool) -> Self {
        let guests = known(config, witness, seen);
        Self {
            asked: vec![Vec::new(); guests.len()],
            unused: None,
            config,
            witness,
            seen,
            manners,
            guests,
            room: None,
            tmpfs: None,
            wanted: None,
            pledge: None,
            may_end_holds: None,
        }
    }

    fn index_of(&self, id: &GuestId) -> Option<usize> {
        self.seen.guests.binary_search_by(|guest| guest.id.cmp(id)).ok()
    }

    /// The last action that takes memory, and its guest.
    fn last_shrink(&self, plan: &'a Plan) -> Option<(usize, &'a GuestId)> {
        plan.actions.iter().enumerate().rev().find_map(|(place, action)| {
            let (Some(id), Some(target)) = (action.guest(), action.request.size()) else {
                return None;
            };
            takes(&self.guests[self.index_of(id)?], target).then_some((place, id))
        })
    }

    fn accept(&mut self, action: &Action) {
        let Some(index) = action.guest().and_then(|id| self.index_of(id)) else { return };
        self.asked[index].push(action.request.mechanism());
        if let (Request::Share(shares), Some(unused)) = (action.request, self.unused) {
            self.unused = Some(unused.saturating_sub(self.apart_by(index, shares)));
        }
    }
}

/// Whether a guest must give memory for `target`: it is below its last target, and below its size.
fn takes(guest: &Known<'_>, target: Bytes) -> bool {
    target < guest.pending && target < guest.whole_pages(guest.keeps)
}

/// Whether the operator ordered the guest's agent to drop at least this much.
fn is_ordered_trim(seen: &Snapshot, guest: &Known<'_>, deed: Deed) -> bool {
    seen.orders.iter().any(|order| match (order.ordered, deed) {
        (Ordered::Trim(ordered), Deed::Trim(asked)) => order.guest == guest.seen.id && asked <= ordered,
        _ => false,
    })
}
