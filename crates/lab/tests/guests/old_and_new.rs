//! memtide with guests of different age side by side: Debian 12's own QEMU 7.2 and Linux 6.1, which count
//! less of a guest's want, and QEMU 10 and Linux 6.12.

use std::sync::LazyLock;

use memtide_api::view::{GuestDetail, Status};
use memtide_lab::experiments::react::stall::{free, managing, settled};
use memtide_lab::guest::disk::Disk;
use memtide_lab::guest::{BOOT, Guest};
use memtide_lab::machine::lab::Run;
use memtide_lab::machine::packages;
use memtide_lab::managers::daemon::Daemon;
use memtide_lab::work::exercise;
use memtide_load::agent::wire::Ask;
use memtide_load::exerciser::content::Tally;
use memtide_load::exerciser::report::Summary;
use memtide_model::{Bytes, GuestStats, Verdict};

use crate::JOB;
use crate::prepare;
use crate::reporting;
use crate::say;
use crate::the_lab;
use crate::unhurt;

/// What each guest boots with.
const MEMORY: Bytes = Bytes::from_mib(384);
/// What the guests may cost together: both have what they need at rest, and one at a time what it needs at its peak.
const BUDGET: Bytes = Bytes::from_mib(700);
/// What each reads into its page cache, in MiB.
const CACHE: u64 = 64;
/// What each needs at its peak, in MiB, and how fast it takes it.
const PEAK: (u64, u64) = (200, 40);
/// Differences of a target that memtide makes no change for.
const DEAD_BAND: Bytes = Bytes::from_mib(6);

/// The disk that all guests read. With it comes all else that must be fetched: once, since both tests run at the same time.
static DISK: LazyLock<Disk> = LazyLock::new(|| {
    the_lab().with_old_kernel(&say).and_then(|lab| lab.with_old_qemu(&say)).unwrap();
    Disk::ensure(the_lab().cache(), 42, CACHE).unwrap()
});

/// A guest and what is true of it.
struct Aged {
    guest: Guest,
    /// Whether both its QEMU and its kernel know the counters in which want shows.
    counts_want: bool,
    /// Its lab, and the directory with its sockets.
    _run: Run,
}

/// Which QEMU and which kernel a guest has.
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

/// Both guests are found and read, give what is idle, and get it back while they need it, whatever their age.
fn side_by_side(name: &str, ages: [(&str, Age, Age); 2]) {
    if !packages::is_debian_12() {
        eprintln!("skipped: the old QEMU and kernel are those of Debian 12, to be had there only");
        return;
    }
    let aged = ages.map(|(kind, qemu, kernel)| start(&format!("{name}-{kind}"), qemu, kernel));
    let run = prepare(&format!("test-{name}"));
    for Aged { guest, .. } in &aged {
        guest.wait_up(BOOT).unwrap();
        guest.run(exercise::read_disk(&DISK, CACHE, None), JOB).unwrap();
    }
    let daemon = Daemon::start(run.path(), &managing(&format!("{name}-"), BUDGET)).unwrap();
    for Aged { guest, counts_want, .. } in &aged {
        let detail = daemon
            .until("statistics and a smaller guest", JOB, guest.name(), |detail| {
                let small = detail.status.report.actual <= Bytes::from_mib(300);
                (small && detail.seen.stats.fresh().is_some()).then(|| detail.clone())
            })
            .unwrap();
        assert_eq!(counts_of_want(detail.seen.stats.fresh().unwrap()), [*counts_want; 6], "{detail:#?}");
        assert_eq!(detail.seen.full, MEMORY);
        let balloon = detail.seen.balloon.latest().unwrap();
        assert!(balloon.deflate_on_oom && balloon.free_page_reporting, "{balloon:?}");
    }
    told_to_people(&daemon, &aged);
    for (peaks, rests) in [(&aged[0], &aged[1]), (&aged[1], &aged[0])] {
        grows_while_the_other_rests(&daemon, peaks, &rests.guest);
    }
    assert_eq!(complaints(&daemon.log().unwrap()), [""; 0]);
    daemon.stop().unwrap();
}

