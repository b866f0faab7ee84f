//! Tiers on this host: zram devices that hold the swap of a guest.
//!
//! **Terms.** A *noted* device is one that memtide made: a file in [`NOTES`] has its number as name, and its guest's process in it. Other
//! zram devices are somebody else's, and nobody here touches them. Notes are lost with the devices when the host starts anew.
//!
//! **Rule.** The kernel removes no device that a process has open (`EBUSY`). So a device that can be removed is one that no guest uses, and a device
//! whose guest or daemon was killed at any moment is found by its note and removed ([`sweep`]).
//!
//! The first page of a device is a swap header, as `mkswap` writes it (`union swap_header` in `include/linux/swap.h`).

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use memtide_model::{Bytes, Tier};
use rustix::fs::OFlags;

use crate::source::Scratch;
use crate::{HostError, ParseError, Root, Source};

/// The directory of the notes.
pub const NOTES: &str = "/run/memtide-tier";
/// The page of a guest.
const PAGE: usize = 4096;
/// A device is made within this time.
const MADE_WITHIN: Duration = Duration::from_secs(60);
/// The algorithm of new devices, where the kernel has it: heaps shrink to a quarter, with lzo-rle (the kernel's default) to 40 % or more. It takes about three
/// times as long to compress a page, and what lies in a tier is cold; a fault spends most of its time in the guest's disk driver.
const ALGORITHM: &str = "zstd";
/// A sector in the kernel's statistics of block devices.
const SECTOR: u64 = 512;

/// A device that memtide made for a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotedTier {
    /// The device's number.
    pub device: u32,
    /// The guest's process.
    pub pid: u32,
    /// When it started, in clock ticks after boot.
    pub start: u64,
}

/// The noted devices; none if there is no directory of them. A note that is not whole yet is left out.
#[must_use]
pub fn noted(root: &Root) -> Vec<NotedTier> {
    let entries = fs::read_dir(root.path(Path::new(NOTES))).into_iter().flatten().flatten();
    let read = |entry: fs::DirEntry| {
        let device = entry.file_name().to_str()?.parse().ok()?;
        let text = fs::read_to_string(entry.path()).ok()?;
        let (pid, start) = text.trim().split_once(' ')?;
        Some(NotedTier { device, pid: pid.parse().ok()?, start: start.parse().ok()? })
    };
    let mut noted: Vec<NotedTier> = entries.filter_map(read).collect();
    noted.sort_unstable_by_key(|noted| noted.device);
    noted
}

/// The path of a device.
#[must_use]
pub fn device_path(device: u32) -> PathBuf {
    PathBuf::from(format!("/dev/zram{device}"))
}

/// A device's attribute.
fn attribute(root: &Root, device: u32, name: &str) -> PathBuf {
    root.sys(format!("block/zram{device}/{name}"))
}

/// Reads what a device holds.
#[derive(Debug)]
pub struct TierReader {
    size: Bytes,
    memory: Source,
    traffic: Source,
}

impl TierReader {
    /// Opens the kernel's files of a device.
    ///
    /// # Errors
    /// If there is no such device.
    pub fn open(root: &Root, device: u32) -> Result<Self, HostError> {
        let path = attribute(root, device, "disksize");
        let size = fs::read_to_string(&path).map_err(|source| HostError::read(&path, source))?;
        let size =
            number(Some(size.trim()), "disksize").map_err(|error| HostError::malformed(&path, error))?;
        Ok(Self {
            size: Bytes::new(size),
            memory: Source::open(attribute(root, device, "mm_stat"))?,
            traffic: Source::open(attribute(root, device, "stat"))?,
        })
    }

