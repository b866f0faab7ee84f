//! The memory that can be wanted from guests at all, and the share that a silent guest keeps.
//!
//! **Rule.** A guest gives only memory that somebody can want: other guests, as far as they are not content and may hold more; the
//! commitment, as far as it is not kept; the host, as far as the growth that may come does not fit into it. The check does not know what the
//! policy believes about page cache, so this is an upper bound: whatever a guest could want up to its limit counts.
//!
//! If the operator wants guests to be squeezed by the clock, one guest of a plan may give although nobody wants it: if it is at its
//! target, at most an eighth of its size, and no memory in use.
//!
//! A guest without fresh statistics is never asked for less than its reservation, or its part of the memory that is certainly left for all
//! guests after their reservations, by shares.

use memtide_model::{Bytes, Commitment, Config, Moment, Snapshot, Witness};

use super::in_use::InUse;
use super::known::{Known, narrow};
use super::{DOES_NOT_GROW, Violation};

/// A guest that nobody has seen grow fills at most this much memory while memtide reacts.
const PRIOR: Bytes = Bytes::from_mib(900);
/// Less than this, and a part of a guest's size, is not worth a change.
const LEAST_STEP: Bytes = Bytes::from_mib(32);

/// The memory that the shrinks of a plan may take.
pub struct Wanted {
    /// All memory that can be needed: without grants, and by grants up to the limits.
    needs: u128,
    has: u128,
    /// Taken by the shrinks so far.
    taken: u128,
    in_use: InUse,
    commitment: Commitment,
    now: Moment,
    /// One guest may give by the clock.
    by_clock: bool,
    /// Elastic: guests or host have grown lately.
    grows: bool,
}

