//! What a VMM costs beyond guest RAM, and the most that it can come to cost.
//!
//! **Problem.** The ledger counts with what a guest can cost *without asking*. Guest RAM is bounded by its size; the VMM's
//! own memory is not, and most of it shows only after the guest has worked for a while.
//!
//! **Terms.** A [`RamBlock`] is a piece of guest RAM as the VMM was told to make it. *Program* is what is resident of the
//! VMM's program, libraries and other files on disks that it only reads: page cache, which all VMMs share and the kernel drops
//! when it must, and so no guest's cost. *Other* is all that is neither that nor in the mapping of a block. *Guest-visible* is
//! other memory that the guest can fill at will: video memory, firmware, option ROMs. The *code buffer* is where TCG keeps
//! translated code: 1 GiB is mapped by default (less where guest RAM is small), `tb-size` caps it, and a busy guest fills all of
//! it.
//!
//! **Rule.**
//!
//! ```text
//! other_bound = other resident now + other that is in swap
//!             + what is not yet resident of the code buffer and of guest-visible memory
//!             + max(16 MiB, other resident / 8)
//! ```
//!
//! The last line is for thread stacks, heaps and queues, which grow with what the guest does. Their mapped size says
//! nothing (8 MiB a stack, 64 MiB an arena, mostly never touched). 16 MiB is five times the growth that was seen of QEMU
//! from a guest's prompt through a memory load (at most 3 MiB, code apart); an eighth covers VMMs with many devices, in
//! proportion.
//!
//! With `split-wx=on` QEMU maps the code buffer twice and its pages count as resident twice: too much, by the buffer.
//!
//! A block is found by the file that backs it, or as a writable mapping of exactly its size: that with the most resident,
//! where there are several; else as adjoining mappings that have its size together, since a mapping splits where its
//! flags differ. A block that is not found ([`Mappings::ram_missing`]) leaves its memory counted as other, so that the
//! bound errs on the side of too much.

use std::path::PathBuf;

use memtide_model::Bytes;

use crate::shared_ram::is_named;
use crate::{HostError, Mapping, Root};

/// The least that stacks, heaps and queues may still grow by.
const LEAST_SLACK: Bytes = Bytes::from_mib(16);
/// The part of other memory that they may still grow by, where that is more.
const SLACK_PART: u64 = 8;

/// A piece of guest RAM, as the VMM was told to make it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RamBlock {
    /// Anonymous memory of this size: `-m`, `memory-backend-ram`.
    Size(Bytes),
    /// A file, or an unlinked file in this directory: `memory-backend-file`'s `mem-path`, UML's physical memory,
    /// `/memfd:NAME`.
    File(PathBuf),
}

/// The buffer of translated code.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CodeBuffer {
    /// What is mapped.
    pub size: Bytes,
    /// What of it is resident.
    pub resident: Bytes,
}

/// What a VMM's mappings hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mappings {
    /// What is resident of guest RAM, as the process has it mapped (with what KSM merged).
    pub ram_resident: Bytes,
    /// Guest RAM whose mapping was not found, by size; a file that was not found counts nothing here.
    pub ram_missing: Bytes,
    /// What is resident of files that the process only reads.
    pub program_resident: Bytes,
    /// What is resident of all else.
    pub other_resident: Bytes,
    /// What of all else is in swap.
    pub other_swapped: Bytes,
    /// What is not yet resident of other memory that the guest can fill.
    pub guest_visible: Bytes,
    /// The buffer of translated code; empty without TCG.
    pub code_buffer: CodeBuffer,
    /// The most that all else can come to cost.
    pub other_bound: Bytes,
}

impl Mappings {
    /// Reads the mappings of a VMM whose guest has this RAM. Takes milliseconds: at discovery and now and then.
    ///
    /// # Errors
    /// [`HostError::Gone`] where there is no such process; else where `smaps` cannot be read or is malformed.
    pub fn read(root: &Root, pid: u32, ram: &[RamBlock]) -> Result<Self, HostError> {
        Mapping::read_all(root, pid).map(|mappings| Self::of(&mappings, ram))
    }

