//! Everything about KSM that its governor sees.
//!
//! **Rule.** The kernel's settings and counters are read at each decision, through files that stay open. Every [`LOOKS_EVERY`], a thread of its
//! own looks at processes ([`Looker`]), and no decision waits long for it. A memtide that only observes looks at its guests alone. What a look
//! has found counts for [`COUNTS_FOR`]: a look that hangs must not be taken for a host where nothing changes.

use std::sync::Arc;
use std::time::Duration;

use memtide_model::{Bytes, KsmProcess, KsmRun, KsmSeen, KsmSettings, Moment, Pages, Span};

use super::looker::{Found, Looker, Order};
use super::processes::KsmGuest;
use super::settings::{advisor, directory, optional, run};
use crate::process::parse_stat;
use crate::text::only;
use crate::{HostError, ParseError, Root, Scratch, Source, page_size, pressure};

/// The time between two looks at the processes.
const LOOKS_EVERY: Span = Span::from_secs(5);
/// The same while KSM is stopped and memtide does not govern it: nothing moves but what might be merged.
const LOOKS_AT_REST_EVERY: Span = Span::from_secs(30);
/// The time between two looks for others who set KSM.
const SEARCHES_EVERY: Span = Span::from_secs(60);
/// How long the result of a look counts.
const COUNTS_FOR: Span = Span::from_secs(60);
/// The longest wait for a look if nothing is known.
const FIRST_LOOK_WITHIN: Duration = Duration::from_millis(200);

/// Reads KSM at each decision.
#[derive(Debug)]
pub struct KsmSensor {
    root: Root,
    files: Files,
    /// The kernel's thread, once it was found.
    ksmd: Option<Source>,
    cpu_pressure: Option<Source>,
    looked_at: Option<Moment>,
    searched_at: Option<Moment>,
    /// Its thread starts at the first read.
    looker: Option<Looker>,
    /// What the last complete look has found, if it still counts.
    found: Option<Arc<Found>>,
    /// A look was waited for since something was known.
    has_waited: bool,
    /// No look has been taken up for long.
    hangs: bool,
    scratch: Scratch,
}

/// The open files of `/sys/kernel/mm/ksm`. Older kernels lack those in an `Option`.
#[derive(Debug)]
struct Files {
    run: Source,
    pages_to_scan: Source,
    sleep_millisecs: Source,
    smart_scan: Option<Source>,
    advisor_mode: Option<Source>,
    full_scans: Source,
    pages_sharing: Source,
    pages_shared: Source,
    ksm_zero_pages: Option<Source>,
    general_profit: Option<Source>,
}

impl KsmSensor {
    /// Opens the files; `None` if this kernel has no KSM.
    ///
    /// # Errors
    /// If the files cannot be opened.
    pub fn open(root: &Root) -> Result<Option<Self>, HostError> {
        let open = |name: &str| Source::open(directory(root).join(name));
        let Some(run) = optional(open("run"))? else { return Ok(None) };
        let files = Files {
            run,
            pages_to_scan: open("pages_to_scan")?,
            sleep_millisecs: open("sleep_millisecs")?,
            smart_scan: optional(open("smart_scan"))?,
            advisor_mode: optional(open("advisor_mode"))?,
            full_scans: open("full_scans")?,
            pages_sharing: open("pages_sharing")?,
            pages_shared: open("pages_shared")?,
            ksm_zero_pages: optional(open("ksm_zero_pages"))?,
            general_profit: optional(open("general_profit"))?,
        };
        Ok(Some(Self {
            root: root.clone(),
            files,
            ksmd: None,
            cpu_pressure: Source::open(root.proc("pressure/cpu")).ok(),
            looked_at: None,
            searched_at: None,
            looker: None,
            found: None,
            has_waited: false,
            hangs: false,
            scratch: Scratch::default(),
        }))
    }

