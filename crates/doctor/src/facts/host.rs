//! The host: memory, swap, and the kernel settings that matter to guests.

use std::fs;
use std::path::{Path, PathBuf};

use memtide_host::ksm::settings;
use memtide_host::{
    HostError, KsmReader, Meminfo, Root, Scratch, SplitError, can_split, page_size, pressure, reclaimable_arc,
};
use memtide_model::{Absence, Bytes, KsmSettings};

use super::small::{chosen, kib, number, text};

/// A fact, or the reason why it could not be seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sight<T> {
    /// It was seen.
    Seen(T),
    /// It was not seen, for this reason.
    Unseen(Absence),
}

impl<T> Sight<T> {
    /// The value, if it was seen.
    pub const fn value(&self) -> Option<&T> {
        match self {
            Self::Seen(value) => Some(value),
            Self::Unseen(_) => None,
        }
    }
}

impl<T> From<Result<T, HostError>> for Sight<T> {
    fn from(result: Result<T, HostError>) -> Self {
        result.map_or_else(|error| Self::Unseen(error.absence()), Self::Seen)
    }
}

/// The host.
#[derive(Clone, Debug)]
pub struct HostFacts {
    /// The kernel's release: `6.12.9-amd64`.
    pub release: Option<String>,
    /// `/proc/meminfo`, with `arc` as available memory.
    pub memory: Sight<Meminfo>,
    /// The part of ZFS's cache that can come back.
    pub arc: Bytes,
    /// Memory in the pool of hugetlbfs.
    pub huge_pool: Bytes,
    /// The limit and the amount of committed memory, for `vm.overcommit_memory=2`.
    pub commit: Option<(Bytes, Bytes)>,
    /// `vm.overcommit_memory`.
    pub overcommit: Option<u64>,
    /// `vm.swappiness`.
    pub swappiness: Option<u64>,
    /// `vm.min_free_kbytes`.
    pub min_free: Option<Bytes>,
    /// The swap areas.
    pub swaps: Vec<Swap>,
    /// Whether zswap compresses pages on their way to swap.
    pub zswap: bool,
    /// Transparent huge pages.
    pub thp: Option<Thp>,
    /// The rest of torn huge pages on the whole host; `None` if the kernel does not tell.
    pub torn: Option<Bytes>,
    /// Why torn huge pages cannot be split here; `None` if they can, or if only root can find out.
    pub cannot_split: Option<String>,
    /// Whether devices of compressed memory can be made (`/sys/class/zram-control`).
    pub zram: bool,
    /// Kernel samepage merging.
    pub ksm: Option<KsmSettings>,
    /// Memory that KSM saves now, its zero pages apart; `None` without KSM.
    pub ksm_saves: Option<Bytes>,
    /// Whether there is pressure stall information.
    pub pressure: Sight<()>,
    /// `/proc` hides the processes of other users.
    pub hides_processes: bool,
    /// Space for the journal.
    pub journal: Option<Journal>,
}

/// A swap area.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Swap {
    /// The device or file.
    pub name: String,
    /// The medium of the area.
    pub kind: SwapKind,
    /// Its size.
    pub size: Bytes,
    /// Its used part.
    pub used: Bytes,
}

/// The medium of a swap area.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SwapKind {
    /// Compressed memory.
    Zram,
    /// Compressed memory that writes back to a disk (`backing_dev`).
    ZramWithDisk,
    /// A disk, or a file on one.
    Disk,
}

/// `/sys/kernel/mm/transparent_hugepage`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Thp {
    /// `enabled`: `always`, `madvise` or `never`.
    pub enabled: String,
    /// `defrag`.
    pub defrag: String,
}

/// Space for the journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Journal {
    /// Its directory.
    pub dir: PathBuf,
    /// The free space there.
    pub free: Bytes,
    /// The space that the journal may still grow by.
    pub needed: Bytes,
}

/// What is free for a journal in `dir`, which may not be there yet.
pub(super) fn journal(root: &Root, dir: PathBuf, max: Bytes) -> Option<Journal> {
    let place = root.path(&dir);
    let there = place.ancestors().find(|above| above.is_dir())?;
    let seen = rustix::fs::statvfs(there).ok()?;
    let free = Bytes::new(seen.f_bavail.saturating_mul(seen.f_frsize));
    let sizes =
        fs::read_dir(&place).into_iter().flatten().flatten().filter_map(|entry| entry.metadata().ok());
    let used = Bytes::sum(sizes.map(|meta| Bytes::new(meta.len())));
    Some(Journal { dir, free, needed: max.saturating_sub(used) })
}

