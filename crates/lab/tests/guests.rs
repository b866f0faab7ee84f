//! The lab itself, with real guests, one test at a time. The first run may install packages; each takes about a minute.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::process::ExitCode;
use std::time::Duration;

use libtest_mimic::{Arguments, Trial};
use memtide_lab::disk::Disk;
use memtide_lab::guest::Guest;
use memtide_lab::lab::{Lab, Run};
use memtide_lab::small_host::SmallHost;
use memtide_load::pattern::{self, Tally};
use memtide_load::wire::{Ask, Filled, Hugepages, Output};
use memtide_model::Bytes;

const BOOT: Duration = Duration::from_secs(60);
const JOB: Duration = Duration::from_secs(60);

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    // Guests are many and processors few: one at a time.
    arguments.test_threads = Some(1);
    let test = |name: &str, run: fn()| {
        Trial::test(name, move || {
            run();
            Ok(())
        })
    };
    let tests = vec![
        test("a_guest_does_what_it_is_told", a_guest_does_what_it_is_told),
        test("freed_pages_come_back_and_the_balloon_moves", freed_pages_come_back_and_the_balloon_moves),
        test("a_guests_own_oom_killer_is_survived", a_guests_own_oom_killer_is_survived),
        test("a_small_host_kills_who_exceeds_it", a_small_host_kills_who_exceeds_it),
        test("a_guest_comes_back_after_a_reset", a_guest_comes_back_after_a_reset),
    ];
    libtest_mimic::run(&arguments, tests).exit_code()
}

fn lab() -> Lab {
    Lab::prepare(&|text| eprintln!("{text}")).unwrap()
}

fn mib(mib: u64) -> Bytes {
    Bytes::from_mib(mib)
}

fn a_guest_does_what_it_is_told() {
    let lab = lab();
    let run = Run::create(&lab, "test-told").unwrap();
    let disk = Disk::ensure(lab.cache(), 42, 64).unwrap();
    let guest = Guest::builder("told").memory(mib(512)).disk(&disk).start(&run, None).unwrap();
    let hello = guest.wait_up(BOOT).unwrap();
    assert_eq!(hello.kernel, lab.kernel().release);
    assert!(hello.protected);
    assert!(guest.console().unwrap().contains("GUEST-UP"));

    let _: Filled = guest.ask(Ask::Anon { seed: 7, mib: 100, mib_per_s: None }, JOB).unwrap();
    let tally: Tally = guest.ask(Ask::Verify { seed: 7 }, JOB).unwrap();
    assert_eq!((tally.bytes, tally.mismatches), (100 << 20, 0));
    assert_eq!(tally.checksum, pattern::checksum(7, 0, 100 * 256));

    let read = Ask::Cache { path: "/dev/vda".to_owned(), seed: 42, offset_mib: 8, mib: 32, mib_per_s: None };
    let before = guest.meminfo().unwrap();
    let tally: Tally = guest.ask(read, JOB).unwrap();
    assert_eq!((tally.bytes, tally.mismatches), (32 << 20, 0));
    assert_eq!(tally.checksum, pattern::checksum(42, 8 * 256, 32 * 256));
    assert!(before.psi_some_us.is_some() && before.vmstat.contains_key("workingset_refault_file"));

    let output: Output = guest.ask(Ask::Sh { cmd: "uname -r".to_owned() }, JOB).unwrap();
    assert_eq!(output.text.trim(), hello.kernel);
    let huge: Hugepages = guest.ask(Ask::Hugepages { mib: 64 }, JOB).unwrap();
    assert_eq!((huge.pages, huge.page_kib), (32, 2048));
}

fn freed_pages_come_back_and_the_balloon_moves() {
    let run = Run::create(&lab(), "test-balloon").unwrap();
    let guest =
        Guest::builder("balloon").memory(mib(512)).free_page_reporting(true).start(&run, None).unwrap();
    guest.wait_up(BOOT).unwrap();
    let idle = guest.footprint();
    let _: Filled = guest.ask(Ask::Anon { seed: 7, mib: 200, mib_per_s: None }, JOB).unwrap();
    assert!(guest.footprint() > idle.saturating_add(mib(150)));
    let _: Filled = guest.ask(Ask::Free { seed: 7 }, JOB).unwrap();
    let back = idle.saturating_add(mib(40));
    guest.until("freed pages", JOB, |guest| Ok((guest.footprint() < back).then_some(()))).unwrap();

    guest.set_target(mib(256)).unwrap();
    guest.until("inflation", JOB, |guest| Ok((guest.actual()? <= mib(256)).then_some(()))).unwrap();
    guest.set_target(mib(512)).unwrap();
    guest.until("deflation", JOB, |guest| Ok((guest.actual()? >= mib(512)).then_some(()))).unwrap();
}

fn a_guests_own_oom_killer_is_survived() {
    let run = Run::create(&lab(), "test-guest-oom").unwrap();
    let guest = Guest::builder("oom").memory(mib(256)).start(&run, None).unwrap();
    guest.wait_up(BOOT).unwrap();
    // Overcommitted, so that the allocation itself succeeds.
    let cmd = "echo 1 > /proc/sys/vm/overcommit_memory".to_owned();
    let _: Output = guest.ask(Ask::Sh { cmd }, JOB).unwrap();
    let error = guest.ask::<Filled>(Ask::Anon { seed: 7, mib: 400, mib_per_s: None }, JOB).unwrap_err();
    assert!(error.to_string().contains("signal 9"), "{error}");
    assert_eq!(guest.meminfo().unwrap().oom_kills(), 1);
}

fn a_small_host_kills_who_exceeds_it() {
    let run = Run::create(&lab(), "test-small-host").unwrap();
    let host = SmallHost::create("test-guests", mib(320)).unwrap();
    let guest = Guest::builder("big").memory(mib(512)).start(&run, Some(&host)).unwrap();
    guest.wait_up(BOOT).unwrap();
    assert!(host.usage().unwrap() > mib(50));
    let filled = guest.ask::<Filled>(Ask::Anon { seed: 7, mib: 300, mib_per_s: None }, JOB);
    assert!(filled.unwrap_err().to_string().contains("big"));
    memtide_lab::wait::until("the kill", JOB, || Ok((!guest.alive()).then_some(()))).unwrap();
    assert_eq!(host.oom_kills().unwrap(), 1);
    assert_eq!(guest.footprint(), Bytes::ZERO);
    drop(guest);
    let dir = host.dir().to_owned();
    drop(host);
    assert!(!dir.exists());
}

fn a_guest_comes_back_after_a_reset() {
    let run = Run::create(&lab(), "test-reset").unwrap();
    let guest = Guest::builder("reset").memory(mib(256)).start(&run, None).unwrap();
    guest.wait_up(BOOT).unwrap();
    guest.pause().unwrap();
    guest.resume().unwrap();
    guest.reset().unwrap();
    let boots = |guest: &Guest| guest.console().unwrap().matches("GUEST-UP").count();
    guest.until("the second boot", BOOT, |guest| Ok((boots(guest) == 2).then_some(()))).unwrap();
    guest.wait_up(BOOT).unwrap();
    guest.meminfo().unwrap();
}
