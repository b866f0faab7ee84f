//! What holds for all guests at a decision: the ledger, the host's state, and what is wanted.

use memtide_model::{Bytes, Commitment, Config, HostState, Moment, Snapshot, State};

use crate::demand::dead_band;
use crate::guest::Guest;
use crate::host_state;
use crate::ledger::Ledger;

/// What holds for all guests at this decision.
#[derive(Clone, Debug)]
pub struct Scene {
    /// The moment of the snapshot.
    pub now: Moment,
    /// What the ledger promises.
    pub commitment: Commitment,
    /// Strict: how many self-deflations must fit.
    pub self_deflations: u32,
    /// The ledger before the decision.
    pub ledger: Ledger,
    /// How short the host is.
    pub host: HostState,
    /// What the commitment and the guests lack.
    pub wanted: Bytes,
    /// What guests lack that are not helped, spare memory not counted.
    unpaid: Bytes,
    /// What guests need and do not hold.
    pub unmet: Bytes,
    /// The least dead band of the guests that wait for memory: they lack more than that.
    pub waits_beyond: Option<Bytes>,
    /// How many guests lack memory that cannot wait, and are not helped.
    starving: usize,
    /// The guests share what they have touched: an elastic commitment that memory is wanted for.
    pub by_touch: bool,
    /// The host is hard or low and not covered.
    hard: bool,
    /// The host is low and not covered.
    pub emergency: bool,
    /// Every guest is entitled to its limit.
    pub ample: bool,
}

/// No guest gives anything for its own lack: what is asked of a guest is judged over the others.
impl Scene {
    /// Whether another guest than `guest` lacks memory that cannot wait.
    #[must_use]
    pub fn others_starve(&self, guest: &Guest<'_>) -> bool {
        self.starving > usize::from(guest.starves())
    }

    /// Whether what is wanted of `guest` cannot wait.
    #[must_use]
    pub fn is_urgent_for(&self, guest: &Guest<'_>) -> bool {
        self.hard || self.others_starve(guest)
    }

    /// What the commitment and the other guests lack.
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

/// The ledger before the decision; `surge_peak` and `tide` are what must be expected of all guests together.
#[must_use]
pub fn ledger(
    config: &Config,
    seen: &Snapshot,
    guests: &[Guest<'_>],
    surge_peak: Bytes,
    tide: Bytes,
) -> Ledger {
    let single = guests.iter().map(|guest| guest.entry.exposure().min(guest.next.surge.peak)).max();
    let entries = guests.iter().map(|guest| &guest.entry);
    Ledger::new(config, seen, entries, surge_peak, single.unwrap_or_default(), tide)
}

/// The host's state and what is wanted.
#[must_use]
pub fn survey(
    config: &Config,
    state: &State,
    seen: &Snapshot,
    guests: &[Guest<'_>],
    ledger: Ledger,
) -> Scene {
    let host = host_state::judge(config, state, &seen.host, &ledger, seen.taken_at);
    let (mut unmet, mut unpaid) = (Bytes::ZERO, Bytes::ZERO);
    let (mut waits_beyond, mut starving) = (None, 0);
    for guest in guests {
        let lacks = guest.lacks();
        unmet = unmet.saturating_add(lacks);
        let beyond = dead_band(guest.seen.full);
        if lacks > beyond {
            waits_beyond = Some(waits_beyond.map_or(beyond, |least: Bytes| least.min(beyond)));
        }
        unpaid = unpaid.saturating_add(guest.unpaid());
        starving += usize::from(guest.starves());
    }
    let uncovered = match config.commitment {
        Commitment::Strict => !ledger.room.short.is_zero(),
        Commitment::Elastic => true,
    };
    let wanted = unpaid.saturating_sub(ledger.room.spare).saturating_add(ledger.room.short);
    Scene {
        now: seen.taken_at,
        commitment: config.commitment,
        self_deflations: config.self_deflations,
        ledger,
        host,
        wanted,
        unpaid,
        unmet,
        waits_beyond,
        starving,
        by_touch: config.commitment == Commitment::Elastic && !wanted.is_zero(),
        hard: uncovered && host >= HostState::Hard,
        emergency: uncovered && host == HostState::Low,
        ample: false,
    }
}
