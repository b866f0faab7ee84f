//! KSM, governed on the real kernel. It serves the whole machine, so these tests take it only if nobody uses it.

use std::fs;

use memtide_host::Root;
use memtide_host::ksm::settings;
use memtide_lab::error::LabError;
use memtide_lab::guest::Guest;
use memtide_lab::machine::ksm::{Alike, Ksm};
use memtide_lab::machine::process::Held;
use memtide_lab::managers::daemon::Daemon;
use memtide_lab::wait::until;
use memtide_model::{KsmReport, KsmRun, KsmSettings, KsmVerdict};
use memtide_testing::skip;

use crate::{JOB, mib, prepare, say, start, unhurt};

/// A memtide that governs KSM, and no guest.
const GOVERNS: &str = "mode = \"manage\"\ndiscover = [\"no-guest\"]\nksm = { mode = \"govern\" }\n";
/// The processes, and what each holds, in MiB. Four fifths are the same in both.
const PROCESSES: u64 = 2;
const SIZE_MIB: u64 = 96;

pub fn a_burst_merges_what_is_equal_and_a_kill_leaves_nothing_behind() {
    governed(1);
}

pub fn ten_kills_in_the_middle_of_bursts_leave_nothing_behind() {
    governed(10);
}

/// Kills memtide this often in the middle of a burst, then lets a burst come to its end.
fn governed(kills: u64) {
    let _host = taken();
    let run = prepare("test-ksm");
    let (memtide, load) = (Daemon::program().unwrap(), run.lab().program("memtide-load").unwrap());
    let alike = Alike { size_mib: SIZE_MIB, identical: 80, writes_mib: 0, seed: 1 };
    let _held: Vec<Held> =
        (0..PROCESSES).map(|instance| alike.hold(&memtide, &load, instance).unwrap()).collect();
    let found = present();
    for nth in 0..kills {
        let daemon = Daemon::start(run.path(), GOVERNS).unwrap();
        until("a burst", JOB, || Ok((present().run == KsmRun::Scanning).then_some(()))).unwrap();
        // At another moment of the burst each time.
        let (passes, reached) = (nth % 3, ksm(&daemon).seen.full_scans);
        until("its moment", JOB, || Ok((ksm(&daemon).seen.full_scans >= reached + passes).then_some(())))
            .unwrap();
        daemon.kill().unwrap();
        until("the settings as found", JOB, || Ok((present() == found).then_some(()))).unwrap();
    }
    let daemon = Daemon::start(run.path(), GOVERNS).unwrap();
    let merged = until("merged memory", JOB, || {
        let ksm = ksm(&daemon);
        Ok((ksm.verdict == KsmVerdict::Sleeps && ksm.seen.saved >= mib(SIZE_MIB * 3 / 4)).then_some(ksm))
    });
    let merged = merged.unwrap_or_else(|error| panic!("{error}: {}", told(&daemon)));
    assert_eq!(merged.found, Some(found));
    let text = told(&daemon);
    say(&format!("{text}\n{}", daemon.log().unwrap()));
    assert!(
        text.contains("sleeps: nothing new to merge") && text.contains("put back when memtide ends"),
        "{text}"
    );
    assert!(daemon.log().unwrap().contains("KSM: stop scanning"), "{}", daemon.log().unwrap());
    daemon.stop().unwrap();
    until("the settings as found", JOB, || Ok((present() == found).then_some(()))).unwrap();
}

pub fn a_guest_shares_if_its_class_does() {
    let _host = taken();
    let run = prepare("test-share");
    let guest = &start(&run, [Guest::builder("share-1").memory(mib(256))])[0];
    assert!(is_mergeable(guest), "QEMU lets KSM merge all guests");
    for shares in [false, true] {
        let config = format!(
            "mode = \"manage\"\ndiscover = [\"share-*\"]\nksm = {{ mode = \"govern\" }}\n[class.default]\nshare = {shares}\n"
        );
        let part = run.part(&format!("share-{shares}")).unwrap();
        let daemon = Daemon::start(part.path(), &config).unwrap();
        daemon
            .until("what its class says", JOB, "share-1", |detail| {
                (detail.seen.told.merges.fresh() == Some(&shares)).then_some(())
            })
            .unwrap();
        assert_eq!(is_mergeable(guest), shares);
        say(&daemon.command(&["explain", "share-1"]).unwrap());
        daemon.stop().unwrap();
    }
    unhurt(guest);
}

/// Whether KSM may merge the guest's memory: the flag `mg` of the mapping with its size.
fn is_mergeable(guest: &Guest) -> bool {
    let smaps = fs::read_to_string(format!("/proc/{}/smaps", guest.pid())).unwrap();
    let size = (guest.memory().get() >> 10).to_string();
    let is_size = |line: &&str| line.starts_with("Size:") && line.split_whitespace().nth(1) == Some(&size);
    let mut lines = smaps.lines().skip_while(|line| !is_size(line));
    lines.find(|line| line.starts_with("VmFlags")).unwrap().contains(" mg")
}

/// The machine's KSM; `None`, and the reason on the screen, if it is not available.
/// The machine's KSM for one test. Skips the test if somebody uses it.
pub fn taken() -> Ksm {
    match Ksm::take() {
        Err(LabError::Missing(why)) => skip(&why),
        taken => taken.unwrap(),
    }
}

/// Waits until memory was merged and KSM sleeps again.
pub fn until_merged(daemon: &Daemon) {
    let merged = until("merged memory", JOB, || {
        let ksm = ksm(daemon);
        Ok((ksm.verdict == KsmVerdict::Sleeps && !ksm.seen.saved.is_zero()).then_some(()))
    });
    assert!(merged.is_ok(), "{}", told(daemon));
}

fn present() -> KsmSettings {
    settings::read(&Root::system()).unwrap()
}

fn ksm(daemon: &Daemon) -> KsmReport {
    daemon.status().unwrap().host.ksm.unwrap()
}

fn told(daemon: &Daemon) -> String {
    daemon.command(&["ksm"]).unwrap()
}