impl HostFacts {
    /// The kernel's version: major and minor.
    #[must_use]
    pub fn kernel(&self) -> Option<(u32, u32)> {
        let mut parts = self.release.as_deref()?.split(['.', '-', '+']);
        Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
    }

    /// Swap areas that reach a disk.
    pub fn disk_swaps(&self) -> impl Iterator<Item = &Swap> {
        self.swaps.iter().filter(|swap| swap.kind != SwapKind::Zram)
    }
}

/// Looks at the host.
pub(super) fn look(root: &Root) -> HostFacts {
    let meminfo = text(&root.proc("meminfo")).unwrap_or_default();
    let vm = |name: &str| number(&root.proc(format!("sys/vm/{name}")));
    let pool = || {
        let pages: u64 =
            meminfo.lines().find_map(|line| line.strip_prefix("HugePages_Total:"))?.trim().parse().ok()?;
        Some(kib(&meminfo, "Hugepagesize")?.mul_div(pages, 1))
    };
    let arc = reclaimable_arc(root);
    HostFacts {
        release: text(&root.proc("sys/kernel/osrelease")).ok().map(|text| text.trim().to_owned()),
        memory: Meminfo::read(root).map(|memory| memory.with_arc(arc)).into(),
        arc,
        huge_pool: pool().unwrap_or(Bytes::ZERO),
        commit: kib(&meminfo, "CommitLimit").zip(kib(&meminfo, "Committed_AS")),
        overcommit: vm("overcommit_memory"),
        swappiness: vm("swappiness"),
        min_free: vm("min_free_kbytes").map(Bytes::from_kib),
        swaps: swaps(root),
        zswap: text(&root.sys("module/zswap/parameters/enabled")).is_ok_and(|text| text.trim() == "Y"),
        thp: thp(root),
        torn: Meminfo::read(root).ok().and_then(|meminfo| meminfo.torn()),
        cannot_split: cannot_split(),
        zram: root.sys("class/zram-control").is_dir(),
        ksm: settings::read(root).ok(),
        ksm_saves: ksm_saves(root),
        pressure: pressure::read(root).map(drop).into(),
        hides_processes: hides_processes(root),
        journal: None,
    }
}

fn ksm_saves(root: &Root) -> Option<Bytes> {
    let pages = KsmReader::open(root).ok()?.read(&mut Scratch::default()).ok()?;
    Some(pages.saved_in_all(page_size()))
}

fn cannot_split() -> Option<String> {
    match can_split() {
        Ok(()) => None,
        Err(SplitError::NotPermitted) if !rustix::process::geteuid().is_root() => None,
        Err(error) => Some(error.to_string()),
    }
}

/// One line `NAME TYPE SIZE USED PRIORITY` per area after the header, with sizes in KiB.
fn swaps(root: &Root) -> Vec<Swap> {
    let text = text(&root.proc("swaps")).unwrap_or_default();
    let swap = |line: &str| {
        let mut fields = line.split_ascii_whitespace();
        let (name, _type) = (fields.next()?.replace("\\040", " "), fields.next()?);
        let mut size = || fields.next()?.parse().ok().map(Bytes::from_kib);
        Some(Swap { kind: kind(root, &name), size: size()?, used: size()?, name })
    };
    text.lines().skip(1).filter_map(swap).collect()
}

fn kind(root: &Root, name: &str) -> SwapKind {
    let Some(device) = name.strip_prefix("/dev/").filter(|device| device.starts_with("zram")) else {
        return SwapKind::Disk;
    };
    match text(&root.sys(format!("block/{device}/backing_dev"))) {
        Ok(disk) if !matches!(disk.trim(), "none" | "") => SwapKind::ZramWithDisk,
        _ => SwapKind::Zram,
    }
}

fn thp(root: &Root) -> Option<Thp> {
    let dir = root.sys("kernel/mm/transparent_hugepage");
    Some(Thp {
        enabled: chosen(&dir.join("enabled"))?,
        defrag: chosen(&dir.join("defrag")).unwrap_or_default(),
    })
}

/// Whether /proc is mounted with `hidepid=1` or more.
fn hides_processes(root: &Root) -> bool {
    let mounts = text(&root.proc("self/mountinfo")).unwrap_or_default();
    let proc = mounts.lines().rfind(|line| {
        line.split(' ').nth(4).map(Path::new) == Some(Path::new("/proc")) && line.contains(" - proc ")
    });
    let option =
        proc.and_then(|line| line.split([' ', ',']).find_map(|option| option.strip_prefix("hidepid=")));
    option.is_some_and(|how| !matches!(how, "0" | "off"))
}
