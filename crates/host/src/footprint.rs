//! What a guest costs the host now.
//!
//! **Terms.** *Resident* is what the kernel counts for the guest's process; *merged* is what KSM saves of it
//! ([`KsmPages`]); *program* is what is resident of the VMM's program and libraries ([`crate::Mappings`]); *blocks* are what
//! the shared memory files of the guest hold ([`SharedRam`]).
//!
//! **Rule.**
//!
//! ```text
//! footprint = resident − program − merged + (blocks − shared, where the files hold more than the process has mapped)
//! ```
//!
//! Where guest RAM is a shared memory file, the process may have mapped only a part of what the file holds (another
//! process, a vhost-user device or an earlier life of the mapping, filled the rest; hugetlbfs pages are never counted as
//! resident). The file's blocks are the truth, and each file is counted once; `shared` is without the program here.
//!
//! The program is page cache, the same for all guests: counted with each, 27 MiB of QEMU, it made a host of 13 guests look
//! 340 MiB fuller than it was. It is read with the mappings, now and then.

use memtide_model::{Bytes, PageSize};

use crate::ksm::{self, KsmPages};
use crate::process::{Statm, gone};
use crate::{HostError, ParseError, Root, Scratch, SharedRam, Source, page_size, start_time};

/// What a guest's process costs the host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Footprint {
    /// What the kernel counts as resident, and of it what is shared.
    pub statm: Statm,
    /// What of that is resident of the VMM's program and libraries.
    pub program: Bytes,
    /// What KSM saves of it.
    pub merged: Bytes,
    /// What the guest's shared memory files hold.
    pub blocks: Bytes,
}

impl Footprint {
    /// The cost in one number.
    #[must_use]
    pub fn total(&self) -> Bytes {
        let program = self.program.min(self.statm.shared);
        let unmapped = self.blocks.saturating_sub(self.statm.shared.saturating_sub(program));
        let own = self.statm.resident.saturating_sub(program).saturating_sub(self.merged);
        own.saturating_add(unmapped)
    }
}

/// Reads the footprint of one process every tick, through files that stay open.
#[derive(Debug)]
pub struct ProcessReader {
    pid: u32,
    start_time: u64,
    page: PageSize,
    statm: Source,
    merging: Option<Source>,
    ram: SharedRam,
    program: Bytes,
}

impl ProcessReader {
    /// Opens the files of a process.
    ///
    /// # Errors
    /// [`HostError::Gone`] where there is no such process; else where its files cannot be read.
    pub fn open(root: &Root, pid: u32) -> Result<Self, HostError> {
        let open = || {
            let statm = Source::open(root.process(pid, "statm"))?;
            let merging = ksm::open_merging(root, pid)?;
            Ok(Self {
                pid,
                start_time: start_time(root, pid)?,
                page: page_size(),
                statm,
                merging,
                ram: SharedRam::default(),
                program: Bytes::ZERO,
            })
        };
        open().map_err(|error| gone(pid, error))
    }

    /// The process.
    #[must_use]
    pub const fn pid(&self) -> u32 {
        self.pid
    }

    /// When it started, in clock ticks after the boot.
    #[must_use]
    pub const fn start_time(&self) -> u64 {
        self.start_time
    }

    /// From now on counts these files as guest RAM; found anew as seldom as mappings are.
    pub fn set_shared_ram(&mut self, ram: SharedRam) {
        self.ram = ram;
    }

    /// From now on leaves out so much of the VMM's program and libraries; read anew with the mappings.
    pub const fn set_program(&mut self, resident: Bytes) {
        self.program = resident;
    }

    /// What the process costs now. `ksm` is the global state of the same tick.
    ///
    /// # Errors
    /// [`HostError::Gone`] where the process has ended, even if another one has got its number.
    pub fn footprint(&self, ksm: KsmPages, scratch: &mut Scratch) -> Result<Footprint, HostError> {
        let read = |scratch: &mut Scratch| {
            let statm = self.statm.parse_line(scratch, |text| self.parse(text))?;
            let merged = ksm::saved(self.merging.as_ref(), ksm, scratch)?;
            Ok(Footprint { statm, program: self.program, merged, blocks: self.ram.blocks() })
        };
        let footprint: Footprint = read(scratch).map_err(|error| gone(self.pid, error))?;
        // A process that has ended and was not waited for yet has no memory, and `statm` is all zeros.
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
    use std::process::{Command, Stdio};

    const fn footprint(resident: u64, shared: u64, merged: u64, blocks: u64) -> Footprint {
        Footprint {
            statm: Statm {
                mapped: Bytes::ZERO,
                resident: Bytes::from_mib(resident),
                shared: Bytes::from_mib(shared),
            },
            program: Bytes::from_mib(25),
            merged: Bytes::from_mib(merged),
            blocks: Bytes::from_mib(blocks),
        }
    }

    #[test]
    fn merged_memory_and_programs_are_no_cost_and_blocks_count_once() {
        // Anonymous RAM.
        assert_eq!(footprint(300, 25, 0, 0).total(), Bytes::from_mib(275));
        assert_eq!(footprint(300, 25, 100, 0).total(), Bytes::from_mib(175));
        // 200 MiB of a file mapped, which holds just these: counted once.
        assert_eq!(footprint(260, 225, 0, 200).total(), Bytes::from_mib(235));
        // The file holds 400 MiB, of which this process has mapped 200: 35 of its own and the file.
        assert_eq!(footprint(260, 225, 0, 400).total(), Bytes::from_mib(35 + 400));
        // The program is no more than what is shared: it may have been read long ago.
        assert_eq!(footprint(300, 5, 0, 0).total(), Bytes::from_mib(295));
        // Counters that do not fit together never go below nothing.
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
        std::fs::write(process.join("ksm_merging_pages"), "100\n").unwrap();
        let reader = ProcessReader::open(&Root::at(dir.path()), 42).unwrap();
        assert_eq!((reader.pid(), reader.start_time()), (42, 7));
        let ksm = KsmPages { shared: Pages::new(1), sharing: Pages::new(3) };
        let seen = reader.footprint(ksm, &mut Scratch::default()).unwrap();
        assert_eq!(seen.merged, Pages::new(75).to_bytes(page));
        assert_eq!(seen.total(), Pages::new(425).to_bytes(page));
    }

    #[test]
    fn an_ended_process_is_gone() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let reader = ProcessReader::open(&Root::system(), child.id()).unwrap();
        let mut scratch = Scratch::default();
        assert!(reader.footprint(KsmPages::default(), &mut scratch).unwrap().total() > Bytes::ZERO);
        drop(child.stdin.take());
        child.wait().unwrap();
        let after = reader.footprint(KsmPages::default(), &mut scratch);
        assert!(matches!(after, Err(HostError::Gone { .. })), "{after:?}");
    }
}