    /// Reads everything at `now`. `all`: whether to look at all processes, or only at those of these `guests`. `None` until the first look at them
    /// is complete, and while the last complete one is more than a minute old.
    ///
    /// # Errors
    /// If a file cannot be read.
    pub fn read(
        &mut self,
        guests: &[KsmGuest],
        all: bool,
        now: Moment,
    ) -> Result<Option<KsmSeen>, HostError> {
        let passes = count(&self.files.full_scans, "full_scans", &mut self.scratch)?;
        let is_at_rest = !all && self.files.run.parse_line(&mut self.scratch, run)? == KsmRun::Stopped;
        let every = if is_at_rest { LOOKS_AT_REST_EVERY } else { LOOKS_EVERY };
        self.found = self.newest((guests, all), passes, every, now)?;
        let Some(found) = self.found.clone() else { return Ok(None) };
        if self.ksmd.is_none() {
            let stat = found.searched.ksmd.map(|pid| self.root.process(pid, "stat"));
            self.ksmd = stat.and_then(|stat| Source::open(stat).ok());
        }
        let (files, scratch) = (&self.files, &mut self.scratch);
        let settings = KsmSettings {
            run: files.run.parse_line(scratch, run)?,
            pages_to_scan: count(&files.pages_to_scan, "pages_to_scan", scratch)?,
            sleep_millisecs: count(&files.sleep_millisecs, "sleep_millisecs", scratch)?,
            smart_scan: if_there(files.smart_scan.as_ref(), "smart_scan", scratch)?.map(|on| on != 0),
            advisor: match &files.advisor_mode {
                Some(file) => Some(file.parse_line(scratch, advisor)?),
                None => None,
            },
        };
        let bytes = |pages: u64| Pages::new(pages).to_bytes(page_size());
        let zeros = if_there(files.ksm_zero_pages.as_ref(), "ksm_zero_pages", scratch)?;
        let profit =
            files.general_profit.as_ref().map(|file| file.parse_line(scratch, profit)).transpose()?;
        let waited_us = self.cpu_pressure.as_ref().and_then(|file| file.parse(scratch, pressure::some).ok());
        Ok(Some(KsmSeen {
            settings,
            full_scans: passes,
            saved: bytes(count(&files.pages_sharing, "pages_sharing", scratch)?),
            zeros: bytes(zeros.unwrap_or_default()),
            shared: bytes(count(&files.pages_shared, "pages_shared", scratch)?),
            profit,
            cpu_time: self.cpu_time(),
            mergeable: Bytes::sum(found.looked.processes.iter().map(|process| process.mergeable)),
            left: found.looked.left,
            waited_us,
            sparsest: found.looked.sparsest.clone(),
            others: found.searched.others.clone(),
        }))
    }

    /// Orders the looks that are due, and returns what is known.
    fn newest(
        &mut self,
        (guests, all): (&[KsmGuest], bool),
        passes: u64,
        every: Span,
        now: Moment,
    ) -> Result<Option<Arc<Found>>, HostError> {
        let failed = |source| HostError::Read { path: self.root.proc(""), source };
        let looker = match self.looker.take() {
            Some(looker) => looker,
            None => Looker::start(&self.root).map_err(failed)?,
        };
        let looker = self.looker.insert(looker);
        let is_due = |at: Option<Moment>, every: Span| at.is_none_or(|at| now.since(at) >= every);
        if is_due(self.looked_at, every) {
            let searches = is_due(self.searched_at, SEARCHES_EVERY);
            if looker.order(|| Order { guests: guests.to_vec(), all, searches, passes, at: now }) {
                self.looked_at = Some(now);
                self.searched_at = if searches { Some(now) } else { self.searched_at };
            }
        }
        self.hangs = is_due(self.looked_at, COUNTS_FOR);
        let since = Moment::from_millis(now.as_millis().saturating_sub(COUNTS_FOR.as_millis()));
        let mut found = looker.found_since(since);
        if found.is_none() && !std::mem::replace(&mut self.has_waited, true) {
            found = looker.found_within(FIRST_LOOK_WITHIN, since);
        }
        self.has_waited = found.is_none();
        Ok(found)
    }

    /// Whether the thread that looks at processes has taken up no order for a minute: a process cannot be read, or the thread has ended.
    #[must_use]
    pub const fn hangs(&self) -> bool {
        self.hangs
    }

    /// Processor time of ksmd; `None` if its thread cannot be found or read.
    fn cpu_time(&mut self) -> Option<Span> {
        let ksmd = self.ksmd.as_ref()?;
        ksmd.parse_line(&mut self.scratch, parse_stat).ok().map(|stat| stat.cpu_time())
    }

    /// The processes that KSM may merge, as they were at the last look at all processes.
    #[must_use]
    pub fn processes(&self) -> &[KsmProcess] {
        self.found.as_ref().map_or(&[], |found| found.looked.processes.as_slice())
    }
}

fn count(file: &Source, name: &'static str, scratch: &mut Scratch) -> Result<u64, HostError> {
    file.parse_line(scratch, |text| only(name, text))
}

