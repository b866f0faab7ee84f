//! What the ledger calls the host: how much memory there is, and what others than the guests use of it.
//!
//! **Terms.** *Capacity* is all memory that the ledger is about; *other* is what is used by others than guests, without
//! page cache that can be dropped at once. The *small host* is the memory cgroup that the guests live in, where it has a
//! limit below the machine's memory ([`Cgroup::small_host`]).
//!
//! **Rule.**
//!
//! | budget | small host | capacity | other |
//! |---|---|---|---|
//! | `host` | none | `MemTotal` | `MemTotal − MemAvailable − Σ footprints` |
//! | `host` | with limit L | L | usage − reclaimable − Σ footprints in it |
//! | size B | none, or L > B | min(B, `MemTotal` − what others use) | 0: the budget is the guests' alone |
//! | size B | L ≤ B | L | usage − reclaimable − Σ footprints in it |
//!
//! Differences stop at zero: footprints and host counters are read one after the other, and v1 does not move the charge of
//! a process that is moved into a cgroup (some 110 MiB of a guest can stay uncharged), so footprints can exceed what is
//! charged.
//!
//! Swap traffic is that of the small host where it counts its own (v2 since Linux 6.13). Elsewhere it is the whole host's,
//! which is never less; it is absent where there is no swap, or the small host may not use it. Pressure is that of the
//! small host; v1 has none, and the whole host's would speak of others.

use memtide_model::{Absence, Budget, Bytes, HostSeen, Limit, Reading, SwapCounters};

use crate::{
    Cgroup, CgroupReader, CgroupSeen, HostError, Meminfo, Root, Scratch, Source, Vmstat, page_size, pressure,
    vmstat,
};

/// What the guests cost together at the moment of an observation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GuestCost {
    /// The footprints of all guests.
    pub all: Bytes,
    /// Those of the guests that live in the small host.
    pub in_small_host: Bytes,
}

/// Reads the host every tick, through files that stay open.
#[derive(Debug)]
pub struct HostSensor {
    budget: Budget,
    meminfo: Source,
    vmstat: Result<Source, HostError>,
    pressure: Result<Source, HostError>,
    small_host: Option<CgroupReader>,
    scratch: Scratch,
}

impl HostSensor {
    /// Opens the files of the host; there is no small host yet.
    ///
    /// # Errors
    /// Where `/proc/meminfo` cannot be opened. What else is missing makes its reading absent.
    pub fn open(root: &Root, budget: Budget) -> Result<Self, HostError> {
        Ok(Self {
            budget,
            meminfo: Source::open(root.proc("meminfo"))?,
            vmstat: Source::open(root.proc("vmstat")),
            pressure: pressure::open(root.proc("pressure/memory")),
            small_host: None,
            scratch: Scratch::default(),
        })
    }

    /// From now on observes for this budget.
    pub const fn set_budget(&mut self, budget: Budget) {
        self.budget = budget;
    }

    /// From now on takes this cgroup for the small host. Does nothing where it is already.
    ///
    /// # Errors
    /// Where its files cannot be opened; the small host stays what it was.
    pub fn set_small_host(&mut self, cgroup: Option<Cgroup>) -> Result<(), HostError> {
        if self.small_host() != cgroup.as_ref() {
            self.small_host = cgroup.map(CgroupReader::open).transpose()?;
        }
        Ok(())
    }

    /// The cgroup that is taken for the small host.
    #[must_use]
    pub fn small_host(&self) -> Option<&Cgroup> {
        self.small_host.as_ref().map(CgroupReader::cgroup)
    }

    /// What the host is now, where the guests cost `guests`.
    ///
    /// # Errors
    /// Where `/proc/meminfo` or the small host cannot be read (the cgroup was removed: choose it anew).
    pub fn observe(&mut self, guests: GuestCost) -> Result<HostSeen, HostError> {
        let meminfo = self.meminfo.parse(&mut self.scratch, str::parse::<Meminfo>)?;
        let small = match &self.small_host {
            Some(reader) => Some(reader.read(&mut self.scratch)?),
            None => None,
        };
        let host_swap = self.host_swap(&meminfo);
        let (capacity, other) = capacity_and_other(self.budget, &meminfo, small.as_ref(), guests);
        Ok(match small {
            None => {
                let pressure = pressure::reading(&self.pressure, &mut self.scratch);
                HostSeen { capacity, other, swap: host_swap, pressure }
            }
            Some(seen) => {
                HostSeen { capacity, other, swap: small_host_swap(&seen, host_swap), pressure: seen.pressure }
            }
        })
    }

    fn host_swap(&mut self, meminfo: &Meminfo) -> Reading<SwapCounters> {
        match &self.vmstat {
            _ if meminfo.swap_total.is_zero() => Reading::absent(Absence::Unsupported),
            Ok(source) => {
                let vmstat = source.parse(&mut self.scratch, str::parse::<Vmstat>);
                vmstat::reading(meminfo, vmstat, page_size())
            }
            Err(error) => Reading::absent(error.absence()),
        }
    }
}

