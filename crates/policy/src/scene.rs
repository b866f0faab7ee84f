//! Facts about all guests at a decision: the ledger, the host's state, and the wanted memory.

use memtide_model::{Bytes, Commitment, Config, HostState, Moment, Snapshot, State, Surge};

use crate::demand::dead_band;
use crate::guest::Guest;
use crate::host_state;
use crate::ledger::Ledger;
use crate::squeeze;

/// Facts about all guests at this decision.
#[derive(Clone, Debug)]
pub struct Scene {
    /// The moment of the snapshot.
    pub now: Moment,
    /// The kind of promise that the ledger makes.
    pub commitment: Commitment,
    /// Strict: the number of self-deflations that must fit.
    pub self_deflations: u32,
    /// The ledger before the decision.
    pub ledger: Ledger,
    /// The host's shortage.
    pub host: HostState,
    /// The memory that the commitment and the guests lack.
    pub wanted: Bytes,
    /// The lack of guests that are not helped, without counting spare memory.
    unpaid: Bytes,
    /// The memory that guests need and do not hold.
    pub unmet: Bytes,
    /// The smallest dead band of the guests that wait for memory: they lack more than that.
    pub waits_beyond: Option<Bytes>,
    /// Used memory that guests lack and are not helped with.
    lacking: Bytes,
    /// The memory that the host lacks to be out of danger: guests give page cache for it, too.
    pub danger: Bytes,
    /// The number of guests that lack memory that cannot wait, and are not helped.
    starving: usize,
    /// The number of starving guests that lack used memory.
    starving_for_use: usize,
    /// The guests share touched memory: the commitment is elastic and memory is wanted.
    pub by_touch: bool,
    /// The host is hard or low and not covered.
    hard: bool,
    /// The host is low and not covered.
    pub emergency: bool,
    /// Every guest is entitled to its limit.
    pub ample: bool,
}

/// No guest gives for its own lack: a request to a guest is judged over the others.
impl Scene {
    /// Whether a guest other than `guest` lacks memory that cannot wait, and cannot be granted it now.
    #[must_use]
    pub fn others_starve(&self, guest: &Guest<'_>) -> bool {
        others(self.starving, || guest.starves()) && !self.others_lack(guest).is_zero()
    }

    /// The same for used memory: only for that, another guest gives used memory.
    #[must_use]
    pub fn others_starve_for_use(&self, guest: &Guest<'_>) -> bool {
        others(self.starving_for_use, || guest.starves_for_use()) && !self.others_lack(guest).is_zero()
    }

    /// Whether the memory wanted of `guest` cannot wait. Memory kept free can wait while the guest needs all that it holds.
    #[must_use]
    pub fn is_urgent_for(&self, guest: &Guest<'_>) -> bool {
        self.emergency || (self.hard && !guest.needs_all_soon) || self.others_starve(guest)
    }

    /// Used memory that other guests lack and cannot be granted now.
    fn others_lack(&self, guest: &Guest<'_>) -> Bytes {
        self.lacking.saturating_sub(guest.lacks_of_use()).saturating_sub(self.ledger.in_need)
    }

    /// The used memory that `guest` lacks, that can be granted now and that no other guest lacks.
    #[must_use]
    pub fn granted_now(&self, guest: &Guest<'_>) -> Bytes {
        let lacks = guest.lacks_of_use();
        lacks.min(self.ledger.in_need.saturating_sub(self.lacking.saturating_sub(lacks)))
    }

    /// The memory that is worth page cache of `guest`: other guests' lack of used memory, and the host's lack while it is in
    /// danger.
    #[must_use]
    pub fn pressing_for(&self, guest: &Guest<'_>) -> Bytes {
        self.others_lack(guest).saturating_add(self.danger)
    }

    /// The same for all guests together.
    #[must_use]
    pub fn pressing(&self) -> Bytes {
        self.lacking.saturating_sub(self.ledger.in_need).saturating_add(self.danger)
    }

    /// The memory that the commitment and the other guests lack.
    #[must_use]
    pub fn wanted_of(&self, guest: &Guest<'_>) -> Bytes {
        let others = self.unpaid.saturating_sub(guest.unpaid());
        others.saturating_sub(self.ledger.room.spare).saturating_add(self.ledger.room.short)
    }

    /// Whether `guest` is asked for memory now.
    #[must_use]
    pub fn may_ask(&self, guest: &Guest<'_>) -> bool {
        guest.may_give(self.now, self.is_urgent_for(guest)) && !self.wanted_of(guest).is_zero()
    }
}

