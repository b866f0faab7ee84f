//! What a plan must never do, tested independently of how it was made.
//!
//! This file shares no function with the stages of the decision: it computes the ledger of DESIGN.md §3 again, in its own
//! way, from the snapshot and the state *before* the decision. It runs in tests, in the simulator, and in the daemon
//! before anything is applied: a plan with a violation is not applied.

use std::collections::BTreeMap;

use memtide_model::{
    Backend, Bytes, Change, Commitment, Config, GuestId, GuestSeen, Limit, Mode, PAGE_4K, Plan, Reason,
    Snapshot, State,
};

/// A promise that a plan would break.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// Observe mode changes nothing.
    #[error("the plan changes {0} in observe mode")]
    ActsWhileObserving(GuestId),
    /// A guest that was not seen.
    #[error("the plan changes {0}, which was not seen")]
    UnknownGuest(GuestId),
    /// A guest gets at most one target.
    #[error("the plan gives {0} two targets")]
    TwoTargets(GuestId),
    /// A guest that must be left alone.
    #[error("the plan changes {0}, which must be left alone")]
    NotOurs(GuestId),
    /// Less than is guaranteed, or than a balloon may leave.
    #[error("the plan gives {guest} {target}, less than its reservation of {reservation}")]
    BelowReservation {
        /// The guest.
        guest: GuestId,
        /// What it would be asked to keep.
        target: Bytes,
        /// What it is guaranteed.
        reservation: Bytes,
    },
    /// More than is allowed.
    #[error("the plan gives {guest} {target}, more than its limit of {limit}")]
    AboveLimit {
        /// The guest.
        guest: GuestId,
        /// What it would be asked to keep.
        target: Bytes,
        /// The most it may get.
        limit: Bytes,
    },
    /// A balloon counts in pages of 4 KiB.
    #[error("the plan gives {guest} {target}, which is no multiple of 4 KiB")]
    NotWholePages {
        /// The guest.
        guest: GuestId,
        /// What it would be asked to keep.
        target: Bytes,
    },
    /// Strict: more is promised than there is, and more than before.
    #[error("the plan promises {after} of {capacity}, after {before}")]
    OverCommitted {
        /// What the guests could come to cost, with all that must fit besides.
        after: Bytes,
        /// The same before the plan.
        before: Bytes,
        /// All memory that the ledger is about.
        capacity: Bytes,
    },
    /// Elastic: memory is granted while the joint surge does not fit into what is free.
    #[error("the plan grants memory while a surge of {surge} does not fit into {free}")]
    SurgeUnbacked {
        /// The joint surge.
        surge: Bytes,
        /// What is free.
        free: Bytes,
    },
    /// A guest of which nothing fresh is known gains.
    #[error("the plan gives {guest} {target}, more than {held}, without fresh statistics")]
    GrowsBlind {
        /// The guest.
        guest: GuestId,
        /// What it would be asked to keep.
        target: Bytes,
        /// What it holds.
        held: Bytes,
    },
    /// A grant stands before a change that frees memory.
    #[error("the plan lets {0} grow before {1} shrinks")]
    GrowsBeforeFreed(GuestId, GuestId),
    /// An interval of zero switches the polling off.
    #[error("the plan switches the statistics of {0} off")]
    PollsNever(GuestId),
}

/// What a plan breaks; empty for a plan that may be applied.
#[must_use]
pub fn check(config: &Config, state: &State, seen: &Snapshot, plan: &Plan) -> Vec<Violation> {
    let mut found = Vec::new();
    let by_id: BTreeMap<&GuestId, &GuestSeen> = seen.guests.iter().map(|guest| (&guest.id, guest)).collect();
    let mut targets: BTreeMap<&GuestId, Bytes> = BTreeMap::new();
    let mut grown: Option<&GuestId> = None;
    for action in &plan.actions {
        let id = &action.guest;
        if config.mode == Mode::Observe {
            found.push(Violation::ActsWhileObserving(id.clone()));
        }
        let Some(guest) = by_id.get(id) else {
            found.push(Violation::UnknownGuest(id.clone()));
            continue;
        };
        if must_be_left_alone(config, guest) {
            found.push(Violation::NotOurs(id.clone()));
        }
        match action.change {
            Change::PollStats(every) if every.as_millis() == 0 => {
                found.push(Violation::PollsNever(id.clone()))
            }
            Change::PollStats(_) => {}
            Change::SetTarget(target) => {
                if targets.insert(id, target).is_some() {
                    found.push(Violation::TwoTargets(id.clone()));
                }
                one_target(config, state, guest, target, &action.reason, &mut found);
                let pending = pending(state, guest);
                match grown {
                    Some(first) if target < pending => {
                        found.push(Violation::GrowsBeforeFreed(first.clone(), id.clone()));
                    }
                    None if target > pending => grown = Some(id),
                    _ => {}
                }
            }
        }
    }
    promises(config, state, seen, &targets, &mut found);
    found
}

