//! The description of a guest. Sizes in [`Bytes`], rates in bytes a second, times from the start of the guest.

use std::sync::Arc;

use memtide_model::{Bytes, Span};

/// A guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spec {
    /// Memory that it keeps with an empty balloon.
    pub memory: Bytes,
    /// The version that decides which counters its driver reports, and how its kernel keeps freed pages.
    pub kernel: Kernel,
    /// Memory that its kernel uses for itself and never returns.
    pub kernel_size: Bytes,
    /// Reclaimable slab: available, but never reclaimed by this model.
    pub slab: Bytes,
    /// How long it boots. It has no balloon driver before that.
    pub boots_for: Span,
    /// Whether it has a balloon.
    pub balloon: bool,
    /// Whether an agent runs in it.
    pub agent: bool,
    /// The time that its agent takes for a request: long if the guest gets little processor time.
    pub agent_takes: Span,
    /// Whether the guest may deflate its own balloon before its OOM killer acts.
    pub deflate_on_oom: bool,
    /// Whether its VMM counts what it reads from its disks. It does not where other processes serve them.
    pub counts_reads: bool,
    /// Whether freed blocks return to the host by themselves.
    pub free_page_reporting: bool,
    /// The time from the first freed block to the first pass, and between two passes.
    pub reporting_delay: Span,
    /// The most that one pass reports.
    pub reporting_pass: Bytes,
    /// How fast a balloon inflates while memory is free, in bytes a second.
    pub inflates: u64,
    /// How fast a balloon deflates, in bytes a second.
    pub deflates: u64,
    /// How fast the guest deflates its own balloon, in bytes a second.
    pub deflates_itself: u64,
    /// How fast the kernel frees clean page cache, in bytes a second.
    pub reclaims: u64,
    /// How fast its disk reads, in bytes a second.
    pub disk: u64,
    /// The size of its swap; zero if it has none.
    pub swap: Bytes,
    /// How fast its swap reads and writes, in bytes a second.
    pub swap_speed: u64,
    /// The VMM's cost to the host in addition to the guest's memory.
    pub overhead: Bytes,
    /// The worst case of that cost.
    pub overhead_bound: Bytes,
    /// Of every 1,000 bytes that a balloon returns, this many stay with the host in torn huge pages.
    pub torn_per_mille: u64,
    /// Whether the host keeps all memory that the guest has ever touched, whatever is taken from it: a device pins it, for example.
    pub gives_nothing: bool,
    /// The programs that it runs.
    pub programs: Vec<Program>,
    /// The files that its programs read.
    pub files: Vec<File>,
    /// Page cache at the start that nobody reads.
    pub cold: Bytes,
    /// Whether cold page cache fills, at the start, all memory that programs and other files leave.
    pub full_of_cold: bool,
}

/// A guest's kernel, as far as a host can distinguish it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kernel {
    /// Linux 4.19: no stall counters.
    V4_19,
    /// Linux 6.1: no stall counters.
    V6_1,
    /// Linux 6.12: stall counters, and longer per-CPU lists (since 6.7).
    V6_12,
}

/// A program with memory of its own (anonymous memory).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// Memory that it always uses.
    pub size: Bytes,
    /// How fast it fills memory, in bytes a second.
    pub rate: u64,
    /// How much of its memory it accesses a second, in bytes; zero if it never accesses it again.
    pub touches: u64,
    /// When it begins to access it.
    pub touches_from: Span,
    /// How well its memory compresses, in thousandths: 2,500 becomes two fifths as large.
    pub compresses: u64,
    /// Its memory needs over time.
    pub course: Course,
    /// When it starts.
    pub starts: Span,
    /// When it ends and frees everything; `None`: never.
    pub ends: Option<Span>,
    /// How long after a kill it restarts; `None`: never.
    pub restarts: Option<Span>,
}

/// A program's memory needs over time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Course {
    /// Always its size.
    Constant,
    /// It rises once or repeatedly.
    Rise {
        /// The size at the top.
        to: Bytes,
        /// When the first rise begins.
        at: Span,
        /// How long it stays at the top; `None`: forever.
        holds: Option<Span>,
        /// The time from one rise to the next; `None`: it rises once.
        every: Option<Span>,
    },
    /// It drifts at random between its size and `to`.
    Drift {
        /// The largest size that it wants.
        to: Bytes,
        /// How fast, in bytes a second.
        rate: u64,
    },
    /// It follows a recording: moments and sizes, the earliest first. Between two moments, the earlier size holds.
    Recorded(Arc<[(Span, Bytes)]>),
}

/// A file that is read repeatedly, or once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct File {
    /// Its size. A stream has none: each byte is read once.
    pub size: Option<Bytes>,
    /// The bytes read a second.
    pub rate: u64,
    /// Whether it is mapped. If so, a miss is a major fault, and the kernel spares the file longer.
    pub mapped: bool,
    /// Whether it is in the cache at the start.
    pub cached: bool,
    /// When the reading starts.
    pub starts: Span,
    /// When the reading ends; `None`: never.
    pub ends: Option<Span>,
    /// Whether its page cache is freed whenever it is not read: it is deleted, or the block device is closed.
    pub dropped: bool,
    /// The time that it is read in each period, and the length of a period; `None`: always.
    pub periods: Option<(Span, Span)>,
}

impl Default for Spec {
    fn default() -> Self {
        Self {
            memory: Bytes::from_mib(1024),
            kernel: Kernel::V6_12,
            kernel_size: Bytes::from_mib(60),
            slab: Bytes::from_mib(8),
            boots_for: Span::ZERO,
            balloon: true,
            agent: false,
            agent_takes: Span::ZERO,
            deflate_on_oom: true,
            counts_reads: true,
            free_page_reporting: true,
            // REPORTING_DELAY in mm/page_reporting.c is 2 s. Of 1 GiB freed, half had returned after 4.1–6.1 s and 90 % after 8.1 s.
            reporting_delay: Span::from_secs(2),
            reporting_pass: Bytes::from_mib(256),
            inflates: 800 << 20,
            deflates: 2_000 << 20,
            // Measured: 35 MiB a second under software emulation.
            deflates_itself: 35 << 20,
            reclaims: 1_000 << 20,
            disk: 500 << 20,
            swap: Bytes::ZERO,
            swap_speed: 200 << 20,
            overhead: Bytes::from_mib(60),
            overhead_bound: Bytes::from_mib(60),
            torn_per_mille: 0,
            gives_nothing: false,
            programs: Vec::new(),
            files: Vec::new(),
            cold: Bytes::ZERO,
            full_of_cold: false,
        }
    }
}

impl Program {
    /// A program that always uses `size`.
    #[must_use]
    pub const fn constant(size: Bytes) -> Self {
        Self {
            size,
            rate: 300 << 20,
            touches: size.get(),
            touches_from: Span::ZERO,
            // Measured: heaps of several programs, 2.25 to 2.7 with lzo.
            compresses: 2_500,
            course: Course::Constant,
            starts: Span::ZERO,
            ends: None,
            restarts: Some(Span::from_secs(2)),
        }
    }
}

impl File {
    /// A cached file of `size` that is constantly read, at `rate` bytes a second.
    #[must_use]
    pub const fn hot(size: Bytes, rate: u64) -> Self {
        Self {
            size: Some(size),
            rate,
            mapped: false,
            cached: true,
            starts: Span::ZERO,
            ends: None,
            dropped: false,
            periods: None,
        }
    }
}
