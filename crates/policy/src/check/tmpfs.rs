//! What a tmpfs can hold of the guests whose memory is in it.
//!
//! **Rule.** A tmpfs holds its guests' own memory, not that of their VMMs.
//! - **Strict.** What its guests may touch beyond what they have must fit into what is free of it. A grant may not raise that sum above the free
//!   space, or above its old value if that was over it already.
//! - **Elastic.** The grants of a plan to its guests must fit into what is free of it, beside the growth that they have just shown.
//! - Nothing may be granted while the last reading of its space is older than `Tmpfs::OLDEST`.
//!
//! Memory can be wanted from its guests for each other, and so that a part of it stays free that is as large as the host's.

use std::collections::BTreeMap;

use memtide_model::{Bytes, Commitment, Config, Snapshot, Space, TmpfsId, Witness};

use super::Violation;
use super::in_use::InUse;
use super::known::{Known, narrow};
use super::wanted::{Pledge, Wanted};

/// The tmpfs of a snapshot, with the grants and the shrinks that were accepted so far.
pub struct AllTmpfs(BTreeMap<TmpfsId, One>);

struct One {
    commitment: Commitment,
    /// What may be granted: what is free, or nothing if that is an old reading.
    free: u128,
    is_old: bool,
    /// Strict: what its guests may touch without asking: before the plan, and after the grants so far.
    exposed: [u128; 2],
    /// Elastic: the growth that must fit beside the grants, and the grants so far.
    growth: u128,
    granted: u128,
    wanted: Wanted,
    pledge: Pledge,
}

