//! The balloon of a guest: its monitor, the device, its driver, its options, its statistics.

use std::path::Path;

use memtide_model::{Absence, Balloon, Fence, Mode, Owner, Polling, Reading, Span};
use memtide_vmm::qemu::{Launcher, SetsBalloon};

use super::{of_guest, sight};
use crate::advice::{self, Change, domain};
use crate::facts::{Daemon, Facts, GuestFacts};
use crate::finding::{Finding, Fix, Severity};
use crate::quote::{shell, string};

/// Younger guests may still be booting.
const BOOTS: Span = Span::from_secs(120);
/// Decisions do not use older statistics.
const TOO_OLD: Span = Span::from_secs(12);
/// `free-page-reporting` of the balloon device.
const QEMU_REPORTING: (u32, u32) = (5, 1);
/// The statistics include allocation stalls, scans and OOM kills.
const QEMU_COUNTERS: (u32, u32) = (9, 2);

/// The cost of a guest that cannot be queried.
pub(super) const ONLY_COUNTED: &str = "memtide can only count it, at its worst case";

/// The monitor cannot be used.
pub(super) fn monitor(facts: &Facts, guest: &GuestFacts) -> Option<Finding> {
    let why = guest.told.balloon.why_not().filter(|_| guest.managed && !sight::is_out_of_reach(guest))?;
    let path = guest.monitors.first().map(|path| path.display().to_string()).unwrap_or_default();
    let finding = |rule, severity, fact: &str| of_guest(guest, rule, severity, fact);
    if guest.is_of_libvirt() {
        return of_libvirt(guest, why);
    }
    Some(match why {
        Absence::OwnedBy(_) => {
            let fact = format!("{} keeps its monitor for itself", guest.launch.by.name());
            own_socket(facts, guest, finding("monitor.taken", Severity::Problem, &fact).costs(ONLY_COUNTED))
        }
        // Its monitors are in that file.
        Absence::NoControl if guest.process.reads_files => {
            let fact =
                "its settings are in a file (-readconfig), which memtide cannot read: no QMP socket is known";
            finding("monitor.in-file", Severity::Warning, fact).costs(ONLY_COUNTED).fix(
                format!(
                    "add the QMP socket from that file to {}; no other program may hold it",
                    facts.configuration.path.display()
                ),
                table(guest, "PATH"),
            )
        }
        Absence::NoControl => {
            let finding = match guest.tcp_monitors.first() {
                None => finding("monitor.none", Severity::Problem, "no QMP socket on QEMU's command line"),
                Some(address) => {
                    let fact =
                        format!("its QMP monitor is on TCP ({address}): memtide uses only Unix sockets");
                    finding("monitor.tcp", Severity::Problem, &fact)
                }
            };
            let socket = advice::socket_of(guest, ".qmp");
            finding.costs(ONLY_COUNTED).with(advice::fix(guest, Change::Monitor(&socket)))
        }
        Absence::ControlTaken if guest.status.is_some_and(|status| status.stopped) => {
            finding("monitor.stopped", Severity::Warning, "QEMU is stopped by a signal")
                .costs("it answers nobody and gives nothing back until it continues")
                .fix("a shell", [format!("kill -CONT {}", guest.pid)])
        }
        Absence::ControlTaken => {
            let fact = format!("another client holds its monitor {path}");
            let cost = format!("a QMP socket serves one client at a time: {ONLY_COUNTED}");
            own_socket(facts, guest, finding("monitor.taken", Severity::Problem, &fact).costs(cost))
        }
        // The path that it has now never existed.
        Absence::Disconnected if guest.left_behind.is_some() => return None,
        Absence::Malformed if !guest.pretty_monitors.is_empty() => pretty(facts, guest),
        Absence::Disconnected | Absence::Timeout | Absence::Overran | Absence::Malformed => {
            let fact = format!("its monitor {path} cannot be used: {why}");
            own_socket(facts, guest, finding("monitor.silent", Severity::Problem, &fact).costs(ONLY_COUNTED))
        }
        Absence::Refused(_) | Absence::Unsupported => {
            let fact = format!("its monitor {path} does not report a balloon: {why}");
            finding("monitor.refuses", Severity::Problem, &fact)
                .costs(ONLY_COUNTED)
                .fix("the host's package manager", ["QEMU 5.1 or newer"])
        }
        // These have their own rules, or nothing to fix.
        Absence::NotYet | Absence::NoBalloon | Absence::NoDriver | Absence::NotPolled | Absence::Silent => {
            return None;
        }
        Absence::Gone | Absence::Forbidden => return None,
    })
}

