//! What a QEMU's start tells of its guest, for people: see [`Fact`].

use std::path::{Path, PathBuf};

use memtide_model::{About, Bytes, Fact, FactSource, counted, printable};

use super::arguments::Source;
use super::discovery::QemuProcess;
use super::launcher::Launcher;
use super::owner::SetsBalloon;
use super::ram::{Backing, MemoryBlock, MemoryRole};

/// The most blocks of memory that are told one by one.
const MOST_BLOCKS: usize = 16;
/// The longest part of a path that is told, in characters.
const LONGEST_PATH: usize = 200;

/// The facts about a process; `held`: the monitor that the configuration names.
pub(super) fn of(process: &QemuProcess, held: Option<&PathBuf>) -> Vec<Fact> {
    let facts = &process.facts;
    let mut all = vec![match facts.memory {
        Some(memory) => Fact::size(memory, facts.memory_source.into()),
        None => Fact::new(About::Size, "nothing tells it: what is mapped counts", FactSource::CommandLine),
    }];
    blocks(About::Ram, &facts.ram, facts.memory, &mut all);
    blocks(About::Device, &facts.device_memory, None, &mut all);
    if let Some(why) = &process.withheld {
        all.push(Fact::new(About::Gives, format!("nothing: {why}"), FactSource::CommandLine));
    }
    if let Some(node) = process.node {
        all.push(Fact::new(
            About::Node,
            format!("all of it is bound to NUMA node {node}"),
            FactSource::CommandLine,
        ));
    }
    all.push(monitor(process, held));
    let launcher = process.launcher;
    if launcher != Launcher::Unknown {
        all.push(Fact::new(About::Launcher, launcher.name(), FactSource::CommandLine));
    }
    let sets = match process.launcher.sets_balloon() {
        SetsBalloon::No => None,
        SetsBalloon::Perhaps => Some("may set it, too, if the guest's configuration says so"),
        SetsBalloon::Yes => Some("sets it"),
    };
    if let Some(sets) = sets {
        let says = format!("{} {sets}", launcher.name());
        all.push(Fact::new(About::Balloon, says, FactSource::CommandLine));
    }
    if let Some(user) = process.user {
        all.push(Fact::new(About::User, user.to_string(), FactSource::Kernel));
    }
    all
}

/// The monitor that memtide asks. A place on the command line counts only if the process listens there.
fn monitor(process: &QemuProcess, held: Option<&PathBuf>) -> Fact {
    match (held, process.monitors.as_slice()) {
        _ if process.launcher.is_libvirt() => {
            Fact::new(About::Monitor, "none: libvirt's daemon speaks for this guest", FactSource::CommandLine)
        }
        (Some(path), _) => Fact::new(About::Monitor, shown(path), FactSource::Configuration),
        (None, []) if process.launcher.keeps_monitor() => {
            let says = format!("none: {} keeps it for itself", process.launcher.name());
            Fact::new(About::Monitor, says, FactSource::CommandLine)
        }
        (None, []) => {
            let says = "none: no QMP monitor on a Unix socket";
            Fact::new(About::Monitor, says, FactSource::CommandLine)
        }
        (None, [path]) => Fact::new(About::Monitor, shown(path), process.monitor_source.into()),
        (None, [path, others @ ..]) => {
            let others = counted(others.len() as u64, "other monitor");
            let says = format!("{}, or the first of {others} that answers", shown(path));
            Fact::new(About::Monitor, says, process.monitor_source.into())
        }
    }
}

/// The blocks, each with what it is for and what backs it. A base block without a size of its own has `full`.
fn blocks(about: About, blocks: &[MemoryBlock], full: Option<Bytes>, all: &mut Vec<Fact>) {
    for block in blocks.iter().take(MOST_BLOCKS) {
        let size = block.size.or(full.filter(|_| block.role == MemoryRole::Base));
        let size = size.map_or_else(|| "of unknown size".to_owned(), |size| size.to_string());
        let most = if block.role == MemoryRole::VirtioMem { "up to " } else { "" };
        let huge = if block.huge { ", huge pages" } else { "" };
        let says = format!("{} {most}{size}, {}{huge}", block.role.words(), backing(block));
        all.push(Fact::new(about, says, block.source.into()));
    }
    if blocks.len() > MOST_BLOCKS {
        let says = counted((blocks.len() - MOST_BLOCKS) as u64, "further piece");
        all.push(Fact::new(about, says, FactSource::CommandLine));
    }
}

fn backing(block: &MemoryBlock) -> String {
    let how = if block.shared { "shared" } else { "private" };
    match &block.backing {
        Backing::Anonymous => "anonymous".to_owned(),
        Backing::Memfd => format!("a {how} memfd"),
        Backing::Shm => format!("{how} memory without a name"),
        Backing::File(path) => format!("a {how} mapping of {}", shown(path)),
        Backing::Epc => "memory of the processor's own".to_owned(),
    }
}

fn shown(path: &Path) -> String {
    let text = printable(&path.display().to_string());
    match text.char_indices().nth(LONGEST_PATH) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text,
    }
}

impl MemoryRole {
    /// In a few words, for people.
    const fn words(self) -> &'static str {
        match self {
            Self::Base => "base memory",
            Self::Dimm => "DIMM",
            Self::VirtioMem => "virtio-mem",
            Self::Unused => "a backend that no device names",
            Self::Nvdimm => "NVDIMM",
            Self::VirtioPmem => "virtio-pmem",
            Self::Cxl => "CXL memory",
            Self::Ivshmem => "ivshmem",
            Self::Enclave => "SGX memory",
            Self::Firmware => "firmware",
            Self::Device => "memory of a device",
        }
    }
}

impl From<Source> for FactSource {
    fn from(source: Source) -> Self {
        match source {
            Source::CommandLine => Self::CommandLine,
            Source::ConfigFile => Self::OptionFile,
            Source::Default => Self::Default,
        }
    }
}
