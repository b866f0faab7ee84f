//! The UML instances: their consoles and memory files.

use std::ffi::OsStr;
use std::fs;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileExt as _, FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use memtide_host::{Root, SharedRam, mounted, open_regular, read_regular};
use memtide_model::{Bytes, Config, Outsider, Space, TmpfsId, name_matches};
use memtide_vmm::uml::{Discovery, Disk, Instance};

use super::guest::{is_outside, status};
use super::small::{file_system, text};
use super::{Daemon, claims};

/// The beginning of a COW file (`COW_MAGIC` in Linux, big-endian), its version, and where the name of the backing file begins.
const COW_MAGIC: [u8; 4] = *b"OOOM";
const COW_VERSION: u32 = 3;
const COW_NAME_AT: usize = 32;
/// The header with the longest name (`PATH_LEN_V3`).
const LONGEST_COW_HEADER: u64 = 32 + 4096;
/// The blocks of an image that are read, and their size.
const SAMPLED: u64 = 64;
const BLOCK: usize = 4096;

/// One UML instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InstanceFacts {
    /// Its name.
    pub name: String,
    /// The process of its kernel.
    pub pid: u32,
    /// Its memory, as far as it counts.
    pub memory: Bytes,
    /// The memory that it claims, if that counts no further than `memory`: see `claims`.
    pub claims: Option<Bytes>,
    /// Whether its class lets memtide manage it.
    pub managed: bool,
    /// Its console.
    pub console: PathBuf,
    /// Whether a socket is there.
    pub has_console: bool,
    /// Where its memory file is; `None` if that cannot be found out.
    pub file: Option<MemoryFile>,
    /// The images of its disks: the files themselves, or the backing files of COW files.
    pub images: Vec<ImageFacts>,
}

/// An image that an instance reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageFacts {
    /// A path to it.
    pub path: PathBuf,
    /// The device and the inode of the file: which one it is.
    pub file: (u64, u64),
    /// Its size.
    pub size: Bytes,
    /// Whether a COW file takes what the instance writes.
    pub is_backing: bool,
    /// A hash of blocks all over it; `None` if they cannot be read.
    pub sample: Option<u64>,
}

/// The file system of a memory file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryFile {
    /// The directory of the file, as the instance sees it.
    pub directory: PathBuf,
    /// The type of the file system; `None` if it cannot be found out.
    pub kind: Option<String>,
    /// The tmpfs, if it has a limit and can be looked at.
    pub tmpfs: Option<TmpfsFacts>,
}

/// The tmpfs of a memory file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TmpfsFacts {
    /// Which one: several directories may be in it.
    pub id: TmpfsId,
    /// Its mount point, where this program or else the instance sees it.
    pub at: PathBuf,
    /// Whether this program sees it.
    pub is_here: bool,
    /// Its size and what is free of it.
    pub space: Space,
    /// What the memory file holds of it.
    pub held: Bytes,
}

/// Finds the instances that `discover` names, and their facts, and those of other users, on a host with `memory`.
pub(super) fn look(
    root: &Root,
    config: &Config,
    discover: &[String],
    daemon: &Daemon,
    memory: Bytes,
) -> (Vec<InstanceFacts>, Vec<Outsider>) {
    let mut discovery = Discovery::new(&root.path(Path::new("/proc")));
    // The search for QEMUs reports the same failure.
    let _failed = discovery.scan(true);
    let instances = discovery.instances();
    let named = instances.filter(|one| discover.iter().any(|pattern| name_matches(pattern, one.id.name())));
    let (outside, ours): (Vec<&Instance>, Vec<&Instance>) =
        named.partition(|one| is_outside(config, daemon, one.pid, Some(one.user)));
    let outside =
        outside.into_iter().map(|one| Outsider::new(one.id.name(), one.pid, Some(one.user))).collect();
    let mut facts: Vec<InstanceFacts> = ours
        .into_iter()
        .map(|instance| {
            let reachable = |path: &Path| discovery.reachable(instance, path);
            let mut facts = of_instance(root, config, instance, reachable);
            bound(root, &mut facts, memory);
            facts
        })
        .collect();
    facts.sort_by(|a, b| (&a.name, a.pid).cmp(&(&b.name, b.pid)));
    (facts, outside)
}

fn of_instance(
    root: &Root,
    config: &Config,
    instance: &Instance,
    reachable: impl Fn(&Path) -> PathBuf,
) -> InstanceFacts {
    let console = &instance.console;
    InstanceFacts {
        name: instance.id.name().to_owned(),
        pid: instance.pid,
        memory: instance.memory,
        claims: None,
        managed: config.class_of(instance.id.name(), Some(instance.user)).1.manage,
        console: console.clone(),
        has_console: fs::symlink_metadata(console).is_ok_and(|file| file.file_type().is_socket()),
        images: instance.disks.iter().filter_map(|disk| image_of(disk, &reachable)).collect(),
        file: instance.file.as_deref().map(|file| memory_file(root, instance, file)),
    }
}

/// Bounds what counts of an instance on a host with `memory`. Its kernel maps all of the instance's memory at its start.
fn bound(root: &Root, instance: &mut InstanceFacts, memory: Bytes) {
    let status = text(&root.process(instance.pid, "status")).map(|text| status(&text)).unwrap_or_default();
    let counted = claims::counted(instance.memory, false, None, status, memory);
    instance.claims = Some(instance.memory).filter(|claims| counted < *claims);
    instance.memory = counted;
}

