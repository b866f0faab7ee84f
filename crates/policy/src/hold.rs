//! Guests that are left alone on somebody's word.
//!
//! **Problem.** An operator must be able to say "not this one", at once and without a new configuration. And whoever else moves a
//! balloon (a person at the monitor, a script, another manager) means it: a memory manager that moves it back is a nuisance.
//!
//! **Terms.** A guest is *held*: it keeps its size. It is *released*: it gets its limit and keeps it. QEMU does not tell what a
//! balloon was last asked for, only where it is: a command of somebody else shows as a *foreign* movement.
//!
//! **Rule.**
//! - What a guest is asked to give when it is held ends where it is; what it was granted already, it gets.
//! - A guest that was released counts with its limit as its reservation, until it has that: memory is had from others, verified
//!   as returned as always, and a commitment is not broken for it.
//! - A balloon that grows below what we asked for is foreign. So is one that shrinks beyond it, where the guest may not do that
//!   itself. Where it may (`deflate-on-oom`), it is foreign once statistics made afterwards show three quarters of it
//!   available, and none before showed less or a sign of want (which drivers before Linux 6.12 cannot): who deflates its own balloon does so for memory that it uses.
//!   Until that is known, for [`JUDGED_WITHIN`] at most, it is asked for nothing.
//! - Nothing is foreign that a command of ours, a reset or memory hot-plug can have moved.
//! - A foreign movement holds the guest until the operator says otherwise, with the size that it came to; also one during a hold
//!   that would end by itself.

use memtide_model::{Bytes, Hold, Keeps, Mode, Moment, Order, Reading, Span, Verdict};

use crate::demand::{RESET_SETTLES, dead_band};
use crate::guest::Guest;

/// How long it may take to tell a command of somebody else from a deflation by the guest itself.
pub const JUDGED_WITHIN: Span = Span::from_secs(5);
/// How long after a target of ours was written the balloon may still follow the one before.
const FOLLOWS: Span = Span::from_secs(2);

/// The hold of a guest after the operator's `orders`, the last of which counts.
#[must_use]
pub fn in_force<'a>(
    before: Option<Hold>,
    orders: impl Iterator<Item = &'a Order>,
    now: Moment,
) -> Option<Hold> {
    orders.last().map_or(before, |order| order.hold).filter(|hold| !hold.is_over(now))
}

/// Notices what somebody else did to the balloon of `guest` since the last decision, `elapsed` ago.
pub fn notice(mode: Mode, guest: &mut Guest<'_>, elapsed: Span, now: Moment) {
    guest.next.plugged = guest.seen.hotplug.latest().map(|hotplug| hotplug.plugged);
    let lifted_at = guest.next.lifted_at.take();
    if mode == Mode::Observe || !is_watched(guest) || guest.seen.balloon.fresh().is_none() {
        return;
    }
    let asked = guest.before.target.unwrap_or(guest.before.actual);
    let band = dead_band(guest.seen.full);
    let actual = guest.entry.actual;
    if is_explained(guest, now) {
        return;
    }
    let from = guest.before.actual;
    if actual.saturating_add(band) < asked.min(from) {
        hold(guest, from);
        return;
    }
    let lifted = actual.saturating_sub(asked);
    if lifted <= band {
        return;
    }
    let rose = actual > from.saturating_add(band);
    if !guest.deflates_itself() {
        if rose {
            hold(guest, from);
        }
        return;
    }
    let since = if rose { Some(now) } else { lifted_at };
    let Some(since) =
        since.filter(|at| guest.demand.has_signs && !guest.demand.in_want && now.since(*at) < JUDGED_WITHIN)
    else {
        return;
    };
    let told = match &guest.seen.stats {
        Reading::Fresh { value, age } => value.available.map(|available| (available, *age)),
        _ => None,
    };
    match told {
        Some((available, age)) if available < lifted.mul_div(3, 4) && age < elapsed => {}
        Some((_, age)) if age < now.since(since) => hold(guest, asked),
        _ => guest.next.lifted_at = Some(since),
    }
}

/// Whether somebody else's movement is looked for: in a guest that is managed, or will be once the operator's hold is over.
fn is_watched(guest: &Guest<'_>) -> bool {
    let ends = |hold: Hold| hold.keeps == Keeps::Size && hold.until.is_some();
    guest.is_managed() || matches!(guest.left_alone, Some(Verdict::Held(hold)) if ends(hold))
}

/// Whether something else than a command of somebody else can have moved the balloon.
fn is_explained(guest: &Guest<'_>, now: Moment) -> bool {
    let before = guest.before;
    let lately = |at: Option<Moment>, within: Span| at.is_some_and(|at| now.since(at) < within);
    let is_new = before.told_since.is_none();
    is_new
        || lately(before.target_set_at, FOLLOWS)
        || lately(guest.next.reset_at, RESET_SETTLES)
        || before.doubt_until.is_some_and(|until| now < until)
        || before.plugged != guest.next.plugged
}

fn hold(guest: &mut Guest<'_>, from: Bytes) {
    guest.leave_as_it_is(Hold { keeps: Keeps::Foreign { from }, until: None });
}
