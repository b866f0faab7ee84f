//! The memory of a guest as QEMU was told to make it: its blocks, what each is for, and what backs it.
//!
//! **Terms.** A *block* is a piece of memory that the guest can touch. Its *role* says what the guest sees there. Blocks of some roles
//! are *RAM*: a balloon or a memory device of the guest reaches them. The other ones (NVDIMM, ivshmem, firmware) only cost memory.
//! *Base* memory is what the machine has without any device.
//!
//! **Rule.** A memory backend (`-object memory-backend-…`) has the role of the device or the option that names it. A backend that
//! nothing names counts as RAM: a device that was added later may use it. If nothing names a backend for the base memory, QEMU makes
//! one of its own, with `-mem-path` as its file.

use std::path::PathBuf;

use memtide_host::RamBlock;
use memtide_model::Bytes;

use super::arguments::{Argument, Arguments, Source};
use super::machine;

/// The most host nodes that are read from one range of numbers.
const MOST_NODES: u32 = 1024;

/// A block of a guest's memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryBlock {
    /// What the guest sees there.
    pub role: MemoryRole,
    /// What backs it.
    pub backing: Backing,
    /// Its size, if given.
    pub size: Option<Bytes>,
    /// Whether it is mapped shared. Then the blocks of its file are its cost, and KSM does not apply.
    pub shared: bool,
    /// Whether it is a memfd of huge pages. (Whether a file is made of huge pages shows in its file system.)
    pub huge: bool,
    /// Whether all of it is touched at the start.
    pub prealloc: bool,
    /// The NUMA nodes of the host that alone may hold it (`policy=bind`). Empty: any.
    pub nodes: Vec<u32>,
    /// The place that tells it.
    pub source: Source,
}

/// What the guest sees in a block of memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MemoryRole {
    /// The machine's own memory.
    #[default]
    Base,
    /// A DIMM.
    Dimm,
    /// virtio-mem: the size of the block is the most that can be plugged.
    VirtioMem,
    /// Nothing, so far: no device or option names it.
    Unused,
    /// A persistent DIMM, or persistent memory behind CXL.
    Nvdimm,
    /// virtio-pmem.
    VirtioPmem,
    /// Volatile memory behind CXL, which QEMU's balloon does not count.
    Cxl,
    /// Memory shared with programs on the host.
    Ivshmem,
    /// Encrypted memory of the processor (SGX).
    Enclave,
    /// Firmware: `-bios`, flash.
    Firmware,
    /// Memory of another device.
    Device,
}

/// What backs a block of memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Backing {
    /// Anonymous memory.
    #[default]
    Anonymous,
    /// A memfd without a path.
    Memfd,
    /// POSIX shared memory without a name.
    Shm,
    /// A file at this path, or an unnamed file in the directory at this path.
    File(PathBuf),
    /// Memory of the processor's own that is none of the host's.
    Epc,
}

/// All memory of a guest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct GuestMemory {
    /// RAM in its order: base memory, backends that nothing names, then what is plugged.
    pub(super) ram: Vec<MemoryBlock>,
    /// All other blocks.
    pub(super) devices: Vec<MemoryBlock>,
    /// The RAM that the guest starts with, if known.
    pub(super) size: Option<Bytes>,
    /// The place that tells it.
    pub(super) source: Source,
}

impl MemoryRole {
    /// Whether it is RAM, which a balloon or a memory device reaches.
    #[must_use]
    pub const fn is_ram(self) -> bool {
        matches!(self, Self::Base | Self::Dimm | Self::VirtioMem | Self::Unused)
    }

    /// The role of the backend that a device of this driver names at `key`.
    fn of(driver: &str, key: &str) -> Self {
        match key {
            "volatile-memdev" => Self::Cxl,
            "persistent-memdev" | "lsa" => Self::Nvdimm,
            _ if driver.starts_with("pc-dimm") => Self::Dimm,
            _ if driver.starts_with("virtio-mem") => Self::VirtioMem,
            _ if driver.starts_with("nvdimm") => Self::Nvdimm,
            _ if driver.starts_with("virtio-pmem") => Self::VirtioPmem,
            _ if driver.starts_with("ivshmem") => Self::Ivshmem,
            _ => Self::Device,
        }
    }
}

impl MemoryBlock {
    /// Its file or directory, if it has one.
    #[must_use]
    pub fn path(&self) -> Option<&PathBuf> {
        match &self.backing {
            Backing::File(path) => Some(path),
            Backing::Anonymous | Backing::Memfd | Backing::Shm | Backing::Epc => None,
        }
    }

