//! memtide with guests of different ages side by side: Debian 12's own QEMU 7.2 and Linux 6.1, which count fewer signs of
//! want, and QEMU 10 and Linux 6.12.

use std::sync::LazyLock;
use std::time::Duration;

use memtide_api::view::{GuestDetail, Status};
use memtide_lab::experiments::react::stall::{free, managing, settled};
use memtide_lab::guest::disk::Disk;
use memtide_lab::guest::{BOOT, Guest};
use memtide_lab::machine::kernel::Which;
use memtide_lab::machine::lab::Run;
use memtide_lab::managers::daemon::Daemon;
use memtide_lab::work::exercise;
use memtide_load::exerciser::content::Tally;
use memtide_load::exerciser::report::Summary;
use memtide_load::helper::wire::Ask;
use memtide_model::{Bytes, GuestStats, Verdict};

use crate::JOB;
use crate::prepare;
use crate::reporting;
use crate::say;
use crate::the_lab;
use crate::unhurt;

/// The memory that each guest boots with.
const MEMORY: Bytes = Bytes::from_mib(384);
/// The highest cost of both guests together: both have the memory that they need when idle, and one at a time has its peak.
const BUDGET: Bytes = Bytes::from_mib(700);
/// The MiB that each guest reads into its page cache.
const CACHE: u64 = 64;
/// The memory that each guest needs at its peak, in MiB, and how fast it takes it, in MiB a second.
const PEAK: (u64, u64) = (200, 40);
/// The time for a boot in QEMU 7.2 before it is tried again; it takes about 10 s.
const OLD_BOOT: Duration = Duration::from_secs(60);
/// The largest difference of a target for which memtide makes no change.
const DEAD_BAND: Bytes = Bytes::from_mib(6);

/// The disk that all guests read. With it, everything else that must be downloaded is prepared: once, since both tests run at
/// the same time.
static DISK: LazyLock<Disk> = LazyLock::new(|| {
    the_lab().with_kernel(Which::OfDebian12, &say).and_then(|lab| lab.with_old_qemu(&say)).unwrap();
    Disk::ensure(the_lab().cache(), 42, CACHE).unwrap()
});

/// A guest and its expected properties.
struct Aged {
    guest: Guest,
    /// Whether its QEMU is 7.2.
    is_old_qemu: bool,
    /// Whether both its QEMU and its kernel have the counters that show want.
    counts_want: bool,
    /// Its lab, and the directory with its sockets.
    _run: Run,
}

/// The age of a guest's QEMU or kernel.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Age {
    Old,
    New,
}

pub fn an_old_guest_beside_a_new_one() {
    side_by_side("aged", [("old", Age::Old, Age::Old), ("new", Age::New, Age::New)]);
}

pub fn an_old_qemu_beside_an_old_kernel() {
    side_by_side("mixed", [("qemu", Age::Old, Age::New), ("kernel", Age::New, Age::Old)]);
}

/// Both guests are found and read, give idle memory, and get it back while they need it, whatever their ages.
fn side_by_side(name: &str, ages: [(&str, Age, Age); 2]) {
    crate::needs_debian_12("the old QEMU and the old kernel are packages of Debian 12");
    let start_both = || ages.map(|(kind, qemu, kernel)| boot(&format!("{name}-{kind}"), qemu, kernel));
    let aged = start_both();
    let tried = std::panic::catch_unwind(|| gives_and_takes(name, &aged));
    let Err(failure) = tried else { return };
    // QEMU 7.2 emulates wrongly now and then: a kernel dies of a fault, whatever memtide does.
    let faults = |text: &str| text.contains("PANIC: double fault") || text.contains("---[ end trace");
    let is_faulty = |aged: &Aged| aged.is_old_qemu && aged.guest.console().is_ok_and(|text| faults(&text));
    if !aged.iter().any(is_faulty) {
        std::panic::resume_unwind(failure);
    }
    say(&format!("{name}: the emulator killed a guest's kernel; once more"));
    drop(aged);
    gives_and_takes(name, &start_both());
}

fn gives_and_takes(name: &str, aged: &[Aged; 2]) {
    let run = prepare(&format!("test-{name}"));
    for Aged { guest, .. } in aged {
        guest.run(exercise::read_disk(&DISK, CACHE, None), JOB).unwrap();
    }
    let daemon = Daemon::start(run.path(), &managing(&format!("{name}-"), BUDGET)).unwrap();
    for Aged { guest, counts_want, .. } in aged {
        let detail = daemon
            .until("statistics and a smaller guest", JOB, guest.name(), |detail| {
                let small = detail.status.report.actual <= Bytes::from_mib(300);
                (small && detail.seen.told.stats.fresh().is_some()).then(|| detail.clone())
            })
            .unwrap();
        assert_eq!(counts_of_want(detail.seen.told.stats.fresh().unwrap()), [*counts_want; 6], "{detail:#?}");
        assert_eq!(detail.seen.told.full, MEMORY);
        let balloon = detail.seen.told.balloon.latest().unwrap();
        assert!(balloon.deflate_on_oom && balloon.free_page_reporting, "{balloon:?}");
    }
    told_to_people(&daemon, aged);
    for (peaks, idles) in [(&aged[0], &aged[1]), (&aged[1], &aged[0])] {
        grows_while_the_other_idles(&daemon, peaks, &idles.guest);
    }
    assert_eq!(complaints(&daemon.log().unwrap()), [""; 0]);
    daemon.stop().unwrap();
}

