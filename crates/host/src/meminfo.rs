//! `/proc/meminfo`: the memory of the host.

use std::str::FromStr;

use memtide_model::Bytes;

use crate::source::parse_once;
use crate::text::kib;
use crate::{HostError, ParseError, Root};

/// The lines of `/proc/meminfo` that memtide uses. All kernels since 3.14 write the required ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Meminfo {
    /// `MemTotal`: memory that the kernel manages.
    pub total: Bytes,
    /// `MemFree`: unused memory.
    pub free: Bytes,
    /// `MemAvailable`: memory that is available without swapping.
    pub available: Bytes,
    /// `Buffers`: page cache of block devices.
    pub buffers: Bytes,
    /// `Cached`: page cache of files, with tmpfs and shared memory.
    pub cached: Bytes,
    /// `Shmem`: tmpfs and shared memory.
    pub shmem: Bytes,
    /// `AnonPages`: mapped anonymous memory.
    pub anon: Bytes,
    /// `Active(anon)`, `Inactive(anon)` and `Unevictable` together, without `SwapCached`. `None` if a line is missing.
    pub listed: Option<Bytes>,
    /// `Dirty`: page cache that waits for writeback.
    pub dirty: Bytes,
    /// `SwapTotal`: all swap.
    pub swap_total: Bytes,
    /// `SwapFree`: unused swap.
    pub swap_free: Bytes,
}

impl Meminfo {
    /// Reads `/proc/meminfo`.
    ///
    /// # Errors
    /// If the file cannot be read or is malformed.
    pub fn read(root: &Root) -> Result<Self, HostError> {
        parse_once(root.proc("meminfo"), str::parse)
    }

    /// Counts the part of ZFS's cache that can come back as available, as the kernel does with other page cache.
    #[must_use]
    pub fn with_arc(self, reclaimable: Bytes) -> Self {
        let available = self.available.saturating_add(reclaimable).min(self.total);
        Self { available, ..self }
    }

    /// The rest of torn huge pages on the whole host; `None` if the kernel does not tell. Locked page cache makes it too high.
    #[must_use]
    pub fn torn(&self) -> Option<Bytes> {
        Some(self.listed?.saturating_sub(self.anon).saturating_sub(self.shmem))
    }

    /// Memory that is not available without swapping.
    #[must_use]
    pub const fn used(&self) -> Bytes {
        self.total.saturating_sub(self.available)
    }
}

impl FromStr for Meminfo {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        const FIELDS: [&str; 14] = [
            "MemTotal",
            "MemFree",
            "MemAvailable",
            "Buffers",
            "Cached",
            "Shmem",
            "AnonPages",
            "Dirty",
            "SwapTotal",
            "SwapFree",
            "Active(anon)",
            "Inactive(anon)",
            "Unevictable",
            "SwapCached",
        ];
        let mut found = [None; FIELDS.len()];
        for (key, rest) in text.lines().filter_map(|line| line.split_once(':')) {
            if let Some(at) = FIELDS.iter().position(|field| *field == key) {
                found[at] = Some(kib(FIELDS[at], rest)?);
            }
        }
        let get = |at: usize| found[at].ok_or(ParseError::Missing(FIELDS[at]));
        Ok(Self {
            total: get(0)?,
            free: get(1)?,
            available: get(2)?,
            buffers: get(3)?,
            cached: get(4)?,
            shmem: get(5)?,
            anon: get(6)?,
            dirty: get(7)?,
            swap_total: get(8)?,
            swap_free: get(9)?,
            listed: match [10, 11, 12, 13].map(|at: usize| found[at]) {
                [Some(active), Some(inactive), Some(unevictable), Some(cached)] => {
                    Some(Bytes::sum([active, inactive, unevictable]).saturating_sub(cached))
                }
                _ => None,
            },
        })
    }
}