/// The image of a disk; `None` if it cannot be read. `reachable` makes paths of the instance's process paths of this one.
fn image_of(disk: &Disk, reachable: impl Fn(&Path) -> PathBuf) -> Option<ImageFacts> {
    if let Some(backing) = &disk.backing {
        return image(backing, true);
    }
    match backing_file(&disk.file, reachable) {
        Some(backing) => image(&backing, true),
        None => image(&disk.file, false),
    }
}

/// The backing file that a COW file names (`cow_header_v3` in Linux; versions before it are 20 years old).
fn backing_file(cow: &Path, reachable: impl Fn(&Path) -> PathBuf) -> Option<PathBuf> {
    let header = read_regular(cow, LONGEST_COW_HEADER).ok()?;
    let is_known = header.starts_with(&COW_MAGIC) && header.get(4..8)? == COW_VERSION.to_be_bytes();
    let name = header.get(COW_NAME_AT..).filter(|_| is_known)?.split(|byte| *byte == 0).next()?;
    let name = Path::new(OsStr::from_bytes(name));
    Some(if name.is_absolute() { reachable(name) } else { cow.parent()?.join(name) })
}

fn image(path: &Path, is_backing: bool) -> Option<ImageFacts> {
    let file = open_regular(path).ok()?;
    let meta = file.metadata().ok()?;
    let size = meta.len();
    let sample = sample(&file, size).ok();
    let file = (meta.dev(), meta.ino());
    Some(ImageFacts { path: path.to_owned(), file, size: Bytes::new(size), is_backing, sample })
}

/// A hash of the first block, with the identity of a file system, and of others at equal distances.
fn sample(file: &fs::File, size: u64) -> io::Result<u64> {
    let mut hasher = DefaultHasher::new();
    let mut block = [0; BLOCK];
    for number in 0..SAMPLED {
        let at = (size / SAMPLED).saturating_mul(number);
        let got = file.read_at(&mut block, at)?;
        block.get(..got).unwrap_or_default().hash(&mut hasher);
    }
    Ok(hasher.finish())
}

fn memory_file(root: &Root, instance: &Instance, file: &Path) -> MemoryFile {
    let directory = file.parent().unwrap_or(file);
    let kind = |process: &str| file_system(root, process, directory);
    MemoryFile {
        directory: directory.to_owned(),
        kind: kind(&instance.pid.to_string()).or_else(|| kind("self")),
        tmpfs: tmpfs(root, instance, file, directory),
    }
}

/// The tmpfs of an open file of a process. The file reaches it in whatever mount namespace the process is.
fn tmpfs(root: &Root, instance: &Instance, file: &Path, directory: &Path) -> Option<TmpfsFacts> {
    let pid = instance.pid;
    let ram = SharedRam::find(root, pid, &[file.to_owned()]).ok()?;
    let (id, space) = (ram.tmpfs(instance.memory)?, ram.space(pid).ok()??);
    let (at, is_here) = mounted(root, pid, id).unwrap_or_else(|| (directory.to_owned(), false));
    Some(TmpfsFacts { id, at, is_here, space, held: ram.blocks() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cow_file_names_its_backing_file_and_copies_have_equal_samples() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let mut content = vec![0_u8; 4 << 20];
        for (block, number) in content.chunks_mut(BLOCK).zip(0_u8..=255) {
            block.fill(number);
        }
        fs::write(at("root.img"), &content).unwrap();
        fs::write(at("copy.img"), &content).unwrap();
        // The same size, and another identity of the file system.
        content[1024] = 0xff;
        fs::write(at("other.img"), &content).unwrap();
        let mut header = vec![0; 32 + 4096];
        header[..4].copy_from_slice(&COW_MAGIC);
        header[4..8].copy_from_slice(&3_u32.to_be_bytes());
        header[32..32 + 8].copy_from_slice(b"copy.img");
        fs::write(at("a.cow"), &header).unwrap();
        let disk = |file: &str, backing: Option<&str>| {
            image_of(&Disk { file: at(file), backing: backing.map(at) }, Path::to_owned)
        };
        // An absolute name is one of the instance's root.
        header[32..32 + 9].copy_from_slice(b"/copy.img");
        fs::write(at("c.cow"), &header).unwrap();
        let below = |path: &Path| dir.path().join(path.strip_prefix("/").unwrap());
        let inside = image_of(&Disk { file: at("c.cow"), backing: None }, below).unwrap();
        assert_eq!((inside.path, inside.is_backing), (at("copy.img"), true));
        let root = disk("b.cow", Some("root.img")).unwrap();
        let copy = disk("a.cow", None).unwrap();
        let other = disk("other.img", None).unwrap();
        assert_eq!((copy.path.clone(), copy.is_backing, other.is_backing), (at("copy.img"), true, false));
        assert_eq!((root.sample, root.size), (copy.sample, copy.size));
        assert!(root.sample != other.sample && root.size == other.size && root.file != copy.file);
        assert_eq!(disk("missing.img", None), None);
    }

    #[test]
    fn a_device_or_a_pipe_is_no_image_and_is_not_opened() {
        let dir = tempfile::tempdir().unwrap();
        let pipe = dir.path().join("pipe");
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        for file in [pipe, "/dev/null".into()] {
            assert_eq!(image_of(&Disk { file, backing: None }, Path::to_owned), None);
        }
    }
}