    /// What it holds now.
    ///
    /// # Errors
    /// If the device is gone, or the kernel writes another form.
    pub fn read(&self, scratch: &mut Scratch) -> Result<Tier, HostError> {
        let (page, table) = (PAGE as u64, Tier::table_of(self.size));
        let tier = self.memory.parse(scratch, |text| {
            // Documentation/admin-guide/blockdev/zram.rst, "mm_stat".
            let mut fields = text.split_whitespace();
            let mut next = |name| number(fields.next(), name);
            let (stored, _compressed) = (next("orig_data_size")?, next("compr_data_size")?);
            let (held, limit, _most) = (next("mem_used_total")?, next("mem_limit")?, next("mem_used_max")?);
            let (_same, _compacted, huge) =
                (next("same_pages")?, next("pages_compacted")?, next("huge_pages")?);
            Ok(Tier {
                size: self.size,
                limit: Bytes::new(limit).saturating_add(table),
                // The header is nobody's memory.
                stored: Bytes::new(stored.saturating_sub(page)),
                held: Bytes::new(held).saturating_add(table),
                incompressible: Bytes::new(huge.saturating_mul(page)),
                read: Bytes::ZERO,
            })
        })?;
        let read = self.traffic.parse(scratch, |text| {
            // Documentation/block/stat.rst: reads, merged reads, sectors read.
            number(text.split_whitespace().nth(2), "read sectors")
        })?;
        Ok(Tier { read: Bytes::new(read.saturating_mul(SECTOR)), ..tier })
    }
}

fn number(text: Option<&str>, field: &'static str) -> Result<u64, ParseError> {
    let text = text.ok_or(ParseError::Missing(field))?;
    text.parse().map_err(|_| ParseError::NoNumber { field, text: text.chars().take(32).collect() })
}

/// Whether this process may make devices.
///
/// # Errors
/// Why it may not: the kernel has no zram, or only root may.
pub fn can_make(root: &Root) -> Result<(), HostError> {
    let path = root.sys("class/zram-control/hot_remove");
    OpenOptions::new().write(true).open(&path).map(drop).map_err(|source| HostError::Write { path, source })
}

/// Makes a device of `size` bytes, which may take [`Tier::limit_of`] it of the host's memory, for the process `pid` that started at `start`. It is open for a guest, which
/// reads and writes past the host's page cache, and has a swap header.
///
/// # Errors
/// If the kernel refuses a step. Nothing is left of the device then.
pub fn make(root: &Root, pid: u32, start: u64, size: Bytes) -> Result<(u32, File), HostError> {
    let path = root.sys("class/zram-control/hot_add");
    let text = fs::read_to_string(&path).map_err(|source| HostError::read(&path, source))?;
    let device = text.trim().parse().map_err(|_| {
        let text = text.chars().take(32).collect();
        HostError::malformed(&path, ParseError::NoNumber { field: "hot_add", text })
    })?;
    // Nobody else removes it before it is open: its note is not whole.
    let made = note(root, device, "").and_then(|()| set_up(root, device, size)).and_then(|file| {
        note(root, device, &format!("{pid} {start}\n"))?;
        Ok(file)
    });
    match made {
        Ok(file) => Ok((device, file)),
        Err(error) => {
            let _removed = remove(root, device);
            Err(error)
        }
    }
}

fn note(root: &Root, device: u32, text: &str) -> Result<(), HostError> {
    let dir = root.path(Path::new(NOTES));
    let path = dir.join(device.to_string());
    let is_there = if dir.is_dir() { Ok(()) } else { fs::create_dir(&dir) };
    let written = is_there.and_then(|()| fs::write(&path, text));
    written.map_err(|source| HostError::Write { path, source })
}