    /// The block as the process's mappings show it. A block without a size of its own has `full`.
    fn mapped(&self, full: Bytes) -> RamBlock {
        match &self.backing {
            Backing::File(path) => RamBlock::File(path.clone()),
            Backing::Memfd => RamBlock::File("/memfd:memory-backend-memfd".into()),
            Backing::Anonymous | Backing::Shm | Backing::Epc => RamBlock::Size(self.size.unwrap_or(full)),
        }
    }
}

/// RAM as the process's mappings show it; `full` is the guest's size.
pub(super) fn mapped(ram: &[MemoryBlock], full: Bytes) -> Vec<RamBlock> {
    if ram.is_empty() {
        return vec![RamBlock::Size(full)];
    }
    ram.iter().map(|block| block.mapped(full)).collect()
}

/// The sizes of all virtio-mem blocks together.
pub(super) fn virtio_mem(ram: &[MemoryBlock]) -> Bytes {
    Bytes::sum(ram.iter().filter(|block| block.role == MemoryRole::VirtioMem).filter_map(|block| block.size))
}

impl GuestMemory {
    /// The memory that a QEMU with these options makes.
    pub(super) fn of(arguments: &Arguments) -> Self {
        let uses = uses(arguments);
        let (mut base, mut unused, mut plugged, mut devices) = (vec![], vec![], vec![], firmware(arguments));
        for object in arguments.named("object") {
            let Some((id, mut block)) = backend(object) else { continue };
            block.role = uses.iter().find(|(of, _)| *of == id).map_or(block.role, |(_, role)| *role);
            match block.role {
                MemoryRole::Base => base.push(block),
                MemoryRole::Unused => unused.push(block),
                role if role.is_ram() => plugged.push(block),
                _ => devices.push(block),
            }
        }
        let (at_start, source) = base_size(arguments, &base);
        // A file that cannot be read may name a backend.
        if base.is_empty() && !arguments.has_unread_file {
            base.push(own(arguments, at_start, source));
        }
        let more = plugged.iter().filter(|block| block.role == MemoryRole::Dimm).map(|dimm| dimm.size);
        let size = more.chain(requested(arguments)).fold(at_start, |sum, more| sum?.checked_add(more?));
        Self { ram: [base, unused, plugged].concat(), devices, size, source }
    }
}

/// The memory that QEMU makes itself for a machine that names no backend.
fn own(arguments: &Arguments, size: Option<Bytes>, source: Source) -> MemoryBlock {
    let path = arguments.named("mem-path").last().map(|path| PathBuf::from(path.word()));
    MemoryBlock {
        backing: path.map_or(Backing::Anonymous, Backing::File),
        size,
        prealloc: arguments.has("mem-prealloc"),
        source,
        ..MemoryBlock::default()
    }
}

/// The size of the base memory, and the place that tells it: `-m`, else the sizes of its backends, else QEMU's default.
fn base_size(arguments: &Arguments, base: &[MemoryBlock]) -> (Option<Bytes>, Source) {
    let said = arguments.all.iter().rev().find_map(|argument| {
        let (implied, key) = match argument.name.as_str() {
            "m" => ("size", "size"),
            "machine" => ("type", "memory.size"),
            _ => return None,
        };
        let properties = argument.properties(implied);
        // `-m` counts MiB.
        let shift = if argument.name == "m" { 20 } else { 0 };
        properties.get(key).map(|_| (properties.size(key, shift), argument.source))
    });
    if let Some(said) = said {
        return said;
    }
    if let Some(first) = base.first() {
        let mut sizes = base.iter().map(|block| block.size);
        return (sizes.try_fold(Bytes::ZERO, |sum, size| sum.checked_add(size?)), first.source);
    }
    let default = || machine::default_ram(arguments);
    ((!arguments.has_unread_file).then(default).flatten(), Source::Default)
}

/// The part of each virtio-mem device that is plugged at the start; `None` if it cannot be read.
fn requested(arguments: &Arguments) -> impl Iterator<Item = Option<Bytes>> {
    arguments.named("device").filter_map(|device| {
        let properties = device.properties("driver");
        let is_virtio_mem = properties.get("driver")?.starts_with("virtio-mem");
        let is_told = is_virtio_mem && properties.get("requested-size").is_some();
        is_told.then(|| properties.size("requested-size", 0))
    })
}

/// The names of the backends that an option or a device uses, with their roles.
fn uses(arguments: &Arguments) -> Vec<(String, MemoryRole)> {
    let mut found = Vec::new();
    for argument in &arguments.all {
        match argument.name.as_str() {
            "machine" => {
                let properties = argument.properties("type");
                found.extend(properties.get("memory-backend").map(|id| (id, MemoryRole::Base)));
            }
            "numa" => {
                let memdev = argument.properties("type").get("memdev");
                found.extend(memdev.map(|id| (id, MemoryRole::Base)));
            }
            "device" => {
                let properties = argument.properties("driver");
                let driver = properties.get("driver").unwrap_or_default();
                for key in ["memdev", "volatile-memdev", "persistent-memdev", "lsa"] {
                    found.extend(properties.get(key).map(|id| (id, MemoryRole::of(&driver, key))));
                }
            }
            _ => {}
        }
    }
    found
}

