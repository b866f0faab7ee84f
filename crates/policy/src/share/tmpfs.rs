//! A tmpfs is a host of its own for the guests whose memory it holds.
//!
//! **Problem.** The memory of a UML instance is a file in a tmpfs, and so is that of a QEMU guest with such a `memory-backend-file`. When the
//! tmpfs reaches its limit, a guest that touches more of its memory is killed, although the host has free memory.
//!
//! **Rule.** If less is free of a tmpfs than of the host, the tmpfs *binds* its guests. It then has a ledger of its own: its guests' memory
//! without that of their VMMs, and what else fills it. It keeps a part of itself free that is as large as the host's reserve, and its state is
//! low where the host's would be. Each stage is done for it as for a host: a guest's fair share is the smaller one of the two, memory is
//! wanted from its guests alone, and a grant must fit into both. Memory that its guests give to it is returned to the host, too.
//!
//! **NUMA nodes.** A node is the same for the guests that are bound to it. It nearly always binds them, because less is free of it than of all nodes.
//!
//! **Old readings.** A tmpfs whose space was last read more than [`Tmpfs::OLDEST`] ago binds its guests in any case: nothing is granted into it.
//!
//! **Property.** A tmpfs with more to spare than the host changes nothing.

use std::collections::BTreeMap;

use memtide_model::{Bytes, Config, HostSeen, HostState, Space, Tmpfs, TmpfsId};

use crate::belief::envelope::{self, Growth};
use crate::belief::guest::Guest;
use crate::belief::host_state;
use crate::belief::ledger::Ledger;
use crate::belief::scene::{HostFacts, Scene};
use crate::belief::{Beliefs, by_shares};
use crate::share::Sharing;
use crate::share::purse::Purse;

/// A tmpfs that binds its guests.
pub struct Bound {
    /// Which one.
    pub id: TmpfsId,
    /// The indices of its guests, in order.
    pub members: Vec<usize>,
    /// Its ledger and its shortage, as if it were a host.
    pub scene: Scene,
    host: HostSeen,
    is_old: bool,
}

/// The tmpfs that bind their guests.
pub fn bound(beliefs: &mut Beliefs<'_>) -> Vec<Bound> {
    let Beliefs { config, state, seen, guests, scene, growth } = beliefs;
    let mut members: BTreeMap<TmpfsId, Vec<usize>> = BTreeMap::new();
    for (index, guest) in guests.iter().enumerate() {
        if let Some(id) = guest.seen.tmpfs {
            members.entry(id).or_default().push(index);
        }
    }
    let spaces = seen.tmpfs.iter().filter_map(|tmpfs| Some((tmpfs, *tmpfs.space.latest()?)));
    let binds = |(tmpfs, space): &(&Tmpfs, Space)| space.free < scene.ledger.really_free() || tmpfs.is_old();
    let bound = spaces.filter(binds).filter_map(|(tmpfs, space)| {
        let members = members.remove(&tmpfs.id)?;
        let before = state.tmpfs.get(&tmpfs.id).copied().unwrap_or_default();
        let binding = Binding { tmpfs, space, before, members };
        Some(Bound::new(config, binding, &seen.host, scene, guests, *growth))
    });
    bound.collect()
}

/// A tmpfs that binds its guests, before its scene is known.
struct Binding<'t> {
    tmpfs: &'t Tmpfs,
    space: Space,
    /// Its shortage at the last decision.
    before: HostState,
    /// The indices of its guests.
    members: Vec<usize>,
}

