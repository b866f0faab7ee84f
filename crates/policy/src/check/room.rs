//! The room for grants, action by action: what the guests may cost, and what is really free.
//!
//! **Strict.** Each grant must keep three sums from rising above the capacity, or above their old values if those were over it already: Σ reach;
//! Σ strict costs; and Σ strict costs with the k largest self-deflations. The reserve and the room for self-deflations are for surprises: a
//! guest that lacks memory in use may be granted them, as far as it lacks it ([`super::in_use`]), and as long as Σ reach and Σ strict costs stay within
//! everything that others leave.
//!
//! **Elastic.** The grants of a plan must fit into memory that is really free, beside the growth that was just seen, as far
//! as it needs no grant. The reserve is for surprises here, too.

use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;

use memtide_model::{Bytes, Commitment, Config, Moment, Snapshot, Witness};

use super::Violation;
use super::in_use::lacks_in_use;
use super::known::{Known, narrow};

/// The room that is left after the grants accepted so far.
pub struct Room {
    commitment: Commitment,
    capacity: Bytes,
    /// Memory that is not for guests.
    fixed: u128,
    /// Capacity for guests.
    spare: u128,
    /// Σ reach: before the plan, and after the grants so far.
    reach: [u128; 2],
    /// Σ strict costs, likewise.
    strict: [u128; 2],
    /// The same with the k largest self-deflations: as far as they count at least, and at most, if that is more. The policy measures what guests took
    /// at once, between these two.
    promises: Vec<Promise>,
    /// Everything that others leave, with the reserve.
    all: u128,
    /// The reserve.
    reserve: u128,
    now: Moment,
    /// Memory that is really free.
    free: u128,
    /// Elastic: the growth that must fit beside the grants.
    growth: u128,
    /// What was granted (elastic), and what is read back from tiers.
    granted: u128,
    /// What is written to tiers. It comes back soon, and is not taken from grants.
    written: u128,
}

/// Adds `bytes` to what is `spent` of the `free` memory; the memory that is left, if that is less.
fn spend(spent: &mut u128, bytes: Bytes, free: u128) -> Result<(), Bytes> {
    let sum = *spent + u128::from(bytes.get());
    if sum > free {
        return Err(narrow(free.saturating_sub(*spent)));
    }
    *spent = sum;
    Ok(())
}