/// libvirt's daemon answers, but not for this guest.
fn of_libvirt(guest: &GuestFacts, why: &Absence) -> Option<Finding> {
    let is_stuck =
        matches!(why, Absence::Timeout | Absence::Overran | Absence::Malformed | Absence::Refused(_));
    if !is_stuck {
        return None;
    }
    let fact = format!("libvirt gives no usable answer about this guest: {why}");
    Some(of_guest(guest, "libvirt.silent", Severity::Problem, fact).costs(ONLY_COUNTED).fix(
        "a shell: see whether libvirt itself gets an answer, and what QEMU waits for",
        [format!("virsh dommemstat {}", domain(guest)), format!("cat /proc/{}/stack", guest.pid)],
    ))
}

/// Somebody else sets its balloon.
pub(super) fn owned(_: &Facts, guest: &GuestFacts) -> Option<Finding> {
    let owner = match guest.told.fence {
        Some(Fence::Owned(owner)) if owner != Owner::LibvirtLetsRead => owner,
        _ => return None,
    };
    let spare = guest.told.stats.latest().and_then(|stats| stats.available);
    let gain = spare.map_or_else(String::new, |spare| format!(", of which up to {spare} is not in use now"));
    let finding = of_guest(guest, "balloon.owned", Severity::Warning, owner.to_string()).costs(format!(
        "memtide leaves the guest alone, because two programs that set one balloon work against each other; it counts at its full {}{gain}",
        guest.full
    ));
    Some(match owner {
        Owner::Pvestatd => finding.fix(
            "a shell: hand the guest over to memtide (takes effect at once, without a restart)",
            [format!("qm set {} --shares 0", shell(&guest.launch.name))],
        ),
        Owner::Ovirt => finding.fix(
            "oVirt's Administration Portal: hand all guests of the cluster over to memtide",
            ["Clusters, Edit, Optimization: Enable Memory Balloon Optimization: off"],
        ),
        Owner::LibvirtLetsRead => finding,
    })
}

/// Its monitor writes an answer over several lines.
fn pretty(facts: &Facts, guest: &GuestFacts) -> Finding {
    let paths: Vec<String> = guest.pretty_monitors.iter().map(|path| path.display().to_string()).collect();
    let fact = format!(
        "its QMP monitor at {} writes each answer over several lines (-qmp-pretty, or pretty=on of -mon): memtide reads one answer a line",
        paths.join(", ")
    );
    let finding = of_guest(guest, "monitor.pretty", Severity::Problem, fact).costs(ONLY_COUNTED);
    if guest.launch.by != Launcher::Unknown {
        return own_socket(facts, guest, finding);
    }
    let lines = paths.iter().map(|path| advice::monitor(path));
    finding.fix(
        "QEMU's command line (from the next start), in place of -qmp-pretty, or of -mon with pretty=on",
        lines,
    )
}

/// The path of its monitor is relative to a directory that QEMU has left.
pub(super) fn relative_path(facts: &Facts, guest: &GuestFacts) -> Option<Finding> {
    let left = guest.left_behind.as_ref().filter(|_| guest.managed && !guest.is_of_libvirt())?;
    let is_lost = guest.told.balloon.why_not() == Some(&Absence::Disconnected);
    let path = left.path.display();
    let (severity, cost) = match is_lost {
        true => (Severity::Problem, ONLY_COUNTED.to_owned()),
        false => {
            (Severity::Hint, "memtide has guessed the directory; an absolute path is certain".to_owned())
        }
    };
    let fact = format!(
        "the path of its monitor, {path}, is relative, and QEMU has left the directory that it was started in (-daemonize)"
    );
    let absolute =
        left.found.clone().filter(|_| !is_lost).unwrap_or_else(|| Path::new("/DIR").join(&left.path));
    let lines = table(guest, &absolute.display().to_string());
    let place = match is_lost {
        true => ", with the directory in place of /DIR: works at once",
        false => ": works at once",
    };
    Some(
        of_guest(guest, "monitor.relative", severity, fact)
            .costs(cost)
            .fix(format!("{}{place}", facts.configuration.path.display()), lines)
            .with(advice::fix(guest, Change::Monitor(&advice::socket_of(guest, ".qmp")))),
    )
}

/// The table of a guest whose monitor is at this path.
fn table(guest: &GuestFacts, path: &str) -> [String; 3] {
    ["[[guest]]".to_owned(), format!("name = {}", string(&guest.name)), format!("qmp = {}", string(path))]
}