/// Whether `count` guests include one other than the guest that `is_one` asks about.
fn others(count: usize, is_one: impl FnOnce() -> bool) -> bool {
    count > 1 || (count == 1 && !is_one())
}

/// The ledger before the decision. `surge` (its peak and its recent value) and `tide` are expected of all guests together.
#[must_use]
pub fn ledger(config: &Config, seen: &Snapshot, guests: &[Guest<'_>], surge: Surge, tide: Bytes) -> Ledger {
    let single = guests.iter().map(|guest| guest.entry.exposure().min(guest.next.surge.peak)).max();
    let entries = guests.iter().map(|guest| &guest.entry);
    let mut ledger = Ledger::new(config, seen, entries, surge.peak, single.unwrap_or_default(), tide);
    ledger.in_need = match config.commitment {
        Commitment::Strict => ledger.room.spare,
        Commitment::Elastic => ledger.free().saturating_sub(surge.recent.min(ledger.exposures)),
    };
    ledger
}

/// The host's state and the wanted memory. A guest keeps its cache while nothing presses: the result of a search counts only when
/// something does.
#[must_use]
pub fn survey(
    config: &Config,
    state: &State,
    seen: &Snapshot,
    guests: &mut [Guest<'_>],
    ledger: Ledger,
) -> Scene {
    let host = host_state::judge(config, state, &seen.host, &ledger, seen.taken_at);
    let uncovered = match config.commitment {
        Commitment::Strict => !ledger.room.short.is_zero(),
        Commitment::Elastic => true,
    };
    let emergency = uncovered && host == HostState::Low;
    let mut scene = Scene {
        now: seen.taken_at,
        commitment: config.commitment,
        self_deflations: config.self_deflations,
        ledger,
        host,
        wanted: Bytes::ZERO,
        unpaid: Bytes::ZERO,
        unmet: Bytes::ZERO,
        waits_beyond: None,
        lacking: Bytes::ZERO,
        danger: danger(config, seen, &ledger, emergency, state.joint_surge.recent),
        starving: 0,
        starving_for_use: 0,
        by_touch: false,
        hard: uncovered && host >= HostState::Hard,
        emergency,
        ample: false,
    };
    for guest in guests.iter() {
        scene.lacking = scene.lacking.saturating_add(guest.lacks_of_use());
        if guest.starves() {
            scene.starving += 1;
            scene.starving_for_use += usize::from(guest.starves_for_use());
        }
    }
    for guest in guests.iter_mut() {
        if scene.pressing_for(guest).is_zero() {
            let is_kept = ledger.room.short.is_zero();
            guest.demand.cache = squeeze::before_the_search(&guest.next.squeeze, &guest.demand, is_kept);
        }
    }
    scene.count(guests);
    scene
}

/// The memory that the host lacks to be out of danger. In an emergency, it is out of danger once the state hard is over and the
/// growth of guests within a reaction time is also free. Strict: guests must never hold more than there is.
fn danger(config: &Config, seen: &Snapshot, ledger: &Ledger, emergency: bool, growth: Bytes) -> Bytes {
    let over = match config.commitment {
        Commitment::Strict => ledger.over(),
        Commitment::Elastic => Bytes::ZERO,
    };
    let safe = seen.host.share(config.states.hard()).saturating_add(growth.min(ledger.exposures));
    let short = if emergency { safe.saturating_sub(ledger.really_free()) } else { Bytes::ZERO };
    over.max(short)
}

impl Scene {
    /// Counts the guests' lack, and the memory wanted for it.
    pub fn count(&mut self, guests: &[Guest<'_>]) {
        (self.unmet, self.unpaid, self.waits_beyond) = (Bytes::ZERO, Bytes::ZERO, None);
        for guest in guests {
            let lacks = guest.lacks();
            self.unmet = self.unmet.saturating_add(lacks);
            self.unpaid = self.unpaid.saturating_add(guest.unpaid());
            let beyond = dead_band(guest.seen.told.full);
            if lacks > beyond {
                self.waits_beyond = Some(self.waits_beyond.map_or(beyond, |least| least.min(beyond)));
            }
        }
        let room = self.ledger.room;
        self.wanted = self.unpaid.saturating_sub(room.spare).saturating_add(room.short);
        self.by_touch = self.commitment == Commitment::Elastic && !self.wanted.is_zero();
    }
}