/// The table at the head of this file.
fn capacity_and_other(
    budget: Budget,
    meminfo: &Meminfo,
    small: Option<&CgroupSeen>,
    guests: GuestCost,
) -> (Bytes, Bytes) {
    let in_small_host =
        |seen: &CgroupSeen| seen.usage.saturating_sub(seen.reclaimable).saturating_sub(guests.in_small_host);
    // A limit that was lifted meanwhile, or is above all memory, limits nothing.
    let limited = small.and_then(|seen| match seen.limit {
        Limit::At(limit) if limit < meminfo.total => Some((limit, seen)),
        Limit::At(_) | Limit::Max => None,
    });
    match (budget, limited) {
        (Budget::Host, None) => (meminfo.total, meminfo.used().saturating_sub(guests.all)),
        (Budget::Host, Some((limit, seen))) => (limit, in_small_host(seen)),
        (Budget::Size(size), Some((limit, seen))) if limit <= size => (limit, in_small_host(seen)),
        (Budget::Size(size), _) => {
            let others = meminfo.used().saturating_sub(guests.all);
            (size.min(meminfo.total.saturating_sub(others)), Bytes::ZERO)
        }
    }
}

/// The swap traffic of a small host on a host with `host_swap`.
fn small_host_swap(seen: &CgroupSeen, host_swap: Reading<SwapCounters>) -> Reading<SwapCounters> {
    match (&seen.swap, host_swap) {
        _ if !seen.may_swap => Reading::absent(Absence::Unsupported),
        (Reading::Fresh { .. }, Reading::Fresh { .. }) => seen.swap.clone(),
        (_, host_swap) => host_swap,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::CgroupEvents;
    use memtide_model::Pressure;

    const fn mib(mib: u64) -> Bytes {
        Bytes::from_mib(mib)
    }

    fn meminfo() -> Meminfo {
        Meminfo { total: mib(8000), available: mib(5000), swap_total: mib(1), ..Meminfo::default() }
    }

    fn small(limit: Limit) -> CgroupSeen {
        CgroupSeen {
            limit,
            usage: mib(1500),
            reclaimable: mib(200),
            anon: mib(1200),
            shmem: Bytes::ZERO,
            events: CgroupEvents::default(),
            pressure: Reading::now(Pressure::default()),
            may_swap: true,
            swap: Reading::absent(Absence::Unsupported),
        }
    }

    const GUESTS: GuestCost = GuestCost { all: mib(2000), in_small_host: mib(1000) };

    #[test]
    fn the_table_holds() {
        let limit = small(Limit::At(mib(2000)));
        let unlimited = small(Limit::Max);
        let huge = small(Limit::At(mib(9000)));
        for (budget, small, expected) in [
            // 8000 − 5000 available − 2000 of guests.
            (Budget::Host, None, (8000, 1000)),
            // 1500 charged − 200 of cache − 1000 of guests in it.
            (Budget::Host, Some(&limit), (2000, 300)),
            (Budget::Host, Some(&unlimited), (8000, 1000)),
            (Budget::Host, Some(&huge), (8000, 1000)),
            (Budget::Size(mib(1000)), None, (1000, 0)),
            (Budget::Size(mib(1000)), Some(&limit), (1000, 0)),
            (Budget::Size(mib(2000)), Some(&limit), (2000, 300)),
            (Budget::Size(mib(3000)), Some(&limit), (2000, 300)),
            // 8000 − 1000 of others.
            (Budget::Size(mib(9000)), None, (7000, 0)),
        ] {
            let seen = capacity_and_other(budget, &meminfo(), small, GUESTS);
            assert_eq!(seen, (mib(expected.0), mib(expected.1)), "{budget:?} {small:?}");
        }
    }

    #[test]
    fn guests_that_cost_more_than_is_charged_leave_nothing_for_others() {
        let guests = GuestCost { all: mib(8000), in_small_host: mib(5000) };
        let limit = small(Limit::At(mib(2000)));
        for small in [None, Some(&limit)] {
            assert_eq!(capacity_and_other(Budget::Host, &meminfo(), small, guests).1, Bytes::ZERO);
        }
    }

    #[test]
    fn a_small_host_has_its_own_swap_traffic_or_the_hosts_or_none() {
        let counters = |mib| SwapCounters { swapped_in: Bytes::from_mib(mib), swapped_out: Bytes::ZERO };
        let (own, host) = (Reading::now(counters(1)), Reading::now(counters(2)));
        let none = Reading::absent(Absence::Unsupported);
        let with = |may_swap, swap: &Reading<SwapCounters>| CgroupSeen {
            may_swap,
            swap: swap.clone(),
            ..small(Limit::Max)
        };
        assert_eq!(small_host_swap(&with(true, &own), host.clone()), own);
        assert_eq!(small_host_swap(&with(true, &none), host.clone()), host);
        assert_eq!(small_host_swap(&with(false, &own), host), none);
        assert_eq!(small_host_swap(&with(true, &own), none.clone()), none);
    }
}
