//! The way to the fair shares: who gives wanted memory, and which; who grows, and in which order.
//!
//! Each of these files is a way to take memory: [`splits`], `idle`, `pieces`, `cache`, `beyond`, [`untouched`], [`clock`], [`agent`], `reporting`. [`pacing`]
//! says who grows and who waits, [`phases`] in which order, and what pays for it.
//!
//! **Rule.** Ways are tried one after the other, the cheapest first, until nothing is wanted. Each way asks every donor for its offer:
//! how much it can give, and at what price. The dispatcher buys the cheapest offers, each up to what the offer may pay for.
//!
//! Memory under way already counts. Memory that splits of torn huge pages should return counts, too, but not against idle memory
//! ([`splits`]). A guest that lacks memory itself gives nothing. Without urgency, a guest gives at most 1/8 of its size
//! a second, in one step: inflation takes its CPU time, and each target is work. In an emergency, headroom shrinks to 16 MiB, and no share
//! keeps page cache. Growing guests are not asked if nothing is urgent.
//!
//! **Property.** If nothing is wanted, nobody gives, except by the [`clock`].

pub mod agent;
mod beyond;
mod cache;
pub mod clock;
mod donor;
pub mod fetch;
mod idle;
mod orders;
pub mod pacing;
pub mod phases;
mod pieces;
pub mod probe;
mod reporting;
pub mod splits;
pub mod untouched;
pub mod wish;

use std::cmp::Reverse;

use memtide_model::{Bytes, Commitment, Moment, Plan, Reason};

use self::donor::Donor;
pub use self::donor::{Trim, floor};
use crate::belief::guest::Guest;
use crate::belief::scene::Scene;
use crate::belief::{Beliefs, search};
use crate::constants::{GENTLE, GENTLE_EVERY, TOLERANCE};
use crate::ladder::wish::Wish;
use crate::share::tmpfs::Bound;

/// The ways that come before memory that splits return.
const FIRST: [&dyn Rung; 2] = [&idle::Idle, &pieces::Pieces];
/// And after.
const THEN: [&dyn Rung; 6] = [
    &cache::Step,
    &cache::Urgent::Cold,
    &cache::Urgent::Unproven,
    &cache::Urgent::Needed,
    &cache::Last,
    &beyond::BeyondShare,
];

/// A way to take memory.
trait Rung {
    /// What a donor offers this way.
    fn offer(&self, scene: &Scene, wants: &Wants, donor: &Donor<'_, '_>) -> Option<Offer>;

    /// Takes what was bought.
    fn take(&self, scene: &Scene, wants: &Wants, donor: &mut Donor<'_, '_>, bought: Bought);

    /// Whether others count on it.
    fn counts(&self) -> bool {
        true
    }

    /// Whether only one donor may give.
    fn is_alone(&self) -> bool {
        false
    }
}

/// What a donor can give.
struct Offer {
    /// The most.
    frees: Bytes,
    /// Less is not worth asking for.
    least: Bytes,
    /// The cheapest offer is bought first.
    price: u64,
    /// The wanted memory that it may be bought for.
    pays: fn(&Wants) -> Bytes,
}

/// What is bought of an offer.
#[derive(Clone, Copy)]
struct Bought {
    bytes: Bytes,
    /// All that was offered.
    of: Bytes,
}

/// Wanted memory that is still to be found.
struct Wants {
    all: Bytes,
    for_use: Bytes,
    /// The part of it without headroom for growth.
    for_used: Bytes,
    urgent: Bytes,
    /// The part of it without headroom for growth.
    pressing: Bytes,
    /// Memory that the guests can take beyond all that there is: idle memory comes back at once for it.
    over: Bytes,
    /// A step is being watched.
    is_watched: bool,
}

impl Wants {
    fn less(&mut self, found: Bytes) {
        for left in [
            &mut self.all,
            &mut self.for_use,
            &mut self.for_used,
            &mut self.urgent,
            &mut self.pressing,
            &mut self.over,
        ] {
            *left = left.saturating_sub(found);
        }
    }
}

/// What guests are asked for.
#[derive(Default)]
pub struct Given {
    /// By their balloons.
    pub wishes: Vec<Wish>,
    /// By their agents.
    pub trims: Vec<Trim>,
}

impl Given {
    /// Adds what other guests are asked for.
    pub fn add(&mut self, other: Self) {
        self.wishes.extend(other.wishes);
        self.trims.extend(other.trims);
    }
}

/// The changes that are right now, in the order in which they are to be made, each grant paid from memory that is there.
#[must_use]
pub fn plan(beliefs: &mut Beliefs<'_>, bound: &[Bound]) -> Plan {
    let (mut cheap, mut wishes) = (Vec::new(), Vec::new());
    let (is_host_read, seen) = (beliefs.is_host_read(), beliefs.seen);
    let (scene, guests) = (&mut beliefs.scene, &mut beliefs.guests);
    if is_host_read {
        cheap = splits::ask(scene, seen, guests);
        let given = pacing::wishes(scene, bound, guests);
        wishes = given.wishes;
        fetch::fetch(scene, seen, guests, &mut wishes);
        probe::hold_back(guests, &mut wishes);
        cheap.extend(agent::ask(scene, seen, guests, &given.trims));
    }
    phases::order(scene, seen, (guests, bound), (cheap, wishes))
}

