//! The way to a balloon, its driver, its options and its statistics.

use super::*;

#[test]
fn the_way_to_the_balloon() {
    gives(PROBLEM, "monitor.none", "-qmp unix:/run/vm/web1.qmp,server=on,wait=off", |facts| {
        absent(facts, Absence::NoControl)
    });
    gives(PROBLEM, "monitor.tcp", "-qmp unix:/run/vm/web1.qmp,server=on,wait=off", |facts| {
        absent(facts, Absence::NoControl);
        first(facts).tcp_monitors = vec!["tcp:localhost:4444".to_owned()];
    });
    gives(PROBLEM, "monitor.taken", "-qmp unix:/run/vm/web1-memtide.qmp,server=on,wait=off", |facts| {
        absent(facts, Absence::ControlTaken)
    });
    gives(PROBLEM, "monitor.taken", "Incus keeps its monitor for itself", |facts| {
        absent(facts, Absence::OwnedBy("Incus".to_owned()));
        first(facts).process.reads_files = true;
        first(facts).launch.by = Launcher::Incus;
    });
    gives(PROBLEM, "monitor.silent", "/run/vm/web1.qmp cannot be used", |facts| {
        absent(facts, Absence::Timeout)
    });
    gives(PROBLEM, "monitor.relative", "qmp = \"/DIR/vm.qmp\"", |facts| {
        absent(facts, Absence::Disconnected);
        first(facts).left_behind = Some(LeftBehind { path: "vm.qmp".into(), found: None });
    });
    gives(HINT, "monitor.relative", "qmp = \"/srv/vm.qmp\"", |facts| {
        let found = Some("/srv/vm.qmp".into());
        first(facts).left_behind = Some(LeftBehind { path: "vm.qmp".into(), found });
    });
    gives(PROBLEM, "monitor.refuses", "does not report a balloon", |facts| {
        absent(facts, Absence::Unsupported)
    });
    gives(
        PROBLEM,
        "balloon.none",
        "-device virtio-balloon-pci,id=balloon0,deflate-on-oom=on,free-page-reporting=on",
        |facts| {
            equipment(facts).balloon = None;
            absent(facts, Absence::NoBalloon);
        },
    );
    gives(PROBLEM, "driver.none", "modprobe virtio_balloon", |facts| absent(facts, Absence::NoDriver));
    gives(PROBLEM, "driver.none", "does not answer", |facts| {
        first(facts).told.stats = Reading::absent(Absence::Silent)
    });
    gives(WARNING, "monitor.stopped", "kill -CONT 101", |facts| {
        absent(facts, Absence::ControlTaken);
        status(facts).stopped = true;
    });
    gives(WARNING, "sight.monitors", "sudo memtide doctor", |facts| absent(facts, Absence::Forbidden));
    gives(HINT, "driver.booting", "still booting", |facts| {
        absent(facts, Absence::NoDriver);
        first(facts).age = Some(Span::from_secs(5));
    });
    gives(HINT, "guest.paused", r#"{"execute":"cont"}"#, |facts| {
        first(facts).told.fence = Some(Fence::Paused)
    });
}

#[test]
fn what_the_balloon_can_do() {
    gives(WARNING, "balloon.deflate-on-oom", "deflate-on-oom=on", |facts| {
        balloon(facts).deflate_on_oom = false
    });
    gives(
        WARNING,
        "balloon.free-page-reporting",
        "-device virtio-balloon-ccw,id=balloon0,deflate-on-oom=on,free-page-reporting=on",
        |facts| {
            balloon(facts).free_page_reporting = false;
            device(facts).free_page_reporting = false;
            device(facts).driver = "virtio-balloon-ccw".to_owned();
        },
    );
    gives(WARNING, "balloon.free-page-reporting", "QEMU 4.2 does not have it", |facts| {
        balloon(facts).free_page_reporting = false;
        device(facts).free_page_reporting = false;
        first(facts).qemu = Some((4, 2));
    });
    gives(WARNING, "balloon.reporting-not-negotiated", "Linux 5.7", |facts| {
        balloon(facts).free_page_reporting = false
    });
    gives(WARNING, "driver.no-available", "Linux 4.6 or newer", |facts| stats(facts).available = None);
    gives(HINT, "statistics.seldom", "every 60.0 s", |facts| {
        first(facts).told.polling = Polling::Every(Span::from_secs(60))
    });
    gives(HINT, "statistics.off", r#""path":"/machine/peripheral/balloon0""#, |facts| {
        first(facts).told.polling = Polling::Off
    });
    for (daemon_runs, line) in [(false, "sudo memtide run --manage"), (true, "mode = \"manage\"")] {
        gives(HINT, "statistics.off", line, |facts| {
            first(facts).told.polling = Polling::Off;
            if daemon_runs {
                let (version, guests) = ("0.1.0".to_owned(), Default::default());
                facts.daemon = Daemon::Runs { version, mode: Mode::Observe, guests };
            }
        });
    }
    gives(HINT, "driver.no-stalls", "Linux 6.12 or newer", |facts| stats(facts).alloc_stalls = None);
    gives(HINT, "driver.no-stalls", "this one is 7.2", |facts| {
        stats(facts).alloc_stalls = None;
        first(facts).qemu = Some((7, 2));
    });
}

#[test]
fn statistics_are_memtides_own_affair_while_it_manages() {
    let findings = found(|facts| {
        facts.mode = Mode::Manage;
        first(facts).told.polling = Polling::Off;
    });
    assert_eq!(findings, []);
}

#[test]
fn a_driver_without_statistics_is_there_if_qemu_says_so_or_its_balloon_moves() {
    gives(WARNING, "driver.no-statistics", "reports no statistics", |facts| {
        first(facts).told.stats = Reading::absent(Absence::Unsupported);
    });
    gives(WARNING, "driver.no-statistics", "reports no statistics", |facts| {
        first(facts).told.stats = Reading::absent(Absence::Silent);
        balloon(facts).actual = mib(700);
    });
}

#[test]
fn a_device_that_was_plugged_in_later_may_be_there() {
    let findings = found(|facts| {
        equipment(facts).balloon = None;
        absent(facts, Absence::Forbidden);
    });
    assert_eq!(kinds(&findings), [("sight.monitors", WARNING), ("balloon.none", WARNING)]);
    let without_monitor = found(|facts| {
        equipment(facts).balloon = None;
        first(facts).monitors.clear();
        absent(facts, Absence::NoControl);
    });
    assert_eq!(without_monitor.iter().filter(|finding| finding.severity == PROBLEM).count(), 2);
}
