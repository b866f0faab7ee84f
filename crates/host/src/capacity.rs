//! The host as the ledger sees it: its memory, and the memory that everything except the guests uses.
//!
//! **Terms.** *Capacity* is all memory that the ledger counts. *Other* is memory used by everything except guests, without page cache that
//! the kernel can drop at once and without *torn* huge pages ([`crate::torn`]), which are a line of their own. The *small host* is the guests' memory cgroup, if its limit is below the machine's memory
//! ([`Cgroup::small_host`]).
//!
//! **Rule.**
//!
//! | budget | small host | capacity | other |
//! |---|---|---|---|
//! | `host` | none | `MemTotal` | `MemTotal − MemAvailable − Σ footprints − torn` |
//! | `host` | with limit L | L | usage − reclaimable − Σ footprints in it − torn in it |
//! | size B | none, or L > B | min(B, `MemTotal` − memory used by others) | 0: the budget belongs to the guests alone |
//! | size B | L ≤ B | L | usage − reclaimable − Σ footprints in it − torn in it |
//!
//! Without a small host, torn is that of the whole host. Other processes tear huge pages, too, but rarely: a budget counts all torn memory.
//!
//! Differences stop at zero, because footprints can exceed the charged memory. Footprints and host counters are read one after the other.
//! Also, if a process moves into a v1 cgroup, its charge does not follow (about 110 MiB of a guest can stay uncharged).
//!
//! Swap traffic is that of the small host if the cgroup counts its own (v2 since Linux 6.13). Otherwise it is the traffic of the whole
//! host, which is never less. It is absent if there is no swap, or if the small host may not use it. Pressure is that of the small host. It
//! is absent in v1: the pressure of the whole host would also cover others.

use memtide_model::{Absence, Budget, Bytes, HostSeen, Limit, Reading, SwapCounters};

use crate::arc::{ARCSTATS, Arc};
use crate::torn::{self, PartlyMapped};
use crate::{
    Cgroup, CgroupReader, CgroupSeen, HostError, Meminfo, Root, Scratch, Source, Vmstat, page_size, pressure,
    vmstat,
};

/// The cost of all guests together at the moment of an observation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GuestCost {
    /// The footprints of all guests.
    pub all: Bytes,
    /// The footprints of the guests in the small host.
    pub in_small_host: Bytes,
}

/// Reads the host every tick, through files that stay open.
#[derive(Debug)]
pub struct HostSensor {
    budget: Budget,
    meminfo: Source,
    /// ZFS may not be loaded.
    arc: Result<Source, HostError>,
    vmstat: Result<Source, HostError>,
    pressure: Result<Source, HostError>,
    partly_mapped: PartlyMapped,
    small_host: Option<CgroupReader>,
    scratch: Scratch,
}

impl HostSensor {
    /// Opens the files of the host, without a small host.
    ///
    /// # Errors
    /// If `/proc/meminfo` cannot be opened. Any other missing file only makes its reading absent.
    pub fn open(root: &Root, budget: Budget) -> Result<Self, HostError> {
        Ok(Self {
            budget,
            meminfo: Source::open(root.proc("meminfo"))?,
            arc: Source::open(root.proc(ARCSTATS)),
            vmstat: Source::open(root.proc("vmstat")),
            pressure: pressure::open(root.proc("pressure/memory")),
            partly_mapped: PartlyMapped::open(root),
            small_host: None,
            scratch: Scratch::default(),
        })
    }

    /// Uses this budget for all further observations.
    pub const fn set_budget(&mut self, budget: Budget) {
        self.budget = budget;
    }

    /// Uses this cgroup as the small host for all further observations. Does nothing if it already is the small host.
    ///
    /// # Errors
    /// If its files cannot be opened. The small host then stays the same.
    pub fn set_small_host(&mut self, cgroup: Option<Cgroup>) -> Result<(), HostError> {
        if self.small_host() != cgroup.as_ref() {
            self.small_host = cgroup.map(CgroupReader::open).transpose()?;
        }
        Ok(())
    }

    /// The cgroup that serves as the small host.
    #[must_use]
    pub fn small_host(&self) -> Option<&Cgroup> {
        self.small_host.as_ref().map(CgroupReader::cgroup)
    }

    /// Observes the host while the guests cost `guests`.
    ///
    /// # Errors
    /// If `/proc/meminfo` or the small host cannot be read. If the cgroup was removed, choose the small host again.
    pub fn observe(&mut self, guests: GuestCost) -> Result<HostSeen, HostError> {
        let meminfo = self.meminfo.parse(&mut self.scratch, str::parse::<Meminfo>)?;
        let meminfo = self.with_arc(meminfo);
        let small = match &self.small_host {
            Some(reader) => Some(reader.read(&mut self.scratch)?),
            None => None,
        };
        let host_swap = self.host_swap(&meminfo);
        let mut torn = torn_of(self.budget, &meminfo, small.as_ref());
        torn = torn.map(|torn| self.partly_mapped.bound(torn, &mut self.scratch));
        let lost = torn.latest().copied().unwrap_or_default();
        let (capacity, other) = capacity_and_other(self.budget, &meminfo, small.as_ref(), (guests, lost));
        assert!(capacity <= meminfo.total, "nothing counts more memory than the host has");
        let (swap, pressure) = match small {
            None => (host_swap, pressure::reading(&self.pressure, &mut self.scratch)),
            Some(seen) => (small_host_swap(&seen, host_swap), seen.pressure),
        };
        Ok(HostSeen {
            capacity,
            // Only those who know the guests that have ended can tell.
            ending: Bytes::ZERO,
            other,
            torn,
            splits: false,
            tiers: false,
            swap,
            pressure,
            ksm: Reading::unsupported(),
            missed: None,
        })
    }

