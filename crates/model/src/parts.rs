//! The parts of a guest's memory, as every surface shows them: of its size, and of its cost to the host.
//!
//! **Properties.** The parts of a size add up to the guest's full size, those of a cost to its cost. What lies between the two is one number:
//! [`Parts::free_on_host`].

use serde::{Deserialize, Serialize};

use crate::{Bytes, GuestReport, GuestSeen, GuestStats, Reading};

/// The parts of a guest's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Parts {
    /// Those of its size.
    pub size: SizeParts,
    /// Those of its cost; `None` if the host cannot read it.
    pub cost: Option<CostParts>,
}

/// Where a guest's full size is, from inside the guest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SizeParts {
    /// Memory that programs and the kernel use.
    pub used: Bytes,
    /// Page cache that it was seen to need.
    pub needed_cache: Bytes,
    /// The rest of its page cache.
    pub cold_cache: Bytes,
    /// Memory that is free in the guest.
    pub free: Bytes,
    /// Memory that it has, and of which nobody tells what it is: there are no fresh statistics.
    pub untold: Bytes,
    /// Memory that its balloon has given to the host.
    pub given: Bytes,
}

/// What a guest costs the host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CostParts {
    /// Its resident memory, with what KSM merged.
    pub ram: Bytes,
    /// The VMM's own memory.
    pub vmm: Bytes,
    /// The rest of torn huge pages that it gave back; zero if nobody knows it.
    pub torn: Bytes,
    /// Its memory in the host's swap.
    pub swapped: Bytes,
    /// What KSM merged of `ram`: it costs nothing.
    pub merged: Bytes,
}

impl SizeParts {
    /// The parts of `report`'s guest, with `cache` in its page cache that it can drop.
    fn of(report: &GuestReport, cache: Bytes) -> Self {
        let actual = report.actual.min(report.full);
        let given = report.full.saturating_sub(actual);
        let Some(used) = report.used.map(|used| used.min(actual)) else {
            return Self { untold: actual, given, ..Self::default() };
        };
        let cache = cache.min(actual.saturating_sub(used));
        let needed_cache = report.cache.min(cache);
        Self {
            used,
            needed_cache,
            cold_cache: cache.saturating_sub(needed_cache),
            free: actual.saturating_sub(used).saturating_sub(cache),
            untold: Bytes::ZERO,
            given,
        }
    }

    /// The guest's full size.
    #[must_use]
    pub fn sum(&self) -> Bytes {
        Bytes::sum([self.used, self.needed_cache, self.cold_cache, self.free, self.untold, self.given])
    }
}

impl CostParts {
    fn of(seen: &GuestSeen) -> Option<Self> {
        let cost = &seen.cost;
        let footprint = *cost.footprint.latest()?;
        let told = |reading: &Reading<Bytes>| reading.latest().copied().unwrap_or_default();
        let (vmm, merged) = (cost.overhead.min(footprint), told(&cost.merged));
        let ram = footprint.saturating_sub(vmm).saturating_add(merged);
        Some(Self { ram, vmm, torn: told(&cost.torn), swapped: told(&cost.swapped), merged })
    }

    /// The guest's cost, with what is in swap.
    #[must_use]
    pub fn sum(&self) -> Bytes {
        Bytes::sum([self.ram, self.vmm, self.torn, self.swapped]).saturating_sub(self.merged)
    }
}

impl Parts {
    /// The parts of a guest as it was `seen` and judged.
    #[must_use]
    pub fn of(seen: &GuestSeen, report: &GuestReport) -> Self {
        let cache = seen.told.stats.fresh().map_or(Bytes::ZERO, GuestStats::droppable_cache);
        Self { size: SizeParts::of(report, cache), cost: CostParts::of(seen) }
    }

    /// Memory that is free in the guest and that the host still holds: at least this much. `None` if the guest or the host does not tell.
    #[must_use]
    pub fn free_on_host(&self) -> Option<Bytes> {
        let cost = self.cost.filter(|_| self.size.untold.is_zero())?;
        let SizeParts { used, needed_cache, cold_cache, free, .. } = self.size;
        let holds = cost.ram.saturating_add(cost.swapped);
        Some(holds.saturating_sub(Bytes::sum([used, needed_cache, cold_cache])).min(free))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Absence, Backend, Capabilities, Cost, GuestId, Told, Verdict};

    const fn mib(mib: u64) -> Bytes {
        Bytes::from_mib(mib)
    }

    fn seen(available: u64, free: u64, caches: u64, ram: u64) -> GuestSeen {
        let stats = GuestStats {
            available: Some(mib(available)),
            free: Some(mib(free)),
            disk_caches: Some(mib(caches)),
            ..GuestStats::default()
        };
        let cost = Cost {
            merged: Reading::now(mib(10)),
            swapped: Reading::now(mib(5)),
            torn: Reading::now(mib(3)),
            ..Cost::of(Reading::now(mib(ram)), mib(40), mib(40), &Absence::Unsupported)
        };
        GuestSeen {
            id: GuestId::new("a", 1, "boot"),
            pid: 1,
            user: None,
            backend: Backend::new("QEMU"),
            capabilities: Capabilities::BALLOON,
            cost,
            tmpfs: None,
            withheld: None,
            told: Told { stats: Reading::now(stats), ..Told::nothing(mib(1024), Absence::NotYet) },
        }
    }

    fn report(actual: u64, used: Option<u64>, cache: u64) -> GuestReport {
        GuestReport {
            id: GuestId::new("a", 1, "boot"),
            class: "default".into(),
            footprint: None,
            merged: None,
            reach: Bytes::ZERO,
            actual: mib(actual),
            full: mib(1024),
            used: used.map(mib),
            cache: mib(cache),
            headroom: Bytes::ZERO,
            demand: Bytes::ZERO,
            entitlement: Bytes::ZERO,
            target: None,
            unordered: Bytes::ZERO,
            bound_by: None,
            verdict: Verdict::Steady,
        }
    }

    #[test]
    fn each_byte_has_one_part() {
        let parts = Parts::of(&seen(500, 200, 310, 640), &report(800, Some(300), 100));
        let size = SizeParts {
            used: mib(300),
            needed_cache: mib(100),
            cold_cache: mib(200),
            free: mib(200),
            untold: Bytes::ZERO,
            given: mib(224),
        };
        assert_eq!(parts.size, size);
        let cost = CostParts { ram: mib(610), vmm: mib(40), torn: mib(3), swapped: mib(5), merged: mib(10) };
        assert_eq!(parts.cost, Some(cost));
        assert_eq!(cost.sum(), mib(648));
        // 615 resident and swapped, of which programs and page cache use 600.
        assert_eq!(parts.free_on_host(), Some(mib(15)));
    }

    #[test]
    fn the_sums_are_exact_whatever_a_guest_says() {
        let sizes = [0, 1, 200, 800, 1024, 5000];
        for (actual, used) in sizes.into_iter().flat_map(|actual| sizes.map(|used| (actual, used))) {
            for (cache, free) in sizes.into_iter().flat_map(|cache| sizes.map(|free| (cache, free))) {
                for used in [None, Some(used)] {
                    let parts = Parts::of(&seen(cache, free, cache, 600), &report(actual, used, free));
                    assert_eq!(parts.size.sum(), mib(1024), "{actual} {used:?} {cache} {free}");
                    assert!(parts.free_on_host().is_none_or(|free| free <= parts.size.free));
                }
            }
        }
    }
}
