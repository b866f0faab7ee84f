//! The report of a decision: the ledger, and the reasons for each guest's size.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use memtide_model::{
    Absence, Bytes, Commitment, Config, GuestId, GuestReport, HostReport, KsmReport, Mode, Plan, Report,
    Request, Savings, SelfDeflations, Tmpfs, TmpfsId, TmpfsReport, Verdict,
};

use crate::belief::Beliefs;
use crate::belief::guest::Guest;
use crate::belief::scene::Scene;
use crate::belief::stuck;
use crate::share::tmpfs::Bound;

/// The report of a decision.
#[must_use]
pub fn report(beliefs: &Beliefs<'_>, bound: &[Bound], plan: &Plan, ksm: Option<KsmReport>) -> Report {
    let Beliefs { config, seen, guests, scene, .. } = beliefs;
    let ledger = &scene.ledger;
    let acts = Acts::of(plan);
    let mut savings = Savings::default();
    let reported = guests.iter().map(|guest| {
        save(&mut savings, guest);
        guest_report(beliefs, bound, guest, &acts)
    });
    let reports = reported.collect();
    let mut in_tmpfs: BTreeMap<TmpfsId, u32> = BTreeMap::new();
    for id in guests.iter().filter_map(|guest| guest.seen.tmpfs) {
        *in_tmpfs.entry(id).or_default() += 1;
    }
    let tmpfs = seen.tmpfs.iter().filter_map(|tmpfs| tmpfs_report(tmpfs, bound, &in_tmpfs)).collect();
    let host = HostReport {
        capacity: ledger.capacity,
        reserve: ledger.reserve,
        footprints: ledger.footprints,
        torn: ledger.torn,
        other: ledger.other,
        free: ledger.free(),
        state: scene.host,
        reach: ledger.reach,
        self_deflation: ledger.self_deflation,
        self_deflations: self_deflations(config, ledger.within, guests),
        envelope: if scene.commitment == Commitment::Elastic { ledger.envelope } else { Bytes::ZERO },
        room: ledger.room.spare,
        breach: ledger.room.short,
        unmet: scene.unmet,
        savings,
        ksm,
        tmpfs,
    };
    Report { host, guests: reports }
}

/// What a strict commitment keeps room for, if it does.
fn self_deflations(config: &Config, within: Bytes, guests: &[Guest<'_>]) -> Option<SelfDeflations> {
    let able = guests.iter().filter(|guest| guest.deflates_itself()).count();
    let counts = config.commitment == Commitment::Strict && config.self_deflations > 0 && able > 0;
    counts.then(|| SelfDeflations {
        at_once: config.self_deflations,
        guests: u32::try_from(able).unwrap_or(u32::MAX),
        within: (within != Bytes::MAX).then_some(within),
    })
}

/// A tmpfs whose space was read.
fn tmpfs_report(tmpfs: &Tmpfs, bound: &[Bound], guests: &BTreeMap<TmpfsId, u32>) -> Option<TmpfsReport> {
    let space = *tmpfs.space.latest()?;
    let bound = bound.iter().find(|bound| bound.id == tmpfs.id);
    let room = bound.map(|bound| bound.scene.ledger.room);
    Some(TmpfsReport {
        id: tmpfs.id,
        at: tmpfs.at.clone(),
        space,
        guests: guests.get(&tmpfs.id).copied().unwrap_or_default(),
        binds: bound.is_some(),
        room: if tmpfs.is_old() { Bytes::ZERO } else { room.map_or(space.free, |room| room.spare) },
        breach: room.map_or(Bytes::ZERO, |room| room.short),
    })
}

/// Adds the memory that `guest` could give.
fn save(savings: &mut Savings, guest: &Guest<'_>) {
    if guest.is_withheld() {
        return;
    }
    let Some(stats) = guest.seen.told.stats.fresh() else { return };
    let Some(balloon) = guest.seen.told.balloon.latest() else { return };
    let beyond_use = guest.entry.touched().saturating_sub(guest.need.used.unwrap_or_default());
    let free = stats.free.unwrap_or_default().min(beyond_use);
    if !balloon.free_page_reporting {
        savings.free_page_reporting = savings.free_page_reporting.saturating_add(free);
    }
    let headroom = guest.need.headroom;
    savings.ballooning = savings.ballooning.saturating_add(beyond_use.saturating_sub(headroom));
}

fn guest_report(beliefs: &Beliefs<'_>, bound: &[Bound], guest: &Guest<'_>, acts: &Acts<'_>) -> GuestReport {
    let Beliefs { config, scene, .. } = beliefs;
    let entry = &guest.entry;
    let changed_to = acts.targets.get(&guest.seen.id).copied();
    GuestReport {
        id: guest.seen.id.clone(),
        class: Arc::clone(guest.class_name),
        footprint: guest.seen.cost.footprint.latest().copied(),
        merged: guest.seen.cost.merged.latest().copied(),
        reach: entry.reach(),
        actual: entry.actual,
        full: guest.full,
        used: guest.need.used,
        cache: guest.need.cache,
        headroom: guest
            .need
            .unraised()
            .saturating_sub(guest.need.used.unwrap_or_default().saturating_add(guest.need.cache)),
        demand: guest.need.total().min(guest.bounds.limit()),
        entitlement: guest.entitlement,
        target: changed_to.or(guest.next.target),
        unordered: guest.unordered().min(scene.ledger.room.short),
        bound_by: guest.seen.tmpfs.filter(|id| bound.iter().any(|bound| bound.id == *id)),
        verdict: verdict(config, scene, guest, acts),
    }
}

/// What a plan does to guests.
struct Acts<'p> {
    targets: BTreeMap<&'p GuestId, Bytes>,
    polled: BTreeSet<&'p GuestId>,
}