/// A second socket, for memtide alone: QEMU takes any number.
fn own_socket(facts: &Facts, guest: &GuestFacts, finding: Finding) -> Finding {
    let socket = advice::socket_of(guest, "-memtide.qmp");
    let way = advice::fix(guest, Change::Monitor(&socket));
    let is_possible = way.lines.iter().any(|line| line.contains(&socket));
    let finding = finding.with(way);
    if !is_possible {
        return finding;
    }
    let place = format!("and {}: a socket for memtide alone", facts.configuration.path.display());
    finding.fix(place, table(guest, &socket))
}

/// There is no balloon device.
pub(super) fn device(_: &Facts, guest: &GuestFacts) -> Option<Finding> {
    let told_so = guest.told.balloon.why_not() == Some(&Absence::NoBalloon);
    // A monitor that answered knows devices that were plugged in later.
    let seems_so = guest.told.balloon.latest().is_none() && !told_so && !was_asked(guest);
    let on_line = guest.equipment.as_ref().map(|equipment| equipment.balloon.is_some());
    if !guest.managed || !(told_so || (seems_so && on_line == Some(false))) {
        return None;
    }
    // A balloon would take memory in vain.
    if guest.why_withheld().is_some() {
        return None;
    }
    if guest.process.reads_files && !told_so {
        return None;
    }
    // A device that is not on the command line may have been plugged in later, through a monitor.
    let certain = told_so || guest.monitors.is_empty();
    let (severity, fact) = match certain {
        true => (Severity::Problem, "no balloon device"),
        false => (Severity::Warning, "no balloon device on its command line"),
    };
    let finding = of_guest(guest, "balloon.none", severity, fact)
        .costs(format!("memtide can take nothing from it: its whole {} stays promised to it", guest.full));
    Some(with_device(guest, finding))
}

/// Whether its monitor reported its devices.
fn was_asked(guest: &GuestFacts) -> bool {
    matches!(guest.told.balloon.why_not(), None | Some(Absence::NoDriver | Absence::NoBalloon))
}

