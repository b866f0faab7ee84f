//! The cost of a VMM beyond guest RAM, and its worst case.
//!
//! **Problem.** The ledger needs the cost that a guest can reach *without asking*. Guest RAM is bounded by its size. The VMM's own memory
//! has no bound, and most of it appears only after the guest has worked for a while.
//!
//! **Terms.** A [`RamBlock`] is a piece of guest RAM as the VMM was told to create it. *Program* is the resident part of the VMM's program,
//! libraries and other files on disks that the VMM only reads. It is page cache: all VMMs share it, the kernel drops it when it must, and
//! so it costs no guest anything. *Other* is all memory that is neither program nor in the mapping of a block. *Guest-visible* is other
//! memory that the guest can fill at will: video memory, firmware, option ROMs. TCG keeps translated code in the *code buffer*. By default
//! it is 1 GiB (less if guest RAM is small); `tb-size` caps it, and a busy guest fills all of it.
//!
//! **Rule.**
//!
//! ```text
//! bound = other resident memory + other memory in swap
//!       + the part of the code buffer and of guest-visible memory that is not yet resident
//!       + max(least growth, other resident / 8)
//! ```
//!
//! The last line covers thread stacks, heaps and queues, which grow with the guest's work. Their mapped size says nothing (8 MiB for a
//! stack, 64 MiB for an arena, mostly never touched). Each VMM has its own least growth. An eighth scales it for VMMs with many devices.
//!
//! With `split-wx=on`, QEMU maps the code buffer twice. Its pages then count as resident twice, so the bound is too high by the size of the
//! buffer.
//!
//! Memory of other devices (NVDIMM, ivshmem) is no RAM: a [`DeviceFile`] names it. If such a file is on a disk and mapped shared, its pages are
//! page cache, like those of a program.
//!
//! A block is found by the file that backs it, or as a writable mapping of exactly its size. Of several such mappings, one that is not
//! copied on fork comes first, then the one with the most resident memory. If there is none, adjoining mappings with the right total size
//! match, because a mapping splits if its flags differ. If the VMM tells that all RAM together is more than the blocks, some was plugged since: the
//! largest mappings that look like RAM and fit are those blocks. Memory of a block that is not found ([`Mappings::ram_missing`]) counts as other, so
//! the bound errs on the high side.

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use memtide_model::{Bytes, Withheld};

use crate::shared_ram::{MEMFD, is_named};
use crate::{FileId, FilePart, HostError, Mapping, Root};

/// The part of other memory to allow for the growth of stacks, heaps and queues, if that is more than the least.
const GROWTH_PART: u64 = 8;

/// The least size of guest RAM whose block is not known.
const LEAST_RAM: Bytes = Bytes::from_mib(32);

/// Smaller file mappings are not compared between guests.
const LEAST_FILE: Bytes = Bytes::from_mib(1);
/// The most files of one process that are compared with those of others.
const MOST_FILES: usize = 32;
/// The most blocks of one guest that are looked for: QEMU has 256 slots for memory. The rest counts as not found.
const MOST_BLOCKS: usize = 256;

/// A piece of guest RAM, as the VMM was told to create it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RamBlock {
    /// Anonymous memory of this size: `-m`, `memory-backend-ram`.
    Size(Bytes),
    /// A file, or an unlinked file in this directory: `memory-backend-file`'s `mem-path`, UML's physical memory,
    /// `/memfd:NAME`.
    File(PathBuf),
}

/// A file with memory of a device other than RAM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceFile {
    /// The file, or the directory of an unnamed file.
    pub path: PathBuf,
    /// Whether it is known to be on a disk, so that its pages are page cache.
    pub is_on_disk: bool,
}

/// The buffer of translated code.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CodeBuffer {
    /// Its mapped size.
    pub size: Bytes,
    /// The resident part of it.
    pub resident: Bytes,
}

/// The contents of a VMM's mappings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mappings {
    /// Resident guest RAM, as the process has it mapped (including memory merged by KSM).
    pub ram_resident: Bytes,
    /// Guest RAM in swap.
    pub ram_swapped: Bytes,
    /// The size of guest RAM whose mapping was not found. A file that was not found does not count.
    pub ram_missing: Bytes,
    /// The resident part of files that the process only reads.
    pub program_resident: Bytes,
    /// All other resident memory.
    pub other_resident: Bytes,
    /// The part of other memory that is in swap.
    pub other_swapped: Bytes,
    /// The part of other memory that the guest can fill and that is not yet resident.
    pub guest_visible: Bytes,
    /// The buffer of translated code; empty without TCG.
    pub code_buffer: CodeBuffer,
    /// The size of all large mappings that a guest can touch: its RAM, if nobody tells which of them are RAM.
    pub ram_like: Bytes,
    /// The size of all mappings that are guest RAM or look like it: the most that the guest can have, whatever its VMM was told to make.
    pub ram_mapped: Bytes,
    /// Guest RAM made of pages of hugetlbfs.
    pub ram_huge: Bytes,
    /// The resident part of it in private mappings: the blocks of no file count it.
    pub ram_huge_private: Bytes,
    /// Whether some of the RAM that was found is shared memory of a file: other processes may hold more of it.
    pub ram_is_shared: bool,
    /// The files with most resident memory here, apart from programs. Other guests may have the same files.
    pub files: BTreeMap<FileId, FilePart>,
    /// Why guest RAM that is given brings the host nothing, or hurts others.
    pub withheld: Option<Withheld>,
}

