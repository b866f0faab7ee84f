//! The processes whose memory KSM may merge, and how much of it.
//!
//! **Problem.** The kernel says which processes let KSM merge something, not how much. A QEMU started with `mem-merge=off` marks its video
//! memory and firmware alone, and has gigabytes that KSM must leave alone.
//!
//! Merged pages that a process writes to come apart, and the kernel's counters do not change before its next pass.
//!
//! **Rule.**
//! - A process counts if the kernel says that KSM may merge some of its memory (`ksm_mergeable` in `/proc/PID/ksm_stat`, since Linux 6.14).
//!   Before, guests count, and processes that KSM has scanned.
//! - A guest whose VMM says that KSM may not merge its memory counts nothing: it does not share, and what is left of it is not worth a burst.
//! - Otherwise a process's *mergeable* memory is its anonymous memory in mappings that are marked for KSM (`mg` in `/proc/PID/smaps`), or all
//!   of it if the whole process is (`ksm_merge_any`). Reading `smaps` walks through all pages of a process. So it is read anew only if its
//!   anonymous memory has changed much, if its VMM says something else, if merged pages may have come apart, or after a pause that doubles; it
//!   takes at most half a percent of a processor for each, and one percent for all: guests come first, and each look begins where the last one
//!   stopped. In between, the same part of the anonymous memory counts. Until it is read, all of it counts if the VMM lets KSM merge, and nothing
//!   otherwise. If it cannot be read, all of it counts.
//! - What has *come apart* is what the kernel counts as merged (`ksm_merging_pages`) less what still is (`KSM` in `smaps`, since Linux 6.7).
//!   It is as old as that reading. Each page that comes apart is a page fault of its process (`minflt` in `stat`), so a process without faults is
//!   left alone. One with faults of other kinds is read less and less often. Faults for a process that others make (before Linux 6.4, the kernel's
//!   workers of `vhost`) are not among them: so any process is read again after ten minutes.

use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::time::{Duration, Instant};

use memtide_model::{Bytes, KsmProcess, KsmSparse, Moment, Pages, Scanned};

use super::part::{Part, Signs};
use super::settings::optional;
use crate::source::parse_once;
use crate::{Mapping, ProcFs, Root, Statm, page_size, statm};

/// Programs that set KSM: ksmtuned of qemu-kvm, oVirt's MOM, KubeVirt.
const OTHERS: [&str; 3] = ["ksmtuned", "momd", "virt-handler"];
/// The longest time that a look spends on mappings, unless a single one takes longer. There is a look each 5 s.
const MAPPINGS_FOR: Duration = Duration::from_millis(50);

/// A guest's process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KsmGuest {
    /// The process.
    pub pid: u32,
    /// Whether its VMM lets KSM merge the guest's memory; `None` if it does not tell.
    pub merges: Option<bool>,
}

/// What a look at the processes has found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Looked {
    /// The processes whose memory KSM may merge.
    pub(super) processes: Vec<KsmProcess>,
    /// The one with the largest holes.
    pub(super) sparsest: Option<KsmSparse>,
    /// Memory of processes that a pass has seen and that have left, since the first look.
    pub(super) left: Bytes,
}

/// What a search has found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Searched {
    /// The kernel's thread.
    pub(super) ksmd: Option<u32>,
    /// Programs that set KSM.
    pub(super) others: Vec<String>,
}

/// Looks at processes.
#[derive(Debug)]
pub(super) struct Processes {
    root: Root,
    proc_fs: ProcFs,
    parts: BTreeMap<u32, Part>,
    known: BTreeMap<u32, Known>,
    /// Whether the last look was at all processes.
    looked_at_all: Option<bool>,
    left_so_far: Bytes,
    /// How long a look may read mappings, and what is left of it.
    mappings_for: Duration,
    left: Duration,
    /// Where the next look begins: the first guest, and the first other process, whose mappings had to wait.
    first_guest: Option<u32>,
    first_other: Option<u32>,
}

/// A process as the passes have met it.
#[derive(Clone, Copy, Debug)]
struct Known {
    /// Its start in clock ticks after the boot: another process may get its number. `None` if it cannot be read.
    start: Option<u64>,
    scanned: Scanned,
}

