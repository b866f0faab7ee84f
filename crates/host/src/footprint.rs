//! The cost of a guest to the host.
//!
//! **Terms.** *Resident* is the memory that the kernel counts for the guest's process. *Merged* is the part of it that KSM saves
//! ([`KsmPages`]). *Program* is the resident part of the VMM's program and libraries ([`crate::Mappings`]). *Blocks* is the memory that the
//! guest's shared memory files hold ([`SharedRam`]).
//!
//! **Rule.**
//!
//! ```text
//! footprint = resident − program − for others − merged + huge
//!           + (blocks − shared, if the files hold more than the process has mapped)
//! ```
//!
//! If guest RAM is a shared memory file, the process may have mapped only a part of the file's memory. Another process, a vhost-user device
//! or an earlier mapping may have filled the rest, and the kernel never counts hugetlbfs pages as resident. The file's blocks give the true
//! size, and each file counts once. Here, `shared` excludes the program and what counts for others.
//!
//! The program is page cache that all guests share. QEMU's program takes 27 MiB: counted once for each guest, it made a host with 13 guests
//! look 340 MiB fuller than it was. It is read from time to time, together with the mappings.
//!
//! *Huge* is guest RAM in private mappings of hugetlbfs, which neither the kernel's count nor a file's blocks has. *For others* is the memory of
//! files that several guests have (ivshmem, clones of a template), if it counts for another one of them.

use std::collections::BTreeMap;

use memtide_model::{Bytes, PageSize, Span};

use crate::ksm::{KsmPages, pages};
use crate::process::{Statm, gone, parse_stat};
use crate::{
    FileId, FilePart, HostError, ParseError, Root, Scratch, SharedRam, Source, page_size, start_time,
};

/// The cost of a guest's process to the host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Footprint {
    /// Resident memory as the kernel counts it, and the shared part of it.
    pub statm: Statm,
    /// The resident part of the VMM's program and libraries.
    pub program: Bytes,
    /// The resident part of files that count for another guest.
    pub for_others: FilePart,
    /// Resident guest RAM in private mappings of hugetlbfs, which `statm` leaves out.
    pub huge: Bytes,
    /// The part of the footprint in pools of huge pages.
    pub in_pool: Bytes,
    /// The part of the resident memory that KSM saves.
    pub merged: Bytes,
    /// The memory that the guest's shared memory files hold.
    pub blocks: Bytes,
    /// The CPU time that the process has used; `None` if its name makes `stat` unreadable.
    pub cpu_time: Option<Span>,
}

impl Footprint {
    /// The cost in one number.
    #[must_use]
    pub fn total(&self) -> Bytes {
        let others = self.program.saturating_add(self.for_others.all()).min(self.statm.shared);
        let unmapped = self.blocks.saturating_sub(self.statm.shared.saturating_sub(others));
        let own = self.statm.resident.saturating_sub(others).saturating_sub(self.merged);
        assert!(own <= self.statm.resident && unmapped <= self.blocks, "a cost has a source");
        Bytes::sum([own, unmapped, self.huge])
    }
}

/// Reads the footprint of one process every tick, through files that stay open.
#[derive(Debug)]
pub struct ProcessReader {
    pid: u32,
    start_time: u64,
    page: PageSize,
    statm: Source,
    stat: Source,
    merging: Option<Source>,
    ram: SharedRam,
    program: Bytes,
    huge: Bytes,
    for_others: BTreeMap<FileId, FilePart>,
}

impl ProcessReader {
    /// Opens the files of a process.
    ///
    /// # Errors
    /// [`HostError::Gone`] if there is no such process; another error if its files cannot be read.
    pub fn open(root: &Root, pid: u32) -> Result<Self, HostError> {
        let open = || {
            let statm = Source::open(root.process(pid, "statm"))?;
            let merging = pages::open_merging(root, pid)?;
            Ok(Self {
                pid,
                start_time: start_time(root, pid)?,
                page: page_size(),
                statm,
                stat: Source::open(root.process(pid, "stat"))?,
                merging,
                ram: SharedRam::default(),
                program: Bytes::ZERO,
                huge: Bytes::ZERO,
                for_others: BTreeMap::new(),
            })
        };
        open().map_err(|error| gone(pid, error))
    }

    /// The process.
    #[must_use]
    pub const fn pid(&self) -> u32 {
        self.pid
    }

    /// Its start time, in clock ticks after boot.
    #[must_use]
    pub const fn start_time(&self) -> u64 {
        self.start_time
    }

    /// Counts these files as guest RAM for all further readings. Find them again as rarely as you read the mappings.
    pub fn set_shared_ram(&mut self, ram: SharedRam) {
        self.ram = ram;
    }

    /// The files that count as guest RAM.
    #[must_use]
    pub const fn shared_ram(&self) -> &SharedRam {
        &self.ram
    }

    /// Leaves this much of the VMM's program and libraries out of all further footprints. Read it again with the mappings.
    pub const fn set_program(&mut self, resident: Bytes) {
        self.program = resident;
    }

    /// Counts this much guest RAM in private mappings of hugetlbfs. Read it again with the mappings.
    pub const fn set_huge(&mut self, resident: Bytes) {
        self.huge = resident;
    }

    /// Leaves these files out of all further footprints, each with what this process has of it: they count for another guest.
    /// Returns whether that has changed.
    pub fn set_for_others(&mut self, files: BTreeMap<FileId, FilePart>) -> bool {
        let has_changed = self.for_others != files;
        self.for_others = files;
        has_changed
    }