impl Mappings {
    /// Reads the mappings of a VMM whose guest has this RAM. Takes milliseconds: call it at discovery and from time to time.
    ///
    /// # Errors
    /// [`HostError::Gone`] if there is no such process; another error if `smaps` cannot be read or is malformed.
    pub fn read(root: &Root, pid: u32, ram: &[RamBlock]) -> Result<Self, HostError> {
        Mapping::read_all(root, pid).map(|mappings| Self::of(&mappings, ram))
    }

    /// Does the same for mappings that are already read.
    #[must_use]
    pub fn of(mappings: &[Mapping], ram: &[RamBlock]) -> Self {
        Self::of_guest(mappings, ram, &[], None)
    }

    /// Does the same for a guest with memory of other devices. `all` is all RAM together, with all that virtio-mem can plug, if the VMM
    /// tells another size than `ram` has.
    #[must_use]
    pub fn of_guest(
        mappings: &[Mapping],
        ram: &[RamBlock],
        devices: &[DeviceFile],
        all: Option<Bytes>,
    ) -> Self {
        let devices: Vec<Option<&DeviceFile>> =
            mappings.iter().map(|mapping| device_of(mapping, devices)).collect();
        let mut uses: Vec<Use> =
            devices.iter().map(|device| if device.is_some() { Use::Device } else { Use::Open }).collect();
        let mut missing = mark(mappings, ram, &mut uses);
        if let Some(all) = all {
            missing = mark_plugged(mappings, all, &mut uses);
        }
        let mut seen = Self { ram_missing: missing, ..Self::default() };
        let own = OnceCell::new();
        // Nobody tells which mappings are RAM, or not all of them are there: what looks like RAM may be.
        let is_found = seen.ram_missing.is_zero() && uses.contains(&Use::Ram);
        for ((mapping, used), device) in mappings.iter().zip(uses).zip(devices) {
            let looks_like_ram = used != Use::Device && looks_like_ram(mapping);
            let is_ram = used == Use::Ram || (ram.is_empty() && looks_like_ram);
            let absent = mapping.size().saturating_sub(mapping.resident);
            if looks_like_ram {
                add(&mut seen.ram_like, mapping.size());
            }
            if is_ram || looks_like_ram {
                add(&mut seen.ram_mapped, mapping.size());
            }
            if is_ram || (looks_like_ram && !is_found) {
                let is_own = || own.get_or_init(|| OwnFiles::of(mappings, ram)).have(mapping);
                seen.withheld = seen.withheld.take().or_else(|| withheld(mapping, is_own()));
                if mapping.is_huge {
                    let private = if mapping.is_private { mapping.resident } else { Bytes::ZERO };
                    add(&mut seen.ram_huge, mapping.size());
                    add(&mut seen.ram_huge_private, private);
                }
            }
            if !is_program(mapping) {
                seen.note_file(mapping, is_ram);
            }
            if is_ram {
                seen.ram_is_shared |= !mapping.is_private && mapping.inode != 0;
                add(&mut seen.ram_resident, mapping.resident);
                add(&mut seen.ram_swapped, mapping.swapped);
                continue;
            }
            let is_cache = !mapping.is_private && device.is_some_and(|device| device.is_on_disk);
            let program = if is_cache { mapping.resident } else { program(mapping) };
            add(&mut seen.program_resident, program);
            add(&mut seen.other_resident, mapping.resident.saturating_sub(program));
            add(&mut seen.other_swapped, mapping.swapped);
            if is_code_buffer(mapping) {
                add(&mut seen.code_buffer.size, mapping.size());
                add(&mut seen.code_buffer.resident, mapping.resident);
            } else if mapping.dont_fork && mapping.writable && !is_cache {
                add(&mut seen.guest_visible, absent);
            }
        }
        seen.keep_largest_files();
        seen
    }