impl Processes {
    pub(super) fn new(root: &Root) -> Self {
        Self {
            root: root.clone(),
            proc_fs: ProcFs::new(&root.proc("")),
            parts: BTreeMap::new(),
            known: BTreeMap::new(),
            looked_at_all: None,
            left_so_far: Bytes::ZERO,
            mappings_for: MAPPINGS_FOR,
            left: MAPPINGS_FOR,
            first_guest: None,
            first_other: None,
        }
    }

    /// Looks at all processes, or only at guests. Takes milliseconds, and with many processes much longer.
    /// `passes` are those that are complete.
    ///
    /// # Errors
    /// If the processes cannot be listed.
    pub(super) fn look(
        &mut self,
        guests: &[KsmGuest],
        all: bool,
        passes: u64,
        now: Moment,
    ) -> io::Result<Looked> {
        let guests: BTreeMap<u32, KsmGuest> = guests.iter().map(|guest| (guest.pid, *guest)).collect();
        let mut others = if all { self.proc_fs.pids()? } else { Vec::new() };
        others.retain(|pid| !guests.contains_key(pid));
        let guests_first = from(guests.keys().copied().collect(), self.first_guest.take());
        let pids = guests_first.into_iter().chain(from(others, self.first_other.take()));
        let mut looked = Looked::default();
        self.left = self.mappings_for;
        let (mut parts, mut starts) = (BTreeMap::new(), BTreeMap::new());
        for pid in pids {
            let guest = guests.get(&pid);
            let Some(ksm_stat) = self.if_mergeable(pid, guest) else { continue };
            let stat = self.proc_fs.stat(pid);
            starts.insert(pid, stat.map(|stat| stat.start));
            if self.known.get(&pid).is_some_and(|known| known.start != starts[&pid]) {
                self.parts.remove(&pid);
            }
            let faults = stat.map(|stat| stat.minor_faults);
            let Some((process, statm)) = self.weigh((pid, guest), (ksm_stat, faults), &mut parts, now) else {
                continue;
            };
            let holes = statm.mapped.saturating_sub(statm.resident);
            if looked.sparsest.as_ref().is_none_or(|most| most.holes < holes) {
                looked.sparsest = Some(KsmSparse { pid, name: process.name.clone(), holes });
            }
            looked.processes.push(process);
        }
        looked.processes.sort_unstable_by_key(|process| process.pid);
        self.parts = parts;
        // Those that are no longer looked at have not left.
        if self.looked_at_all.replace(all) != Some(all) {
            self.known.clear();
        }
        let left = self.note(&looked.processes, &starts, passes);
        self.left_so_far = self.left_so_far.saturating_add(left);
        looked.left = self.left_so_far;
        Ok(looked)
    }

    /// Notes which processes a pass has seen. Returns the memory of those that have left.
    fn note(&mut self, processes: &[KsmProcess], starts: &BTreeMap<u32, Option<u64>>, passes: u64) -> Bytes {
        let mut before = std::mem::take(&mut self.known);
        for process in processes {
            let start = starts.get(&process.pid).copied().flatten();
            let is_same = before.get(&process.pid).is_some_and(|known| known.start == start);
            let known = if is_same { before.remove(&process.pid) } else { None };
            let scanned =
                known.map_or(Scanned::new(passes), |known| known.scanned.later(passes, process.mergeable));
            self.known.insert(process.pid, Known { start, scanned });
        }
        Bytes::sum(before.values().map(|known| known.scanned.bytes()))
    }

    /// Looks for ksmd, and for root's programs that set KSM: anybody may give a process such a name.
    pub(super) fn search(&self) -> Searched {
        let pids = self.proc_fs.pids().unwrap_or_default();
        let mut found = Searched::default();
        for (pid, comm) in pids.iter().filter_map(|pid| Some((*pid, self.proc_fs.comm(*pid)?))) {
            let is_roots =
                || std::fs::metadata(self.root.process(pid, "comm")).is_ok_and(|file| file.uid() == 0);
            if comm == "ksmd" && found.ksmd.is_none() {
                found.ksmd = Some(pid);
            }
            if OTHERS.contains(&comm.as_str()) && is_roots() {
                found.others.push(comm);
            }
        }
        found.others.sort();
        found.others.dedup();
        found
    }

