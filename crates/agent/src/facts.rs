//! What the guest's kernel tells, from files that stay open.

use std::fs;
use std::time::Duration;

use memtide_host::{HostError, Root, Scratch, Source, page_size, pressure};
use memtide_model::{AgentCounters, AgentMemory, AgentStalls, Bytes, PageSize, Pages};
use rustix::time::{ClockId, clock_gettime};

use crate::ages::{Generations, parse_ages};
use crate::blocks::free_in_blocks;
use crate::percpu::free_on_cpus;
use crate::swaps::{Disks, Swap, parse_swaps};
use crate::wire::Report;

/// The smallest blocks that free page reporting returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reported {
    /// By itself.
    pub block: Bytes,
    /// If the host asks for it; `None` if it cannot.
    pub piece: Option<Bytes>,
}

impl Default for Reported {
    /// As kernels with pages of 4 KiB do it that nobody has told otherwise (`mm/page_reporting.h`).
    fn default() -> Self {
        Self { block: Bytes::from_mib(2), piece: None }
    }
}

/// The open files.
#[derive(Debug)]
pub struct Facts {
    page: PageSize,
    meminfo: Source,
    vmstat: Source,
    buddyinfo: Option<Source>,
    reported: Reported,
    zoneinfo: Option<Source>,
    memory: Result<Source, HostError>,
    io: Option<Source>,
    ages: Result<Source, String>,
    root: Root,
    swaps: Option<Source>,
    disks: Disks,
    scratch: Scratch,
}

impl Facts {
    /// Opens the files below `root`.
    ///
    /// # Errors
    /// If meminfo or vmstat cannot be opened. All other files may be missing.
    pub fn open(root: &Root, reported: Reported) -> Result<Self, HostError> {
        let mut scratch = Scratch::default();
        // With psi=0 the file exists, and cannot be read.
        let memory = Source::open(root.proc("pressure/memory")).and_then(|source| {
            source.parse(&mut scratch, pressure::parse)?;
            Ok(source)
        });
        Ok(Self {
            page: page_size(),
            meminfo: Source::open(root.proc("meminfo"))?,
            vmstat: Source::open(root.proc("vmstat"))?,
            buddyinfo: Source::open(root.proc("buddyinfo")).ok(),
            reported,
            zoneinfo: Source::open(root.proc("zoneinfo")).ok(),
            memory,
            io: Source::open(root.proc("pressure/io")).ok(),
            ages: ages(root),
            root: root.clone(),
            swaps: Source::open(root.proc("swaps")).ok(),
            disks: Disks::default(),
            scratch,
        })
    }

    /// Why there are no stall times.
    #[must_use]
    pub fn no_stalls(&self) -> Option<&HostError> {
        self.memory.as_ref().err()
    }

    /// Why there are no ages.
    #[must_use]
    pub fn no_ages(&self) -> Option<&str> {
        self.ages.as_ref().err().map(String::as_str)
    }

    /// Whether the kernel counts refaults (since Linux 3.15; not without `CONFIG_MEMCG` or swap in some builds).
    pub fn counts_refaults(&mut self) -> bool {
        let text = |text: &str| Ok(text.contains("\nworkingset_refault"));
        self.vmstat.parse(&mut self.scratch, text).unwrap_or(false)
    }

    /// A report without ages and cgroups.
    ///
    /// # Errors
    /// If meminfo, vmstat or the swap devices cannot be read.
    pub fn report(&mut self) -> Result<Report, HostError> {
        let memory = self.memory()?;
        let page = self.page;
        let counters = self.vmstat.parse(&mut self.scratch, |text| Ok(counters(text, page)))?;
        let stalls = self.stalls();
        Ok(Report { made_ms: monotonic_ms(), memory, counters, stalls, ..Report::default() })
    }

    /// Amounts of memory.
    ///
    /// # Errors
    /// If meminfo or the swap devices cannot be read.
    pub fn memory(&mut self) -> Result<AgentMemory, HostError> {
        let mut memory = self.meminfo.parse(&mut self.scratch, |text| Ok(memory(text)))?;
        if let Some(buddyinfo) = &self.buddyinfo {
            let (page, Reported { block, piece }) = (self.page, self.reported);
            let parsed = buddyinfo.parse(&mut self.scratch, |text| {
                let free = |least| free_in_blocks(text, page, least);
                Ok((free(block), piece.map(free).unwrap_or_default()))
            });
            let (blocks, with_pieces) = parsed.unwrap_or_default();
            (memory.free_blocks, memory.pieces) = (blocks, with_pieces.saturating_sub(blocks));
        }
        memory.free = memory.free.saturating_add(self.on_cpus());
        if let Some(tier) = self.tier()? {
            (memory.tier_total, memory.tier_free) = (tier.total, tier.total.saturating_sub(tier.used));
        }
        Ok(memory)
    }

