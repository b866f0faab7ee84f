//! Guests that are left alone because somebody asked for it.
//!
//! **Problem.** An operator must be able to say "not this one", at once and without a new configuration. Anyone else who moves a
//! balloon (a person at the monitor, a script, another manager) wants that size: a memory manager that moves it back is a nuisance.
//!
//! **Terms.** A *held* guest keeps its size. A *released* guest gets its limit and keeps it. QEMU does not report the last size
//! that a balloon was asked for, only its actual size. Somebody else's command therefore shows as a *foreign* movement.
//!
//! **Rule.**
//! - A held guest stops giving at its present size; it still gets memory that it was granted already.
//! - A released guest counts with its limit as its reservation until it has it. As always, other guests give the memory and it is
//!   verified as returned; the commitment is not broken for it.
//! - A balloon that inflates below memtide's target is foreign. So is one that deflates above it, if the guest may not deflate it
//!   itself. If the guest may (`deflate-on-oom`), the movement is foreign once later statistics show three quarters of it
//!   available, and none before showed less or a sign of want (drivers before Linux 6.12 cannot): a guest deflates its own
//!   balloon for memory that it uses. Until then, for at most [`WATCHED`], it is asked for nothing.
//! - A movement is not foreign if memtide's own command, a reset or memory hot-plug can explain it.
//! - A foreign movement holds the guest at its new size until the operator says otherwise, even during a hold that would end by
//!   itself.
//! - A foreign hold ends when its guest kills one of its own programs for lack of memory: nobody who set the size meant that.
//! - It ends when another guest *runs dry* and cannot get memory otherwise. That guest has less left than its recent
//!   growth plus half of its least headroom, and it starves for used memory. All such guests together lack more than can be
//!   granted now and the others hold idle. It also ends when the host is in an emergency, and all others together cannot give what
//!   it lacks without memory that they use. An operator's hold does not end this way, nor does a foreign one within the operator's
//!   time. The target is then written from the balloon's present position. That explains the position: the same movement is not
//!   foreign again.

use memtide_model::{
    Bytes, Commitment, Config, Hold, Keeps, Mode, Moment, Reading, Snapshot, Span, State, Verdict,
};

use crate::belief::guest::Guest;
use crate::belief::need::headroom_floor;
use crate::belief::scene::Scene;
use crate::belief::stuck;
use crate::constants::{FOLLOWS, LEAST_HEADROOM, LIFTED_UNUSED, MOST_GROWTH, RESET_SETTLES, WATCHED};

/// Detects foreign movements of `guest`'s balloon since the last decision, `elapsed` ago.
pub fn notice(mode: Mode, guest: &mut Guest<'_>, elapsed: Span, now: Moment) {
    guest.next.plugged = guest.seen.told.hotplug.latest().map(|hotplug| hotplug.plugged);
    let lifted_at = guest.next.lifted_at.take();
    if mode == Mode::Observe || !is_watched(guest) || guest.seen.told.balloon.fresh().is_none() {
        return;
    }
    let asked = guest.before.target.unwrap_or(guest.before.actual);
    let band = guest.dead_band();
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
        since.filter(|at| guest.need.shows_stalls() && !guest.need.is_in_want() && now.since(*at) < WATCHED)
    else {
        return;
    };
    let told = match &guest.seen.told.stats {
        Reading::Fresh { value, age } => value.available.map(|available| (available, *age)),
        _ => None,
    };
    match told {
        Some((available, age)) if available < LIFTED_UNUSED.of(lifted) && age < elapsed => {}
        Some((_, age)) if age < now.since(since) => hold(guest, asked),
        _ => guest.next.lifted_at = Some(since),
    }
}

/// Whether foreign movements are looked for: the guest is managed, or will be once the operator's hold is over.
fn is_watched(guest: &Guest<'_>) -> bool {
    let ends = |hold: Hold| hold.keeps == Keeps::Size && hold.until.is_some();
    guest.is_managed() || matches!(guest.left_alone, Some(Verdict::Held(hold)) if ends(hold))
}

/// Whether anything except somebody else's command can have moved the balloon.
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