    /// Notes what is resident of a mapping's file itself, without the pages that became the process's own.
    fn note_file(&mut self, mapping: &Mapping, is_ram: bool) {
        // The kernel does not count pages of hugetlbfs as resident.
        let resident = match mapping.is_huge {
            true => Bytes::ZERO,
            false => mapping.resident.saturating_sub(mapping.anonymous),
        };
        // Segments of System V are numbered by each IPC namespace, and share a device with memfds: their number names no file.
        let file = mapping.file().filter(|_| !mapping.name.starts_with("/SYSV"));
        if let Some(file) = file
            && mapping.size() >= LEAST_FILE
        {
            let part = self.files.entry(file).or_default();
            add(if is_ram { &mut part.ram } else { &mut part.beside_ram }, resident);
        }
    }

    fn keep_largest_files(&mut self) {
        if self.files.len() > MOST_FILES {
            let mut all: Vec<(FileId, FilePart)> = std::mem::take(&mut self.files).into_iter().collect();
            all.sort_by_key(|(_, part)| std::cmp::Reverse(part.all()));
            self.files = all.into_iter().take(MOST_FILES).collect();
        }
    }

    /// The worst case for other memory. `least_growth` is what stacks, heaps and queues of this VMM may grow by in any case.
    #[must_use]
    pub fn other_bound(&self, least_growth: Bytes) -> Bytes {
        let bound = Bytes::sum([
            self.other_resident,
            self.other_swapped,
            self.code_buffer.size.saturating_sub(self.code_buffer.resident),
            self.guest_visible,
            least_growth.max(self.other_resident.mul_div(1, GROWTH_PART)),
        ]);
        assert!(bound >= self.other_resident, "the worst case is no better than the present");
        bound
    }
}

/// What a mapping is for, as far as it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    /// Not known yet.
    Open,
    /// RAM.
    Ram,
    /// Memory of another device.
    Device,
}

/// The device whose file a mapping shows.
fn device_of<'a>(mapping: &Mapping, devices: &'a [DeviceFile]) -> Option<&'a DeviceFile> {
    let is_it = |device: &&DeviceFile| mapping.inode != 0 && is_named(mapping.name.as_ref(), &device.path);
    devices.iter().find(is_it)
}

/// Whether a mapping looks like guest RAM: QEMU keeps all memory that a guest can touch from forked children. Most firmware and video memory is
/// smaller. Registers of devices are no memory.
fn looks_like_ram(mapping: &Mapping) -> bool {
    let is_device = mapping.name.starts_with("anon_inode:") || mapping.name.starts_with("/dev/vfio");
    let may_be = mapping.dont_fork && mapping.writable && mapping.size() >= LEAST_RAM;
    may_be && !is_device && !is_code_buffer(mapping)
}

/// Why the host gains nothing from memory of this mapping that a guest gives. A private mapping of a file shows the file's pages until it writes its
/// own. QEMU returns given memory by punching holes into the file, which may be the template of other guests.
fn withheld(mapping: &Mapping, is_own: bool) -> Option<Withheld> {
    if mapping.is_huge {
        Some(Withheld::HugePages)
    } else if mapping.is_locked {
        Some(Withheld::Locked)
    } else if mapping.is_private && mapping.inode != 0 && !is_own {
        Some(Withheld::PrivateFile(mapping.name.clone()))
    } else {
        None
    }
}

/// The files that QEMU created itself for private mappings: the mappings have the name that QEMU gives such files, and QEMU was told to create as
/// many (`memory-backend-memfd`, or `mem-path` with the directory of the file). The name alone proves nothing: with `mem-path=/proc/PID/fd/N`, it is
/// the file of another QEMU.
struct OwnFiles<'a>(BTreeSet<&'a Path>);

impl<'a> OwnFiles<'a> {
    fn of(mappings: &'a [Mapping], ram: &'a [RamBlock]) -> Self {
        let mut told: BTreeMap<&Path, usize> = BTreeMap::new();
        for block in ram {
            if let RamBlock::File(path) = block {
                *told.entry(path).or_default() += 1;
            }
        }
        let mut made: BTreeMap<&Path, BTreeSet<u64>> = BTreeMap::new();
        for mapping in mappings {
            if let Some(path) = made_for(mapping).filter(|path| told.contains_key(path)) {
                made.entry(path).or_default().insert(mapping.inode);
            }
        }
        made.retain(|path, files| files.len() <= told[path]);
        Self(made.into_keys().collect())
    }

    fn have(&self, mapping: &Mapping) -> bool {
        made_for(mapping).is_some_and(|path| self.0.contains(path))
    }
}

/// The path of the block for which QEMU may have created the file of a mapping, as its name says.
fn made_for(mapping: &Mapping) -> Option<&Path> {
    let file = Path::new(mapping.name.strip_suffix(" (deleted)")?);
    match file.file_name()?.to_str()? {
        name if name.starts_with("qemu_back_mem.") => file.parent(),
        _ if mapping.name.starts_with(MEMFD) => Some(file),
        _ => None,
    }
}