    /// What the kernel tells of a process, if KSM may merge some of its memory. Processes that may not be read do not count.
    fn if_mergeable(&self, pid: u32, guest: Option<&KsmGuest>) -> Option<KsmStat> {
        let stat = parse_once(self.root.process(pid, "ksm_stat"), |text| Ok(KsmStat::of(text)));
        // Before Linux 6.1, there is no such file.
        let stat = optional(stat).ok()?.unwrap_or_default();
        let is_sharing_guest = guest.is_some_and(|guest| guest.merges != Some(false));
        stat.allows.unwrap_or(is_sharing_guest || stat.was_scanned).then_some(stat)
    }

    /// Such a process and its memory.
    fn weigh(
        &mut self,
        (pid, guest): (u32, Option<&KsmGuest>),
        (stat, faults): (KsmStat, Option<u64>),
        parts: &mut BTreeMap<u32, Part>,
        now: Moment,
    ) -> Option<(KsmProcess, Statm)> {
        let merges = guest.and_then(|guest| guest.merges);
        let statm = statm(&self.root, pid).ok()?;
        let anonymous = statm.resident.saturating_sub(statm.shared);
        let bytes = |pages: Option<u64>| pages.map(|pages| Pages::new(pages).to_bytes(page_size()));
        let merging = bytes(stat.merging).unwrap_or_default();
        let is_whole = stat.merges_any == Some(true);
        let signs = Signs { merges, is_whole, anonymous, merging, faults };
        let is_read = !merging.is_zero() || (merges != Some(false) && !is_whole);
        let part = if is_read { self.part(pid, signs, now) } else { None };
        if is_read && self.left.is_zero() && part.is_none_or(|part| part.read_at != now) {
            let first = if guest.is_some() { &mut self.first_guest } else { &mut self.first_other };
            first.get_or_insert(pid);
        }
        parts.extend(part.map(|part| (pid, part)));
        let mergeable = match (merges, part) {
            (Some(false), _) => Bytes::ZERO,
            _ if is_whole => anonymous,
            (_, Some(part)) => part.of(anonymous),
            (Some(true), None) => anonymous,
            (None, None) => Bytes::ZERO,
        };
        let process = KsmProcess {
            pid,
            name: self.proc_fs.comm(pid).unwrap_or_default(),
            mergeable,
            merged: bytes(stat.merging),
            zeros: bytes(stat.zeros),
            profit: stat.profit,
            apart: part.and_then(|part| part.apart),
        };
        Some((process, statm))
    }

    /// The mergeable part of a process, read anew if it is due and there is time; `None` if it was never read.
    fn part(&mut self, pid: u32, signs: Signs, now: Moment) -> Option<Part> {
        let before = match self.parts.get(&pid) {
            Some(part) => Some(part.at(signs)),
            None => signs.is_whole.then(|| Part::unread(signs, now)),
        };
        if self.left.is_zero() || before.is_some_and(|part| !part.is_due(signs, now)) {
            return before;
        }
        let begun = Instant::now();
        let mappings = Mapping::read_all(&self.root, pid);
        let took = begun.elapsed();
        self.left = self.left.saturating_sub(took);
        Some(Part::read(&mappings.unwrap_or_default(), before, signs, (now, took)))
    }
}

/// These processes, beginning with `first`, or with the next one if it has left.
fn from(mut pids: Vec<u32>, first: Option<u32>) -> Vec<u32> {
    let at = pids.partition_point(|pid| first.is_some_and(|first| *pid < first));
    pids.rotate_left(at);
    pids
}

/// `/proc/PID/ksm_stat`. Older kernels tell less.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct KsmStat {
    /// Whether KSM may merge some of its memory (Linux 6.14).
    allows: Option<bool>,
    /// Whether it may merge all of it.
    merges_any: Option<bool>,
    /// KSM has looked at some of it.
    was_scanned: bool,
    merging: Option<u64>,
    zeros: Option<u64>,
    profit: Option<i64>,
}