/// Ends foreign holds if other guests or the host run dry. The guests that can give most come first; no more holds end than necessary.
pub fn end_foreign(config: &Config, state: &State, scene: &Scene, seen: &Snapshot, guests: &mut [Guest<'_>]) {
    let now = scene.now;
    let may_end = |guest: &Guest<'_>| is_foreign(guest.was_held, now) && is_foreign(guest.next.hold, now);
    if config.mode == Mode::Observe || !guests.iter().any(may_end) {
        return;
    }
    let dry = guests.iter().filter(|guest| guest.is_managed());
    let lacks = Bytes::sum(dry.clone().filter_map(runs_dry));
    let most = dry.filter_map(|guest| Some((runs_dry(guest)?, guest.seen.id.clone())));
    let most = most.max_by(|a, b| a.0.cmp(&b.0).then_with(|| b.1.cmp(&a.1)));
    let room = match config.commitment {
        Commitment::Strict => scene.ledger.room.spare,
        Commitment::Elastic => scene.ledger.free().saturating_sub(state.growth.recent),
    };
    let idle = |guest: &Guest<'_>| has_idle(config, guest, now);
    let guests_lack = lacks.saturating_sub(room).saturating_sub(Bytes::sum(guests.iter().map(idle)));
    let host_lacks = host_lacks(scene, seen, guests);
    let (mut short, cause) = match most {
        Some((most, lacking)) if guests_lack >= host_lacks => (guests_lack, (Some(lacking), most)),
        _ => (host_lacks, (None, scene.danger)),
    };
    let may_give = |guest: &Guest<'_>| {
        let has = match config.commitment {
            Commitment::Strict if cause.0.is_some() => guest.entry.held,
            // Only touched memory helps the host.
            _ => guest.entry.touched(),
        };
        gives(guest, has, headroom_floor(guest.full))
    };
    let mut held: Vec<(Bytes, usize)> = (0..guests.len())
        .filter(|&i| may_end(&guests[i]) && guests[i].ends_free())
        .map(|i| (may_give(&guests[i]), i))
        .filter(|(gives, i)| *gives > guests[*i].dead_band())
        .collect();
    held.sort_unstable_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(&b.1)));
    for (gives, index) in held {
        if short.is_zero() {
            break;
        }
        guests[index].is_managed_again(cause.clone());
        short = short.saturating_sub(gives);
    }
    // Last: a guest that was held lacks nothing from others before.
    for guest in guests.iter_mut().filter(|guest| may_end(guest) && guest.ends_free()) {
        // The first statistics after a reset are compared with those of another kernel.
        let kills = guest.need.evidence.is_some_and(|evidence| evidence.kills);
        if kills && guest.before.told_since.is_some() {
            guest.is_managed_again((Some(guest.seen.id.clone()), headroom_floor(guest.full)));
        }
    }
}

/// Whether a guest is held because of a foreign movement, and no operator's hold is running.
fn is_foreign(hold: Option<Hold>, now: Moment) -> bool {
    matches!(hold, Some(Hold { keeps: Keeps::Foreign { held_until, .. }, .. }) if held_until.is_none_or(|until| until <= now))
}

/// The lack of a guest that runs dry: least headroom plus recent growth, less the memory it has left. `None` if it has at least
/// its growth and half of the headroom left.
fn runs_dry(guest: &Guest<'_>) -> Option<Bytes> {
    let (headroom, left) = (headroom_floor(guest.full), left(guest)?);
    let used = guest.entry.held.saturating_sub(left);
    // What the next kernel uses after a reset is no growth, nor what is not remembered of the last run.
    let growth = match guest.before.told_since.and(guest.before.counters.as_ref()) {
        Some(_) => guest.next.growth.recent.max(used.saturating_sub(guest.before.used)),
        None => Bytes::ZERO,
    };
    let growth = growth.min(MOST_GROWTH.of(guest.full));
    let is_dry = left < guest.dead_band().saturating_add(growth);
    is_dry.then(|| headroom.saturating_add(growth).saturating_sub(left))
}

/// A guest's available memory plus its pending grant.
fn left(guest: &Guest<'_>) -> Option<Bytes> {
    let available = guest.seen.told.stats.fresh()?.available?;
    Some(available.saturating_add(guest.entry.held.saturating_sub(guest.entry.actual)))
}

/// Held memory beyond used memory, page cache and least headroom. Elastic: only touched memory. A guest held since this decision
/// counts as before.
fn has_idle(config: &Config, guest: &Guest<'_>, now: Moment) -> Bytes {
    let newly_held =
        guest.was_held.is_none() && guest.next.hold.is_some_and(|hold| is_foreign(Some(hold), now));
    let gives = (guest.is_managed() || newly_held)
        && !guest.is_released()
        && guest.before.lifted_at.is_none()
        && !stuck::is_stuck(&guest.before.stuck, now);
    let (Some(left), Some(stats), true) = (left(guest), guest.seen.told.stats.fresh(), gives) else {
        return Bytes::ZERO;
    };
    let cache = stats.droppable_cache();
    let held = guest.entry.held;
    let needs = held.saturating_sub(left).saturating_add(cache).saturating_add(headroom_floor(guest.full));
    let has = match config.commitment {
        Commitment::Strict => held,
        Commitment::Elastic => guest.entry.touched(),
    };
    has.min(held).saturating_sub(needs.max(guest.bounds.reservation().round_down(guest.step())))
}

/// What the host lacks in an emergency beyond what splits may return and all guests that are not held can give.
fn host_lacks(scene: &Scene, seen: &Snapshot, guests: &[Guest<'_>]) -> Bytes {
    if !scene.emergency {
        return Bytes::ZERO;
    }
    let donors = guests.iter().filter(|guest| guest.is_donor(scene.now));
    let others = Bytes::sum(donors.map(|guest| gives(guest, guest.entry.touched(), LEAST_HEADROOM)));
    let may_split = |guest: &Guest<'_>| !guest.before.splits.back_off.lasts(scene.now);
    let splits = seen.host.splits && guests.iter().any(may_split);
    let torn = if splits { scene.ledger.torn } else { Bytes::ZERO };
    scene.danger.saturating_sub(others).saturating_sub(torn)
}

/// What a guest with `has` can give: all but used memory and `headroom`.
fn gives(guest: &Guest<'_>, has: Bytes, headroom: Bytes) -> Bytes {
    let used = left(guest).map_or(Bytes::ZERO, |left| guest.entry.held.saturating_sub(left));
    let needs = used.saturating_add(headroom).max(guest.bounds.reservation().round_down(guest.step()));
    has.min(guest.entry.held).saturating_sub(needs)
}
