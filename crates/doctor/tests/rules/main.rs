//! Rules: one change makes a healthy host unhealthy, and exactly one finding follows. Each group of rules has its own file. This file has what they
//! share, and the tests of several groups.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../common/mod.rs"]
mod common;

mod agent;
mod balloon;
mod cgroups;
mod kernel;
mod memory;
mod others;
mod pinned;
mod promises;
mod sight;
mod tier;
mod uml;

use std::path::PathBuf;

use common::{found, guest, healthy, instance, mib};
use memtide_doctor::facts::{
    Configuration, Daemon, Facts, GuestFacts, ImageFacts, Journal, LeftBehind, OtherKind, OtherVmm,
    ProcessStatus, Sight, SocketTrouble, Swap, SwapKind, Thp, Trouble, Unmatched,
};
use memtide_doctor::{Finding, Severity, diagnose};
use memtide_host::{CgroupVersion, Limited, Locked};
use memtide_model::{
    Absence, Agent, Amount, Balloon, Bytes, Can, Commitment, Config, Fence, GuestStats, KsmMode, KsmRun,
    KsmSettings, Mode, Outsider, Outsiders, Polling, Reading, SelfDeflationWithin, Space, Span, TmpfsId,
    Withheld, name_matches,
};
use memtide_vmm::qemu::{Accel, Backing, BalloonArgument, Equipment, Launcher, MemoryArgument, MemoryBlock};
const PROBLEM: Severity = Severity::Problem;
const WARNING: Severity = Severity::Warning;
const HINT: Severity = Severity::Hint;

type Spoil = fn(&mut Facts);
type Spoiler = dyn Fn(&mut Facts);

fn first(facts: &mut Facts) -> &mut GuestFacts {
    &mut facts.guests[0]
}

/// The monitor of the first guest reported nothing.
fn absent(facts: &mut Facts, why: Absence) {
    untold(first(facts), why);
}

fn untold(guest: &mut GuestFacts, why: Absence) {
    guest.told.balloon = Reading::absent(why.clone());
    guest.told.stats = Reading::absent(why);
    guest.told.polling = Polling::Unknown;
}

fn equipment(facts: &mut Facts) -> &mut Equipment {
    first(facts).equipment.as_mut().unwrap()
}

fn status(facts: &mut Facts) -> &mut ProcessStatus {
    first(facts).status.as_mut().unwrap()
}

fn locked(facts: &mut Facts) -> &mut Locked {
    first(facts).locked.as_mut().unwrap()
}

fn thp(facts: &mut Facts) -> &mut Thp {
    facts.host.thp.as_mut().unwrap()
}

fn ksm(facts: &mut Facts) -> &mut KsmSettings {
    facts.host.ksm.as_mut().unwrap()
}

fn device(facts: &mut Facts) -> &mut BalloonArgument {
    equipment(facts).balloon.as_mut().unwrap()
}

fn fresh<T: std::fmt::Debug>(reading: &mut Reading<T>) -> &mut T {
    match reading {
        Reading::Fresh { value, .. } => value,
        other => panic!("{other:?}"),
    }
}

fn balloon(facts: &mut Facts) -> &mut Balloon {
    fresh(&mut first(facts).told.balloon)
}

fn stats(facts: &mut Facts) -> &mut GuestStats {
    fresh(&mut first(facts).told.stats)
}

fn swap(kind: SwapKind) -> Swap {
    Swap { name: "/dev/vda2".to_owned(), kind, size: mib(1024), used: mib(0) }
}

fn limited(dir: &str, limit: u64, guests: &[usize]) -> Limited {
    Limited { dir: dir.into(), version: CgroupVersion::V2, limit: mib(limit), guests: guests.to_vec() }
}

/// This change of a healthy host gives exactly one finding, with `line` in its text.
#[track_caller]
fn gives(severity: Severity, rule: &str, line: &str, spoil: impl FnOnce(&mut Facts)) {
    let findings = found(spoil);
    assert_eq!(kinds(&findings), [(rule, severity)], "{findings:#?}");
    let all = text(&findings[0]);
    assert!(all.contains(line), "{rule}: no `{line}` in {all}");
    assert!(!findings[0].cost.is_empty(), "{rule} says what it costs");
}

fn rules(findings: &[Finding]) -> Vec<&'static str> {
    findings.iter().map(|finding| finding.rule).collect()
}

fn kinds(findings: &[Finding]) -> Vec<(&'static str, Severity)> {
    findings.iter().map(|finding| (finding.rule, finding.severity)).collect()
}

