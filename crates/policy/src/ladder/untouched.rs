//! Elastic: untouched memory is taken before it stands in the way.
//!
//! **Problem.** A balloon takes free memory first, and what the guest has not touched brings the host nothing back. If a guest has much of it,
//! its page cache comes only after seconds of inflation. Meanwhile a neighbour can fill the host.
//!
//! **Rule.** *Untouched*: the part of a guest's target that it neither has resident nor needs. If the present growth of the guests would use up
//! the host's free memory within the reaction time and the time to take the untouched memory of the guest that can give most (idle memory, and page cache that is likely to be cold), the balloon of
//! this guest takes it. Growth is not foreseen for longer than 10 s: guests with more untouched memory than a balloon takes in this time are
//! left out. If all memory in use is below its high-water mark by more than it grows within a reaction time, the growth is expected to end at that mark.
//!
//! **Property.** Takes nothing that the guest uses or caches. If nobody grows, nobody is asked.

use std::cmp::Reverse;

use memtide_model::{Bytes, Commitment, Reason, Span};

use super::floor;
use crate::belief::activity;
use crate::belief::guest::Guest;
use crate::belief::scene::Scene;
use crate::constants::{FORESEES, INFLATES_BY};
use crate::ladder::wish::Wish;

/// The change that takes untouched memory, if it is time for it. `gives` tells who gives memory anyway.
pub fn take(scene: &Scene, guests: &[Guest<'_>], gives: &[bool]) -> Option<Wish> {
    // What the host lacks if the guests grow on for a reaction time and this long: their growth is that within a reaction time.
    let reaction = scene.reaction.as_millis();
    let lacks = |after: Span| {
        let grows = scene.growing.mul_div(reaction + after.as_millis(), reaction.max(1));
        // Growth that comes back is expected to end where it ended before.
        let foreseen = if scene.rise > scene.growing { grows.min(scene.rise) } else { grows };
        foreseen.saturating_sub(scene.until_danger)
    };
    // Nobody needs to be looked at if the host has enough for as long as growth is foreseen.
    if scene.commitment == Commitment::Strict || lacks(FORESEES).is_zero() {
        return None;
    }
    let may = |(_, guest): &(usize, &Guest<'_>)| {
        guest.may_give(scene.now)
            && guest.need.used.is_some()
            && guest.class.squeeze
            && guest.lacks_cache().is_zero()
            && !guest.takes_more()
            && takes(untouched(scene, guest)) <= FORESEES
    };
    let all = guests.iter().enumerate().filter(may);
    let (index, guest) = all.max_by_key(|(index, guest)| (likely_gives(scene, guest), Reverse(*index)))?;
    let untouched = untouched(scene, guest);
    if gives[index] || untouched.min(can_give(scene, guest)) < guest.dead_band() {
        return None;
    }
    let wanted = lacks(takes(untouched));
    let demand = guest.need.with(guest.need.cache_held);
    let target = guest.entry.target.saturating_sub(untouched);
    let reason = Reason::IdleMemory { idle: untouched, demand, wanted };
    (!wanted.is_zero()).then_some(Wish { index, target, reason, urgent: true, takes: None })
}

/// The part of its target that a guest neither has resident nor needs.
fn untouched(scene: &Scene, guest: &Guest<'_>) -> Bytes {
    // Memory that was granted for needed cache, and is not filled yet, is in use.
    let needs = floor(scene, guest, guest.need.cache_held.max(guest.need.cache));
    let keeps = guest.entry.touched().max(needs).max(guest.bounds.reservation());
    guest.entry.target.saturating_sub(keeps).round_down(guest.step())
}

/// Idle memory and page cache that a guest has resident.
fn can_give(scene: &Scene, guest: &Guest<'_>) -> Bytes {
    let resident = guest.entry.touched().min(guest.entry.target);
    resident.saturating_sub(floor(scene, guest, Bytes::ZERO))
}

/// Its idle memory, and the page cache that is likely to be cold.
fn likely_gives(scene: &Scene, guest: &Guest<'_>) -> Bytes {
    let cache = can_give(scene, guest).min(guest.need.cache_held);
    let idle = can_give(scene, guest).saturating_sub(cache);
    idle.saturating_add(activity::likely_cold(cache, &guest.next.activity))
}

/// The time in which a balloon takes untouched memory.
fn takes(untouched: Bytes) -> Span {
    Span::from_millis(untouched.mul_div(1000, INFLATES_BY.get()).get())
}
