//! One guest's monitor with a stand-in: reads, their meaning, and writes.

mod common;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use memtide_model::{Absence, Balloon, Bytes, Fence, GuestId, Hotplug, Polling, Reading, Span, Told};
use memtide_stand_in::qemu::{Behaviour, Machine, StandIn};
use memtide_vmm::Wish;
use memtide_vmm::qemu::{Monitor, MonitorConfig, MonitorError, Signal, Use};
use serde_json::json;
use tempfile::TempDir;

/// The deadline for things that should work: long, because the machine may be busy.
const PLENTY: Duration = Duration::from_secs(20);
/// A short deadline, for things that should miss it.
const LITTLE: Duration = Duration::from_millis(200);
const READ: Wish = Wish { refresh_stats: false, sizes: false, keep_open: false };
const REFRESH: Wish = Wish { refresh_stats: true, ..READ };

struct Fixture {
    stand_in: StandIn,
    path: PathBuf,
    _directory: TempDir,
}

fn stand_in(machine: Machine) -> Fixture {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = directory.path().join("qmp");
    let stand_in = StandIn::start(&path, machine, Behaviour::Honest).expect("a socket");
    Fixture { stand_in, path, _directory: directory }
}

fn monitor_at(paths: &[&Path], use_as: Use) -> Monitor {
    Monitor::new(MonitorConfig {
        guest: GuestId::new("web", 5, "b"),
        paths: paths.iter().map(PathBuf::from).collect(),
        peer: None,
        use_as,
        memory: Some(Bytes::from_mib(512)),
    })
}

fn monitor(fixture: &Fixture, use_as: Use) -> Monitor {
    monitor_at(&[&fixture.path], use_as)
}

async fn poll(monitor: &mut Monitor) -> Told {
    monitor.poll(READ, PLENTY).await
}

fn actual(told: &Told) -> Option<Bytes> {
    told.balloon.fresh().map(|balloon| balloon.actual)
}

fn count(fixture: &Fixture, command: &str) -> usize {
    fixture.stand_in.commands().iter().filter(|name| *name == command).count()
}

#[tokio::test(flavor = "current_thread")]
async fn a_poll_reads_what_the_guest_keeps() {
    let fixture = stand_in(Machine::new(512));
    let mut monitor = monitor(&fixture, Use::Brief);
    let told = poll(&mut monitor).await;
    let balloon = Balloon { actual: Bytes::from_mib(512), deflate_on_oom: true, free_page_reporting: true };
    assert_eq!(told.balloon.fresh(), Some(&balloon));
    assert_eq!(told.full, Bytes::from_mib(512));
    assert_eq!(told.hotplug, Reading::absent(Absence::Unsupported));
    assert_eq!(told.stats, Reading::absent(Absence::NotPolled));
    assert_eq!((told.polling, told.reset, told.fence), (Polling::Off, false, None));
    common::wait_until("a brief monitor closes", || !fixture.stand_in.has_client());
}

#[tokio::test(flavor = "current_thread")]
async fn a_size_is_a_claim_until_the_vmm_has_answered() {
    let fixture = stand_in(Machine::new(2048));
    let mut monitor = monitor(&fixture, Use::Brief);
    assert!(monitor.view().claimed);
    let told = poll(&mut monitor).await;
    assert_eq!((told.full, told.claimed), (Bytes::from_mib(2048), false));
    fixture.stand_in.behave(Behaviour::NoGreeting);
    assert!(!poll(&mut monitor).await.claimed, "it was told once");
}

#[tokio::test(flavor = "current_thread")]
async fn what_seldom_changes_is_asked_once() {
    let fixture = stand_in(Machine::new(512));
    let mut monitor = monitor(&fixture, Use::Dedicated);
    for _ in 0..3 {
        poll(&mut monitor).await;
    }
    assert_eq!(fixture.stand_in.connections(), 1);
    assert_eq!(count(&fixture, "query-balloon"), 3);
    assert_eq!(count(&fixture, "query-status"), 1);
    assert_eq!(count(&fixture, "qom-list"), 2);
    assert_eq!(count(&fixture, "query-migrate"), 1);
    assert_eq!(count(&fixture, "query-memory-devices"), 1);
}