fn add(sum: &mut Bytes, part: Bytes) {
    *sum = sum.saturating_add(part);
}

/// The resident part of a read-only file on a disk. Pages of it that were written (by the dynamic linker) belong to the process. Files
/// whose pages are memory are not page cache.
fn program(mapping: &Mapping) -> Bytes {
    if is_program(mapping) { mapping.resident.saturating_sub(mapping.anonymous) } else { Bytes::ZERO }
}

/// Whether a mapping is a read-only file on a disk.
fn is_program(mapping: &Mapping) -> bool {
    const MEMORY: [&str; 4] = ["/memfd:", "/dev/shm/", "/dev/zero", "/SYSV"];
    let is_memory = MEMORY.iter().any(|start| mapping.name.starts_with(start));
    mapping.inode != 0 && !mapping.writable && !is_memory && !is_code_buffer(mapping)
}

/// Executable memory without a file; with `split-wx=on`, the executable view of a memfd.
fn is_code_buffer(mapping: &Mapping) -> bool {
    let plain = mapping.inode == 0 && mapping.name.is_empty();
    mapping.executable && (plain || mapping.name.starts_with("/memfd:tcg-jit"))
}

/// Marks the mappings of guest RAM, and returns the total size that was not found. Files come first, because they are certain; then sizes,
/// largest first.
fn mark(mappings: &[Mapping], ram: &[RamBlock], uses: &mut [Use]) -> Bytes {
    let mut sizes = Vec::new();
    for (at, block) in ram.iter().enumerate() {
        match block {
            RamBlock::Size(size) => sizes.push(*size),
            RamBlock::File(_) if at >= MOST_BLOCKS => {}
            RamBlock::File(path) => {
                for (mapping, used) in mappings.iter().zip(uses.iter_mut()) {
                    let is_it = mapping.inode != 0 && is_named(mapping.name.as_ref(), path);
                    if *used == Use::Open && is_it {
                        *used = Use::Ram;
                    }
                }
            }
        }
    }
    sizes.sort_unstable_by(|a, b| b.cmp(a));
    let mut missing = Bytes::ZERO;
    for (at, size) in sizes.into_iter().enumerate() {
        match if at < MOST_BLOCKS { find(mappings, size, uses) } else { None } {
            Some((first, last)) => uses[first..=last].fill(Use::Ram),
            None => add(&mut missing, size),
        }
    }
    missing
}

/// Marks the mappings of RAM that was plugged since the start: the largest that fit into what lacks of `all`. Returns the size that was not
/// found.
fn mark_plugged(mappings: &[Mapping], all: Bytes, uses: &mut [Use]) -> Bytes {
    let ram = mappings.iter().zip(&*uses).filter(|(_, used)| **used == Use::Ram);
    let mut missing = all.saturating_sub(Bytes::sum(ram.map(|(mapping, _)| mapping.size())));
    let mut order: Vec<usize> =
        (0..mappings.len()).filter(|&at| uses[at] == Use::Open && looks_like_ram(&mappings[at])).collect();
    order.sort_by_key(|&at| std::cmp::Reverse((mappings[at].size(), mappings[at].resident)));
    for at in order {
        let size = mappings[at].size();
        if size <= missing {
            missing = missing.saturating_sub(size);
            uses[at] = Use::Ram;
        }
    }
    missing
}

/// The first and the last mapping of a block of this size. Looks at each mapping a few times at most: a stranger may have many.
fn find(mappings: &[Mapping], size: Bytes, uses: &[Use]) -> Option<(usize, usize)> {
    let usable = |at: usize| uses[at] == Use::Open && mappings[at].writable && !is_code_buffer(&mappings[at]);
    let whole = (0..mappings.len())
        .filter(|&at| usable(at) && mappings[at].size() == size)
        .max_by_key(|&at| (mappings[at].dont_fork, mappings[at].resident));
    if let Some(at) = whole {
        return Some((at, at));
    }
    // Mappings `first` to `next - 1` adjoin each other. Both only move forward.
    let (mut first, mut next) = (0, 0);
    while first < mappings.len() {
        if next <= first {
            next = first + 1;
            if !usable(first) {
                first += 1;
                continue;
            }
        }
        let end = mappings[first].start.saturating_add(size.get());
        while next < mappings.len()
            && usable(next)
            && mappings[next].start == mappings[next - 1].end
            && mappings[next].end <= end
        {
            next += 1;
        }
        if mappings[next - 1].end == end {
            return Some((first, next - 1));
        }
        first += 1;
    }
    None
}