    /// The swap devices and files in use; none without swap in the kernel.
    ///
    /// # Errors
    /// If the kernel does not tell.
    pub fn swaps(&mut self) -> Result<Vec<Swap>, HostError> {
        let Some(swaps) = &self.swaps else { return Ok(Vec::new()) };
        swaps.parse(&mut self.scratch, |text| Ok(parse_swaps(text)))
    }

    /// Swapped memory that is in memory as well.
    ///
    /// # Errors
    /// If meminfo cannot be read.
    pub fn swap_cached(&mut self) -> Result<Bytes, HostError> {
        let kib = |text: &str| Ok(number(text, "SwapCached:").unwrap_or(0));
        self.meminfo.parse(&mut self.scratch, kib).map(Bytes::from_kib)
    }

    /// The host's tier, if the guest swaps to it.
    ///
    /// # Errors
    /// If the kernel or a disk does not tell.
    pub fn tier(&mut self) -> Result<Option<Swap>, HostError> {
        let swaps = self.swaps()?;
        self.disks.tier(&self.root, &swaps)
    }

    /// Free memory on per-CPU lists; zero if the kernel does not tell, so that free memory is `MemFree` then.
    pub fn on_cpus(&mut self) -> Bytes {
        let (page, zoneinfo) = (self.page, &self.zoneinfo);
        let parsed =
            zoneinfo.as_ref().map(|file| file.parse(&mut self.scratch, |text| Ok(free_on_cpus(text, page))));
        parsed.and_then(Result::ok).unwrap_or_default()
    }

    /// Stall times; `None` without PSI.
    pub fn stalls(&mut self) -> Option<AgentStalls> {
        let memory = self.memory.as_ref().ok()?.parse(&mut self.scratch, pressure::parse).ok()?;
        let io = self.io.as_ref().and_then(|io| io.parse(&mut self.scratch, pressure::parse).ok());
        let io = io.unwrap_or_default();
        Some(AgentStalls {
            memory_some_us: memory.some_us,
            memory_full_us: memory.full_us,
            io_some_us: io.some_us,
            io_full_us: io.full_us,
        })
    }

    /// The generations of the LRU; `None` if they cannot be read.
    pub fn generations(&mut self) -> Option<Generations> {
        let ages = self.ages.as_ref().ok()?;
        ages.parse(&mut self.scratch, |text| Ok(parse_ages(text))).ok()
    }

    /// Counts free memory by what free page reporting returns.
    pub fn report_as(&mut self, reported: Reported) {
        self.reported = reported;
    }

    /// What free page reporting returns.
    #[must_use]
    pub const fn reported(&self) -> Reported {
        self.reported
    }

    /// The size of a page.
    #[must_use]
    pub const fn page(&self) -> PageSize {
        self.page
    }
}

/// The file with the generations. A kernel that has them, and does not use them, shows a file without any.
fn ages(root: &Root) -> Result<Source, String> {
    let switch = fs::read_to_string(root.sys("kernel/mm/lru_gen/enabled")).unwrap_or_default();
    if switch.trim().trim_start_matches("0x").chars().all(|digit| digit == '0') {
        return Err("this kernel does not use generations (/sys/kernel/mm/lru_gen/enabled)".to_owned());
    }
    Source::open(root.sys("kernel/debug/lru_gen")).map_err(|error| error.to_string())
}

/// Milliseconds of the monotonic clock.
#[must_use]
pub fn monotonic_ms() -> u64 {
    clock_ms(ClockId::Monotonic)
}

/// The CPU time of this thread, in milliseconds.
pub(crate) fn cpu_ms() -> u64 {
    clock_ms(ClockId::ThreadCPUTime)
}

