//! The step towards the fair shares now.
//!
//! **Rule.** The rules are tried in this order, and the first that applies decides:
//! 1. a guest whose hold ends gets its target written from its present size;
//! 2. wanted memory is given ([`crate::ladder`]); if none is wanted, the clock may ask for some ([`crate::ladder::clock`]);
//! 3. a held guest stops giving; one whose step brought the host nothing gets its size back ([`crate::belief::gain`]);
//! 4. a released guest grows to its limit, within its fair share;
//! 5. a guest that lacks memory in use or needed cache grows to its need, within its fair share: at once if it lacks memory in use, else 5 s
//!    after its last change;
//! 6. a guest that makes no progress is drawn back to the size that it has, so that its kernel stops reclaiming;
//! 7. a guest above its limit gives, at the pace of a gentle gift;
//! 8. a balloon that inflates below the guest's present need stops at that need;
//! 9. if a guest was reset, or deflated its own balloon and no longer uses the memory, its target is written again: drivers look at it only
//!    then. If the guest uses the memory, an elastic target follows;
//! 10. when nothing is wanted, spare memory that is not expected to be used soon is handed out for comfort, 30 s after the last change, if it
//!     suffices for all limits, unless guests are squeezed by the clock.
//!
//! In an emergency, guests grow only for memory in use. Every step starts from the pending target, not from the lagging actual.
//!
//! **Property.** If nothing is wanted, no need is above its target and nobody gave an order, nothing but comfort changes.

use memtide_model::{Bytes, Commitment, Hold, Keeps, Proof, Reason, Span, Verdict};

use crate::constants::{CACHE_WAITS, COMFORT_WAITS, FOLLOWS, LEAST_COMFORT, RESET_SETTLES, TOLERANCE};

use crate::belief::guest::Guest;
use crate::belief::ledger::Entry;
use crate::belief::scene::Scene;
use crate::belief::search;
use crate::belief::stuck;
use crate::ladder::wish::Wish;
use crate::ladder::{self, Given, clock, floor, give, untouched};
use crate::share::tmpfs::Bound;

/// The changes that would be right now, at most one for each guest, and what agents should drop. Notes the ends of rounds by the clock in the guests.
#[must_use]
pub fn wishes(scene: &Scene, bound: &[Bound], guests: &mut Vec<Guest<'_>>) -> Given {
    let mut given = Given::default();
    // Memory that guests give to their tmpfs is returned to the host.
    for tmpfs in bound {
        given.add(ladder::give_for(tmpfs, guests));
    }
    given.add(give(scene, guests, &given.wishes));
    given.wishes.extend(clock::squeeze(scene, guests));
    let mut gives = vec![false; guests.len()];
    for wish in &given.wishes {
        gives[wish.index] = true;
    }
    if let Some(wish) = untouched::take(scene, guests, &gives) {
        gives[wish.index] = true;
        given.wishes.push(wish);
    }
    let wishes = &mut given.wishes;
    let comfort = Comfort::new(scene, guests);
    // In its tmpfs's emergency, a guest grows only for memory in use, as in the host's.
    let in_emergency = Scene { emergency: true, ..scene.clone() };
    let rules = [stop, give_back, release, grow, draw_back, over_limit, keep, write_again];
    for (index, guest) in guests.iter().enumerate() {
        if let Some((_, lacks)) = guest.hold_ends {
            let reason = Reason::HoldEnds { lacks };
            match wishes.iter_mut().find(|wish| wish.index == index) {
                Some(wish) => wish.reason = reason,
                None => {
                    let target = guest.entry.actual.round_down(guest.step());
                    wishes.push(Wish { index, target, reason, urgent: false, takes: None });
                }
            }
        // A guest that keeps more than its target, perhaps at somebody else's request, is asked for nothing: a new target would look
        // like the cause.
        } else if !gives[index] && guest.next.lifted_at.is_none() {
            let here = if is_short(bound, index) { &in_emergency } else { scene };
            let step = rules.iter().find_map(|rule| rule(here, guest)).or_else(|| comfort.of(here, guest));
            wishes.extend(step.map(|step| step.wish(guest, index)));
        }
    }
    given
}

/// Whether the tmpfs of the guest at `index` is in an emergency.
fn is_short(bound: &[Bound], index: usize) -> bool {
    bound.iter().any(|tmpfs| tmpfs.scene.emergency && tmpfs.members.binary_search(&index).is_ok())
}