    /// The cache of ZFS can come back like other page cache, but the kernel does not call it available.
    fn with_arc(&mut self, meminfo: Meminfo) -> Meminfo {
        let Ok(source) = &self.arc else { return meminfo };
        let Ok(arc) = source.parse(&mut self.scratch, str::parse::<Arc>) else { return meminfo };
        meminfo.with_arc(arc.reclaimable())
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

/// The limit of the small host. A limit above all memory limits nothing, nor does a limit that was lifted in the meantime.
fn limit_of(seen: &CgroupSeen, meminfo: &Meminfo) -> Option<Bytes> {
    match seen.limit {
        Limit::At(limit) if limit < meminfo.total => Some(limit),
        Limit::At(_) | Limit::Max => None,
    }
}

/// The torn huge pages that the ledger counts.
fn torn_of(budget: Budget, meminfo: &Meminfo, small: Option<&CgroupSeen>) -> Reading<Bytes> {
    match (budget, small) {
        (Budget::Host, Some(seen)) if limit_of(seen, meminfo).is_some() => seen.torn.clone(),
        // All guests lie in it.
        (Budget::Size(_), Some(seen)) => seen.torn.clone(),
        _ => torn::of_host(meminfo),
    }
}

/// The table in this module's documentation, if this much of the memory in use is torn.
fn capacity_and_other(
    budget: Budget,
    meminfo: &Meminfo,
    small: Option<&CgroupSeen>,
    (guests, torn): (GuestCost, Bytes),
) -> (Bytes, Bytes) {
    let without = |used: Bytes, guests: Bytes| used.saturating_sub(guests).saturating_sub(torn);
    let in_small_host =
        |seen: &CgroupSeen| without(seen.usage.saturating_sub(seen.reclaimable), guests.in_small_host);
    let limited = small.and_then(|seen| Some((limit_of(seen, meminfo)?, seen)));
    match (budget, limited) {
        (Budget::Host, None) => (meminfo.total, without(meminfo.used(), guests.all)),
        (Budget::Host, Some((limit, seen))) => (limit, in_small_host(seen)),
        (Budget::Size(size), Some((limit, seen))) if limit <= size => (limit, in_small_host(seen)),
        (Budget::Size(size), _) => {
            let others = without(meminfo.used(), guests.all);
            (size.min(meminfo.total.saturating_sub(others)), Bytes::ZERO)
        }
    }
}

/// The swap traffic of a small host, on a host with the traffic `host_swap`.
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
            torn: Reading::now(mib(100)),
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
            // 1500 charged − 200 of cache − 1000 of the guests in it.
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
            let seen = capacity_and_other(budget, &meminfo(), small, (GUESTS, Bytes::ZERO));
            assert_eq!(seen, (mib(expected.0), mib(expected.1)), "{budget:?} {small:?}");
        }
    }

    #[test]
    fn torn_huge_pages_are_nobodys_use() {
        let meminfo = Meminfo { listed: Some(mib(2700)), anon: mib(2500), ..meminfo() };
        let limit = small(Limit::At(mib(2000)));
        let unlimited = small(Limit::Max);
        for (budget, small, (capacity, other, torn)) in [
            // 8000 − 5000 available − 2000 of guests − 200 torn.
            (Budget::Host, None, (8000, 800, 200)),
            (Budget::Host, Some(&unlimited), (8000, 800, 200)),
            // 1500 charged − 200 of cache − 1000 of the guests in it − 100 torn in it.
            (Budget::Host, Some(&limit), (2000, 200, 100)),
            (Budget::Size(mib(3000)), Some(&limit), (2000, 200, 100)),
            (Budget::Size(mib(1000)), Some(&limit), (1000, 0, 100)),
            // 8000 − 800 of others.
            (Budget::Size(mib(9000)), None, (7200, 0, 200)),
        ] {
            let lost = torn_of(budget, &meminfo, small);
            assert_eq!(lost, Reading::now(mib(torn)), "{budget:?} {small:?}");
            let seen = capacity_and_other(budget, &meminfo, small, (GUESTS, mib(torn)));
            assert_eq!(seen, (mib(capacity), mib(other)), "{budget:?} {small:?}");
        }
    }

    #[test]
    fn guests_that_cost_more_than_is_charged_leave_nothing_for_others() {
        let guests = GuestCost { all: mib(8000), in_small_host: mib(5000) };
        let limit = small(Limit::At(mib(2000)));
        for small in [None, Some(&limit)] {
            let (_, other) = capacity_and_other(Budget::Host, &meminfo(), small, (guests, Bytes::ZERO));
            assert_eq!(other, Bytes::ZERO);
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