/// A memory backend, with its name.
fn backend(object: &Argument) -> Option<(String, MemoryBlock)> {
    let properties = object.properties("qom-type");
    let path = || properties.get("mem-path").unwrap_or_default().into();
    let (backing, is_shared) = match properties.get("qom-type")?.as_str() {
        "memory-backend-ram" => (Backing::Anonymous, false),
        "memory-backend-memfd" => (Backing::Memfd, true),
        "memory-backend-shm" => (Backing::Shm, true),
        "memory-backend-file" => (Backing::File(path()), false),
        "memory-backend-epc" => (Backing::Epc, true),
        _ => return None,
    };
    let is_bound = properties.get("policy").as_deref() == Some("bind");
    let block = MemoryBlock {
        size: properties.size("size", 0),
        shared: properties.on("share").unwrap_or(is_shared),
        huge: properties.on("hugetlb") == Some(true),
        prealloc: properties.on("prealloc") == Some(true),
        nodes: if is_bound { nodes(&properties.all("host-nodes")) } else { Vec::new() },
        source: object.source,
        role: if backing == Backing::Epc { MemoryRole::Enclave } else { MemoryRole::Unused },
        backing,
    };
    Some((properties.get("id").unwrap_or_default(), block))
}

/// The only NUMA node of the host that may hold all of these blocks.
pub(super) fn node(ram: &[MemoryBlock]) -> Option<u32> {
    let [node] = ram.first()?.nodes[..] else { return None };
    ram.iter().all(|block| block.nodes == [node]).then_some(node)
}

/// Numbers and ranges of numbers: `0`, `2-3`.
fn nodes(words: &[String]) -> Vec<u32> {
    let range = |word: &String| {
        let (first, last) = word.split_once('-').unwrap_or((word, word));
        let (first, last): (u32, u32) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        (first <= last && last < MOST_NODES).then_some(first..=last)
    };
    let mut nodes: Vec<u32> = words.iter().filter_map(range).flatten().collect();
    nodes.sort_unstable();
    nodes.dedup();
    nodes
}

/// Firmware that an option names. Its size is that of its file.
fn firmware(arguments: &Arguments) -> Vec<MemoryBlock> {
    let found = arguments.all.iter().flat_map(|argument| {
        let count = match argument.name.as_str() {
            "bios" | "pflash" => usize::from(argument.word() != "none"),
            "drive" => usize::from(argument.properties("").get("if").as_deref() == Some("pflash")),
            "machine" => {
                let properties = argument.properties("type");
                ["pflash0", "pflash1"].iter().filter(|key| properties.get(key).is_some()).count()
            }
            _ => 0,
        };
        let block = MemoryBlock { role: MemoryRole::Firmware, source: argument.source, ..Default::default() };
        std::iter::repeat_n(block, count)
    });
    found.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_is_bound_to_one_node_of_the_host_says_so() {
        let bound = "memory-backend-ram,id=a,size=1G,host-nodes=1,policy=bind";
        let json = r#"{"qom-type":"memory-backend-ram","id":"b","size":1073741824,"host-nodes":[1],"policy":"bind"}"#;
        let one = ["-m", "1G", "-machine", "q35,memory-backend=a"];
        let two = ["-m", "2G", "-numa", "node,memdev=a", "-numa", "node,memdev=b"];
        let unbound = "memory-backend-ram,id=b,size=1G";
        for (first, args, expected) in [
            (&one[..], &["-object", bound][..], Some(1)),
            (&two, &["-object", bound, "-object", json], Some(1)),
            (&two, &["-object", bound, "-object", &json.replace("[1]", "[0,1]")], None),
            (&one, &["-object", &bound.replace("=1,", "=0-1,")], None),
            (&one, &["-object", &bound.replace("=1,", "=0,host-nodes=1,")], None),
            (&one, &["-object", &bound.replace("bind", "preferred")], None),
            (&two, &["-object", bound, "-object", &json.replace("[1]", "[0]")], None),
            (&two, &["-object", bound, "-object", unbound], None),
            (&["-m", "512"], &[], None),
        ] {
            let line: Vec<&str> = ["qemu-system-x86_64"].iter().chain(first).chain(args).copied().collect();
            let arguments = Arguments::parse(line.join("\0").as_bytes());
            assert_eq!(node(&GuestMemory::of(&arguments).ram), expected, "{args:?}");
        }
    }
}