impl Wanted {
    pub fn new(config: &Config, witness: &Witness, seen: &Snapshot, guests: &[Known<'_>]) -> Self {
        let now = seen.taken_at;
        let wants: u128 = guests.iter().map(|guest| guest.can_want(now)).sum();
        let (needs, is_kept) = needed(config, witness, seen, guests);
        Self {
            needs: needs + wants,
            has: u128::from(seen.host.capacity.get()),
            taken: 0,
            in_use: InUse::of_host(config, witness, seen, guests, is_kept),
            commitment: config.commitment,
            now,
            by_clock: config.squeeze_every.is_some(),
            grows: config.commitment == Commitment::Elastic && !witness.surge.recent.is_zero(),
        }
    }

    /// The guests of a tmpfs can need this much, and have that much.
    pub fn in_tmpfs(config: &Config, needs: u128, has: u128, in_use: InUse, now: Moment) -> Self {
        let commitment = config.commitment;
        Self { needs, has, taken: 0, in_use, commitment, now, by_clock: false, grows: false }
    }

    /// What others than this guest can want beyond all that there is.
    fn of_others(&self, guest: &Known<'_>) -> u128 {
        self.needs.saturating_sub(guest.can_want(self.now)).saturating_sub(self.has)
    }

    /// Counts memory in use that a guest gives, also if others want it.
    pub fn count_in_use(&mut self, guest: &Known<'_>, target: Bytes) {
        self.in_use.take(guest, target);
    }

    /// Whether others can want this much that a guest's agent would free. Each request is judged by itself.
    pub fn is_wanted_from(&self, guest: &Known<'_>, bytes: Bytes) -> bool {
        let others = self.of_others(guest);
        others > 0 && u128::from(bytes.get()) <= others + u128::from(least_step(guest).get())
    }

    /// Takes memory from a guest until it keeps `target`.
    ///
    /// # Errors
    /// The promise that this would break, if others can want less of what it uses; with `manners`, also if they can want less from it at all.
    pub fn take(&mut self, guest: &Known<'_>, target: Bytes, manners: bool) -> Result<(), Violation> {
        self.in_use.may_take(guest, target)?;
        let taken = if manners { self.take_any(guest, target) } else { Ok(()) };
        if taken.is_ok() {
            self.in_use.take(guest, target);
        }
        taken
    }

    /// The same, whether the guest uses it or not.
    fn take_any(&mut self, guest: &Known<'_>, target: Bytes) -> Result<(), Violation> {
        let given = u128::from(guest.pending.saturating_sub(target).get());
        let given = match self.commitment {
            Commitment::Strict => given,
            // Memory that it has not touched frees nothing, and helps nobody.
            // A balloon that takes cache takes the guest's free memory first, and the guest does not miss it.
            Commitment::Elastic => given
                .min(guest.touched().saturating_sub(u128::from(target.get())))
                .saturating_sub(guest.free()),
        };
        let step = least_step(guest);
        let others = self.of_others(guest);
        let left = others.saturating_sub(self.taken);
        let is_wanted = others > 0 && given <= left + u128::from(step.get());
        // While somebody grows, one guest's untouched memory may be taken out of the way.
        let size = u128::from(target.get()) + u128::from(step.get());
        let is_untouched = guest.class.squeeze && size >= guest.touched();
        if !is_wanted && is_untouched && std::mem::take(&mut self.grows) {
            return Ok(());
        }
        if !is_wanted && std::mem::take(&mut self.by_clock) && may_be_squeezed(guest, target, given) {
            return Ok(());
        }
        if !is_wanted {
            let taken = guest.pending.saturating_sub(target);
            let wanted = narrow(left);
            return Err(Violation::Unwanted { guest: guest.seen.id.clone(), taken, wanted });
        }
        self.taken += given;
        Ok(())
    }
}

/// Each step may be this much larger than what is wanted: less is not worth a change.
fn least_step(guest: &Known<'_>) -> Bytes {
    LEAST_STEP.saturating_add(guest.seen.told.full.mul_div(1, 32))
}

/// Whether a step by the clock is small, and leaves the guest its memory in use.
fn may_be_squeezed(guest: &Known<'_>, target: Bytes, given: u128) -> bool {
    let touched = narrow(guest.touched());
    let used = guest.available().map(|available| guest.keeps.saturating_sub(available).min(touched));
    let is_small = given <= u128::from(guest.seen.told.full.mul_div(1, 8).get());
    guest.class.squeeze
        && guest.is_at_target()
        && is_small
        && used.is_some_and(|used| target >= used.max(Config::LEAST_TARGET))
}

/// All memory that guests and host can need without any grant, and whether that is a strict commitment that is kept.
fn needed(config: &Config, witness: &Witness, seen: &Snapshot, guests: &[Known<'_>]) -> (u128, bool) {
    let number = |bytes: Bytes| u128::from(bytes.get());
    let host = &seen.host;
    let reserve = config.reserve_of(host.capacity);
    let danger = host.share(config.states.hard()).mul_div(5, 4);
    let taken = guests.iter().map(Known::costs).sum::<u128>() + number(host.beside_guests());
    match config.commitment {
        Commitment::Strict => {
            // A target that became void with this snapshot may still count.
            let void: u128 = guests.iter().map(|guest| number(guest.void)).sum();
            let need = number(host.beside_guests())
                + number(reserve)
                + super::room::strict_need(config, witness, guests)
                + void;
            // A commitment that is not kept no longer protects the host: its free memory counts, too. One that is kept leaves guests page cache that stands
            // in the way of growth.
            let is_kept = need <= number(host.capacity);
            let safe = number(danger) + number(witness.surge.recent);
            (if is_kept { need.max(taken + safe) } else { need + safe }, is_kept)
        }
        Commitment::Elastic => (taken + number(reserve.max(danger)) + growth(config, witness, guests), false),
    }
}

/// The most growth that the policy can expect of the guests.
fn growth(config: &Config, witness: &Witness, guests: &[Known<'_>]) -> u128 {
    growth_of(config, witness, guests.iter())
}

/// The same of some of them.
pub fn growth_of<'a, 'b: 'a>(
    config: &Config,
    witness: &Witness,
    guests: impl Iterator<Item = &'a Known<'b>>,
) -> u128 {
    let each = u128::from(config.growth_prior.of(PRIOR).get());
    let (mut prior, mut exposures) = (0, 0);
    for guest in guests {
        let exposure = guest.exposure();
        exposures += exposure;
        prior += exposure.min(each);
    }
    u128::from(witness.surge.peak.get()).max(prior).min(exposures)
}

/// The least that a silent guest keeps while others are short: its reservation, or its part of the pool by shares.
pub struct Pledge {
    /// The pool after all reservations.
    pool: u128,
    shares: u128,
    commitment: Commitment,
}

impl Pledge {
    pub fn new(config: &Config, witness: &Witness, seen: &Snapshot, guests: &[Known<'_>]) -> Self {
        let now = seen.taken_at;
        let (mut fixed, mut shares) = (0, 0);
        for guest in guests {
            let is_stuck = !guest.is_at_target() || guest.stuck_for(now).is_some_and(|s| s >= DOES_NOT_GROW);
            let is_outside = guest.stands_outside() || is_stuck;
            let held = u128::from(guest.held().get());
            let own = if guest.is_released() { guest.limit().max(guest.held()) } else { guest.reservation() };
            let certain = if is_outside { held } else { u128::from(own.get()) };
            fixed += guest.strict_cost(guest.held()) - held.min(guest.strict_cost(guest.held())) + certain;
            shares += u128::from(guest.class.shares);
        }
        fixed += match config.commitment {
            Commitment::Strict => {
                let mut full: Vec<u64> =
                    guests.iter().filter(|g| g.deflates_itself()).map(|g| g.seen.told.full.get()).collect();
                full.sort_unstable();
                let k = usize::try_from(config.self_deflations).unwrap_or(usize::MAX);
                let most = config.self_deflation_within.most(witness.self_deflation_at_most.peak).get();
                full.iter().rev().take(k).map(|full| u128::from((*full).min(most))).sum()
            }
            Commitment::Elastic => growth(config, witness, guests),
        };
        fixed += u128::from(seen.host.beside_guests().get())
            + u128::from(config.reserve_of(seen.host.capacity).get());
        let pool = u128::from(seen.host.capacity.get()).saturating_sub(fixed);
        Self { pool, shares: shares.max(1), commitment: config.commitment }
    }

    /// The guests of a tmpfs that holds `pool`, less what is `fixed`.
    pub fn in_tmpfs(config: &Config, pool: u128, fixed: u128, shares: u128) -> Self {
        Self { pool: pool.saturating_sub(fixed), shares: shares.max(1), commitment: config.commitment }
    }

    /// The least that the guest keeps.
    pub fn of(&self, guest: &Known<'_>) -> Bytes {
        let part = self.pool * u128::from(guest.class.shares) / self.shares;
        let has = match self.commitment {
            Commitment::Strict => guest.held(),
            Commitment::Elastic => narrow(guest.touched()),
        };
        let part = narrow(part).min(has);
        // Rounding costs at most a page of each.
        guest.whole_pages(part.saturating_sub(guest.seen.told.full.mul_div(1, 64))).max(guest.reservation())
    }
}