impl Room {
    pub fn new(config: &Config, witness: &Witness, seen: &Snapshot, guests: &[Known<'_>]) -> Self {
        let capacity = seen.host.capacity;
        let other = u128::from(seen.host.beside_guests().get());
        let reserve = u128::from(config.reserve_of(capacity).get());
        let fixed = other + reserve;
        let k = places(config);
        let peaks = [witness.self_deflation.peak, witness.self_deflation_at_most.peak];
        let mut within = peaks.map(|peak| config.self_deflation_within.most(peak)).to_vec();
        within.dedup();
        let (mut reach, mut strict, mut costs, mut exposures) = (0, 0, 0, 0);
        let mut growth = u128::from(witness.growth.get());
        for guest in guests {
            reach += guest.reach(guest.held());
            strict += guest.strict_cost(guest.held());
            costs += guest.costs();
            exposures += guest.exposure();
            // It cannot go on with the rest of its growth without a grant, unless its VMM costs more than its bound.
            if guest.costs() <= guest.reach(guest.held()) {
                let grown = u128::from(guest.record.grown.get());
                growth = growth.saturating_sub(grown.saturating_sub(guest.exposure()));
            }
        }
        let promise = |within| Promise::new(strict, Selfs::new(k, within, guests));
        Self {
            commitment: config.commitment,
            capacity,
            fixed,
            spare: u128::from(capacity.get()).saturating_sub(fixed),
            reach: [reach; 2],
            strict: [strict; 2],
            promises: within.into_iter().map(promise).collect(),
            all: u128::from(capacity.get()).saturating_sub(other),
            reserve,
            now: seen.taken_at,
            free: u128::from(capacity.get()).saturating_sub(other + costs),
            growth: growth.min(exposures),
            granted: 0,
            written: 0,
        }
    }

    /// Grants `target` to the guest at `index`, which must hold less.
    ///
    /// # Errors
    /// The promise that this would break. Nothing is granted then.
    pub fn grant(&mut self, guest: &Known<'_>, index: usize, target: Bytes) -> Result<(), Violation> {
        match self.commitment {
            Commitment::Strict => self.grant_strict(guest, index, target),
            Commitment::Elastic => {
                let more = u128::from(target.saturating_sub(guest.held()).get());
                let granted = self.granted + more;
                let needs = granted + self.growth;
                let is_for_surprises = || more <= lacks_in_use(guest, self.now);
                if needs > self.free || needs + self.reserve > self.free && !is_for_surprises() {
                    return Err(Violation::Unbacked {
                        guest: guest.seen.id.clone(),
                        granted: narrow(granted),
                        growth: narrow(self.growth),
                        free: narrow(self.free),
                    });
                }
                self.granted = granted;
                Ok(())
            }
        }
    }

    /// Lets a guest write to its tier what takes this much of the host's memory.
    ///
    /// # Errors
    /// The memory that is left, if that is less. Nothing is counted then.
    pub fn write(&mut self, takes: Bytes) -> Result<(), Bytes> {
        spend(&mut self.written, takes, self.free)
    }

    /// Lets a guest read back what this much of the host's memory was gained with.
    ///
    /// # Errors
    /// The memory that is left, if that is less. Nothing is counted then.
    pub fn give_back(&mut self, gained: Bytes) -> Result<(), Bytes> {
        spend(&mut self.granted, gained, self.free)
    }

    fn grant_strict(&mut self, guest: &Known<'_>, index: usize, target: Bytes) -> Result<(), Violation> {
        let held = guest.held();
        let more = guest.strict_cost(target) - guest.strict_cost(held);
        let reach = self.reach[1] + guest.reach(target) - guest.reach(held);
        let strict = self.strict[1] + more;
        let own = guest.seen.told.full.saturating_sub(target).get();
        let afterwards: Vec<[u128; 2]> =
            self.promises.iter_mut().map(|promise| promise.after(index, more, own)).collect();
        let fits = |sum, before: u128| sum <= self.spare.max(before);
        let holds = fits(reach, self.reach[0]) && fits(strict, self.strict[0]);
        let mut each = self.promises.iter().zip(&afterwards);
        let is_promised =
            holds && each.any(|(promise, [need, _])| fits(*need, promise.before.max(promise.need)));
        let asks = u128::from(target.saturating_sub(held).get());
        let is_for_surprises = || reach.max(strict) <= self.all && asks <= lacks_in_use(guest, self.now);
        if !is_promised && !is_for_surprises() {
            let (after, before) = match holds {
                true => (afterwards[0][0], self.promises[0].before),
                false => (reach.max(strict), self.reach[0].max(self.strict[0])),
            };
            return Err(Violation::OverCommitted {
                guest: guest.seen.id.clone(),
                after: narrow(self.fixed + after),
                before: narrow(self.fixed + before),
                capacity: self.capacity,
            });
        }
        (self.reach[1], self.strict[1]) = (reach, strict);
        for (promise, [need, selfs]) in self.promises.iter_mut().zip(afterwards) {
            promise.need = need;
            promise.selfs.set(index, own, selfs);
        }
        Ok(())
    }
}

/// Σ strict costs before the plan, with the k largest self-deflations.
pub fn strict_need(config: &Config, witness: &Witness, guests: &[Known<'_>]) -> u128 {
    let costs: u128 = guests.iter().map(|guest| guest.strict_cost(guest.held())).sum();
    let within = config.self_deflation_within.most(witness.self_deflation_at_most.peak);
    costs + Selfs::new(places(config), within, guests).sum
}

fn places(config: &Config) -> usize {
    match config.commitment {
        Commitment::Strict => usize::try_from(config.self_deflations).unwrap_or(usize::MAX),
        Commitment::Elastic => 0,
    }
}

/// Σ strict costs with the k largest self-deflations.
struct Promise {
    /// Before the plan.
    before: u128,
    /// After the grants so far.
    need: u128,
    selfs: Selfs,
}

impl Promise {
    fn new(strict: u128, selfs: Selfs) -> Self {
        let need = strict + selfs.sum;
        Self { before: need, need, selfs }
    }

    /// The need, and the self-deflations in it, if the guest at `index` may cost that much `more`, and its own deflation is `own`.
    fn after(&mut self, index: usize, more: u128, own: u64) -> [u128; 2] {
        let selfs = self.selfs.sum_if(index, own);
        [self.need - self.selfs.sum + more + selfs, selfs]
    }
}

/// The self-deflations of all guests, and the sum of the k largest, as far as each counts.
struct Selfs {
    k: usize,
    within: u64,
    own: Vec<u64>,
    /// All of them, the largest on top. An outdated entry is corrected when it comes up.
    by_size: BinaryHeap<(u64, usize)>,
    sum: u128,
}

impl Selfs {
    fn new(k: usize, within: Bytes, guests: &[Known<'_>]) -> Self {
        let within = within.get();
        if k == 0 {
            return Self { k, within, own: Vec::new(), by_size: BinaryHeap::new(), sum: 0 };
        }
        let own: Vec<u64> = guests.iter().map(Known::self_deflation).collect();
        let by_size = own.iter().enumerate().filter(|(_, own)| **own > 0).map(|(i, own)| (*own, i)).collect();
        let mut selfs = Self { k, within, own, by_size, sum: 0 };
        selfs.sum = selfs.sum_if(usize::MAX, 0);
        selfs
    }

    /// The sum if that of `index` were `own`. A guest that cannot deflate its balloon has none.
    fn sum_if(&mut self, index: usize, own: u64) -> u128 {
        if self.k == 0 {
            return 0;
        }
        let mut largest = Vec::new();
        let mut aside = None;
        while largest.len() < self.k {
            let Some(mut top) = self.by_size.peek_mut() else { break };
            let (size, guest) = *top;
            if size != self.own[guest] {
                top.0 = self.own[guest];
            } else if guest == index {
                aside = Some(PeekMut::pop(top));
            } else {
                largest.push(PeekMut::pop(top));
            }
        }
        let own = if self.own.get(index).is_some_and(|own| *own > 0) { own } else { 0 };
        let counted = |size: &u64| (*size).min(self.within);
        let own = counted(&own);
        let least = largest.get(self.k - 1).map_or(0, |(size, _)| counted(size));
        let sum: u128 = largest.iter().map(|(size, _)| u128::from(counted(size))).sum();
        self.by_size.extend(largest);
        self.by_size.extend(aside);
        sum + u128::from(own.saturating_sub(least))
    }

    fn set(&mut self, index: usize, own: u64, sum: u128) {
        if let Some(slot) = self.own.get_mut(index).filter(|slot| **slot > 0) {
            *slot = own;
        }
        self.sum = sum;
    }
}