fn text(finding: &Finding) -> String {
    let lines = finding.fixes.iter().flat_map(|fix| fix.lines.iter().chain([&fix.place]));
    lines.fold(format!("{}\n{}", finding.fact, finding.cost), |all, line| format!("{all}\n{line}"))
}

#[test]
fn a_healthy_host_lacks_nothing() {
    assert_eq!(diagnose(&healthy()), []);
    assert_eq!(found(|facts| facts.guests.clear()), []);
    // Swap in compressed memory is not on a disk.
    assert_eq!(found(|facts| facts.host.swaps = vec![swap(SwapKind::Zram)]), []);
}

#[test]
fn a_guest_that_is_left_alone_has_no_problems() {
    for spoil in [
        (|facts| absent(facts, Absence::NoControl)) as Spoil,
        |facts| equipment(facts).pinning = vec!["vfio-pci 0000:65:00.0".to_owned()],
        |facts| equipment(facts).mem_lock = true,
        |facts| balloon(facts).deflate_on_oom = false,
        |facts| first(facts).told.polling = Polling::Off,
    ] {
        let findings = found(|facts| {
            spoil(facts);
            first(facts).managed = false;
        });
        assert_eq!(findings, []);
    }
}

#[test]
fn guests_of_libvirt_get_libvirts_lines_and_have_no_problems() {
    let findings = found(|facts| {
        for guest in &mut facts.guests {
            guest.launch.by = Launcher::Libvirt;
            untold(guest, Absence::OwnedBy("libvirt".to_owned()));
        }
        first(facts).launch.name = "a b".to_owned();
        equipment(facts).balloon = None;
        facts.guests[1].equipment.as_mut().unwrap().balloon.as_mut().unwrap().free_page_reporting = false;
    });
    assert_eq!(
        kinds(&findings),
        [
            ("libvirt.out-of-reach", WARNING),
            ("balloon.none", WARNING),
            ("balloon.free-page-reporting", WARNING)
        ]
    );
    let all: String = findings.iter().map(text).collect();
    assert!(all.contains("virsh edit 'a b'"), "{all}");
    assert!(all.contains(
        "<memballoon model='virtio' autodeflate='on' freePageReporting='on'><stats period='1'/></memballoon>"
    ));
    assert!(all.contains("socket = \"/PATH/libvirt-sock\""), "{all}");
    assert!(!all.contains("-qmp") && !all.contains("-device"), "{all}");
}

#[test]
fn one_guest_is_no_plural() {
    let alone = |spoil: fn(&mut Facts)| {
        found(move |facts| {
            facts.guests.truncate(1);
            spoil(facts);
        })
    };
    let held = alone(|facts| {
        first(facts).full = mib(9216);
        first(facts).managed = false;
    });
    assert_eq!(held[0].fact, "1 guest that memtide can take nothing from was promised 9 GiB of 8 GiB");
    let unmanaged = alone(|facts| first(facts).full = mib(9216));
    assert!(unmanaged[0].fact.starts_with("the guest was promised 9 GiB, 1.40 GiB more"), "{unmanaged:#?}");
    let hidden = alone(|facts| absent(facts, Absence::Forbidden));
    assert!(text(&hidden[0]).contains("cannot reach the monitor of web1"), "{hidden:#?}");
    let nine = alone(|facts| facts.slow = (0..9).map(|n| format!("the mappings of web{n}")).collect());
    assert!(nine[0].fact.contains("web7 and 1 other took too long"), "{nine:#?}");
    let libvirts = alone(|facts| {
        first(facts).launch.by = Launcher::Libvirt;
        absent(facts, Absence::OwnedBy("libvirt".to_owned()));
    });
    assert!(
        text(&libvirts[0]).contains("no libvirt daemon that answers for the guest web1"),
        "{libvirts:#?}"
    );
    let room = alone(|facts| {
        facts.instances = vec![instance("lab1", 201)];
        let tmpfs = facts.instances[0].file.as_mut().unwrap().tmpfs.as_mut().unwrap();
        tmpfs.space = Space { size: mib(200), free: mib(50) };
    });
    assert!(room[0].fact.contains("its UML instance may take 256 MiB"), "{room:#?}");
}

#[test]
fn what_matters_most_comes_first() {
    let findings = found(|facts| {
        ksm(facts).run = KsmRun::Unmerged;
        facts.host.overcommit = Some(2);
        untold(&mut facts.guests[1], Absence::NoControl);
    });
    let severities: Vec<_> = findings.iter().map(|finding| finding.severity).collect();
    assert_eq!(severities, [PROBLEM, WARNING, HINT]);
}
