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
//! - A foreign hold ends when another guest *runs dry* and cannot get memory otherwise: what it has left is less than it grew by of late and half
//!   of its least headroom, it starves for memory that it uses, and all that such guests lack exceeds what can be granted now and what the others
//!   hold idle. An operator's hold does not end so, nor does a foreign one within its time. The target is written from where the balloon is,
//!   which explains its place: the same movement is not foreign once more.

use memtide_model::{
    Bytes, Commitment, Config, Hold, Keeps, Mode, Moment, PAGE_4K, Reading, Span, State, Verdict,
};

use crate::demand::{RESET_SETTLES, dead_band, headroom_floor};
use crate::guest::Guest;
use crate::ledger::Ledger;
use crate::stuck;

/// How long it may take to tell a command of somebody else from a deflation by the guest itself.
pub const JUDGED_WITHIN: Span = Span::from_secs(5);
/// How long after a target of ours was written the balloon may still follow the one before.
const FOLLOWS: Span = Span::from_secs(2);

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
    let held_until = match guest.left_alone {
        Some(Verdict::Held(Hold { keeps: Keeps::Size, until })) => until,
        _ => None,
    };
    guest.leave_as_it_is(Hold { keeps: Keeps::Foreign { from, held_until }, until: None });
}

/// Ends foreign holds if other guests run dry. Those that can give most end first, and no more of them than are needed.
pub fn end_foreign(config: &Config, state: &State, ledger: &Ledger, guests: &mut [Guest<'_>], now: Moment) {
    let may_end = |guest: &Guest<'_>| is_foreign(guest.was_held, now) && is_foreign(guest.next.hold, now);
    if config.mode == Mode::Observe || !guests.iter().any(may_end) {
        return;
    }
    let dry = guests.iter().filter(|guest| guest.is_managed() && guest.starves_for_use());
    let lacks = Bytes::sum(dry.clone().filter_map(runs_dry));
    let most = dry.filter_map(|guest| Some((runs_dry(guest)?, guest.seen.id.clone())));
    let Some((most, lacking)) = most.max_by(|a, b| a.0.cmp(&b.0).then_with(|| b.1.cmp(&a.1))) else { return };
    let room = match config.commitment {
        Commitment::Strict => ledger.room.spare,
        Commitment::Elastic => ledger.free().saturating_sub(state.joint_surge.recent),
    };
    let idle = |guest: &Guest<'_>| has_idle(config, guest, now);
    let mut short = lacks.saturating_sub(room).saturating_sub(Bytes::sum(guests.iter().map(idle)));
    let mut held: Vec<(Bytes, usize)> = (0..guests.len())
        .filter(|&i| may_end(&guests[i]) && guests[i].ends_free())
        .map(|i| (gives(&guests[i]), i))
        .filter(|(gives, i)| *gives > dead_band(guests[*i].seen.full))
        .collect();
    held.sort_unstable_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(&b.1)));
    for (gives, index) in held {
        if short.is_zero() {
            break;
        }
        guests[index].is_managed_again((lacking.clone(), most));
        short = short.saturating_sub(gives);
    }
}

/// Whether a guest is held for somebody else, and not within the time of an operator's hold.
fn is_foreign(hold: Option<Hold>, now: Moment) -> bool {
    matches!(hold, Some(Hold { keeps: Keeps::Foreign { held_until, .. }, .. }) if held_until.is_none_or(|until| until <= now))
}

/// What a guest lacks to have its least headroom and as much as it grew by of late, if it has less than half of the headroom besides its growth.
fn runs_dry(guest: &Guest<'_>) -> Option<Bytes> {
    let (headroom, left) = (headroom_floor(guest.seen.full), left(guest)?);
    let used = guest.entry.held.saturating_sub(left);
    let growth = match guest.before.stats_at {
        Some(_) => guest.before.growth.recent.max(used.saturating_sub(guest.before.used)),
        None => Bytes::ZERO,
    };
    let growth = growth.min(guest.seen.full.mul_div(1, 4));
    let is_dry = left < headroom.mul_div(1, 2).saturating_add(growth);
    is_dry.then(|| headroom.saturating_add(growth).saturating_sub(left))
}

/// What a guest has available, and what it was granted besides.
fn left(guest: &Guest<'_>) -> Option<Bytes> {
    let available = guest.seen.stats.fresh()?.available?;
    Some(available.saturating_add(guest.entry.held.saturating_sub(guest.entry.actual)))
}

/// What a guest holds beyond what it uses, its page cache and its least headroom; elastic: as far as it has touched it. A guest that is held
/// since this decision counts as before.
fn has_idle(config: &Config, guest: &Guest<'_>, now: Moment) -> Bytes {
    let newly_held =
        guest.was_held.is_none() && guest.next.hold.is_some_and(|hold| is_foreign(Some(hold), now));
    let gives = (guest.is_managed() || newly_held)
        && !guest.is_released()
        && guest.before.lifted_at.is_none()
        && !stuck::is_stuck(&guest.before.stuck, now);
    let (Some(left), Some(stats), true) = (left(guest), guest.seen.stats.fresh(), gives) else {
        return Bytes::ZERO;
    };
    let reclaimable = stats.available.unwrap_or_default().saturating_sub(stats.free.unwrap_or_default());
    let cache = stats.disk_caches.unwrap_or(reclaimable).min(reclaimable);
    let held = guest.entry.held;
    let needs =
        held.saturating_sub(left).saturating_add(cache).saturating_add(headroom_floor(guest.seen.full));
    let has = match config.commitment {
        Commitment::Strict => held,
        Commitment::Elastic => guest.entry.touched(),
    };
    has.min(held).saturating_sub(needs.max(guest.bounds.reservation().round_down(PAGE_4K)))
}

/// What a held guest can give: all but what it uses and its least headroom.
fn gives(guest: &Guest<'_>) -> Bytes {
    let used = left(guest).map_or(Bytes::ZERO, |left| guest.entry.held.saturating_sub(left));
    let needs = used.saturating_add(headroom_floor(guest.seen.full));
    guest.entry.held.saturating_sub(needs.max(guest.bounds.reservation().round_down(PAGE_4K)))
}
