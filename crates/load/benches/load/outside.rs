//! A process seen from outside: the pages that it touched, and its cost.

use std::error::Error;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;

/// Bit 55 of an entry of /proc/PID/pagemap: the page was written since the last `clear_refs`.
const SOFT_DIRTY: u64 = 1 << 55;
const PAGE: u64 = 4096;

/// One process.
pub struct Outside {
    pid: u32,
}

/// Its largest mapping.
struct Mapping {
    start: u64,
    end: u64,
    referenced_kib: u64,
}

impl Outside {
    pub const fn of(pid: u32) -> Self {
        Self { pid }
    }

    fn file(&self, name: &str) -> String {
        format!("/proc/{}/{name}", self.pid)
    }

    /// Starts to count touched pages.
    pub fn forget_touches(&self) -> std::io::Result<()> {
        fs::write(self.file("clear_refs"), "1")
    }

    /// Starts to count written pages.
    pub fn forget_writes(&self) -> std::io::Result<()> {
        fs::write(self.file("clear_refs"), "4")
    }

    /// Touched bytes of the largest mapping, from the accessed bits of its page tables.
    pub fn touched(&self) -> Result<u64, Box<dyn Error>> {
        Ok(self.largest()?.referenced_kib * 1024)
    }

    /// Written bytes of the largest mapping, if the kernel can tell.
    pub fn written(&self) -> Result<Option<u64>, Box<dyn Error>> {
        let Mapping { start, end, .. } = self.largest()?;
        let pagemap = File::open(self.file("pagemap"))?;
        let mut entries = vec![0; usize::try_from((end - start) / PAGE * 8)?];
        pagemap.read_exact_at(&mut entries, start / PAGE * 8)?;
        let (entries, _) = entries.as_chunks::<8>();
        let dirty =
            entries.iter().filter(|entry| u64::from_le_bytes(**entry) & SOFT_DIRTY != 0).count() as u64;
        Ok((dirty > 0).then_some(dirty * PAGE))
    }

    fn largest(&self) -> Result<Mapping, Box<dyn Error>> {
        let mut all: Vec<Mapping> = Vec::new();
        for line in fs::read_to_string(self.file("smaps"))?.lines() {
            if let Some(kib) = line.strip_prefix("Referenced:") {
                let kib = kib.split_whitespace().next().ok_or("a size without a number")?.parse()?;
                if let Some(mapping) = all.last_mut() {
                    mapping.referenced_kib = kib;
                }
                continue;
            }
            let range = line.split_whitespace().next().and_then(|range| range.split_once('-'));
            if let Some((start, end)) = range
                && let (Ok(start), Ok(end)) = (u64::from_str_radix(start, 16), u64::from_str_radix(end, 16))
            {
                all.push(Mapping { start, end, referenced_kib: 0 });
            }
        }
        all.into_iter().max_by_key(|mapping| mapping.end - mapping.start).ok_or_else(|| "no mapping".into())
    }

    /// CPU time of all its threads, in nanoseconds.
    pub fn cpu_ns(&self) -> Result<u64, Box<dyn Error>> {
        let mut sum = 0;
        for task in fs::read_dir(self.file("task"))? {
            let stat = fs::read_to_string(task?.path().join("schedstat"))?;
            sum += stat.split_whitespace().next().ok_or("an empty schedstat")?.parse::<u64>()?;
        }
        Ok(sum)
    }

    /// Resident memory in bytes.
    pub fn resident(&self) -> Result<u64, Box<dyn Error>> {
        let status = fs::read_to_string(self.file("status"))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).ok_or("no VmRSS")?;
        Ok(line.split_whitespace().next().ok_or("a size without a number")?.parse::<u64>()? * 1024)
    }
}