impl<'p> Acts<'p> {
    fn of(plan: &'p Plan) -> Self {
        let mut acts = Self { targets: BTreeMap::new(), polled: BTreeSet::new() };
        for action in &plan.actions {
            let Some(guest) = action.guest() else { continue };
            if let Some(size) = action.request.size() {
                acts.targets.insert(guest, size);
            } else if matches!(action.request, Request::PollStats(_)) {
                acts.polled.insert(guest);
            }
        }
        acts
    }
}

fn verdict(config: &Config, scene: &Scene, guest: &Guest<'_>, acts: &Acts<'_>) -> Verdict {
    let changed_to = acts.targets.get(&guest.seen.id).copied();
    if let Some(verdict) = &guest.left_alone {
        return verdict.clone();
    }
    if config.mode == Mode::Observe {
        return Verdict::Observed;
    }
    if let Some((lacking, lacks)) = guest.hold_ends.clone() {
        // Nobody could be told: it has not ended.
        return match (changed_to, guest.next.hold) {
            (None, Some(hold)) => Verdict::Held(hold),
            _ => Verdict::HoldEnds { lacking, lacks },
        };
    }
    let stuck = &guest.next.stuck;
    if let Some(until) = stuck.until.filter(|until| scene.now < *until) {
        let since = stuck::since(stuck, scene.now);
        return Verdict::Stuck { since, until, uncooperative: stuck.uncooperative };
    }
    if let Some(target) = changed_to {
        return if target >= guest.entry.target { Verdict::Grown } else { Verdict::Shrunk };
    }
    if let Some(why) = &guest.withheld {
        return Verdict::Withheld(why.clone());
    }
    if acts.polled.contains(&guest.seen.id) {
        return Verdict::PollingStarted;
    }
    if guest.need.used.is_none() {
        return Verdict::NoStats(guest.seen.told.stats.why_not().cloned().unwrap_or(Absence::Unsupported));
    }
    if !stuck::at_target(&guest.entry) {
        return Verdict::UnderWay;
    }
    let lacks = guest.lacks_in_use().max(guest.lacks_cache());
    if lacks > guest.dead_band() {
        return Verdict::WaitsForMemory { lacks };
    }
    match guest.next.search.back_off.until.filter(|until| scene.now < *until) {
        Some(until) => Verdict::BackingOff { until },
        None => Verdict::Steady,
    }
}