impl Bound {
    fn new(
        config: &Config,
        binding: Binding<'_>,
        host: &HostSeen,
        host_scene: &Scene,
        guests: &mut [Guest<'_>],
        growth: Growth,
    ) -> Self {
        let Binding { tmpfs, space, before, members } = binding;
        let Ledger { capacity: whole, reserve, .. } = host_scene.ledger;
        let (scene, host) = lend(guests, &members, |inside| {
            let host = as_host(host, space, inside);
            let reserve = reserve.mul_div(host.capacity.min(whole).get(), whole.get().max(1));
            let expected = envelope::expected_of(config, inside, growth);
            let entries = inside.iter().map(|guest| &guest.entry);
            let ledger = Ledger::new(config, &host, reserve, entries, expected);
            let state = host_state::by_free(config, before, &host, &ledger);
            let facts =
                HostFacts { ledger, guests: inside.len(), state, expected, reaction: growth.reaction };
            (Scene::of(config, host_scene.now, &host, facts), host)
        });
        Self { id: tmpfs.id, members, scene, host, is_old: tmpfs.is_old() }
    }

    /// Bounds the fair shares of its guests, and counts what they lack of them.
    pub fn entitle(&mut self, sharing: &dyn Sharing, config: &Config, guests: &mut [Guest<'_>]) {
        let Self { members, scene, host, .. } = self;
        lend(guests, members, |inside| {
            let before: Vec<(Bytes, Bytes)> =
                inside.iter().map(|guest| (guest.entitlement, guest.by_shares)).collect();
            by_shares(host, scene.ledger.reserve, inside);
            sharing.entitle(config, scene, inside);
            for (guest, (entitlement, by_shares)) in inside.iter_mut().zip(before) {
                guest.entitlement = guest.entitlement.min(entitlement);
                guest.by_shares = by_shares;
                guest.calm = scene.ledger.calm;
            }
            scene.count(inside);
        });
    }

    /// Lends its guests to `work`, with only their own memory in their entries.
    pub fn lend<'a, R>(&self, guests: &mut [Guest<'a>], work: impl FnOnce(&mut [Guest<'a>]) -> R) -> R {
        lend(guests, &self.members, work)
    }

    /// The room that grants to its guests are paid from.
    pub fn purse(&self, guests: &[Guest<'_>]) -> Purse {
        if self.is_old {
            return Purse::empty();
        }
        let own = self.members.iter().map(|index| guests[*index].entry.self_deflation);
        Purse::new(&self.scene, own.collect())
    }
}

/// A tmpfs as a host: what is really free of it is what is free of it, and everything but guests' memory in it is *other*.
fn as_host(host: &HostSeen, space: Space, guests: &[Guest<'_>]) -> HostSeen {
    let in_use = Bytes::sum(guests.iter().map(|guest| guest.entry.footprint)).saturating_add(space.free);
    // More than the host's memory is no room.
    let capacity = space.size.min(host.capacity).max(in_use);
    HostSeen::of(capacity, capacity.saturating_sub(in_use))
}

/// Lends some of the guests to `work`, with only their own memory in their entries: their VMMs' memory is not in the tmpfs. The others are not
/// touched: the members, in ascending order, change places with the first guests, and come back.
fn lend<'a, R>(guests: &mut [Guest<'a>], members: &[usize], work: impl FnOnce(&mut [Guest<'a>]) -> R) -> R {
    for (place, member) in members.iter().enumerate() {
        guests.swap(place, *member);
    }
    let inside = &mut guests[..members.len()];
    let entries: Vec<_> = inside.iter().map(|guest| guest.entry).collect();
    for guest in &mut *inside {
        guest.entry = guest.entry.own();
    }
    let result = work(inside);
    for (guest, entry) in inside.iter_mut().zip(entries) {
        guest.entry = entry;
    }
    for (place, member) in members.iter().enumerate().rev() {
        guests.swap(place, *member);
    }
    result
}

/// The shortage of each tmpfs, to be remembered. One that does not bind its guests now may do so again at the next decision: its last
/// shortage is kept.
pub fn remember(
    before: &BTreeMap<TmpfsId, HostState>,
    seen: &[Tmpfs],
    all: &[Bound],
) -> BTreeMap<TmpfsId, HostState> {
    let kept = seen.iter().filter_map(|tmpfs| Some((tmpfs.id, *before.get(&tmpfs.id)?)));
    kept.chain(all.iter().map(|bound| (bound.id, bound.scene.host))).collect()
}