impl AllTmpfs {
    pub fn new(config: &Config, witness: &Witness, seen: &Snapshot, guests: &[Known<'_>]) -> Self {
        let all = seen.tmpfs.iter().filter_map(|tmpfs| {
            let one = One::new(config, witness, seen, guests, tmpfs.id, *tmpfs.space.latest()?);
            Some((tmpfs.id, if tmpfs.is_old() { One { free: 0, is_old: true, ..one } } else { one }))
        });
        Self(all.collect())
    }

    fn of(&mut self, guest: &Known<'_>) -> Option<&mut One> {
        self.0.get_mut(&guest.seen.tmpfs?)
    }

    /// Grants `target` to a guest that must hold less.
    ///
    /// # Errors
    /// The promise that this would break. Nothing is granted then.
    pub fn grant(&mut self, guest: &Known<'_>, target: Bytes) -> Result<(), Violation> {
        let Some(one) = self.of(guest) else { return Ok(()) };
        let more = u128::from(target.saturating_sub(guest.held()).get());
        let (granted, exposed) = (one.granted + more, one.exposed[1] + more);
        let fits = match one.commitment {
            Commitment::Strict => exposed <= one.free.max(one.exposed[0]),
            Commitment::Elastic => granted + one.growth <= one.free,
        };
        if !(fits || one.is_old && more == 0) {
            let needs = match one.commitment {
                Commitment::Strict => exposed,
                Commitment::Elastic => granted + one.growth,
            };
            let (needs, free) = (narrow(needs), narrow(one.free));
            return Err(Violation::TmpfsFull { guest: guest.seen.id.clone(), needs, free });
        }
        (one.granted, one.exposed[1]) = (granted, exposed);
        Ok(())
    }

    /// Takes memory from a guest for those that share its tmpfs, until it keeps `target`; `false` if they can want less.
    pub fn take(&mut self, guest: &Known<'_>, target: Bytes, manners: bool) -> bool {
        self.of(guest).is_some_and(|one| one.wanted.take(guest, target, manners).is_ok())
    }

    /// Memory that its guest gives to others on the host is given to those that share its tmpfs, too.
    pub fn count(&mut self, guest: &Known<'_>, target: Bytes) {
        if let Some(one) = self.of(guest) {
            one.wanted.count_in_use(guest, target);
        }
    }

    /// Whether those that share a guest's tmpfs can want this much that its agent would free.
    pub fn is_wanted_from(&mut self, guest: &Known<'_>, bytes: Bytes) -> bool {
        self.of(guest).is_some_and(|one| one.wanted.is_wanted_from(guest, bytes))
    }

    /// The least that a silent guest keeps in its tmpfs; `None` if its memory is in none.
    pub fn pledge(&mut self, guest: &Known<'_>) -> Option<Bytes> {
        self.of(guest).map(|one| one.pledge.of(guest))
    }
}

impl One {
    fn new(
        config: &Config,
        witness: &Witness,
        seen: &Snapshot,
        guests: &[Known<'_>],
        id: TmpfsId,
        space: Space,
    ) -> Self {
        let inside: Vec<&Known<'_>> = guests.iter().filter(|guest| guest.seen.tmpfs == Some(id)).collect();
        let number = |bytes: Bytes| u128::from(bytes.get());
        let free = number(space.free);
        let own = |guest: &&Known<'_>| guest.costs().saturating_sub(number(guest.seen.cost.overhead));
        let in_use = free + inside.iter().map(own).sum::<u128>();
        // The part of a line for the host that is the tmpfs's.
        let host = seen.host.capacity;
        let whole = number(space.size.min(host)).max(in_use);
        let part = |line: Bytes| number(line) * whole / number(host).max(1);
        let reserve = part(config.reserve_of(host));
        let danger = part(seen.host.share(config.states.hard()).mul_div(5, 4));
        let low = part(seen.host.share(config.states.low()).mul_div(5, 4));
        let exposed: u128 = inside.iter().map(|guest| may_touch(guest)).sum();
        let growth = inside.iter().map(|guest| grows(guest)).sum();
        let expected = super::wanted::growth_of(config, witness, inside.iter().copied());
        let recent = number(witness.surge.recent).min(expected);
        let selfs: u128 = inside.iter().map(|guest| u128::from(guest.self_deflation())).sum();
        let is_kept = config.commitment == Commitment::Strict && exposed + selfs + reserve <= free;
        let in_danger = if is_kept { 0 } else { (danger + recent).saturating_sub(free) };
        let in_use = InUse::new(inside.iter().copied(), free.saturating_sub(low + recent), in_danger);
        let needs = match config.commitment {
            Commitment::Strict => exposed + selfs + reserve + danger + number(witness.surge.recent),
            Commitment::Elastic => reserve.max(danger) + expected,
        };

        let wants: u128 = inside.iter().map(|guest| guest.can_want(seen.taken_at)).sum();
        let certain: u128 = inside.iter().map(|guest| number(certain(guest))).sum();
        let pool = free + inside.iter().map(|guest| guest.touched()).sum::<u128>();
        let shares = inside.iter().map(|guest| u128::from(guest.class.shares)).sum();
        Self {
            commitment: config.commitment,
            free,
            is_old: false,
            exposed: [exposed; 2],
            growth,
            granted: 0,
            wanted: Wanted::in_tmpfs(config, needs + wants, free, in_use, seen.taken_at),
            pledge: Pledge::in_tmpfs(config, pool, reserve + expected + certain, shares),
        }
    }
}

/// What a guest keeps in any case.
fn certain(guest: &Known<'_>) -> Bytes {
    if guest.stands_outside() { guest.held().max(guest.reservation()) } else { guest.reservation() }
}

/// The growth that it has just shown, as far as it needs no grant; all of it if its VMM costs more than its bound.
fn grows(guest: &Known<'_>) -> u128 {
    let grown = u128::from(guest.record.grown.get());
    if guest.costs() <= guest.reach(guest.held()) { grown.min(may_touch(guest)) } else { grown }
}

/// What a guest may touch of its own memory beyond what it has touched, without asking.
fn may_touch(guest: &Known<'_>) -> u128 {
    u128::from(guest.held().get()) - guest.touched()
}
