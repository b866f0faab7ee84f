//! The way to the fair shares: who gives wanted memory, and which; who grows, and in which order.
//!
//! Each of these files is a way to take memory: [`splits`], `idle`, `pieces`, `cache`, `beyond`, [`untouched`], [`clock`], [`agent`], `reporting`, [`tier`]. [`pacing`]
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
//! **Property.** If nothing is wanted, no guest gives memory, except by the [`clock`].

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
pub mod tier;
pub mod untouched;
pub mod wish;

use std::cmp::Reverse;

use memtide_model::{
    Bytes, Commitment, Moment, NotBought, Offered, Offers, Pays, Plan, Reason, Span, Spared, Way,
};

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
    /// Its name.
    fn way(&self) -> Way;

    /// What a donor offers this way.
    fn offer(&self, scene: &Scene, wants: &Wants, donor: &Donor<'_, '_>) -> Option<Offer>;

    /// Takes what was bought.
    fn take(&self, scene: &Scene, wants: &Wants, donor: &mut Donor<'_, '_>, bought: Bytes);

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
    /// Those that were hurt are asked last: the length of the pause after it.
    hurt: Span,
    /// The work that the guest is expected to lose for each MiB, in microseconds. The cheapest offer is bought first; of those that cost the same, the
    /// largest.
    price: u64,
    /// The wanted memory that it may be bought for.
    pays: Pays,
}

/// Wanted memory that is still to be found.
#[derive(Clone, Copy)]
struct Wants {
    all: Bytes,
    for_use: Bytes,
    /// The part of it without headroom for growth.
    for_used: Bytes,
    urgent: Bytes,
    /// The part of it without headroom for the growth of guests that can deflate their own balloons.
    pressing: Bytes,
    /// Memory that the guests can take beyond all that there is: idle memory comes back at once for it.
    over: Bytes,
    /// A step is being watched.
    is_watched: bool,
}