#[tokio::test(flavor = "current_thread")]
async fn sizes_are_asked_for_when_more_was_mapped() {
    let fixture = stand_in(Machine::new(512));
    let mut monitor = monitor(&fixture, Use::Dedicated);
    poll(&mut monitor).await;
    fixture.stand_in.change(|machine| machine.virtio_mem = Some((128 << 20, 128 << 20)));
    assert_eq!(poll(&mut monitor).await.full, Bytes::from_mib(512), "it is not due");
    let told = monitor.poll(Wish { sizes: true, ..READ }, PLENTY).await;
    assert_eq!((told.full, told.hotplug.fresh().is_some()), (Bytes::from_mib(640), true));
}

#[tokio::test(flavor = "current_thread")]
async fn a_driver_without_statistics_is_a_driver() {
    let mut fixture = stand_in(Machine { sends_statistics: false, ..Machine::new(512) });
    let mut monitor = monitor(&fixture, Use::Dedicated);
    monitor.set_polling(Span::from_secs(1), PLENTY).await.unwrap();
    let told = poll(&mut monitor).await;
    assert!(told.balloon.fresh().is_some(), "{told:?}");
    assert_eq!(told.stats, Reading::absent(Absence::Unsupported));
    // Where QEMU does not tell what the driver can do, it is silent.
    fixture =
        stand_in(Machine { sends_statistics: false, virtio_status: false, interval: 1, ..Machine::new(512) });
    let mut monitor = self::monitor(&fixture, Use::Dedicated);
    assert_eq!(poll(&mut monitor).await.stats, Reading::absent(Absence::Silent));
}

#[tokio::test(flavor = "current_thread")]
async fn a_target_of_a_guest_without_virtio_mem_is_one_command() {
    let fixture = stand_in(Machine::new(512));
    let mut monitor = monitor(&fixture, Use::Dedicated);
    poll(&mut monitor).await;
    let before = fixture.stand_in.commands_so_far();
    monitor.set_target(Bytes::from_mib(400), PLENTY).await.unwrap();
    assert_eq!(fixture.stand_in.change(|machine| machine.target), 400 << 20);
    assert_eq!(fixture.stand_in.commands_so_far() - before, 1);

    // Then there is one. After its event, a target counts it.
    fixture.stand_in.change(|machine| machine.virtio_mem = Some((128 << 20, 128 << 20)));
    fixture.stand_in.event("MEMORY_DEVICE_SIZE_CHANGE", &json!({ "id": "vm0", "size": 128 << 20 }));
    assert_eq!(monitor.next_event().await, Signal::MemoryDeviceSizeChange);
    monitor.set_target(Bytes::from_mib(400), PLENTY).await.unwrap();
    assert_eq!(fixture.stand_in.change(|machine| machine.target), 272 << 20);
}

#[tokio::test(flavor = "current_thread")]
async fn virtio_mem_counts_on_the_way_in_and_out() {
    let machine = Machine { virtio_mem: Some((384 << 20, 256 << 20)), ..Machine::new(512) };
    let fixture = stand_in(machine);
    let mut monitor = monitor(&fixture, Use::Brief);
    let told = poll(&mut monitor).await;
    assert_eq!((told.full, actual(&told)), (Bytes::from_mib(768), Some(Bytes::from_mib(768))));
    let hotplug =
        Hotplug { requested: Bytes::from_mib(384), plugged: Bytes::from_mib(256), most: Bytes::ZERO };
    assert_eq!(told.hotplug.fresh(), Some(&hotplug));

    monitor.set_target(Bytes::from_mib(600), PLENTY).await.unwrap();
    assert_eq!(fixture.stand_in.change(|machine| machine.target), 344 << 20);
    assert_eq!(actual(&poll(&mut monitor).await), Some(Bytes::from_mib(600)));
    for target in [Bytes::from_mib(256), Bytes::new((600 << 20) + 5)] {
        let error = monitor.set_target(target, PLENTY).await.unwrap_err();
        assert!(matches!(error, MonitorError::Target { plugged, .. } if plugged == Bytes::from_mib(256)));
    }
    assert_eq!(count(&fixture, "balloon"), 1);

    // Memory plugged since the last poll counts when the target is written.
    fixture.stand_in.change(|machine| machine.virtio_mem = Some((384 << 20, 384 << 20)));
    monitor.set_target(Bytes::from_mib(600), PLENTY).await.unwrap();
    assert_eq!(fixture.stand_in.change(|machine| machine.target), 216 << 20);
}