fn must_be_left_alone(config: &Config, guest: &GuestSeen) -> bool {
    let (_, class) = config.class_of(guest.id.name());
    !class.manage
        || guest.backend == Backend::QemuOfLibvirt
        || guest.fence.is_some()
        || guest.reset
        || guest.balloon.fresh().is_none()
}

fn whole_pages(bytes: Bytes) -> Bytes {
    Bytes::new(bytes.get() - bytes.get() % PAGE_4K.bytes().get())
}

/// What the guest was last asked to keep.
fn pending(state: &State, guest: &GuestSeen) -> Bytes {
    let keeps = keeps(guest);
    match state.guests.get(&guest.id).and_then(|before| before.target) {
        Some(target) if drives(guest) => {
            if target > guest.full {
                guest.full
            } else {
                target
            }
        }
        _ => keeps,
    }
}

fn drives(guest: &GuestSeen) -> bool {
    guest.balloon.latest().is_some() && !guest.reset
}

fn keeps(guest: &GuestSeen) -> Bytes {
    match guest.balloon.latest() {
        Some(balloon) if drives(guest) && balloon.actual < guest.full => balloon.actual,
        _ => guest.full,
    }
}

/// What no balloon may take: what virtio-mem has plugged, and 32 MiB that a kernel needs.
fn least(guest: &GuestSeen) -> Bytes {
    let plugged = guest.hotplug.latest().map_or(0, |plug| plug.plugged.get());
    Bytes::new(plugged.saturating_add(32 << 20)).min(guest.full)
}

fn one_target(
    config: &Config,
    state: &State,
    guest: &GuestSeen,
    target: Bytes,
    reason: &Reason,
    found: &mut Vec<Violation>,
) {
    let (_, class) = config.class_of(guest.id.name());
    let id = || guest.id.clone();
    if target != whole_pages(target) {
        found.push(Violation::NotWholePages { guest: id(), target });
    }
    // A target that only follows what the guest keeps, or repeats what it was asked, is no new promise.
    let follows =
        matches!(reason, Reason::StuckAt { .. } | Reason::SelfDeflation { .. } | Reason::Reset { .. })
            && (target == whole_pages(keeps(guest)) || target == whole_pages(pending(state, guest)));
    let least = least(guest);
    let reservation = whole_pages(class.reservation.min(guest.full).max(least));
    let pending = pending(state, guest);
    // A guest that starts out of its bounds comes back step by step: a step towards them is no violation.
    if target < reservation && target <= pending && !follows {
        found.push(Violation::BelowReservation { guest: id(), target, reservation });
    }
    let limit = match class.limit {
        Limit::At(limit) if limit < guest.full => limit.max(reservation).max(least),
        _ => guest.full,
    };
    if target > limit && target >= pending && !follows {
        found.push(Violation::AboveLimit { guest: id(), target, limit });
    }
    let held = if pending > keeps(guest) { pending } else { keeps(guest) };
    let blind = guest.stats.fresh().is_none_or(|stats| stats.available.is_none());
    if blind && target > held && *reason != Reason::Release {
        found.push(Violation::GrowsBlind { guest: id(), target, held });
    }
}