impl KsmStat {
    fn of(text: &str) -> Self {
        let value = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name))?;
            Some(line.trim_start_matches(':').trim())
        };
        let number = |name: &str| value(name)?.parse::<u64>().ok();
        Self {
            allows: value("ksm_mergeable").map(|says| says == "yes"),
            merges_any: value("ksm_merge_any").map(|says| says == "yes"),
            was_scanned: number("ksm_rmap_items").is_some_and(|items| items > 0),
            merging: number("ksm_merging_pages"),
            zeros: number("ksm_zero_pages"),
            profit: value("ksm_process_profit").and_then(|text| text.parse().ok()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    const MARKED: &str = "ksm_rmap_items 0\nksm_merge_any: no\nksm_mergeable: yes\n";

    /// A process of 64 MiB, of which 48 MiB are guest memory and 16 MiB video memory, each marked or not.
    fn vmm(root: &Root, pid: u32, (ram, video): (bool, bool)) {
        fs::create_dir_all(root.process(pid, "")).unwrap();
        fs::write(root.process(pid, "comm"), "qemu\n").unwrap();
        pages(root, pid, 64);
        fs::write(root.process(pid, "ksm_stat"), MARKED).unwrap();
        let mapping = |at: u64, mib: u64, is_marked: bool| {
            let flags = if is_marked { "rd wr mg" } else { "rd wr" };
            let end = at + (mib << 20);
            format!("{at:x}-{end:x} rw-p 00000000 00:00 0 \nAnonymous: {} kB\nVmFlags: {flags} \n", mib << 10)
        };
        let text = mapping(1 << 30, 48, ram) + &mapping(2 << 30, 16, video);
        fs::write(root.process(pid, "smaps"), text).unwrap();
    }

    /// Its anonymous memory, in MiB.
    fn pages(root: &Root, pid: u32, mib: u64) {
        let pages = (mib << 20) / page_size().bytes().get();
        fs::write(root.process(pid, "statm"), format!("{} {pages} 0 0 0 0 0\n", pages * 2)).unwrap();
    }

    fn at(secs: u64) -> Moment {
        Moment::from_millis(secs * 1_000)
    }

    fn mergeable(looked: &Looked) -> Vec<Bytes> {
        looked.processes.iter().map(|process| process.mergeable).collect()
    }

    #[test]
    fn only_memory_that_may_be_merged_counts() {
        let directory = tempfile::tempdir().unwrap();
        let root = Root::at(directory.path());
        vmm(&root, 7, (true, true));
        vmm(&root, 8, (false, true));
        vmm(&root, 9, (false, true));
        vmm(&root, 10, (false, false));
        fs::write(root.process(10, "ksm_stat"), MARKED.replace("any: no", "any: yes")).unwrap();
        let guests = [KsmGuest { pid: 7, merges: Some(true) }, KsmGuest { pid: 9, merges: Some(false) }];
        let looked = Processes::new(&root).look(&guests, true, 0, at(0)).unwrap();
        // All of it; a VMM of which nobody tells shares its video memory; a guest that does not share; a whole process.
        let mib = Bytes::from_mib;
        assert_eq!(mergeable(&looked), [mib(64), mib(16), mib(0), mib(64)]);
    }

    #[test]
    fn mappings_are_read_anew_where_something_has_changed() {
        let directory = tempfile::tempdir().unwrap();
        let root = Root::at(directory.path());
        let mut processes = Processes::new(&root);
        let mut look = |merges: bool, secs: u64| {
            let looked =
                processes.look(&[KsmGuest { pid: 7, merges: Some(merges) }], false, 0, at(secs)).unwrap();
            looked.processes[0].mergeable
        };
        let mib = Bytes::from_mib;
        vmm(&root, 7, (false, true));
        assert_eq!(look(true, 0), mib(16));
        vmm(&root, 7, (true, true));
        assert_eq!(look(true, 4), mib(16), "it was just read");
        pages(&root, 7, 128);
        assert_eq!(look(true, 4), mib(32), "the same part of more");
        assert_eq!(look(true, 5), mib(64), "what is marked, read after the first pause");
        vmm(&root, 7, (false, true));
        assert_eq!(look(true, 9), mib(32), "half of less, until it is read again");
        assert_eq!(look(false, 9), mib(0), "it shares no more");
        assert_eq!(look(true, 10), mib(16), "it shares again: its mappings are read at once");
    }

    #[test]
    fn what_comes_apart_is_seen_before_the_kernel_counts_it() {
        let directory = tempfile::tempdir().unwrap();
        let root = Root::at(directory.path());
        let mut processes = Processes::new(&root);
        let mut look = |merging: u64, still: Option<u64>, secs: u64| {
            vmm(&root, 7, (true, true));
            let pages = merging * 1_024 / (page_size().bytes().get() >> 10);
            fs::write(root.process(7, "ksm_stat"), format!("ksm_merging_pages {pages}\n{MARKED}")).unwrap();
            if let Some(still) = still {
                let smaps = fs::read_to_string(root.process(7, "smaps")).unwrap();
                let of = |kib: u64| format!("KSM: {kib} kB\nVmFlags");
                let smaps = smaps.replacen("VmFlags", &of(still << 10), 1);
                let (first, rest) = smaps.split_at(smaps.rfind("VmFlags").unwrap());
                fs::write(root.process(7, "smaps"), format!("{first}KSM: 0 kB\n{rest}")).unwrap();
            }
            processes.look(&[], true, 0, at(secs)).unwrap().processes[0].apart
        };
        let mib = |mib| Some(Bytes::from_mib(mib));
        assert_eq!(look(0, Some(0), 0), None, "nothing is merged");
        assert_eq!(look(20, Some(20), 5), mib(0));
        assert_eq!(look(20, Some(17), 9), mib(0), "it was just read");
        assert_eq!(look(20, Some(17), 30), mib(3));
        assert_eq!(look(17, Some(17), 31), None, "a pass has noticed it");
        assert_eq!(look(17, Some(17), 50), mib(0));
        assert_eq!(look(17, None, 300), None, "an older kernel does not tell");
    }

    #[test]
    fn a_process_without_faults_is_left_alone_and_one_with_other_faults_read_less_often() {
        let directory = tempfile::tempdir().unwrap();
        let root = Root::at(directory.path());
        let mut processes = Processes::new(&root);
        let in_pages = |mib: u64| (mib << 20) / page_size().bytes().get();
        let mut look = |still: u64, faults: u64, secs: u64| {
            vmm(&root, 7, (false, false));
            let merging = in_pages(40);
            let told = format!("ksm_merging_pages {merging}\nksm_merge_any: yes\nksm_mergeable: yes\n");
            fs::write(root.process(7, "ksm_stat"), told).unwrap();
            let tail =
                format!("S 1 7 7 0 -1 4194560 {} 0 0 0 1 2 0 0 20 0 4 0 100 900 100", in_pages(faults));
            fs::write(root.process(7, "stat"), format!("7 (own) {tail}\n")).unwrap();
            let smaps = fs::read_to_string(root.process(7, "smaps")).unwrap();
            let smaps = smaps.replacen("VmFlags", &format!("KSM: {} kB\nVmFlags", still << 10), 1);
            let (first, rest) = smaps.split_at(smaps.rfind("VmFlags").unwrap());
            fs::write(root.process(7, "smaps"), format!("{first}KSM: 0 kB\n{rest}")).unwrap();
            processes.look(&[], true, 0, at(secs)).unwrap().processes[0].apart
        };
        let mib = |mib| Some(Bytes::from_mib(mib));
        assert_eq!(look(39, 100, 0), None, "what came apart before a pass, the pass has seen");
        assert_eq!(look(39, 100, 595), None, "nothing can come apart without a fault");
        assert_eq!(look(39, 100, 600), mib(1), "unless somebody else has written to it");
        assert_eq!(look(30, 110, 655), mib(1), "it was just read");
        assert_eq!(look(30, 110, 660), mib(10));
        assert_eq!(look(30, 200, 720), mib(10), "faults of another kind");
        assert_eq!(look(20, 300, 780), mib(10), "the next look for them comes later");
        assert_eq!(look(20, 300, 840), mib(20));
        assert_eq!(look(10, 400, 900), mib(30), "some did come apart");
    }

    #[test]
    fn memory_that_a_pass_has_seen_is_missed_once_its_process_has_left() {
        let directory = tempfile::tempdir().unwrap();
        let root = Root::at(directory.path());
        let mut processes = Processes::new(&root);
        let mib = Bytes::from_mib;
        let mut left = |passes: u64, alive: &[u32], secs: u64| {
            for pid in 7..10 {
                let _not_there = fs::remove_dir_all(root.process(pid, ""));
            }
            alive.iter().for_each(|pid| vmm(&root, *pid, (true, true)));
            processes.look(&[], true, passes, at(secs)).unwrap().left
        };
        assert_eq!(left(3, &[7, 8], 0), mib(0));
        assert_eq!(left(4, &[7, 8], 5), mib(0));
        assert_eq!(left(4, &[8], 10), mib(0), "no whole pass has seen it");
        assert_eq!(left(5, &[8, 9], 15), mib(0));
        assert_eq!(left(5, &[7, 9], 20), mib(64), "another one has come in its place");
        assert_eq!(left(5, &[9], 25), mib(64), "what comes and goes while nothing scans was never seen");
        assert_eq!(left(7, &[9], 30), mib(64));
        assert_eq!(left(7, &[], 35), mib(128));
    }

    #[test]
    fn what_is_no_longer_looked_at_has_not_left_but_the_former_owner_of_a_number_has() {
        let directory = tempfile::tempdir().unwrap();
        let root = Root::at(directory.path());
        let mut processes = Processes::new(&root);
        let started = |pid: u32, start: u64| {
            vmm(&root, pid, (true, true));
            let tail = format!("S 2 0 0 0 -1 2129984 0 0 0 0 0 250 0 0 25 5 1 0 {start} 0 0");
            fs::write(root.process(pid, "stat"), format!("{pid} (qemu) {tail}\n")).unwrap();
        };
        started(7, 100);
        started(8, 100);
        let guests = [KsmGuest { pid: 7, merges: Some(true) }];
        let mib = Bytes::from_mib;
        let mut left =
            |all: bool, passes: u64| processes.look(&guests, all, passes, at(passes)).unwrap().left;
        assert_eq!((left(true, 0), left(true, 3)), (mib(0), mib(0)));
        assert_eq!(left(false, 4), mib(0), "from now on, only the guest is looked at");
        assert_eq!((left(true, 5), left(true, 8)), (mib(0), mib(0)));
        started(8, 200);
        assert_eq!(left(true, 9), mib(64), "it has the number of one that has left");
        fs::rename(root.proc(""), directory.path().join("away")).unwrap();
        assert!(processes.look(&guests, true, 10, at(10)).is_err());
        fs::rename(directory.path().join("away"), root.proc("")).unwrap();
        assert_eq!(processes.look(&guests, true, 10, at(11)).unwrap().left, mib(64), "nobody has left");
    }

    #[test]
    fn many_mappings_are_read_over_many_looks() {
        let directory = tempfile::tempdir().unwrap();
        let root = Root::at(directory.path());
        let mut processes = Processes::new(&root);
        for pid in 5..9 {
            vmm(&root, pid, (false, true));
        }
        processes.mappings_for = Duration::ZERO;
        let guests = [KsmGuest { pid: 7, merges: Some(true) }];
        let mib = Bytes::from_mib;
        let mut look = |secs: u64| mergeable(&processes.look(&guests, true, 0, at(secs)).unwrap());
        assert_eq!(look(0), [mib(0), mib(0), mib(64), mib(0)]);
        processes.mappings_for = Duration::from_nanos(1);
        let mut look = |secs: u64| mergeable(&processes.look(&guests, true, 0, at(secs)).unwrap());
        assert_eq!(look(5), [mib(0), mib(0), mib(16), mib(0)], "the guest first");
        assert_eq!(look(6), [mib(16), mib(0), mib(16), mib(0)]);
        // The first one is due again, but the others have waited for longer.
        pages(&root, 5, 640);
        assert_eq!(look(11)[2..], [mib(16), mib(0)], "the guest is due again, too");
        assert_eq!(look(12), [mib(160), mib(16), mib(16), mib(0)], "the second one, in its turn");
        assert_eq!(look(13), [mib(160), mib(16), mib(16), mib(16)], "the last one");
    }

    #[test]
    fn a_process_whose_mappings_cannot_be_read_counts_as_a_whole() {
        let directory = tempfile::tempdir().unwrap();
        let root = Root::at(directory.path());
        vmm(&root, 7, (false, true));
        fs::remove_file(root.process(7, "smaps")).unwrap();
        assert_eq!(
            mergeable(&Processes::new(&root).look(&[], true, 0, at(0)).unwrap()),
            [Bytes::from_mib(64)]
        );
    }
}
