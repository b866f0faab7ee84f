//! The files of the memory controller in cgroup v2.

use std::path::Path;

use memtide_model::{Bytes, Limit, Pages, Reading, SwapCounters};

use super::{CgroupEvents, CgroupSeen, CgroupVersion, clean, limit_or_max, torn, uncounted};
use crate::source::parse_once;
use crate::text::{only, optional, value};
use crate::{HostError, ParseError, Scratch, Source, page_size, pressure};

/// The limit of one cgroup, regardless of its ancestors. The root has no such file and no limit.
pub(super) fn own_limit(dir: &Path) -> Result<Limit, HostError> {
    match parse_once(dir.join("memory.max"), limit_or_max) {
        Err(error) if error.is_unsupported() => Ok(Limit::Max),
        limit => limit,
    }
}

/// The files that are read every tick.
#[derive(Debug)]
pub(super) struct Files {
    current: Source,
    stat: Source,
    events: Source,
    pressure: Result<Source, HostError>,
    /// `memory.max` of the cgroup and its ancestors.
    limits: Vec<Source>,
    /// `memory.swap.max` of the same cgroups; empty on a kernel without swap.
    swap_limits: Vec<Source>,
}

impl Files {
    pub(super) fn open<'d>(dir: &Path, lineage: impl Iterator<Item = &'d Path>) -> Result<Self, HostError> {
        let (mut limits, mut swap_limits) = (Vec::new(), Vec::new());
        for dir in lineage {
            limits.extend(open_if_there(&dir.join("memory.max"))?);
            swap_limits.extend(open_if_there(&dir.join("memory.swap.max"))?);
        }
        Ok(Self {
            current: Source::open(dir.join("memory.current"))?,
            stat: Source::open(dir.join("memory.stat"))?,
            events: Source::open(dir.join("memory.events"))?,
            pressure: pressure::open(dir.join("memory.pressure")),
            limits,
            swap_limits,
        })
    }

    pub(super) fn read(&self, scratch: &mut Scratch) -> Result<CgroupSeen, HostError> {
        let usage = self.current.parse_line(scratch, |text| only("memory.current", text))?;
        let stat = self.stat.parse(scratch, Stat::parse)?;
        let swap_limit = lowest(&self.swap_limits, scratch)?;
        Ok(CgroupSeen {
            limit: lowest(&self.limits, scratch)?,
            usage: Bytes::new(usage),
            reclaimable: stat.reclaimable,
            anon: stat.anon,
            shmem: stat.shmem,
            torn: stat.torn.map_or_else(uncounted, Reading::now),
            events: self.events.parse(scratch, parse_events)?,
            pressure: pressure::reading(&self.pressure, scratch),
            may_swap: swap_limit != Limit::At(Bytes::ZERO),
            swap: stat.swap.map_or_else(uncounted, Reading::now),
        })
    }
}

fn open_if_there(path: &Path) -> Result<Option<Source>, HostError> {
    match Source::open(path) {
        Ok(source) => Ok(Some(source)),
        Err(error) if error.is_unsupported() => Ok(None),
        Err(error) => Err(error),
    }
}

/// The lowest of several limits.
fn lowest(limits: &[Source], scratch: &mut Scratch) -> Result<Limit, HostError> {
    let mut lowest = Limit::Max;
    for source in limits {
        lowest = match (lowest, source.parse_line(scratch, limit_or_max)?) {
            (Limit::At(a), Limit::At(b)) => Limit::At(a.min(b)),
            (Limit::At(at), Limit::Max) | (Limit::Max, Limit::At(at)) => Limit::At(at),
            (Limit::Max, Limit::Max) => Limit::Max,
        };
    }
    Ok(lowest)
}

/// The part of `memory.stat` that memtide uses.
#[derive(Debug, PartialEq, Eq)]
struct Stat {
    reclaimable: Bytes,
    anon: Bytes,
    shmem: Bytes,
    torn: Option<Bytes>,
    swap: Option<SwapCounters>,
}