#[tokio::test(flavor = "current_thread")]
async fn statistics_are_fresh_once_we_poll_them() {
    let fixture = stand_in(Machine::new(512));
    let mut monitor = monitor(&fixture, Use::Dedicated);
    poll(&mut monitor).await;
    monitor.set_polling(Span::from_millis(900), PLENTY).await.unwrap();
    let told = poll(&mut monitor).await;
    assert_eq!(told.polling, Polling::Every(Span::from_secs(1)));
    assert_eq!(told.stats.fresh().and_then(|stats| stats.minor_faults), Some(1));
    assert_eq!(told.stats.fresh().and_then(|stats| stats.major_faults), None);

    // If the statistics are new, they are not requested again at once.
    let minor_faults = |told: &Told| told.stats.fresh().and_then(|stats| stats.minor_faults);
    let begun = Instant::now();
    while minor_faults(&monitor.poll(REFRESH, PLENTY).await) == Some(1) {
        assert!(begun.elapsed() < PLENTY);
    }
    assert_eq!(fixture.stand_in.change(|machine| machine.stats["stat-minor-faults"].clone()), json!(2));
    assert_eq!(fixture.stand_in.change(|machine| machine.interval), 1);
}

#[tokio::test(flavor = "current_thread")]
async fn memory_is_kept_from_ksm_and_given_to_it() {
    let fixture = stand_in(Machine::new(512));
    let mut monitor = monitor(&fixture, Use::Dedicated);
    assert_eq!(poll(&mut monitor).await.merges.fresh(), Some(&true));
    for shares in [false, true] {
        monitor.set_sharing(shares, PLENTY).await.unwrap();
        assert_eq!(fixture.stand_in.change(|machine| machine.merge), shares);
        assert_eq!(poll(&mut monitor).await.merges.fresh(), Some(&shares));
    }
}

#[tokio::test(flavor = "current_thread")]
async fn polling_by_somebody_else_is_not_disturbed() {
    let mut machine = Machine { interval: 10, ..Machine::new(512) };
    machine.update_stats(5);
    let fixture = stand_in(machine);
    let told = monitor(&fixture, Use::Brief).poll(REFRESH, PLENTY).await;
    assert_eq!(told.polling, Polling::Every(Span::from_secs(10)));
    assert!(told.stats.fresh().is_some());
    assert_eq!(count(&fixture, "qom-set"), 0);
}

/// Where the driver counts scans, nobody asks for reads.
#[tokio::test(flavor = "current_thread")]
async fn what_disks_read_is_asked_for_where_the_driver_counts_no_scans() {
    let mut machine = Machine { interval: 1, disk_reads: 3 << 20, ..Machine::new(512) };
    machine.update_stats(1);
    let fixture = stand_in(machine);
    let mut monitor = monitor(&fixture, Use::Dedicated);
    poll(&mut monitor).await;
    let disks = |told: &Told| told.disks.fresh().map(|disks| (disks.bytes, disks.took_us));
    assert_eq!(disks(&poll(&mut monitor).await), Some((Bytes::from_mib(3), Some((3 << 20) / 100_000))));
    fixture.stand_in.change(|machine| machine.disk_reads = 0);
    assert!(poll(&mut monitor).await.disks.is_unsupported(), "it reads from no disk that QEMU counts");
    fixture.stand_in.change(|machine| {
        machine.update_stats(2);
        machine.stats.insert("stat-async-scans".to_owned(), json!(5));
    });
    poll(&mut monitor).await;
    let asked = count(&fixture, "query-blockstats");
    poll(&mut monitor).await;
    assert_eq!(count(&fixture, "query-blockstats"), asked);
}

