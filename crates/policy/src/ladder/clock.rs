//! Squeezes by the clock: an operator may want to know what guests can do without, although nothing is wanted.
//!
//! **Rule.** If [`Config::squeeze_every`](memtide_model::Config::squeeze_every) is set, nothing is wanted and the host is not short, one guest
//! at a time gives in steps of at most 1/8 of its size: its idle memory first, then page cache that it was not seen to need. Guests whose
//! drivers do not show what hurts keep their cache. The next step follows once the last one has arrived and was watched for 5 s, as in any
//! search ([`crate::belief::search`]). A guest's round ends when a step hurts or nothing is left to give; its next round begins one such time later. No guest gets comfort meanwhile: it would take back what was given.
//!
//! **Property.** A guest keeps its memory in use with headroom, and the page cache that it was seen to need.

use memtide_model::{Bytes, Commitment, HostState, Reason, Taken, Takes};

use crate::belief::guest::Guest;
use crate::belief::need::dead_band;
use crate::belief::scene::Scene;
use crate::belief::search;
use crate::belief::stuck;
use crate::constants::{GENTLE, LEAST_STEP, WATCHED};
use crate::ladder::wish::Wish;

/// The step that is due, if there is one. Notes the ends of rounds in the guests.
pub fn squeeze(scene: &Scene, guests: &mut [Guest<'_>]) -> Option<Wish> {
    scene.squeeze_every?;
    for guest in guests.iter_mut().filter(|guest| guest.heard.is_some()) {
        guest.next.squeezed_at = Some(scene.now);
    }
    let is_calm = scene.wanted().is_zero() && scene.host == HostState::High;
    let moves = |guest: &Guest<'_>| {
        let is_watched = guest.before.target_set_at.is_some_and(|at| scene.now.since(at) < WATCHED);
        let is_taken = search::is_taken(&guest.next.search);
        guest.is_managed() && (is_watched || is_taken || !stuck::at_target(&guest.entry))
    };
    if !is_calm || guests.iter().any(moves) {
        return None;
    }
    guests.iter_mut().enumerate().filter(|(_, guest)| is_due(scene, guest)).find_map(|(index, guest)| {
        let wish = step(scene, guest, index);
        if wish.is_none() {
            guest.next.squeezed_at = Some(scene.now);
        }
        wish
    })
}

/// Whether a round of the guest is due, or goes on.
fn is_due(scene: &Scene, guest: &Guest<'_>) -> bool {
    let rests_since = guest.next.squeezed_at.unwrap_or(guest.next.first_seen);
    let is_rested = scene.squeeze_every.is_some_and(|every| scene.now.since(rests_since) >= every);
    let is_quiet = guest.next.search.trial.is_none() && guest.lacks_cache().is_zero() && !guest.takes_more();
    is_rested && is_quiet && guest.class.squeeze && guest.may_give(scene.now) && !guest.is_released()
}

/// The next step of the guest; `None` if it has nothing left to give.
fn step(scene: &Scene, guest: &Guest<'_>, index: usize) -> Option<Wish> {
    guest.need.used?;
    let full = guest.full;
    let (target, most) = (guest.entry.target, GENTLE.of(full));
    let has = match scene.commitment {
        Commitment::Strict => target,
        // Memory that it has not touched frees nothing.
        Commitment::Elastic => guest.entry.touched().min(target),
    };
    let need = &guest.need;
    let keeps = need.with(need.cache_held.max(need.cache)).saturating_add(need.ahead);
    // Freed memory of a guest that reports it is back already.
    let idle = match scene.commitment {
        Commitment::Elastic if guest.reports_freed() => Bytes::ZERO,
        _ => has.saturating_sub(guest.bounds.clamp(keeps)),
    };
    let (cache, size) = if idle >= dead_band(full) {
        (guest.need.cache_held, has.saturating_sub(idle.min(most)))
    } else {
        let able = search::unproven(&guest.next.search, &guest.need, full);
        if able < LEAST_STEP || !guest.need.shows_refaults() {
            return None;
        }
        let less = search::gentle_step(able).max(guest.dead_band()).min(most).min(able);
        let cache = guest.need.cache_held.saturating_sub(less);
        // A kernel that fills its headroom with page cache keeps less free than is assumed: the step counts.
        let counts = target.saturating_sub(less).max(guest.need.with(Bytes::ZERO));
        (cache, guest.bounds.clamp(guest.need.with(cache).min(counts)))
    };
    let size = size.max(target.saturating_sub(most)).round_down(guest.step());
    if size.saturating_add(dead_band(full)) > target {
        return None;
    }
    let has = guest.need.cache_held;
    let takes = (cache < has).then_some(Takes::Cache(Taken { has, keeps: cache, gently: true }));
    let reason = Reason::SqueezeStep { cache, demand: guest.need.with(cache), wanted: Bytes::ZERO };
    Some(Wish { index, target: size, reason, urgent: false, takes })
}