fn if_there(
    file: Option<&Source>,
    name: &'static str,
    scratch: &mut Scratch,
) -> Result<Option<u64>, HostError> {
    file.map(|file| count(file, name, scratch)).transpose()
}

/// `general_profit` can be negative.
fn profit(text: &str) -> Result<i64, ParseError> {
    text.trim().parse().map_err(|_| ParseError::Missing("general_profit"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use memtide_model::KsmSparse;
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    use std::fs;
    use std::time::Instant;

    /// A process of 1024 resident pages, 24 of them shared.
    fn process(root: &Root, pid: u32, comm: &str, ksm_stat: &str) {
        fs::create_dir_all(root.process(pid, "")).unwrap();
        fs::write(root.process(pid, "comm"), format!("{comm}\n")).unwrap();
        fs::write(root.process(pid, "statm"), "2048 1024 24 0 0 0 0\n").unwrap();
        fs::write(root.process(pid, "ksm_stat"), ksm_stat).unwrap();
        let tail = "S 2 0 0 0 -1 2129984 0 0 0 0 0 250 0 0 25 5 1 0 30 0 0";
        fs::write(root.process(pid, "stat"), format!("{pid} ({comm}) {tail}\n")).unwrap();
    }

    fn tree() -> (tempfile::TempDir, Root) {
        let directory = tempfile::tempdir().unwrap();
        let root = Root::at(directory.path());
        fs::create_dir_all(super::directory(&root)).unwrap();
        for (name, text) in [
            ("run", "1"),
            ("pages_to_scan", "100"),
            ("sleep_millisecs", "20"),
            ("full_scans", "7"),
            ("pages_sharing", "300"),
            ("pages_shared", "100"),
        ] {
            fs::write(super::directory(&root).join(name), format!("{text}\n")).unwrap();
        }
        (directory, root)
    }

    /// Reads at `now` until the result is as wanted: looks take their time.
    fn until(
        sensor: &mut KsmSensor,
        guests: &[KsmGuest],
        now: Moment,
        is_so: impl Fn(&KsmSeen) -> bool,
    ) -> KsmSeen {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            match sensor.read(guests, true, now).unwrap() {
                Some(seen) if is_so(&seen) => return seen,
                seen => assert!(Instant::now() < deadline, "{seen:?}"),
            }
            std::thread::yield_now();
        }
    }

    #[test]
    fn all_counters_are_read_and_mergeable_memory_is_that_of_who_allows_it() {
        let (_directory, root) = tree();
        for (name, text) in [
            ("smart_scan", "1"),
            ("advisor_mode", "none [scan-time]"),
            ("ksm_zero_pages", "50"),
            ("general_profit", "-4096"),
        ] {
            fs::write(super::directory(&root).join(name), format!("{text}\n")).unwrap();
        }
        process(&root, 30, "ksmd", "ksm_rmap_items 0\nksm_merge_any: no\nksm_mergeable: no\n");
        process(
            &root,
            31,
            "qemu",
            "ksm_rmap_items 0\nksm_zero_pages 3\nksm_merging_pages 5\nksm_process_profit -64\nksm_merge_any: no\nksm_mergeable: yes\n",
        );
        process(&root, 32, "ksmtuned", "ksm_rmap_items 9\nksm_merge_any: no\nksm_mergeable: no\n");
        let mut sensor = KsmSensor::open(&root).unwrap().unwrap();
        // On a busy machine a process is read at a later look.
        let is_whole = |seen: &KsmSeen| seen.sparsest.is_some();
        let seen = until(&mut sensor, &[], Moment::from_millis(1), is_whole);
        let pages = |pages| Pages::new(pages).to_bytes(page_size());
        assert_eq!(seen.settings.run, memtide_model::KsmRun::Scanning);
        assert_eq!((seen.settings.smart_scan, seen.settings.advisor), (Some(true), Some(true)));
        assert_eq!((seen.full_scans, seen.saved, seen.zeros), (7, pages(300), pages(50)));
        assert_eq!((seen.shared, seen.profit), (pages(100), Some(-4096)));
        // Only root's programs set KSM, and the tree is this user's.
        let others =
            if rustix::process::geteuid().is_root() { vec!["ksmtuned".to_owned()] } else { Vec::new() };
        assert_eq!((seen.mergeable, seen.others), (pages(1000), others));
        let [process] = sensor.processes() else { panic!("{:?}", sensor.processes()) };
        assert_eq!((process.pid, process.merged, process.zeros), (31, Some(pages(5)), Some(pages(3))));
        assert_eq!((process.name.as_str(), process.profit), ("qemu", Some(-64)));
        let sparse = KsmSparse { pid: 31, name: "qemu".to_owned(), holes: pages(1024) };
        assert_eq!(seen.sparsest, Some(sparse));
        assert!(seen.cpu_time > Some(Span::from_secs(1)), "{:?}", seen.cpu_time);
    }

    #[test]
    fn an_older_kernel_tells_less_and_counts_guests() {
        let (_directory, root) = tree();
        process(&root, 31, "qemu", "ksm_rmap_items 0\n");
        process(&root, 32, "scanned", "ksm_rmap_items 12\nksm_merging_pages 1\n");
        process(&root, 33, "other", "ksm_rmap_items 0\n");
        let mut sensor = KsmSensor::open(&root).unwrap().unwrap();
        let guest = [KsmGuest { pid: 31, merges: None }];
        let seen = until(&mut sensor, &guest, Moment::from_millis(1), |_| true);
        assert_eq!((seen.settings.smart_scan, seen.settings.advisor, seen.profit), (None, None, None));
        assert_eq!(seen.mergeable, Pages::new(2000).to_bytes(page_size()));
        assert_eq!(seen.cpu_time, None, "there is no thread to be seen");
        // Processes are not looked at each time.
        fs::remove_dir_all(root.process(32, "")).unwrap();
        let at = |secs: u64| Moment::from_millis(1 + secs * 1000);
        let soon = sensor.read(&guest, true, at(4)).unwrap().unwrap();
        assert_eq!(soon.mergeable, seen.mergeable);
        until(&mut sensor, &guest, at(5), |later| later.mergeable < seen.mergeable);
    }

    #[test]
    fn a_process_that_cannot_be_read_for_long_delays_nothing() {
        let (_directory, root) = tree();
        process(&root, 31, "slow", "");
        process(&root, 32, "scanned", "ksm_rmap_items 9\n");
        let slow = root.process(31, "ksm_stat");
        fs::remove_file(&slow).unwrap();
        // Opening a pipe waits until somebody opens it to write. Reading it at an offset then fails.
        mknodat(CWD, &slow, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        let mut sensor = KsmSensor::open(&root).unwrap().unwrap();
        for secs in 0..20 {
            assert_eq!(sensor.read(&[], true, Moment::from_millis(secs * 1_000)).unwrap(), None);
        }
        fs::write(&slow, "").unwrap();
        until(&mut sensor, &[], Moment::from_millis(20_000), |seen| !seen.mergeable.is_zero());
    }

    #[test]
    fn what_a_look_that_hangs_has_found_before_does_not_count_forever() {
        let (_directory, root) = tree();
        process(&root, 31, "qemu", "ksm_rmap_items 9\n");
        let mut sensor = KsmSensor::open(&root).unwrap().unwrap();
        assert!(sensor.looker.is_none(), "nothing has been read");
        let at = |secs: u64| Moment::from_millis(secs * 1_000);
        until(&mut sensor, &[], at(0), |_| true);
        let slow = root.process(31, "ksm_stat");
        fs::remove_file(&slow).unwrap();
        mknodat(CWD, &slow, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        for secs in (5..=60).step_by(5) {
            assert!(sensor.read(&[], true, at(secs)).unwrap().is_some(), "{secs}");
        }
        for secs in (65..=150).step_by(5) {
            assert_eq!(sensor.read(&[], true, at(secs)).unwrap(), None, "{secs}");
        }
        assert!(sensor.hangs() && sensor.processes().is_empty());
        // While somebody writes to the pipe, opening it does not wait.
        let writer = fs::OpenOptions::new().write(true).open(&slow).unwrap();
        fs::write(root.process(31, "new"), "ksm_rmap_items 9\n").unwrap();
        fs::rename(root.process(31, "new"), &slow).unwrap();
        drop(writer);
        until(&mut sensor, &[], at(155), |seen| !seen.mergeable.is_zero());
        assert!(!sensor.hangs());
    }

    #[test]
    fn a_kernel_without_ksm_has_no_sensor() {
        let nothing = tempfile::tempdir().unwrap();
        assert!(KsmSensor::open(&Root::at(nothing.path())).unwrap().is_none());
    }
}