    /// The cost of the process. `ksm` is the global state of the same tick.
    ///
    /// # Errors
    /// [`HostError::Gone`] if the process has ended, even if another process has taken its number.
    pub fn footprint(&self, ksm: KsmPages, scratch: &mut Scratch) -> Result<Footprint, HostError> {
        let read = |scratch: &mut Scratch| {
            let statm = self.statm.parse_line(scratch, |text| self.parse(text))?;
            let merged = pages::saved(self.merging.as_ref(), ksm, scratch)?;
            let stat = self.stat.parse_line(scratch, parse_stat).ok();
            let blocks = self.ram.blocks_beside(&self.for_others);
            let mut for_others = FilePart::default();
            for part in self.for_others.values() {
                for_others.ram = for_others.ram.saturating_add(part.ram);
                for_others.beside_ram = for_others.beside_ram.saturating_add(part.beside_ram);
            }
            Ok(Footprint {
                statm,
                program: self.program,
                for_others,
                huge: self.huge,
                in_pool: blocks.huge.saturating_add(self.huge),
                merged,
                blocks: blocks.all,
                cpu_time: stat.map(|stat| stat.cpu_time()),
            })
        };
        let footprint: Footprint = read(scratch).map_err(|error| gone(self.pid, error))?;
        // A zombie (ended, but not yet waited for) has no memory, and its `statm` is all zeros.
        if footprint.statm.resident.is_zero() {
            return Err(HostError::Gone { pid: self.pid });
        }
        Ok(footprint)
    }

    fn parse(&self, text: &str) -> Result<Statm, ParseError> {
        Statm::parse(text, self.page)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use memtide_model::Pages;
    use memtide_testing::Mortal;
    use std::process::{Command, Stdio};

    fn footprint(resident: u64, shared: u64, merged: u64, blocks: u64) -> Footprint {
        Footprint {
            statm: Statm {
                mapped: Bytes::ZERO,
                resident: Bytes::from_mib(resident),
                shared: Bytes::from_mib(shared),
            },
            program: Bytes::from_mib(25),
            for_others: FilePart::default(),
            huge: Bytes::ZERO,
            in_pool: Bytes::ZERO,
            merged: Bytes::from_mib(merged),
            blocks: Bytes::from_mib(blocks),
            cpu_time: None,
        }
    }

    #[test]
    fn merged_memory_and_programs_are_no_cost_and_blocks_count_once() {
        // Anonymous RAM.
        assert_eq!(footprint(300, 25, 0, 0).total(), Bytes::from_mib(275));
        assert_eq!(footprint(300, 25, 100, 0).total(), Bytes::from_mib(175));
        // 200 MiB of a file are mapped, and the file holds exactly these: they count once.
        assert_eq!(footprint(260, 225, 0, 200).total(), Bytes::from_mib(235));
        // The file holds 400 MiB, and this process has mapped 200 of them: 35 MiB of its own, plus the file.
        assert_eq!(footprint(260, 225, 0, 400).total(), Bytes::from_mib(35 + 400));
        // The program never exceeds the shared memory: its value may be old.
        assert_eq!(footprint(300, 5, 0, 0).total(), Bytes::from_mib(295));
        // 100 MiB of what is mapped count for another guest.
        let for_others = FilePart { ram: Bytes::from_mib(70), beside_ram: Bytes::from_mib(30) };
        let shared = Footprint { for_others, ..footprint(260, 225, 0, 0) };
        assert_eq!(shared.total(), Bytes::from_mib(135));
        let huge = Footprint { huge: Bytes::from_mib(512), ..footprint(60, 25, 0, 0) };
        assert_eq!(huge.total(), Bytes::from_mib(35 + 512));
        // Inconsistent counters never go below zero.
        assert_eq!(footprint(10, 5, 100, 0).total(), Bytes::ZERO);
    }

    #[test]
    fn merged_pages_are_read_from_a_captured_tree() {
        let dir = tempfile::tempdir().unwrap();
        let process = dir.path().join("proc/42");
        std::fs::create_dir_all(&process).unwrap();
        let page = page_size();
        std::fs::write(process.join("statm"), "1000 500 50 1 0 9 0\n").unwrap();
        std::fs::write(process.join("stat"), format!("42 (a b) S{}\n", " 7".repeat(40))).unwrap();
        let a_second = rustix::param::clock_ticks_per_second();
        std::fs::write(process.join("ksm_merging_pages"), "100\n").unwrap();
        let reader = ProcessReader::open(&Root::at(dir.path()), 42).unwrap();
        assert_eq!((reader.pid(), reader.start_time()), (42, 7));
        let ksm = KsmPages { shared: Pages::new(1), sharing: Pages::new(3) };
        let seen = reader.footprint(ksm, &mut Scratch::default()).unwrap();
        assert_eq!(seen.merged, Pages::new(75).to_bytes(page));
        assert_eq!(seen.total(), Pages::new(425).to_bytes(page));
        assert_eq!(seen.cpu_time, Some(Span::from_millis(14 * 1_000 / a_second)));
        // A process may give itself any name.
        std::fs::write(process.join("stat"), b"42 (\xff) S\n").unwrap();
        let seen = reader.footprint(ksm, &mut Scratch::default()).unwrap();
        assert_eq!((seen.total(), seen.cpu_time), (Pages::new(425).to_bytes(page), None));
    }

    #[test]
    fn an_ended_process_is_gone() {
        let child = Mortal::start(Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()));
        let reader = ProcessReader::open(&Root::system(), child.id()).unwrap();
        let mut scratch = Scratch::default();
        assert!(reader.footprint(KsmPages::default(), &mut scratch).unwrap().total() > Bytes::ZERO);
        drop(child);
        let after = reader.footprint(KsmPages::default(), &mut scratch);
        assert!(matches!(after, Err(HostError::Gone { .. })), "{after:?}");
    }
}