fn clock_ms(clock: ClockId) -> u64 {
    let time = Duration::try_from(clock_gettime(clock)).unwrap_or_default();
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Amounts of memory in the text of `/proc/meminfo`, without those that other files tell.
#[must_use]
pub fn memory(meminfo: &str) -> AgentMemory {
    let kib = |name: &str| Bytes::from_kib(number(meminfo, name).unwrap_or(0));
    // As the kernel computes it for min_unmapped_ratio (`node_unmapped_file_pages`).
    let files = Bytes::sum(["Active(file):", "Inactive(file):"].map(kib));
    AgentMemory {
        total: kib("MemTotal:"),
        free: kib("MemFree:"),
        free_blocks: Bytes::ZERO,
        pieces: Bytes::ZERO,
        available: kib("MemAvailable:"),
        unmapped_cache: files.saturating_sub(kib("Mapped:")),
        dirty: Bytes::sum(["Dirty:", "Writeback:"].map(kib)),
        reclaimable_slab: kib("SReclaimable:"),
        swap_total: kib("SwapTotal:"),
        swap_free: kib("SwapFree:"),
        anon: kib("AnonPages:"),
        tier_total: Bytes::ZERO,
        tier_free: Bytes::ZERO,
    }
}

/// Counters in the text of `/proc/vmstat`.
#[must_use]
pub fn counters(vmstat: &str, page: PageSize) -> AgentCounters {
    let count = |name: &str| number(vmstat, name);
    let pages = |name: &str| count(name).map(|pages| Pages::new(pages).to_bytes(page));
    // Before Linux 5.9, one counter held files, and anonymous memory had none.
    let files = |name: &str, before: &str| pages(name).or_else(|| pages(before)).unwrap_or_default();
    let stalls = vmstat.lines().filter(|line| line.starts_with("allocstall"));
    AgentCounters {
        refaults_file: files("workingset_refault_file", "workingset_refault"),
        refaults_anon: pages("workingset_refault_anon").unwrap_or_default(),
        activations_file: files("workingset_activate_file", "workingset_activate"),
        activations_anon: pages("workingset_activate_anon").unwrap_or_default(),
        swapped_in: pages("pswpin").unwrap_or_default(),
        swapped_out: pages("pswpout").unwrap_or_default(),
        oom_kills: count("oom_kill").unwrap_or(0),
        alloc_stalls: stalls.filter_map(|line| line.rsplit_once(' ')?.1.parse::<u64>().ok()).sum(),
    }
}

/// The number after `name` at the start of a line. The name must end there.
#[must_use]
pub fn number(text: &str, name: &str) -> Option<u64> {
    let rest = text.lines().find_map(|line| line.strip_prefix(name).filter(|rest| rest.starts_with(' ')))?;
    rest.split_ascii_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unmapped_cache_is_what_min_unmapped_ratio_counts() {
        let text = "MemTotal: 1000 kB\nMapped: 30 kB\nActive(file): 100 kB\nInactive(file): 50 kB\nDirty: 3 kB\nWriteback: 2 kB\n";
        let memory = memory(text);
        assert_eq!((memory.unmapped_cache, memory.dirty), (Bytes::from_kib(120), Bytes::from_kib(5)));
    }

    #[test]
    fn old_and_new_counters_are_read() {
        let page = PageSize::new(4096).unwrap();
        let new = "workingset_refault_anon 1\nworkingset_refault_file 2\nallocstall_dma 1\nallocstall_movable 4\noom_kill 9\n";
        let counted = counters(new, page);
        assert_eq!((counted.refaults_file, counted.refaults_anon), (Bytes::from_kib(8), Bytes::from_kib(4)));
        assert_eq!((counted.alloc_stalls, counted.oom_kills), (5, 9));
        let old = counters("workingset_refault 3\nworkingset_activate 1\n", page);
        assert_eq!((old.refaults_file, old.activations_file), (Bytes::from_kib(12), Bytes::from_kib(4)));
    }

    #[test]
    fn a_kernel_without_psi_has_no_stall_times() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("proc")).unwrap();
        fs::write(dir.path().join("proc/meminfo"), "MemTotal: 1000 kB\n").unwrap();
        fs::write(dir.path().join("proc/vmstat"), "nr_free_pages 1\nworkingset_refault 3\n").unwrap();
        let mut facts = Facts::open(&Root::at(dir.path()), Reported::default()).unwrap();
        let report = facts.report().unwrap();
        assert_eq!((report.memory.total, report.stalls), (Bytes::from_kib(1000), None));
        assert!(facts.no_stalls().is_some() && facts.no_ages().is_some() && facts.counts_refaults());
    }

    #[test]
    fn generations_that_the_kernel_does_not_use_are_none() {
        let dir = tempfile::tempdir().unwrap();
        let root = Root::at(dir.path());
        for path in ["kernel/mm/lru_gen/enabled", "kernel/debug/lru_gen"] {
            fs::create_dir_all(root.sys(path).parent().unwrap()).unwrap();
        }
        assert!(ages(&root).is_err());
        fs::write(root.sys("kernel/debug/lru_gen"), "memcg     1 /\n").unwrap();
        for (switch, is_used) in [("0x0000\n", false), ("0x0007\n", true)] {
            fs::write(root.sys("kernel/mm/lru_gen/enabled"), switch).unwrap();
            assert_eq!(ages(&root).is_ok(), is_used, "{switch}");
        }
    }

    #[test]
    fn the_running_kernel_is_read() {
        let mut facts = Facts::open(&Root::system(), Reported::default()).unwrap();
        let report = facts.report().unwrap();
        assert!(!report.memory.total.is_zero() && report.memory.available <= report.memory.total);
        assert!(report.memory.free_blocks <= report.memory.total);
    }
}