/// The commitment before and after the plan.
fn promises(
    config: &Config,
    state: &State,
    seen: &Snapshot,
    targets: &BTreeMap<&GuestId, Bytes>,
    found: &mut Vec<Violation>,
) {
    let reserve = config.reserve_of(seen.host.capacity);
    let fixed = u128::from(seen.host.other.get()) + u128::from(reserve.get());
    match config.commitment {
        Commitment::Strict => {
            let with =
                |of: &dyn Fn(&GuestSeen) -> Bytes| fixed + strict_need(config.self_deflations, seen, of);
            let before = with(&|guest| pending(state, guest));
            // A lowered target is not yet memory returned: no grant may lean on it.
            let after = with(&|guest| {
                let before = pending(state, guest);
                targets.get(&guest.id).copied().map_or(before, |target| target.max(before))
            });
            if after > before && after > u128::from(seen.host.capacity.get()) {
                found.push(Violation::OverCommitted {
                    after: narrow(after),
                    before: narrow(before),
                    capacity: seen.host.capacity,
                });
            }
        }
        Commitment::Elastic => {
            let grants = seen.guests.iter().any(|guest| {
                let held = pending(state, guest).get().max(keeps(guest).get());
                targets.get(&guest.id).is_some_and(|target| target.get() > held)
            });
            let costs: u128 = seen.guests.iter().map(|guest| costs(guest, pending(state, guest))).sum();
            let free = u128::from(seen.host.capacity.get()).saturating_sub(fixed).saturating_sub(costs);
            let surge = elastic_surge(state, seen, targets);
            if grants && surge > free {
                found.push(Violation::SurgeUnbacked { surge: narrow(surge), free: narrow(free) });
            }
        }
    }
}

/// Σ reach (or footprint, where that is larger) and the k largest self-deflations, each guest with the target that `of`
/// gives.
fn strict_need(k: u32, seen: &Snapshot, of: &dyn Fn(&GuestSeen) -> Bytes) -> u128 {
    let mut need = 0;
    let mut own: Vec<u64> = Vec::new();
    for guest in &seen.guests {
        let held = if drives(guest) { of(guest).get().max(keeps(guest).get()) } else { guest.full.get() };
        let reach = u128::from(held) + u128::from(guest.overhead_bound.get()) + asked_to_plug(guest);
        need += reach.max(guest.footprint.latest().map_or(0, |bytes| u128::from(bytes.get())));
        if guest.balloon.latest().is_some_and(|balloon| balloon.deflate_on_oom) {
            own.push(guest.full.get().saturating_sub(held));
        }
    }
    own.sort_unstable();
    let k = usize::try_from(k).unwrap_or(usize::MAX);
    need + own.iter().rev().take(k).map(|bytes| u128::from(*bytes)).sum::<u128>()
}

fn asked_to_plug(guest: &GuestSeen) -> u128 {
    match guest.hotplug.latest() {
        Some(plug) if plug.requested > plug.plugged => u128::from(plug.requested.get() - plug.plugged.get()),
        _ => 0,
    }
}

/// What a guest costs now; what it can come to cost where that is unknown.
fn costs(guest: &GuestSeen, target: Bytes) -> u128 {
    let held = u128::from(target.get().max(keeps(guest).get()));
    let reach = held + u128::from(guest.overhead_bound.get()) + asked_to_plug(guest);
    guest.footprint.latest().map_or(reach, |bytes| u128::from(bytes.get()))
}

/// The largest remembered joint growth, as far as the guests could grow at all after the plan.
fn elastic_surge(state: &State, seen: &Snapshot, targets: &BTreeMap<&GuestId, Bytes>) -> u128 {
    let mut could = 0;
    for guest in &seen.guests {
        let target = targets.get(&guest.id).copied().unwrap_or_else(|| pending(state, guest));
        let most = match guest.balloon.latest() {
            Some(balloon) if drives(guest) && !balloon.deflate_on_oom => target.get().max(keeps(guest).get()),
            _ => guest.full.get(),
        };
        let reach = u128::from(most) + u128::from(guest.overhead_bound.get()) + asked_to_plug(guest);
        could += reach.saturating_sub(costs(guest, target));
    }
    u128::from(state.joint_surge.recent.get()).min(could)
}

fn narrow(bytes: u128) -> Bytes {
    Bytes::new(u64::try_from(bytes).unwrap_or(u64::MAX))
}
