//! The files of the memory controller in cgroup v1.

use std::path::Path;

use memtide_model::{Bytes, Limit, Reading};

use super::{CgroupEvents, CgroupSeen, CgroupVersion, clean, torn, uncounted};
use crate::source::parse_once;
use crate::text::{only, optional, value};
use crate::{HostError, ParseError, Scratch, Source};

/// v1 writes "no limit" as the largest number of whole pages, which depends on the page size. No machine has this much memory.
const NO_LIMIT: u64 = 1 << 62;

/// The limit of one cgroup, regardless of its ancestors.
pub(super) fn own_limit(dir: &Path) -> Result<Limit, HostError> {
    parse_once(dir.join("memory.limit_in_bytes"), |text| only("memory.limit_in_bytes", text)).map(limit)
}

fn limit(bytes: u64) -> Limit {
    if bytes >= NO_LIMIT { Limit::Max } else { Limit::At(Bytes::new(bytes)) }
}

/// The files that are read every tick.
#[derive(Debug)]
pub(super) struct Files {
    usage: Source,
    stat: Source,
    oom_control: Option<Source>,
    failcnt: Option<Source>,
}

impl Files {
    pub(super) fn open(dir: &Path) -> Result<Self, HostError> {
        Ok(Self {
            usage: Source::open(dir.join("memory.usage_in_bytes"))?,
            stat: Source::open(dir.join("memory.stat"))?,
            oom_control: Source::open(dir.join("memory.oom_control")).ok(),
            failcnt: Source::open(dir.join("memory.failcnt")).ok(),
        })
    }

    pub(super) fn read(&self, scratch: &mut Scratch) -> Result<CgroupSeen, HostError> {
        let usage = self.usage.parse_line(scratch, |text| only("memory.usage_in_bytes", text))?;
        let stat = self.stat.parse(scratch, Stat::parse)?;
        let events = CgroupEvents {
            oom_kills: match &self.oom_control {
                Some(source) => source.parse(scratch, |text| optional("oom_kill", text))?,
                None => None,
            },
            limit_hits: match &self.failcnt {
                Some(source) => Some(source.parse_line(scratch, |text| only("memory.failcnt", text))?),
                None => None,
            },
            ooms: None,
        };
        Ok(CgroupSeen {
            limit: stat.limit,
            usage: Bytes::new(usage),
            reclaimable: stat.reclaimable,
            anon: stat.anon,
            shmem: stat.shmem,
            torn: stat.torn.map_or_else(uncounted, Reading::now),
            events,
            pressure: uncounted(),
            may_swap: stat.may_swap,
            swap: uncounted(),
        })
    }
}

/// The part of `memory.stat` that memtide uses. The `total_` lines include descendants.
#[derive(Debug, PartialEq, Eq)]
struct Stat {
    limit: Limit,
    reclaimable: Bytes,
    anon: Bytes,
    shmem: Bytes,
    torn: Option<Bytes>,
    may_swap: bool,
}

impl Stat {
    fn parse(text: &str) -> Result<Self, ParseError> {
        let own = value("hierarchical_memory_limit", text)?;
        let with_swap = optional("hierarchical_memsw_limit", text)?;
        let writeback = optional("total_writeback", text)?.unwrap_or(0);
        Ok(Self {
            limit: limit(own),
            reclaimable: clean(
                [value("total_inactive_file", text)?, value("total_active_file", text)?],
                [value("total_dirty", text)?, writeback],
            ),
            anon: Bytes::new(value("total_rss", text)?),
            shmem: Bytes::new(optional("total_shmem", text)?.unwrap_or(0)),
            torn: torn::in_stat(CgroupVersion::V1, text)?,
            // If the limit on memory plus swap is no higher than the limit on memory, nothing is left for swap. Without the line, the
            // kernel does not account swap, so nothing keeps the cgroup from using it.
            may_swap: with_swap.is_none_or(|with_swap| with_swap > own || with_swap >= NO_LIMIT),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use memtide_model::MIB;
    use proptest::prelude::*;

    /// Linux 6.18, a cgroup with a limit of 700 MiB.
    const STAT: &str = "\
cache 4210688\nrss 4534272\nrss_huge 0\nshmem 0\nmapped_file 57344\ndirty 40960\nwriteback 0
workingset_refault_anon 0\nworkingset_refault_file 1030\nswap 0\nswapcached 0\npgpgin 19313\npgpgout 17177
pgfault 42406\npgmajfault 24\ninactive_anon 4481024\nactive_anon 16384\ninactive_file 290816
active_file 3796992\nunevictable 0\nhierarchical_memory_limit 734003200
hierarchical_memsw_limit 9223372036854771712\ntotal_cache 4210688\ntotal_rss 4534272\ntotal_rss_huge 0
total_shmem 8192\ntotal_mapped_file 57344\ntotal_dirty 40960\ntotal_writeback 4096
total_workingset_refault_anon 0\ntotal_workingset_refault_file 1030\ntotal_swap 0\ntotal_swapcached 0
total_pgpgin 19313\ntotal_pgpgout 17177\ntotal_pgfault 42406\ntotal_pgmajfault 24
total_inactive_anon 4481024\ntotal_active_anon 16384\ntotal_inactive_file 290816\ntotal_active_file 3796992
total_unevictable 0
";

    #[test]
    fn clean_page_cache_is_reclaimable() {
        let stat = Stat::parse(STAT).unwrap();
        assert_eq!(stat.limit, Limit::At(Bytes::from_mib(700)));
        assert_eq!(stat.reclaimable, Bytes::new(290_816 + 3_796_992 - 40_960 - 4_096));
        assert_eq!((stat.anon, stat.shmem), (Bytes::new(4_534_272), Bytes::new(8_192)));
        assert!(stat.may_swap);
    }

    #[test]
    fn a_limit_with_swap_that_is_no_higher_forbids_swap() {
        let stat = STAT.replace("memsw_limit 9223372036854771712", "memsw_limit 734003200");
        assert!(!Stat::parse(&stat).unwrap().may_swap);
    }

    #[test]
    fn no_limit_is_written_in_pages_of_any_size() {
        for bytes in [9_223_372_036_854_771_712, 9_223_372_036_854_710_272, u64::MAX] {
            assert_eq!(limit(bytes), Limit::Max);
        }
        assert_eq!(limit(MIB), Limit::At(Bytes::from_mib(1)));
    }

    #[test]
    fn a_cut_text_is_refused() {
        assert!(Stat::parse(&STAT[..STAT.len() / 2]).is_err());
        assert!(Stat::parse(&STAT.replace("total_rss 4534272", "total_rss -1")).is_err());
        assert!(Stat::parse(&STAT.replace("4534272", "99999999999999999999")).is_err());
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "(?s).{0,200}", cut in 0..STAT.len()) {
            let _ = Stat::parse(&text);
            let _ = Stat::parse(&STAT[..cut]);
        }
    }
}