fn set_up(root: &Root, device: u32, size: Bytes) -> Result<File, HostError> {
    let algorithms = attribute(root, device, "comp_algorithm");
    if fs::read_to_string(&algorithms).is_ok_and(|text| has(&text, ALGORITHM)) {
        write(algorithms, ALGORITHM)?;
    }
    write(attribute(root, device, "disksize"), size.get())?;
    let limit = Tier::limit_of(size).saturating_sub(Tier::table_of(size));
    write(attribute(root, device, "mem_limit"), limit.get())?;
    let path = root.path(&device_path(device));
    let failed = |source| HostError::Write { path: path.clone(), source };
    let plain = OpenOptions::new().read(true).write(true).open(&path).map_err(failed)?;
    plain.write_all_at(&swap_header(size), 0).and_then(|()| plain.sync_all()).map_err(failed)?;
    drop(plain);
    let direct = i32::try_from(OFlags::DIRECT.bits()).unwrap_or_default();
    OpenOptions::new().read(true).write(true).custom_flags(direct).open(&path).map_err(failed)
}

/// Whether an algorithm is in the kernel's list; the chosen one stands in brackets.
fn has(list: &str, algorithm: &str) -> bool {
    list.split_whitespace().any(|word| word.trim_matches(['[', ']']) == algorithm)
}

/// The first page of a swap device of `size` bytes: version 1, its last page, no bad pages, the signature at the end.
fn swap_header(size: Bytes) -> [u8; PAGE] {
    let mut page = [0; PAGE];
    let last = u32::try_from(size.get() / PAGE as u64).unwrap_or(u32::MAX).saturating_sub(1);
    page[1024..1028].copy_from_slice(&1_u32.to_le_bytes());
    page[1028..1032].copy_from_slice(&last.to_le_bytes());
    page[PAGE - 10..].copy_from_slice(b"SWAPSPACE2");
    page
}

fn write(path: PathBuf, value: impl ToString) -> Result<(), HostError> {
    let opened = OpenOptions::new().write(true).open(&path);
    opened
        .and_then(|mut file| file.write_all(value.to_string().as_bytes()))
        .map_err(|source| HostError::Write { path, source })
}

/// Removes a device, and then its note.
///
/// # Errors
/// If a process has it open, or the kernel refuses.
pub fn remove(root: &Root, device: u32) -> Result<(), HostError> {
    if attribute(root, device, "disksize").exists() {
        write(root.sys("class/zram-control/hot_remove"), device)?;
    }
    let path = root.path(Path::new(NOTES)).join(device.to_string());
    match fs::remove_file(&path) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => Err(HostError::Write { path, source }),
        _ => Ok(()),
    }
}

/// Removes all noted devices that no process has open, and those whose maker was killed. Returns how many there were.
#[must_use]
pub fn sweep(root: &Root) -> usize {
    let whole = noted(root).into_iter().map(|noted| noted.device);
    whole.chain(half_made(root)).filter(|device| remove(root, *device).is_ok()).count()
}