/// A guest that is up. Of its boots in QEMU 7.2, one in twenty ends in a fault of the kernel or never ends, so that guests of this QEMU
/// are started up to three times. memtide does not run yet.
fn boot(name: &str, qemu: Age, kernel: Age) -> Aged {
    let retries = if qemu == Age::Old { 2 } else { 0 };
    for _ in 0..retries {
        let aged = start(name, qemu, kernel);
        match aged.guest.wait_up(OLD_BOOT) {
            Ok(_) => return aged,
            Err(error) => say(&format!("{error}; once more")),
        }
    }
    let aged = start(name, qemu, kernel);
    aged.guest.wait_up(BOOT).unwrap();
    aged
}

fn start(name: &str, qemu: Age, kernel: Age) -> Aged {
    let disk = &*DISK;
    let mut lab = the_lab().clone();
    if kernel == Age::Old {
        lab = lab.with_kernel(Which::OfDebian12, &say).unwrap();
    }
    if qemu == Age::Old {
        lab = lab.with_old_qemu(&say).unwrap();
    }
    let parts = lab.qemu().unwrap();
    assert_eq!(parts.program.version.starts_with("7.2"), qemu == Age::Old, "{parts:?}");
    assert_eq!(parts.kernel.release.starts_with("6.1."), kernel == Age::Old, "{parts:?}");
    let run = Run::create(&lab, &format!("test-{name}")).unwrap();
    let guest = reporting(name, MEMORY, true).disk(disk).start(&run, None).unwrap();
    Aged {
        guest,
        is_old_qemu: qemu == Age::Old,
        counts_want: qemu == Age::New && kernel == Age::New,
        _run: run,
    }
}

/// Whether each counter came that older drivers and QEMUs do not have.
fn counts_of_want(stats: &GuestStats) -> [bool; 6] {
    [
        stats.oom_kills,
        stats.alloc_stalls,
        stats.async_scans,
        stats.direct_scans,
        stats.async_reclaims,
        stats.direct_reclaims,
    ]
    .map(|counter| counter.is_some())
}

/// Checks the output of `status` and `explain`.
fn told_to_people(daemon: &Daemon, aged: &[Aged]) {
    let status = daemon.says(&["status"]).unwrap();
    for Aged { guest, counts_want, .. } in aged {
        let line = status.lines().find(|line| line.starts_with(guest.name())).unwrap_or_default();
        assert!(line.contains("of 384 MiB"), "{status}");
        let text = daemon.says(&["explain", guest.name()]).unwrap();
        let missing = "allocation stalls, page scans, OOM kills (its VMM or its kernel is too old): whether it misses page cache is judged";
        assert_eq!(text.contains(missing), !counts_want, "{text}");
        assert_eq!(text.contains("allocation stalls 0, OOM kills 0"), *counts_want, "{text}");
        for part in ["statistics      polled every 1.0 s", "guest says      available", "demand          "] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(!text.contains("unknown"), "{text}");
    }
}

/// One guest takes more memory than it keeps, and is granted it in time. The other gives memory, but none that it uses; and
/// if its want would not show, none of its page cache.
fn grows_while_the_other_idles(daemon: &Daemon, peaks: &Aged, idles: &Guest) {
    let peaks = &peaks.guest;
    let kept = settled(daemon, peaks).unwrap();
    let (mib, rate) = PEAK;
    let job = peaks.begin(exercise::fill(7, mib, Some(rate))).unwrap();
    let mut gave_least = MEMORY;
    peaks
        .until("a peak", JOB, |guest| {
            let detail = daemon.guest(idles.name())?;
            keeps_what_it_needs(&detail);
            gave_least = gave_least.min(detail.status.report.actual);
            guest.outcome::<Summary>(job)
        })
        .unwrap();
    let order = Ask::Order { load: job.id(), line: "check".to_owned() };
    let tally: Tally = peaks.ask(order, JOB).unwrap();
    assert_eq!((tally.bytes, tally.mismatches), (mib << 20, 0));
    let detail = daemon
        .until("the grant", JOB, peaks.name(), |detail| {
            (detail.status.report.actual > kept.saturating_add(Bytes::from_mib(16))).then(|| detail.clone())
        })
        .unwrap();
    assert!(gave_least < kept.max(Bytes::from_mib(250)), "{} gave nothing: {gave_least}", idles.name());
    let grants = detail.changes.iter().filter(|change| change.reason.contains("needs")).count();
    assert!(grants > 0 && detail.changes.iter().all(|change| change.failed.is_none()), "{detail:#?}");
    for guest in [peaks, idles] {
        unhurt(guest);
    }
    let status: Status = daemon.status().unwrap();
    assert!(status.warnings.is_empty(), "{:?}", status.warnings);
    free(peaks, job).unwrap();
}

/// Checks that a quiet guest keeps the memory that it uses, and also its page cache if no counter would show that it misses
/// it.
fn keeps_what_it_needs(detail: &GuestDetail) {
    let report = &detail.status.report;
    let (Some(used), Some(stats)) = (report.used, detail.seen.told.stats.latest()) else { return };
    let cache = if counts_of_want(stats) == [true; 6] { Bytes::ZERO } else { report.cache };
    let needs = used.saturating_add(cache);
    assert!(
        report.actual.saturating_add(DEAD_BAND) >= needs,
        "{} is below {needs}: {detail:#?}",
        report.actual
    );
    assert!(!matches!(report.verdict, Verdict::Stuck { .. } | Verdict::NoBalloon(_)), "{detail:#?}");
}

/// The log's lines about problems. At first, the guests are larger than the budget; these warnings are true and expected.
fn complaints(log: &str) -> Vec<&str> {
    let expected = ["the commitment is not kept", "the host is short of memory"];
    log.lines()
        .filter(|line| line.contains(" WARN ") || line.contains(" ERROR "))
        .filter(|line| !expected.iter().any(|expected| line.contains(expected)))
        .collect()
}