    /// The same for mappings that were read.
    #[must_use]
    pub fn of(mappings: &[Mapping], ram: &[RamBlock]) -> Self {
        let mut is_ram = vec![false; mappings.len()];
        let mut seen = Self { ram_missing: mark(mappings, ram, &mut is_ram), ..Self::default() };
        for (mapping, is_ram) in mappings.iter().zip(is_ram) {
            let absent = mapping.size().saturating_sub(mapping.resident);
            if is_ram {
                add(&mut seen.ram_resident, mapping.resident);
                continue;
            }
            let program = program(mapping);
            add(&mut seen.program_resident, program);
            add(&mut seen.other_resident, mapping.resident.saturating_sub(program));
            add(&mut seen.other_swapped, mapping.swapped);
            if is_code_buffer(mapping) {
                add(&mut seen.code_buffer.size, mapping.size());
                add(&mut seen.code_buffer.resident, mapping.resident);
            } else if mapping.dont_fork && mapping.writable {
                add(&mut seen.guest_visible, absent);
            }
        }
        seen.other_bound = Bytes::sum([
            seen.other_resident,
            seen.other_swapped,
            seen.code_buffer.size.saturating_sub(seen.code_buffer.resident),
            seen.guest_visible,
            LEAST_SLACK.max(seen.other_resident.mul_div(1, SLACK_PART)),
        ]);
        seen
    }
}

fn add(sum: &mut Bytes, part: Bytes) {
    *sum = sum.saturating_add(part);
}

/// What is resident of a file on a disk that is only read. What was written of it (by the dynamic linker) is the process's
/// own, and files whose pages are memory are no page cache.
fn program(mapping: &Mapping) -> Bytes {
    const MEMORY: [&str; 4] = ["/memfd:", "/dev/shm/", "/dev/zero", "/SYSV"];
    let is_memory = MEMORY.iter().any(|start| mapping.name.starts_with(start));
    if mapping.inode == 0 || mapping.writable || is_memory || is_code_buffer(mapping) {
        return Bytes::ZERO;
    }
    mapping.resident.saturating_sub(mapping.anonymous)
}

/// Executable memory without a file; with `split-wx=on`, the executable view of a memfd.
fn is_code_buffer(mapping: &Mapping) -> bool {
    let plain = mapping.inode == 0 && mapping.name.is_empty();
    mapping.executable && (plain || mapping.name.starts_with("/memfd:tcg-jit"))
}

/// Marks the mappings of guest RAM; the sizes that were not found, together. Files come first, since they are certain,
/// then sizes from the largest.
fn mark(mappings: &[Mapping], ram: &[RamBlock], is_ram: &mut [bool]) -> Bytes {
    let mut sizes = Vec::new();
    for block in ram {
        match block {
            RamBlock::Size(size) => sizes.push(*size),
            RamBlock::File(path) => {
                for (mapping, is_ram) in mappings.iter().zip(is_ram.iter_mut()) {
                    *is_ram |= mapping.inode != 0 && is_named(mapping.name.as_ref(), path);
                }
            }
        }
    }
    sizes.sort_unstable_by(|a, b| b.cmp(a));
    let mut missing = Bytes::ZERO;
    for size in sizes {
        match find(mappings, size, is_ram) {
            Some((first, last)) => is_ram[first..=last].fill(true),
            None => add(&mut missing, size),
        }
    }
    missing
}

/// The first and the last of the mappings that are a block of this size.
fn find(mappings: &[Mapping], size: Bytes, taken: &[bool]) -> Option<(usize, usize)> {
    let usable = |at: usize| !taken[at] && mappings[at].writable && !is_code_buffer(&mappings[at]);
    let whole = (0..mappings.len())
        .filter(|&at| usable(at) && mappings[at].size() == size)
        .max_by_key(|&at| (mappings[at].dont_fork, mappings[at].resident));
    whole.map(|at| (at, at)).or_else(|| {
        (0..mappings.len()).filter(|&first| usable(first)).find_map(|first| {
            let end = mappings[first].start.checked_add(size.get())?;
            let last = (first..mappings.len())
                .take_while(|&at| {
                    usable(at)
                        && mappings[at].end <= end
                        && (at == first || mappings[at].start == mappings[at - 1].end)
                })
                .last()?;
            (mappings[last].end == end).then_some((first, last))
        })
    })
}