/// The change of one guest.
struct Step {
    size: Bytes,
    reason: Reason,
    urgent: bool,
}

impl Step {
    const fn new(size: Bytes, reason: Reason) -> Option<Self> {
        Some(Self { size, reason, urgent: false })
    }

    fn wish(self, guest: &Guest<'_>, index: usize) -> Wish {
        Wish {
            index,
            target: self.size.round_down(guest.step()),
            reason: self.reason,
            urgent: self.urgent,
            takes: None,
        }
    }
}

/// A held guest stops giving at its present size.
fn stop(_: &Scene, guest: &Guest<'_>) -> Option<Step> {
    let Some(Verdict::Held(Hold { keeps: Keeps::Size, .. })) = guest.left_alone else { return None };
    let Entry { target, actual, .. } = guest.entry;
    let keeps = actual.round_down(guest.step());
    if target.saturating_add(TOLERANCE) < keeps { Step::new(keeps, Reason::Held { target }) } else { None }
}

/// A guest whose step was in vain gets its size back.
fn give_back(scene: &Scene, guest: &Guest<'_>) -> Option<Step> {
    let Proof::Vain { size, resident } = guest.next.gain.proof else { return None };
    let is_below = guest.entry.target.saturating_add(TOLERANCE) < guest.full;
    if !guest.is_managed() || !is_below || guest.is_stuck_taking(scene.now) {
        return None;
    }
    Some(Step { size: guest.full, reason: Reason::InVain { size, resident }, urgent: true })
}

fn release(scene: &Scene, guest: &Guest<'_>) -> Option<Step> {
    let limit = guest.bounds.limit();
    let below = guest.entry.target.saturating_add(guest.dead_band()) < limit;
    if !guest.is_managed()
        || !guest.is_released()
        || !below
        || scene.emergency
        || guest.is_stuck_taking(scene.now)
    {
        return None;
    }
    Step::new(limit.min(guest.entitlement.max(guest.entry.target)), Reason::Release)
}

fn grow(scene: &Scene, guest: &Guest<'_>) -> Option<Step> {
    let used = guest.need.used?;
    if !guest.is_managed() || guest.is_stuck_taking(scene.now) {
        return None;
    }
    let [_, _, _, total, _] = guest.tiers();
    let lacks_in_use = guest.lacks_in_use();
    let (had, entitlement, demand) = (guest.entry.held, guest.entitlement, guest.need.total());
    if !lacks_in_use.is_zero() && (guest.starves() || !scene.emergency) {
        let reason = match guest.need.stalls {
            true => Reason::Stall { had, demand, entitlement },
            false => Reason::Demand { used, demand, entitlement },
        };
        return Some(Step { size: total.min(entitlement), reason, urgent: guest.starves() });
    }
    let lacks = total.min(entitlement).saturating_sub(had);
    let waited = guest.before.target_set_at.is_none_or(|at| scene.now.since(at) >= CACHE_WAITS);
    if scene.emergency || lacks < guest.dead_band() || !waited {
        return None;
    }
    let reason = match search::gets_back(&guest.next.search, scene.now) {
        Some((cache, back_off)) => Reason::Squeal { cache, back_off },
        None => Reason::Demand { used, demand, entitlement },
    };
    Step::new(total.min(entitlement), reason)
}

fn draw_back(scene: &Scene, guest: &Guest<'_>) -> Option<Step> {
    let Entry { target, actual, .. } = guest.entry;
    // A slow balloon is not drawn back before it has had time.
    let is_stuck = match actual > target {
        true => guest.is_stuck(scene.now) && guest.next.stuck.uncooperative,
        false => guest.is_stuck_taking(scene.now),
    };
    if !guest.is_managed() || !is_stuck || stuck::at_target(&guest.entry) || actual > guest.bounds.limit() {
        return None;
    }
    let since = guest.next.stuck.progress_at.map_or(Span::ZERO, |at| scene.now.since(at));
    Step::new(actual, Reason::StuckAt { target, actual, since })
}

fn over_limit(scene: &Scene, guest: &Guest<'_>) -> Option<Step> {
    let limit = guest.bounds.limit();
    let over = guest.entry.target.saturating_sub(limit).min(ladder::gentle(guest, scene.now));
    if over <= TOLERANCE || !guest.is_donor(scene.now) {
        return None;
    }
    Step::new(guest.entry.target.saturating_sub(over), Reason::OverLimit { limit })
}