fn with_device(guest: &GuestFacts, finding: Finding) -> Finding {
    let finding = finding.with(advice::fix(guest, Change::Balloon));
    let is_alone = guest.launch.by.sets_balloon() == SetsBalloon::No;
    if guest.monitors.is_empty() || !is_alone {
        return finding;
    }
    let reporting = if guest.may_report() { r#","free-page-reporting":true"# } else { "" };
    let plug = format!(
        r#"{{"execute":"device_add","arguments":{{"driver":"virtio-balloon-pci","id":"balloon0","deflate-on-oom":true{reporting}}}}}"#
    );
    let place =
        "or its QMP monitor, at once, if the machine has a hot-plug bus (`-machine pc`, not q35's own)";
    finding.fix(place, [plug])
}

/// No driver runs in the guest.
pub(super) fn driver(_: &Facts, guest: &GuestFacts) -> Option<Finding> {
    let absent = guest.told.balloon.why_not() == Some(&Absence::NoDriver) || guest.told.reset;
    let silent = matches!(guest.told.stats.why_not(), Some(Absence::NoDriver | Absence::Silent));
    let balloon = guest.told.balloon.latest();
    // QEMU says that the driver has none, as FreeBSD's.
    let has_none = guest.told.stats.why_not() == Some(&Absence::Unsupported) && balloon.is_some();
    if !guest.managed || guest.told.fence.is_some() || !(absent || silent || has_none) {
        return None;
    }
    // Where QEMU does not say it, the balloon does.
    let moves = balloon.is_some_and(|balloon| balloon.actual < guest.full);
    if (has_none || moves) && !absent {
        let fact = "its balloon driver works, but reports no statistics";
        return Some(
            of_guest(guest, "driver.no-statistics", Severity::Warning, fact)
                .costs("memtide cannot tell how much memory this guest uses, so it takes only what the guest holds beyond its fair share")
                .fix("inside the guest", ["Linux: other systems have drivers without statistics"]),
        );
    }
    if guest.age.is_some_and(|age| age < BOOTS) {
        return Some(
            of_guest(
                guest,
                "driver.booting",
                Severity::Hint,
                "no balloon driver yet: its QEMU started less than two minutes ago",
            )
            .costs("nothing if it is still booting: ask again in a minute"),
        );
    }
    let fact = if absent {
        "a balloon device, but no driver runs in the guest"
    } else {
        "its balloon driver does not answer requests for statistics"
    };
    Some(
        of_guest(guest, "driver.none", Severity::Problem, fact)
            .costs(format!("the balloon does not move: its whole {} stays promised to it", guest.full))
            .fix(
                "inside the guest (Linux; the kernel needs CONFIG_VIRTIO_BALLOON)",
                ["modprobe virtio_balloon", "echo virtio_balloon > /etc/modules-load.d/virtio_balloon.conf"],
            ),
    )
}

/// The guest's vCPUs are stopped.
pub(super) fn paused(_: &Facts, guest: &GuestFacts) -> Option<Finding> {
    if guest.told.fence != Some(Fence::Paused) {
        return None;
    }
    Some(
        of_guest(guest, "guest.paused", Severity::Hint, "its vCPUs are stopped")
            .costs("its balloon cannot move until it continues; it keeps its memory")
            .fix("its QMP monitor", [r#"{"execute":"cont"}"#]),
    )
}

/// The balloon's options from the monitor, or from the command line if the monitor did not answer.
fn options(guest: &GuestFacts) -> Option<(bool, bool)> {
    match &guest.told.balloon {
        Reading::Fresh { value: Balloon { deflate_on_oom, free_page_reporting, .. }, .. }
        | Reading::Stale { value: Balloon { deflate_on_oom, free_page_reporting, .. }, .. } => {
            Some((*deflate_on_oom, *free_page_reporting))
        }
        Reading::Absent { why: Absence::NoBalloon } => None,
        Reading::Absent { .. } => guest
            .equipment
            .as_ref()
            .and_then(|equipment| equipment.balloon.as_ref())
            .map(|balloon| (balloon.deflate_on_oom, balloon.free_page_reporting)),
    }
}

/// The guest may not deflate its own balloon.
pub(super) fn deflate_on_oom(_: &Facts, guest: &GuestFacts) -> Option<Finding> {
    let (false, _) = options(guest)? else { return None };
    if !guest.managed || guest.why_withheld().is_some() {
        return None;
    }
    // Nobody inflates a balloon that memtide does not reach.
    let severity = if guest.is_beyond_libvirt() { Severity::Hint } else { Severity::Warning };
    let finding = of_guest(guest, "balloon.deflate-on-oom", severity, "deflate-on-oom is off").costs(
        "a guest that grows faster than memtide grants kills its own processes instead of taking memory back from its \
         balloon; in return a strict commitment needs no room for its self-deflation",
    );
    Some(finding.with(advice::fix(guest, Change::DeflateOnOom)))
}

/// Free page reporting is off.
pub(super) fn free_page_reporting(_: &Facts, guest: &GuestFacts) -> Option<Finding> {
    let (_, false) = options(guest)? else { return None };
    if offers_reporting(guest) || !guest.may_report() {
        return None;
    }
    let finding = of_guest(
        guest,
        "balloon.free-page-reporting",
        Severity::Warning,
        "free page reporting is off",
    )
    .costs(
        "memory that the guest has freed stays with its process until a balloon takes it: fewer guests fit",
    );
    Some(match guest.qemu {
        Some((major, minor)) if (major, minor) < QEMU_REPORTING => Finding {
            fact: format!("free page reporting is off, and QEMU {major}.{minor} does not have it"),
            ..finding
        }
        .fix(
            "the host's package manager",
            ["install QEMU 5.1 or newer, then add free-page-reporting=on to the balloon device"],
        ),
        _ => finding.with(advice::fix(guest, Change::Reporting)),
    })
}

/// Whether the device on the command line offers free page reporting.
fn offers_reporting(guest: &GuestFacts) -> bool {
    guest
        .equipment
        .as_ref()
        .and_then(|equipment| equipment.balloon.as_ref())
        .is_some_and(|balloon| balloon.free_page_reporting)
}

/// Free page reporting is offered, but the driver does not use it.
pub(super) fn not_negotiated(_: &Facts, guest: &GuestFacts) -> Option<Finding> {
    let balloon = guest.told.balloon.fresh()?;
    if balloon.free_page_reporting || !offers_reporting(guest) || !guest.may_report() {
        return None;
    }
    let young = guest.age.is_some_and(|age| age < BOOTS);
    let severity = if young { Severity::Hint } else { Severity::Warning };
    Some(
        of_guest(
            guest,
            "balloon.reporting-not-negotiated",
            severity,
            "free page reporting is offered, but its driver does not use it",
        )
        .costs("memory that the guest has freed stays with its process until a balloon takes it")
        .fix(
            "inside the guest",
            ["Linux 5.7 or newer with CONFIG_PAGE_REPORTING; older kernels and other systems do not have it"],
        ),
    )
}

/// The statistics are not polled, or too rarely.
pub(super) fn statistics(facts: &Facts, guest: &GuestFacts) -> Option<Finding> {
    // When memtide manages, it sets the interval itself.
    if facts.mode == Mode::Manage || !guest.managed || guest.why_withheld().is_some() {
        return None;
    }
    let (rule, fact) = match guest.told.polling {
        Polling::Off => ("statistics.off", "nobody polls the balloon statistics".to_owned()),
        Polling::Every(every) if every >= TOO_OLD => {
            ("statistics.seldom", format!("the balloon statistics are polled only every {every}"))
        }
        Polling::Every(_) | Polling::Unknown => return None,
    };
    let device = guest.equipment.as_ref().and_then(|equipment| equipment.balloon.as_ref());
    let id = device.and_then(|balloon| balloon.id.as_deref()).unwrap_or("balloon0");
    let qmp = format!(
        r#"{{"execute":"qom-set","arguments":{{"path":{},"property":"guest-stats-polling-interval","value":1}}}}"#,
        string(&format!("/machine/peripheral/{id}"))
    );
    let cost = "memtide only observes, so it cannot tell how much this guest uses; when it manages, it polls them itself";
    // Beside a daemon that runs, another one would only observe.
    let (place, line) = match facts.daemon {
        Daemon::Runs { .. } => (
            format!("let memtide manage: {}, then reload the daemon", facts.configuration.path.display()),
            "mode = \"manage\"".to_owned(),
        ),
        _ => ("a shell: let memtide manage".to_owned(), facts.as_root("run --manage")),
    };
    let finding = of_guest(guest, rule, Severity::Hint, fact).costs(cost).fix(place, [line]);
    // Launchers have no word for it, or set the interval themselves.
    let finding = match guest.launch.by {
        Launcher::Unknown => {
            let Fix { place, lines } = advice::fix(guest, Change::Polling);
            finding.fix(format!("or {place}"), lines)
        }
        _ => finding,
    };
    Some(finding.fix("or its QMP monitor, at once", [qmp]))
}

/// The driver offers few counters.
pub(super) fn counters(facts: &Facts, guest: &GuestFacts) -> Option<Finding> {
    let stats = guest.told.stats.latest()?;
    if !guest.managed {
        return None;
    }
    if stats.available.is_none() {
        return Some(
            of_guest(guest, "driver.no-available", Severity::Warning, "its driver is old: it does not report available memory (stat-available-memory)")
                .costs("memtide cannot tell its used memory from its spare memory: it gains nothing, and gives only memory beyond its fair share")
                .fix("inside the guest", ["Linux 4.6 or newer"]),
        );
    }
    if stats.alloc_stalls.is_some() && stats.async_scans.is_some() {
        return None;
    }
    if guest.is_of_libvirt() {
        return Some(uncounted_by_libvirt(facts, guest));
    }
    let finding = of_guest(
        guest,
        "driver.no-stalls",
        Severity::Hint,
        "its driver does not report allocation stalls, scans and OOM kills",
    )
    .costs(UNCOUNTED_COSTS);
    Some(match guest.qemu {
        Some((major, minor)) if (major, minor) < QEMU_COUNTERS => finding.fix(
            "the host's package manager",
            [format!(
                "QEMU 9.2 or newer (this one is {major}.{minor}), and Linux 6.12 or newer in the guest"
            )],
        ),
        _ => finding.fix("inside the guest", ["Linux 6.12 or newer (with QEMU 9.2 or newer on the host)"]),
    })
}

/// What it costs that a driver does not tell of stalls and scans.
const UNCOUNTED_COSTS: &str = "memtide judges by what the guest reads from its disks whether it misses page cache; it does not see that programs \
     in it wait for memory or are killed. Where QEMU does not serve all its disks, its page cache is taken only for memory that others use";

/// libvirt's statistics have no tags for the counters of stalls.
fn uncounted_by_libvirt(facts: &Facts, guest: &GuestFacts) -> Finding {
    of_guest(guest, "libvirt.no-stalls", Severity::Hint, "libvirt does not pass on the counters of allocation stalls, scans and OOM kills")
        .costs(UNCOUNTED_COSTS)
        .fix(
            format!(
                "{}: let memtide ask QEMU through libvirt (libvirt then marks its guests as tainted: custom-monitor; the guest needs Linux 6.12 or newer)",
                facts.configuration.path.display()
            ),
            ["[[libvirt]]", "monitor_commands = true"],
        )
        .with(advice::fix(guest, Change::AgentPort))
}