/// What guests are asked to give now, besides what they give `already`.
pub fn give(scene: &Scene, guests: &[Guest<'_>], already: &[Wish]) -> Given {
    let wanted = scene.wanted();
    let can_wait = scene.wanted_for_use().is_zero() && !scene.emergency;
    // Otherwise the guests that report first would give for the rest.
    if wanted.is_zero() || (can_wait && guests.iter().any(|guest| guest.is_awaited(scene.now))) {
        return Given::default();
    }
    let mut given = vec![None; guests.len()];
    for wish in already {
        given[wish.index] = Some(guests[wish.index].entry.touched().saturating_sub(wish.target));
    }
    let on_its_way = guests.iter().zip(&given).filter(|(guest, _)| guest.is_donor(scene.now));
    let mut wants = Wants {
        all: wanted,
        for_use: scene.wanted_for_use(),
        for_used: scene.wanted_for_used(),
        urgent: scene.urgent(),
        pressing: scene.pressing(),
        over: scene.over(),
        is_watched: guests.iter().any(|guest| search::is_taken(&guest.next.search)),
    };
    wants.less(Bytes::sum(
        on_its_way.map(|(guest, given)| under_way(scene, guest).max(given.unwrap_or_default())),
    ));
    if wants.all.is_zero() {
        return Given::default();
    }
    // An inflation slows a guest down while it grows.
    let may_grow = can_wait && scene.urgent().is_zero();
    let gives = |index: &usize| {
        let guest = &guests[*index];
        guest.may_give(scene.now)
            && given[*index].is_none()
            && guest.lacks_cache().is_zero()
            && !(may_grow && guest.takes_more())
    };
    let mut donors: Vec<Donor<'_, '_>> =
        (0..guests.len()).filter(gives).map(|index| Donor::new(scene, &guests[index], index)).collect();
    for rung in FIRST {
        buy(rung, scene, &mut wants, &mut donors);
    }
    if !scene.emergency {
        wants.less(scene.returning);
    }
    for rung in THEN {
        buy(rung, scene, &mut wants, &mut donors);
    }
    Given {
        wishes: donors.iter().filter_map(|donor| donor.wish(scene, wanted)).collect(),
        trims: donors.iter().filter_map(|donor| donor.trim).collect(),
    }
}

/// What the guests of a tmpfs give for each other.
pub fn give_for(tmpfs: &Bound, guests: &mut [Guest<'_>]) -> Given {
    let scene = &tmpfs.scene;
    let reason = Reason::TmpfsShort {
        free: scene.ledger.really_free(),
        wanted: scene.wanted(),
        node: tmpfs.id.node(),
    };
    let mut given = tmpfs.lend(guests, |inside| give(scene, inside, &[]));
    for wish in &mut given.wishes {
        (wish.index, wish.reason) = (tmpfs.members[wish.index], reason);
    }
    for trim in &mut given.trims {
        trim.index = tmpfs.members[trim.index];
    }
    given
}

/// Buys the cheapest offers of a way.
fn buy(rung: &dyn Rung, scene: &Scene, wants: &mut Wants, donors: &mut [Donor<'_, '_>]) {
    if wants.all.is_zero() {
        return;
    }
    let offers = donors.iter_mut().filter_map(|donor| Some((rung.offer(scene, wants, donor)?, donor)));
    let mut offers: Vec<(Offer, &mut Donor<'_, '_>)> = offers.collect();
    offers.sort_by_key(|(offer, donor)| (offer.price, Reverse(offer.frees), donor.index));
    let mut uncounted = Bytes::ZERO;
    for (offer, donor) in offers {
        let wanted = (offer.pays)(wants).saturating_sub(uncounted);
        if wanted.is_zero() {
            continue;
        }
        let bytes = offer.frees.min(wanted.max(offer.least));
        rung.take(scene, wants, donor, Bought { bytes, of: offer.frees });
        match rung.counts() {
            true => wants.less(bytes.min(donor.counts)),
            false => uncounted = uncounted.saturating_add(bytes.min(donor.counts)),
        }
        if rung.is_alone() {
            return;
        }
    }
}

/// Memory that a guest has yet to bring back.
fn under_way(scene: &Scene, guest: &Guest<'_>) -> Bytes {
    let entry = &guest.entry;
    match scene.commitment {
        Commitment::Strict => entry.held.saturating_sub(entry.target),
        Commitment::Elastic if entry.actual > entry.target => entry.touched().saturating_sub(entry.target),
        Commitment::Elastic => Bytes::ZERO,
    }
}

/// The smallest change of a target that is worth making: a dead band. While a strict commitment is not kept, it is 1 MiB, or an even part of what is
/// missing if that is less.
fn least_worth(scene: &Scene, guest: &Guest<'_>) -> Bytes {
    match scene.commitment {
        Commitment::Strict if !scene.short_each.is_zero() => scene.short_each.min(TOLERANCE),
        _ => guest.dead_band(),
    }
}

/// The memory that a guest may give without urgency since its target was last written.
pub(crate) fn gentle(guest: &Guest<'_>, now: Moment) -> Bytes {
    let every = GENTLE_EVERY.as_millis();
    let waited = guest.before.target_set_at.map_or(every, |at| now.since(at).as_millis().min(every));
    GENTLE.of(guest.full).mul_div(waited, every)
}