/// An inflation stops at what the guest needs by now. It holds that much, so nothing has to be paid for.
fn keep(scene: &Scene, guest: &Guest<'_>) -> Option<Step> {
    let used = guest.need.used?;
    let Entry { target, actual, .. } = guest.entry;
    let in_use = if scene.emergency { floor(scene, guest, Bytes::ZERO) } else { guest.in_use() };
    let needs = in_use.min(guest.entitlement).min(actual);
    if !guest.is_managed() || guest.is_stuck(scene.now) || needs <= target.saturating_add(guest.dead_band()) {
        return None;
    }
    let demand = guest.need.total();
    Step::new(needs, Reason::Demand { used, demand, entitlement: guest.entitlement })
}

fn write_again(scene: &Scene, guest: &Guest<'_>) -> Option<Step> {
    guest.before.target?;
    if !guest.is_managed() || guest.is_withheld() {
        return None;
    }
    let Entry { target, actual, .. } = guest.entry;
    let keeps = actual.round_down(guest.step());
    let away = actual > target.saturating_add(TOLERANCE);
    let lately = guest.before.target_set_at.is_some_and(|at| scene.now.since(at) < FOLLOWS);
    let moving = actual < guest.before.actual;
    let reset_lately = guest.before.reset_at.is_some_and(|at| scene.now.since(at) < RESET_SETTLES);
    if away && reset_lately && !moving && !lately {
        return Step::new(target, Reason::Reset { actual });
    }
    if !guest.deflates_itself() {
        return None;
    }
    // Memory that the guest took and uses cannot come back: a new write of the target would only make it thrash, and the old
    // target in its driver does so already. A strict commitment did not grant this memory, so its target does not follow.
    let uses_it = guest.need.used.is_some_and(|used| used > target);
    let far = target.saturating_add(guest.dead_band()) < keeps && keeps <= guest.bounds.limit();
    if scene.commitment == Commitment::Elastic && far && uses_it {
        return Step::new(keeps, Reason::SelfDeflation { target, actual });
    }
    // Statistics that are older than its movement do not tell what it needs now.
    let needs_it = guest.need.stalls || guest.need.in_use() > target || !guest.next.sizes.is_empty();
    if away && !moving && !lately && !needs_it {
        return Step::new(target, Reason::SelfDeflation { target, actual });
    }
    None
}

/// Spare memory for guests below their limits.
struct Comfort {
    spare: Bytes,
    shares: u64,
}

impl Comfort {
    fn new(scene: &Scene, guests: &[Guest<'_>]) -> Self {
        let lacks = |guest: &Guest<'_>| guest.bounds.limit().saturating_sub(guest.entry.held);
        let all = Bytes::sum(guests.iter().filter(|guest| has_use(scene, guest)).map(lacks));
        // Memory that was granted without need would have to be taken back for the next guest in need.
        let may = all <= scene.ledger.calm
            && scene.wanted().is_zero()
            && !scene.emergency
            && scene.squeeze_every.is_none();
        let spare = if may { scene.ledger.calm } else { Bytes::ZERO };
        let shares = guests
            .iter()
            .filter(|guest| has_use(scene, guest))
            .map(|guest| u64::from(guest.class.shares))
            .sum();
        Self { spare, shares }
    }

    fn of(&self, scene: &Scene, guest: &Guest<'_>) -> Option<Step> {
        let waited = guest.before.target_set_at.is_none_or(|at| scene.now.since(at) >= COMFORT_WAITS);
        if self.spare.is_zero() || !waited || !has_use(scene, guest) {
            return None;
        }
        let more = self.spare.mul_div(u64::from(guest.class.shares), self.shares.max(1)).min(guest.calm);
        let (held, limit) = (guest.entry.held, guest.bounds.limit());
        let size = held.saturating_add(more).min(limit);
        let least = LEAST_COMFORT.of(guest.full).min(limit.saturating_sub(held));
        if size.saturating_sub(held) < least {
            return None;
        }
        Step::new(size, Reason::Ample { room: self.spare })
    }
}

/// Whether comfort is of use to a guest.
fn has_use(scene: &Scene, guest: &Guest<'_>) -> bool {
    guest.is_managed()
        && guest.need.used.is_some()
        && !guest.is_stuck(scene.now)
        && guest.entry.held.saturating_add(guest.dead_band()) < guest.bounds.limit()
}