/// The devices that have not been whole for longer than it takes to make one.
fn half_made(root: &Root) -> Vec<u32> {
    let is_old = |entry: &fs::DirEntry| {
        let metadata = entry.metadata().ok().filter(|metadata| metadata.len() == 0);
        let age = metadata.and_then(|metadata| metadata.modified().ok()?.elapsed().ok());
        age.is_some_and(|age| age >= MADE_WITHIN)
    };
    let entries = fs::read_dir(root.path(Path::new(NOTES))).into_iter().flatten().flatten();
    entries.filter(is_old).filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree() -> (tempfile::TempDir, Root) {
        let dir = tempfile::tempdir().unwrap();
        let root = Root::at(dir.path());
        fs::create_dir_all(root.sys("block/zram7")).unwrap();
        fs::create_dir_all(root.path(Path::new("/run"))).unwrap();
        (dir, root)
    }

    #[test]
    fn a_device_tells_what_it_holds_without_its_header() {
        let (_dir, root) = tree();
        fs::write(attribute(&root, 7, "disksize"), "536870912\n").unwrap();
        // As Linux 6.18 wrote them.
        let memory = "101883904 77976173 80433152 209715200 80433152        0        0     4835     4835\n";
        let traffic = "   24588        0   196704      100    24873        0   198984      200        0       84      300\n";
        fs::write(attribute(&root, 7, "mm_stat"), memory).unwrap();
        fs::write(attribute(&root, 7, "stat"), traffic).unwrap();
        let tier = TierReader::open(&root, 7).unwrap().read(&mut Scratch::default()).unwrap();
        let expected = Tier {
            size: Bytes::from_mib(512),
            limit: Bytes::from_mib(202),
            stored: Bytes::new(101_883_904 - 4096),
            held: Bytes::new(80_433_152 + 512 * 4096),
            incompressible: Bytes::new(4835 * 4096),
            read: Bytes::new(196_704 * 512),
        };
        assert_eq!(tier, expected);
        fs::write(attribute(&root, 7, "mm_stat"), "1 2\n").unwrap();
        let cut = TierReader::open(&root, 7).unwrap().read(&mut Scratch::default());
        assert!(matches!(cut, Err(HostError::Malformed { .. })), "{cut:?}");
    }

    #[test]
    fn only_noted_devices_are_memtides() {
        let (_dir, root) = tree();
        assert_eq!(noted(&root), []);
        note(&root, 7, "42 1000\n").unwrap();
        fs::write(root.path(Path::new(NOTES)).join("8"), "42").unwrap();
        fs::write(root.path(Path::new(NOTES)).join("x"), "42 7").unwrap();
        assert_eq!(noted(&root), [NotedTier { device: 7, pid: 42, start: 1000 }]);
    }

    #[test]
    fn what_a_killed_maker_left_is_removed_and_what_is_being_made_stays() {
        let (_dir, root) = tree();
        let path = |device: &str| root.path(Path::new(NOTES)).join(device);
        note(&root, 1, "").unwrap();
        note(&root, 2, "").unwrap();
        let long_ago = std::time::SystemTime::now() - 2 * MADE_WITHIN;
        File::options().write(true).open(path("2")).unwrap().set_modified(long_ago).unwrap();
        assert_eq!(sweep(&root), 1);
        assert!(path("1").exists() && !path("2").exists());
    }

    #[test]
    fn an_algorithm_is_found_in_the_list_of_the_kernel() {
        // As Linux 6.12 of Debian and 6.18 wrote them.
        for (list, is_there) in [
            ("[lzo-rle] lzo lz4 lz4hc 842 zstd \n", true),
            ("lzo-rle [zstd]\n", true),
            ("[lzo-rle] lzo lz4 \n", false),
        ] {
            assert_eq!(has(list, ALGORITHM), is_there, "{list}");
        }
    }

    #[test]
    fn the_header_is_that_of_mkswap() {
        let page = swap_header(Bytes::from_mib(1));
        assert_eq!(&page[1024..1032], &[1, 0, 0, 0, 255, 0, 0, 0]);
        assert_eq!(&page[4086..], b"SWAPSPACE2");
    }

    #[test]
    fn a_device_is_made_used_and_removed_and_one_in_use_stays() {
        let root = Root::system();
        if can_make(&root).is_err() {
            return memtide_testing::skipped("no zram, or no right to make devices");
        }
        let size = Bytes::from_mib(64);
        // A place of its own for notes would need another root: the note is this process's.
        let (device, file) = make(&root, std::process::id(), 1, size).unwrap();
        let ours = NotedTier { device, pid: std::process::id(), start: 1 };
        assert!(noted(&root).contains(&ours));
        assert!(remove(&root, device).is_err(), "it is open");
        assert!(noted(&root).contains(&ours), "the note stays with it");
        let tier = TierReader::open(&root, device).unwrap().read(&mut Scratch::default()).unwrap();
        assert_eq!((tier.size, tier.limit, tier.stored), (size, Tier::limit_of(size), Bytes::ZERO));
        drop(file);
        remove(&root, device).unwrap();
        assert!(!noted(&root).contains(&ours));
        assert!(!attribute(&root, device, "disksize").exists());
    }
}
