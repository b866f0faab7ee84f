//! The UML instances: their consoles and memory files.

use std::fs;
use std::io::Read;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use memtide_host::Root;
use memtide_model::{Bytes, Config, name_matches};
use memtide_vmm::uml::{Discovery, Instance};
use rustix::fs::StatVfs;

use super::small::file_system;

/// The beginning of a COW file (`COW_MAGIC` in Linux, big-endian).
const COW_MAGIC: [u8; 4] = *b"OOOM";

/// One UML instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InstanceFacts {
    /// Its name.
    pub name: String,
    /// The process of its kernel.
    pub pid: u32,
    /// Its memory.
    pub memory: Bytes,
    /// Whether its class lets memtide manage it.
    pub managed: bool,
    /// Its console.
    pub console: PathBuf,
    /// Whether a socket is there.
    pub has_console: bool,
    /// Where its memory file is; `None` if that cannot be found out.
    pub file: Option<MemoryFile>,
    /// Its disks that are no COW files, with their sizes.
    pub images: Vec<(PathBuf, Bytes)>,
}

/// The file system of a memory file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryFile {
    /// The directory of the file.
    pub directory: PathBuf,
    /// The type of the file system; `None` if it cannot be found out.
    pub kind: Option<String>,
    /// Its size and what is free of it; `None` if they cannot be found out.
    pub room: Option<Room>,
}

/// The room of a file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Its size.
    pub size: Bytes,
    /// What is free of it.
    pub free: Bytes,
}

/// Finds the instances that `discover` names, and their facts.
pub(super) fn look(root: &Root, config: &Config, discover: &[String]) -> Vec<InstanceFacts> {
    let mut discovery = Discovery::new(&root.path(Path::new("/proc")));
    // The search for QEMUs reports the same failure.
    let _failed = discovery.scan(true);
    let instances = discovery.instances();
    let named = instances.filter(|one| discover.iter().any(|pattern| name_matches(pattern, one.id.name())));
    let mut facts: Vec<InstanceFacts> = named.map(|instance| of_instance(root, config, instance)).collect();
    facts.sort_by(|a, b| (&a.name, a.pid).cmp(&(&b.name, b.pid)));
    facts
}

fn of_instance(root: &Root, config: &Config, instance: &Instance) -> InstanceFacts {
    let console = &instance.console;
    InstanceFacts {
        name: instance.id.name().to_owned(),
        pid: instance.pid,
        memory: instance.memory,
        managed: config.class_of(instance.id.name()).1.manage,
        console: console.clone(),
        has_console: fs::symlink_metadata(console).is_ok_and(|file| file.file_type().is_socket()),
        images: instance.disks.iter().filter_map(|disk| image(disk)).collect(),
        file: instance.file.as_deref().and_then(Path::parent).map(|directory| memory_file(root, directory)),
    }
}

/// A disk's file and size; `None` for a COW file, and for one that cannot be read.
fn image(disk: &Path) -> Option<(PathBuf, Bytes)> {
    let mut magic = [0; COW_MAGIC.len()];
    let mut file = fs::File::open(disk).ok()?;
    let size = file.metadata().ok().filter(fs::Metadata::is_file)?.len();
    file.read_exact(&mut magic).ok()?;
    (magic != COW_MAGIC).then(|| (disk.to_owned(), Bytes::new(size)))
}

fn memory_file(root: &Root, directory: &Path) -> MemoryFile {
    let room = |stat: StatVfs| {
        let bytes = |blocks: u64| Bytes::new(blocks.saturating_mul(stat.f_frsize));
        Room { size: bytes(stat.f_blocks), free: bytes(stat.f_bavail) }
    };
    MemoryFile {
        directory: directory.to_owned(),
        kind: file_system(root, directory),
        room: rustix::fs::statvfs(root.path(directory)).ok().map(room),
    }
}