/// QEMU tells of each layer of each disk.
#[tokio::test(flavor = "current_thread")]
async fn disks_of_too_many_layers_are_asked_about_once() {
    let mut machine = Machine { interval: 1, disk_layers: 200, ..Machine::new(512) };
    machine.update_stats(1);
    let fixture = stand_in(machine);
    let mut monitor = monitor(&fixture, Use::Dedicated);
    let begun = std::time::Instant::now();
    while count(&fixture, "query-blockstats") == 0 {
        assert!(begun.elapsed() < PLENTY, "it is never asked");
        poll(&mut monitor).await;
    }
    for _ in 0..2 {
        while poll(&mut monitor).await.stats.fresh().is_none() {
            assert!(begun.elapsed() < PLENTY, "its answer costs everything else");
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    }
    assert_eq!(count(&fixture, "query-blockstats"), 1);
}

#[tokio::test(flavor = "current_thread")]
async fn old_statistics_say_why_they_are_old() {
    for (interval, seconds_ago, why) in [
        (1, 60, Some(Absence::Silent)),
        (0, 60, Some(Absence::NotPolled)),
        (30, 20, Some(Absence::NotYet)),
        (10, 10, None),
        (1, 1, None),
    ] {
        let mut machine = Machine { interval, ..Machine::new(512) };
        machine.update_stats(5);
        machine.last_update -= seconds_ago;
        let fixture = stand_in(machine);
        let stats = poll(&mut monitor(&fixture, Use::Brief)).await.stats;
        assert_eq!(stats.why_not().cloned(), why, "every {interval} s, {seconds_ago} s ago");
        let (Reading::Fresh { age, .. } | Reading::Stale { age, .. }) = stats else {
            panic!("no statistics")
        };
        assert!(age >= Span::from_secs(seconds_ago) && age < Span::from_secs(seconds_ago + 2), "{age}");
    }
}

#[tokio::test(flavor = "current_thread")]
async fn what_is_missing_says_why() {
    let no_balloon = Machine { balloon: false, ..Machine::new(512) };
    let told = poll(&mut monitor(&stand_in(no_balloon), Use::Brief)).await;
    assert_eq!(told.balloon, Reading::absent(Absence::NoBalloon));
    assert_eq!(told.stats, Reading::absent(Absence::NoBalloon));
    assert_eq!((told.full, told.polling), (Bytes::from_mib(512), Polling::Unknown));

    // Still booting: QEMU's number promises nothing.
    let booting = Machine { driver: false, interval: 2, ..Machine::new(512) };
    let told = poll(&mut monitor(&stand_in(booting), Use::Brief)).await;
    assert_eq!(told.balloon, Reading::absent(Absence::NoDriver));
    assert_eq!(told.stats, Reading::absent(Absence::NoDriver));
    assert!(!told.reset);

    let told = poll(&mut monitor_at(&[], Use::Brief)).await;
    assert_eq!(told.balloon, Reading::absent(Absence::NoControl));
}

#[tokio::test(flavor = "current_thread")]
async fn each_misbehaviour_has_its_absence() {
    for (behaviour, within, absence) in [
        (Behaviour::NoGreeting, PLENTY, Absence::ControlTaken),
        (Behaviour::SilentAfterGreeting, LITTLE, Absence::Timeout),
        (Behaviour::Garbage, PLENTY, Absence::Malformed),
        (Behaviour::EndlessLine, PLENTY, Absence::Malformed),
        (Behaviour::HalfMessage, PLENTY, Absence::Disconnected),
        (Behaviour::WrongIds, LITTLE, Absence::Timeout),
        (Behaviour::WrongTypes, PLENTY, Absence::Malformed),
        (Behaviour::Refuse, PLENTY, Absence::Refused("not  today".to_owned())),
    ] {
        for use_as in [Use::Brief, Use::Dedicated] {
            let fixture = stand_in(Machine::new(512));
            fixture.stand_in.behave(behaviour);
            let begun = Instant::now();
            let told = monitor(&fixture, use_as).poll(READ, within).await;
            assert_eq!(told.balloon, Reading::absent(absence.clone()), "{behaviour:?} {use_as:?}");
            // A greeting is waited for less long than an answer.
            assert!(
                behaviour != Behaviour::NoGreeting || begun.elapsed() < within / 4,
                "{:?}",
                begun.elapsed()
            );
            assert_eq!((told.full, told.claimed), (Bytes::from_mib(512), true), "{behaviour:?} {use_as:?}");
        }
    }
}

#[tokio::test(flavor = "current_thread")]
async fn a_flood_of_events_does_not_hinder_a_poll() {
    let fixture = stand_in(Machine::new(512));
    fixture.stand_in.behave(Behaviour::EventFlood);
    for use_as in [Use::Brief, Use::Dedicated] {
        let told = poll(&mut monitor(&fixture, use_as)).await;
        assert_eq!(actual(&told), Some(Bytes::from_mib(512)), "{use_as:?}");
    }
}

#[tokio::test(flavor = "current_thread")]
async fn a_monitor_that_fails_later_leaves_old_readings() {
    let fixture = stand_in(Machine::new(512));
    let mut monitor = monitor(&fixture, Use::Brief);
    poll(&mut monitor).await;
    fixture.stand_in.behave(Behaviour::SilentAfterGreeting);
    let told = monitor.poll(READ, LITTLE).await;
    let Reading::Stale { value, age, why } = told.balloon else { panic!("{:?}", told.balloon) };
    assert_eq!((value.actual, why), (Bytes::from_mib(512), Absence::Timeout));
    assert!(age >= Span::from(LITTLE));
}

#[tokio::test(flavor = "current_thread")]
async fn the_monitor_that_is_free_is_used() {
    let (taken, free) = (stand_in(Machine::new(512)), stand_in(Machine::new(512)));
    taken.stand_in.behave(Behaviour::NoGreeting);
    let mut monitor = monitor_at(&[&taken.path, &free.path], Use::Brief);
    for _ in 0..2 {
        assert_eq!(actual(&poll(&mut monitor).await), Some(Bytes::from_mib(512)));
    }
    assert_eq!((taken.stand_in.connections(), free.stand_in.connections()), (1, 2));
}

#[tokio::test(flavor = "current_thread")]
async fn a_guest_that_does_not_run_is_fenced() {
    for (status, migration, fence) in [
        ("running", None, None),
        ("paused", None, Some(Fence::Paused)),
        ("inmigrate", None, Some(Fence::Migrating)),
        ("running", Some("active"), Some(Fence::Migrating)),
        ("running", Some("completed"), None),
    ] {
        let machine = Machine {
            status: status.to_owned(),
            migration: migration.map(str::to_owned),
            ..Machine::new(512)
        };
        let told = poll(&mut monitor(&stand_in(machine), Use::Brief)).await;
        assert_eq!(told.fence, fence, "{status} {migration:?}");
    }
}

#[tokio::test(flavor = "current_thread")]
async fn events_of_a_held_monitor_are_told_and_looked_into() {
    let fixture = stand_in(Machine::new(512));
    let mut monitor = monitor(&fixture, Use::Dedicated);
    poll(&mut monitor).await;
    fixture.stand_in.change(|machine| machine.status = "paused".to_owned());
    fixture.stand_in.event("RTC_CHANGE", &json!({"offset": 1}));
    fixture.stand_in.event("STOP", &json!({}));
    assert_eq!(monitor.next_event().await, Signal::Stop);
    assert_eq!(poll(&mut monitor).await.fence, Some(Fence::Paused));

    fixture.stand_in.change(|machine| machine.status = "running".to_owned());
    assert_eq!(poll(&mut monitor).await.fence, Some(Fence::Paused));
    fixture.stand_in.event("RESUME", &json!({}));
    assert_eq!(monitor.next_event().await, Signal::Resume);
    assert_eq!(poll(&mut monitor).await.fence, None);

    // Events in the middle of a poll, too.
    fixture.stand_in.change(|machine| (machine.target, machine.step) = (256 << 20, 128 << 20));
    assert_eq!(actual(&poll(&mut monitor).await), Some(Bytes::from_mib(384)));
    assert_eq!(monitor.next_event().await, Signal::BalloonChange);
}

#[tokio::test(flavor = "current_thread")]
async fn a_monitor_that_is_kept_open_hears_between_polls_what_happened() {
    let fixture = stand_in(Machine::new(512));
    let mut monitor = monitor(&fixture, Use::Brief);
    let keep = Wish { keep_open: true, ..READ };
    monitor.poll(keep, PLENTY).await;
    fixture.stand_in.change(|machine| machine.status = "paused".to_owned());
    fixture.stand_in.event("STOP", &json!({}));
    assert_eq!(monitor.poll(keep, PLENTY).await.fence, Some(Fence::Paused));
    assert_eq!(monitor.poll(keep, PLENTY).await.fence, Some(Fence::Paused));
    assert_eq!(count(&fixture, "query-status"), 2);

    // Without a connection, an event may have been missed.
    monitor.poll(READ, PLENTY).await;
    fixture.stand_in.change(|machine| machine.status = "running".to_owned());
    assert_eq!(monitor.poll(keep, PLENTY).await.fence, None);
}

#[tokio::test(flavor = "current_thread")]
async fn a_held_monitor_comes_back_after_a_lost_connection() {
    let fixture = stand_in(Machine::new(512));
    let mut monitor = monitor(&fixture, Use::Dedicated);
    poll(&mut monitor).await;
    fixture.stand_in.hang_up();
    assert_eq!(poll(&mut monitor).await.balloon.why_not(), Some(&Absence::Disconnected));
    let waiting = tokio::spawn(async move { monitor.next_event().await });
    let connected = async {
        while fixture.stand_in.connections() < 2
            || fixture.stand_in.commands().last().is_none_or(|c| c != "qmp_capabilities")
        {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PLENTY, connected).await.unwrap();
    fixture.stand_in.event("RESET", &json!({}));
    assert_eq!(tokio::time::timeout(PLENTY, waiting).await.unwrap().unwrap(), Signal::Reset);
}

#[tokio::test(flavor = "current_thread")]
async fn after_a_reset_event_the_old_size_is_not_believed_until_the_driver_reports() {
    for virtio_status in [true, false] {
        let fixture = stand_in(Machine { virtio_status, ..Machine::new(512) });
        let mut monitor = monitor(&fixture, Use::Dedicated);
        monitor.set_polling(Span::from_secs(1), PLENTY).await.unwrap();
        monitor.set_target(Bytes::from_mib(300), PLENTY).await.unwrap();
        assert!(!poll(&mut monitor).await.reset);
        assert_eq!(monitor.next_event().await, Signal::BalloonChange);

        fixture.stand_in.change(Machine::reset);
        fixture.stand_in.event("RESET", &json!({"guest": true}));
        assert_eq!(monitor.next_event().await, Signal::Reset);
        for _ in 0..2 {
            let told = poll(&mut monitor).await;
            assert!(told.reset);
            assert_eq!(told.balloon.why_not(), Some(&Absence::NoDriver));
        }

        fixture.stand_in.change(|machine| {
            machine.driver = true;
            machine.update_stats(1);
            machine.last_update += 1;
        });
        let told = poll(&mut monitor).await;
        assert!(!told.reset);
        assert_eq!(actual(&told), Some(Bytes::from_mib(300)));
    }
}

#[tokio::test(flavor = "current_thread")]
async fn a_brief_monitor_sees_a_reset_by_what_it_leaves_behind() {
    // The statistics from before the reset are gone.
    let fixture = stand_in(Machine::new(512));
    let mut monitor = monitor(&fixture, Use::Brief);
    monitor.set_polling(Span::from_secs(1), PLENTY).await.unwrap();
    monitor.set_target(Bytes::from_mib(300), PLENTY).await.unwrap();
    poll(&mut monitor).await;
    fixture.stand_in.change(Machine::reset);
    assert!(poll(&mut monitor).await.reset);
    assert!(poll(&mut monitor).await.reset);
    // The driver is back and begins to inflate again.
    fixture.stand_in.change(|machine| {
        machine.driver = true;
        machine.actual = 510 << 20;
        machine.step = 1 << 20;
    });
    let told = poll(&mut monitor).await;
    assert_eq!((told.reset, actual(&told)), (false, Some(Bytes::from_mib(509))));
}

#[tokio::test(flavor = "current_thread")]
async fn counters_that_go_back_are_a_reset_told_once() {
    let mut machine = Machine { interval: 1, ..Machine::new(512) };
    machine.update_stats(1000);
    let fixture = stand_in(machine);
    let mut monitor = monitor(&fixture, Use::Brief);
    monitor.set_target(Bytes::from_mib(300), PLENTY).await.unwrap();
    assert!(!poll(&mut monitor).await.reset);
    fixture.stand_in.change(|machine| machine.update_stats(3));
    assert!(poll(&mut monitor).await.reset);
    assert!(!poll(&mut monitor).await.reset);
}

#[tokio::test(flavor = "current_thread")]
async fn a_change_that_fails_names_the_guest() {
    let fixture = stand_in(Machine { balloon: false, ..Machine::new(512) });
    let mut monitor = monitor(&fixture, Use::Brief);
    let error = monitor.set_target(Bytes::from_mib(300), PLENTY).await.unwrap_err();
    assert_eq!(error.to_string(), "guest web has no balloon: no balloon device");
    let error = monitor.set_polling(Span::from_secs(1), PLENTY).await.unwrap_err();
    assert!(matches!(error, MonitorError::NoBalloon { .. }));
    fixture.stand_in.behave(Behaviour::Garbage);
    let error = monitor.set_target(Bytes::from_mib(300), PLENTY).await.unwrap_err();
    assert_eq!(error.to_string(), "guest web: the monitor failed");
}

#[tokio::test(flavor = "current_thread")]
async fn numbers_that_can_be_no_sizes_are_not_believed() {
    let machine = Machine { virtio_mem: Some((384 << 20, 256 << 20)), ..Machine::new(512) };
    let fixture = stand_in(machine);
    fixture.stand_in.behave(Behaviour::Numbers);
    let mut monitor = monitor(&fixture, Use::Brief);
    // 2⁶⁴ − 1, −1 and 10³⁰ in turn.
    for _ in 0..6 {
        let told = poll(&mut monitor).await;
        assert_eq!(told.full, Bytes::from_mib(512));
        assert_eq!(told.balloon, Reading::absent(Absence::Malformed));
        assert_eq!(told.hotplug.latest(), None);
        assert_eq!((told.stats.latest(), told.polling), (None, Polling::Unknown));
    }
}

#[tokio::test(flavor = "current_thread")]
async fn a_monitor_that_does_not_answer_is_not_waited_for_each_time() {
    for use_as in [Use::Brief, Use::Dedicated] {
        let fixture = stand_in(Machine::new(512));
        let mut monitor = monitor(&fixture, use_as);
        assert!(poll(&mut monitor).await.balloon.fresh().is_some());
        fixture.stand_in.behave(Behaviour::SilentAfterGreeting);
        let begun = Instant::now();
        for _ in 0..20 {
            let told = monitor.poll(READ, LITTLE).await;
            assert_eq!(told.balloon.why_not(), Some(&Absence::Timeout), "{use_as:?}");
        }
        assert!(begun.elapsed() < LITTLE * 50, "{use_as:?}: {:?}", begun.elapsed());

        fixture.stand_in.behave(Behaviour::Honest);
        fixture.stand_in.hang_up();
        let begun = Instant::now();
        while poll(&mut monitor).await.balloon.fresh().is_none() {
            assert!(begun.elapsed() < PLENTY);
            tokio::task::yield_now().await;
        }
    }
}

#[tokio::test(flavor = "current_thread")]
async fn a_held_monitor_is_asked_again_once_its_late_answers_came() {
    let fixture = stand_in(Machine::new(512));
    let mut monitor = monitor(&fixture, Use::Dedicated);
    assert!(poll(&mut monitor).await.balloon.fresh().is_some());
    let answered = fixture.stand_in.commands().len();
    fixture.stand_in.behave(Behaviour::SilentAfterGreeting);
    let silent = monitor.poll(READ, LITTLE).await;
    assert_eq!(silent.balloon.why_not(), Some(&Absence::Timeout));

    fixture.stand_in.behave(Behaviour::Honest);
    for id in answered + 1..=fixture.stand_in.commands().len() {
        fixture.stand_in.say(&json!({"return": {}, "id": id}));
    }
    fixture.stand_in.event("STOP", &json!({}));
    let heard = tokio::time::timeout(PLENTY, monitor.next_event()).await;
    assert_eq!(heard, Ok(Signal::Stop), "the connection is kept, and listened to");
    assert!(poll(&mut monitor).await.balloon.fresh().is_some());
    assert_eq!(fixture.stand_in.connections(), 1);
}

#[tokio::test(flavor = "current_thread")]
async fn a_change_that_is_not_answered_is_not_tried_each_time() {
    let fixture = stand_in(Machine::new(512));
    fixture.stand_in.behave(Behaviour::SilentToChanges);
    let mut monitor = monitor(&fixture, Use::Brief);
    assert!(poll(&mut monitor).await.balloon.fresh().is_some());
    let begun = Instant::now();
    for mib in 100..120 {
        let error = monitor.set_target(Bytes::from_mib(mib), LITTLE).await.unwrap_err();
        assert!(matches!(error, MonitorError::Qmp { source, .. } if source.absence() == Absence::Timeout));
    }
    assert!(begun.elapsed() < LITTLE * 50, "{:?}", begun.elapsed());

    fixture.stand_in.behave(Behaviour::Honest);
    let begun = Instant::now();
    while monitor.set_target(Bytes::from_mib(200), PLENTY).await.is_err() {
        assert!(begun.elapsed() < PLENTY);
        tokio::task::yield_now().await;
    }
    assert_eq!(fixture.stand_in.change(|machine| machine.target), 200 << 20);
}