impl Wants {
    fn new(scene: &Scene, guests: &[Guest<'_>]) -> Self {
        Self {
            all: scene.wanted(),
            for_use: scene.wanted_for_use(),
            for_used: scene.wanted_for_used(),
            urgent: scene.urgent(),
            pressing: scene.pressing(),
            over: scene.over(),
            is_watched: guests.iter().any(|guest| search::is_taken(&guest.next.search)),
        }
    }

    /// Why nothing is bought of an offer, if these were the wants at first.
    fn why_not(&self, pays: Pays) -> NotBought {
        match () {
            () if self.all.is_zero() => NotBought::NothingWanted,
            () if self.of(pays).is_zero() => NotBought::OnlyFor(pays),
            () => NotBought::Enough,
        }
    }

    fn of(&self, pays: Pays) -> Bytes {
        match pays {
            Pays::All => self.all,
            Pays::Urgent => self.urgent,
            Pays::Pressing => self.pressing,
            Pays::ForUsed => self.for_used,
        }
    }

    /// All memory is wanted, in a hurry.
    const ALL: Self = Self {
        all: Bytes::MAX,
        for_use: Bytes::MAX,
        for_used: Bytes::MAX,
        urgent: Bytes::MAX,
        pressing: Bytes::MAX,
        over: Bytes::MAX,
        is_watched: false,
    };

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
    /// What is wanted beyond idle memory and free memory in pieces.
    pub beyond_free: Bytes,
}

impl Given {
    /// Adds what other guests are asked for.
    pub fn add(&mut self, other: Self) {
        self.wishes.extend(other.wishes);
        self.trims.extend(other.trims);
        self.beyond_free = self.beyond_free.saturating_add(other.beyond_free);
    }
}

/// The changes that are due now, in the order in which they are to be made, each grant paid from memory that is there.
#[must_use]
pub fn plan(beliefs: &mut Beliefs<'_>, bound: &[Bound]) -> Plan {
    let (mut cheap, mut wishes) = (Vec::new(), Vec::new());
    let (is_host_read, seen) = (beliefs.is_host_read(), beliefs.seen);
    let (scene, guests) = (&mut beliefs.scene, &mut beliefs.guests);
    if is_host_read {
        cheap = splits::ask(scene, seen, guests);
        cheap.extend(tier::orders(scene, seen.host.tiers, guests));
        let given = pacing::wishes(scene, bound, guests);
        wishes = given.wishes;
        fetch::fetch(scene, seen, guests, &mut wishes);
        probe::hold_back(guests, &mut wishes);
        let for_tiers = tier::choose(scene, guests, given.beyond_free);
        cheap.extend(agent::ask(scene, seen, guests, &given.trims, &for_tiers));
    }
    phases::order(beliefs, bound, cheap, wishes)
}

/// What guests are asked to give now, besides what they give `already`.
pub fn give(scene: &Scene, guests: &[Guest<'_>], already: &[Wish]) -> Given {
    Market::open(scene, guests, already).map_or_else(Given::default, |mut market| market.trade(scene))
}

/// What the guest at `index` could give now, and why it is not taken.
#[must_use]
pub fn offers(beliefs: &mut Beliefs<'_>, bound: &[Bound], index: usize) -> Offers {
    let (scene, guests) = (&beliefs.scene, &mut beliefs.guests);
    let its_own = bound.iter().find(|tmpfs| tmpfs.members.contains(&index));
    let in_tmpfs = its_own.map_or(Bytes::ZERO, |tmpfs| tmpfs.scene.wanted());
    let given = bound.iter().flat_map(|tmpfs| give_for(tmpfs, guests).wishes);
    let given: Vec<Wish> = given.collect();
    let guest = &guests[index];
    let is_asked = given.iter().any(|wish| wish.index == index);
    let spared = guest.spared(scene.now).or(is_asked.then_some(Spared::GivesAlready));
    let mut offers = Offers { wanted: scene.wanted().max(in_tmpfs), spared, offers: Vec::new() };
    if let Some(mut market) = Market::open(scene, guests, &given) {
        market.watched = Some((index, Vec::new()));
        market.trade(scene);
        offers.spared = offers.spared.or_else(|| spares(scene, guest));
        offers.offers = market.watched.map_or_else(Vec::new, |(_, offers)| offers);
    }
    // What is not on offer now would be if all memory was wanted.
    let first = Wants::new(scene, guests);
    let mut donor = Donor::new(scene, guest, index);
    for rung in FIRST.into_iter().chain(THEN) {
        let Some(offer) = rung.offer(scene, &Wants::ALL, &donor) else { continue };
        rung.take(scene, &Wants::ALL, &mut donor, offer.frees);
        if offers.offers.iter().all(|offered| offered.way != rung.way()) {
            let why = match first.why_not(offer.pays) {
                NotBought::Enough if awaits(scene, guests) => NotBought::Awaits,
                why => why,
            };
            offers.offers.push(offer.seen(rung.way(), Bytes::ZERO, Some(why)));
        }
    }
    offers
}

/// Why a guest that could give is asked for nothing.
fn spares(scene: &Scene, guest: &Guest<'_>) -> Option<Spared> {
    // An inflation slows a guest down while it grows.
    let may_grow = can_wait(scene) && scene.urgent().is_zero();
    match () {
        () if !guest.lacks_cache().is_zero() => Some(Spared::LacksCache),
        () if may_grow && guest.takes_more() => Some(Spared::Grows),
        () => None,
    }
}

/// Whether giving waits for the first statistics of all guests: otherwise those that report first would give the others' part.
fn awaits(scene: &Scene, guests: &[Guest<'_>]) -> bool {
    can_wait(scene) && guests.iter().any(|guest| guest.is_awaited(scene.now))
}

/// Whether nothing is wanted for use.
fn can_wait(scene: &Scene) -> bool {
    scene.wanted_for_use().is_zero() && !scene.emergency
}

/// Wanted memory, and the guests that can give it.
struct Market<'g, 'a> {
    /// What was wanted at first.
    first: Wants,
    wants: Wants,
    donors: Vec<Donor<'g, 'a>>,
    /// A guest whose offers somebody wants to see.
    watched: Option<(usize, Vec<Offered>)>,
}

impl<'g, 'a> Market<'g, 'a> {
    /// `None` if nothing is wanted.
    fn open(scene: &Scene, guests: &'g [Guest<'a>], already: &[Wish]) -> Option<Self> {
        if scene.wanted().is_zero() || awaits(scene, guests) {
            return None;
        }
        let mut given = vec![None; guests.len()];
        for wish in already {
            given[wish.index] = Some(guests[wish.index].entry.touched().saturating_sub(wish.target));
        }
        let on_its_way = guests.iter().zip(&given).filter(|(guest, _)| guest.is_donor(scene.now));
        let first = Wants::new(scene, guests);
        let mut wants = first;
        wants.less(Bytes::sum(
            on_its_way.map(|(guest, given)| under_way(scene, guest).max(given.unwrap_or_default())),
        ));
        if wants.all.is_zero() {
            return None;
        }
        let gives = |index: &usize| {
            let guest = &guests[*index];
            guest.may_give(scene.now) && given[*index].is_none() && spares(scene, guest).is_none()
        };
        let indices = (0..guests.len()).filter(gives);
        let donors = indices.map(|index| Donor::new(scene, &guests[index], index)).collect();
        Some(Self { first, wants, donors, watched: None })
    }

    /// Buys the cheapest offers, way after way.
    fn trade(&mut self, scene: &Scene) -> Given {
        for rung in FIRST {
            self.buy(rung, scene);
        }
        let beyond_free = self.wants.all;
        if !scene.emergency {
            self.wants.less(scene.returning);
        }
        for rung in THEN {
            self.buy(rung, scene);
        }
        let wanted = scene.wanted();
        Given {
            wishes: self.donors.iter().filter_map(|donor| donor.wish(scene, wanted)).collect(),
            trims: self.donors.iter().filter_map(|donor| donor.trim).collect(),
            beyond_free,
        }
    }

    /// Buys the cheapest offers of a way.
    fn buy(&mut self, rung: &dyn Rung, scene: &Scene) {
        let Self { first, wants, donors, watched } = self;
        if wants.all.is_zero() && watched.is_none() {
            return;
        }
        let offers = donors.iter_mut().filter_map(|donor| Some((rung.offer(scene, wants, donor)?, donor)));
        let mut offers: Vec<(Offer, &mut Donor<'_, '_>)> = offers.collect();
        offers.sort_by_key(|(offer, donor)| (offer.hurt, offer.price, Reverse(offer.frees), donor.index));
        let (mut uncounted, mut is_taken) = (Bytes::ZERO, false);
        for (offer, donor) in offers {
            let wanted = wants.of(offer.pays).saturating_sub(uncounted);
            let why = match () {
                () if wants.all.is_zero() || wanted.is_zero() => Some(first.why_not(offer.pays)),
                () if is_taken => Some(NotBought::OneAtATime),
                () => None,
            };
            let is_bought = why.is_none();
            let bytes = if is_bought { offer.frees.min(wanted.max(offer.least)) } else { Bytes::ZERO };
            if let Some((_, seen)) = watched.as_mut().filter(|(index, _)| *index == donor.index) {
                seen.push(offer.seen(rung.way(), bytes, why));
            }
            if !is_bought {
                continue;
            }
            let before = donor.size;
            rung.take(scene, wants, donor, bytes);
            if donor.size < before {
                donor.way = Some((rung.way(), offer.frees));
            }
            match rung.counts() {
                true => wants.less(bytes.min(donor.counts)),
                false => uncounted = uncounted.saturating_add(bytes.min(donor.counts)),
            }
            is_taken |= rung.is_alone();
        }
    }
}

impl Offer {
    fn seen(&self, way: Way, bought: Bytes, why: Option<NotBought>) -> Offered {
        Offered { way, frees: self.frees, price: self.price, bought, why }
    }
}

/// What the guests of a tmpfs give to each other.
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