fn start(name: &str, qemu: Age, kernel: Age) -> Aged {
    let disk = &*DISK;
    let mut lab = the_lab().clone();
    if kernel == Age::Old {
        lab = lab.with_old_kernel(&say).unwrap();
    }
    if qemu == Age::Old {
        lab = lab.with_old_qemu(&say).unwrap();
    }
    assert_eq!(lab.tools().qemu_version.starts_with("7.2"), qemu == Age::Old, "{:?}", lab.tools());
    assert_eq!(lab.kernel().release.starts_with("6.1."), kernel == Age::Old, "{:?}", lab.kernel());
    let run = Run::create(&lab, &format!("test-{name}")).unwrap();
    let guest = reporting(name, MEMORY, true).disk(disk).start(&run, None).unwrap();
    Aged { guest, counts_want: qemu == Age::New && kernel == Age::New, _run: run }
}

/// Which of the counters came that older drivers and QEMUs do not have.
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

/// What `status` and `explain` say.
fn told_to_people(daemon: &Daemon, aged: &[Aged]) {
    let status = daemon.says(&["status"]).unwrap();
    for Aged { guest, counts_want, .. } in aged {
        let line = status.lines().find(|line| line.starts_with(guest.name())).unwrap_or_default();
        assert!(line.contains("of 384 MiB"), "{status}");
        let text = daemon.says(&["explain", guest.name()]).unwrap();
        let missing = "allocation stalls, page scans, OOM kills (its QEMU or its kernel is too old): its page cache is not squeezed";
        assert_eq!(text.contains(missing), !counts_want, "{text}");
        assert_eq!(text.contains("allocation stalls 0, OOM kills 0"), *counts_want, "{text}");
        for part in ["statistics      polled every 1.0 s", "guest says      available", "demand          "] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(!text.contains("unknown"), "{text}");
    }
}

/// One guest takes more than it keeps and is granted it in time; the other gives, but not what it uses, and where its want
/// would not show, none of its page cache.
fn grows_while_the_other_rests(daemon: &Daemon, peaks: &Aged, rests: &Guest) {
    let peaks = &peaks.guest;
    let kept = settled(daemon, peaks).unwrap();
    let (mib, rate) = PEAK;
    let job = peaks.begin(exercise::fill(7, mib, Some(rate))).unwrap();
    let mut gave_least = MEMORY;
    peaks
        .until("a peak", JOB, |guest| {
            let detail = daemon.guest(rests.name())?;
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
    assert!(gave_least < kept.max(Bytes::from_mib(250)), "{} gave nothing: {gave_least}", rests.name());
    let grants = detail.changes.iter().filter(|change| change.reason.contains("needs")).count();
    assert!(grants > 0 && detail.changes.iter().all(|change| change.failed.is_none()), "{detail:#?}");
    for guest in [peaks, rests] {
        unhurt(guest);
    }
    let status: Status = daemon.status().unwrap();
    assert!(status.warnings.is_empty(), "{:?}", status.warnings);
    free(peaks, job).unwrap();
}

/// That a guest at rest keeps what it uses, and page cache where no counter would tell that it is missed.
fn keeps_what_it_needs(detail: &GuestDetail) {
    let report = &detail.status.report;
    let (Some(used), Some(stats)) = (report.used, detail.seen.stats.latest()) else { return };
    let cache = if counts_of_want(stats) == [true; 6] { Bytes::ZERO } else { report.cache };
    let needs = used.saturating_add(cache);
    assert!(
        report.actual.saturating_add(DEAD_BAND) >= needs,
        "{} is below {needs}: {detail:#?}",
        report.actual
    );
    assert!(!matches!(report.verdict, Verdict::Stuck { .. } | Verdict::NoBalloon(_)), "{detail:#?}");
}

/// The log's lines that name something wrong. That the guests are larger than the budget at first is true, and is said.
fn complaints(log: &str) -> Vec<&str> {
    let expected = ["the commitment is not kept", "the host is short of memory"];
    log.lines()
        .filter(|line| line.contains(" WARN ") || line.contains(" ERROR "))
        .filter(|line| !expected.iter().any(|expected| line.contains(expected)))
        .collect()
}