impl Stat {
    fn parse(text: &str) -> Result<Self, ParseError> {
        let pages = |field| Ok(optional(field, text)?.map(|count| Pages::new(count).to_bytes(page_size())));
        let swap = match (pages("pswpin")?, pages("pswpout")?) {
            (Some(swapped_in), Some(swapped_out)) => Some(SwapCounters { swapped_in, swapped_out }),
            _ => None,
        };
        Ok(Self {
            reclaimable: clean(
                [value("inactive_file", text)?, value("active_file", text)?],
                [value("file_dirty", text)?, value("file_writeback", text)?],
            ),
            anon: Bytes::new(value("anon", text)?),
            shmem: Bytes::new(optional("shmem", text)?.unwrap_or(0)),
            torn: torn::in_stat(CgroupVersion::V2, text)?,
            swap,
        })
    }
}

pub(super) fn parse_events(text: &str) -> Result<CgroupEvents, ParseError> {
    Ok(CgroupEvents {
        oom_kills: optional("oom_kill", text)?,
        limit_hits: optional("max", text)?,
        ooms: optional("oom", text)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The first lines of Linux 6.12's file, and some further ones.
    const STAT: &str = "\
anon 104857600\nfile 62914560\nkernel 3145728\nkernel_stack 65536\npagetables 524288\nsec_pagetables 0
percpu 1024\nsock 0\nvmalloc 0\nshmem 10485760\nzswap 0\nzswapped 0\nfile_mapped 8388608\nfile_dirty 1048576
file_writeback 524288\nswapcached 0\nanon_thp 0\nfile_thp 0\nshmem_thp 0\ninactive_anon 110100480
active_anon 5242880\ninactive_file 31457280\nactive_file 20971520\nunevictable 0\nslab_reclaimable 1048576
slab_unreclaimable 524288\nslab 1572864\nworkingset_refault_anon 0\npgscan 0\n";

    #[test]
    fn clean_page_cache_is_reclaimable() {
        let stat = Stat::parse(STAT).unwrap();
        assert_eq!(stat.reclaimable, Bytes::new(31_457_280 + 20_971_520 - 1_048_576 - 524_288));
        assert_eq!((stat.anon, stat.shmem), (Bytes::from_mib(100), Bytes::from_mib(10)));
        assert_eq!(stat.swap, None);
    }

    #[test]
    fn swap_traffic_is_read_where_it_is_counted() {
        let text = format!("{STAT}pswpin 3\npswpout 5\n");
        let page = page_size();
        let expected = SwapCounters {
            swapped_in: Pages::new(3).to_bytes(page),
            swapped_out: Pages::new(5).to_bytes(page),
        };
        assert_eq!(Stat::parse(&text).unwrap().swap, Some(expected));
    }

    #[test]
    fn events_are_matched_as_whole_words() {
        let events = parse_events("low 0\nhigh 9\nmax 7\noom 2\noom_kill 1\noom_group_kill 5\n").unwrap();
        assert_eq!(events, CgroupEvents { oom_kills: Some(1), limit_hits: Some(7), ooms: Some(2) });
        assert!(parse_events("oom_kill many\n").is_err());
    }

    #[test]
    fn a_limit_is_max_or_bytes() {
        assert_eq!(limit_or_max("max\n"), Ok(Limit::Max));
        assert_eq!(limit_or_max("4096\n"), Ok(Limit::At(Bytes::new(4096))));
        for text in ["", "maximum", "-1", "99999999999999999999999"] {
            assert!(limit_or_max(text).is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "(?s).{0,200}", cut in 0..STAT.len()) {
            let _ = Stat::parse(&text);
            let _ = Stat::parse(&STAT[..cut]);
            let _ = parse_events(&text);
            let _ = limit_or_max(&text);
        }
    }
}
