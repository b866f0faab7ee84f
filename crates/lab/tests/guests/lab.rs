//! The lab itself, with real guests. The first run may install packages.

use memtide_lab::guest::disk::Disk;
use memtide_lab::guest::{BOOT, Guest};
use memtide_lab::work::exercise;
use memtide_load::exerciser::content::{Content, Tally};
use memtide_load::exerciser::report::Summary;
use memtide_load::helper::wire::{Ask, Hugepages, Output};
use memtide_model::Bytes;

use crate::JOB;
use crate::mib;
use crate::prepare;
use crate::reporting;
use crate::start;
use crate::the_lab;

/// One guest for all tests that do not disturb each other.
pub fn a_guest_does_what_it_is_told() {
    let run = prepare("test-told");
    let disk = Disk::ensure(the_lab().cache(), 42, 64).unwrap();
    let guest = Guest::builder("told").memory(mib(512)).disk(&disk).start(&run, None).unwrap();
    let hello = guest.wait_up(BOOT).unwrap();
    assert_eq!(hello.kernel, the_lab().qemu().unwrap().kernel.release);
    assert!(hello.protected);
    assert!(guest.console().unwrap().contains("GUEST-UP"));

    the_exerciser_is_small(&guest);
    a_host_inside_a_guest_is_read_through_cgroup_v2(&guest);
    a_real_kernel_reclaims_from_one_cgroup_alone(&guest);

    let memory = guest.run(exercise::fill(7, 100, None), JOB).unwrap();
    let check = Ask::Order { load: memory.id(), line: "check".to_owned() };
    let tally: Tally = guest.ask(check, JOB).unwrap();
    assert_eq!((tally.bytes, tally.mismatches), (100 << 20, 0));
    assert_eq!(tally.checksum, Content::of(7).checksum(0, 100 * 256));

    let sh = |cmd: &str| guest.ask::<Output>(Ask::Sh { cmd: cmd.to_owned() }, JOB).unwrap().text;
    // The last close of a block device drops its cache. Free memory tells little: pages may come from the kernel's per-CPU lists.
    sh("until [ -z \"$(cat /cg/one/cgroup.procs /cg/two/cgroup.procs)\" ]; do sleep 0.1; done");
    sh("sh -c 'exec 3</dev/vda; exec sleep 600' >/dev/null 2>&1 &");
    let file_pages =
        || -> u64 { sh("awk '/^nr_file_pages/ { print $2 }' /proc/vmstat").trim().parse().unwrap() };
    let (meminfo, before) = (guest.meminfo().unwrap(), file_pages());
    let read: Summary = guest.ask(exercise::read_disk(&disk, 32, None), JOB).unwrap();
    assert_eq!((read.touched_bytes, read.errors), (32 << 20, 0));
    assert_eq!(exercise::verified_by(&read, disk.seed), 32 << 20);
    let cached = file_pages().saturating_sub(before);
    assert!(cached > 20 << 8, "the page cache stays behind: {cached} pages");
    assert!(meminfo.psi_some_us.is_some() && meminfo.vmstat.contains_key("workingset_refault_file"));

    let output: Output = guest.ask(Ask::Sh { cmd: "uname -r".to_owned() }, JOB).unwrap();
    assert_eq!(output.text.trim(), hello.kernel);
    let huge: Hugepages = guest.ask(Ask::Hugepages { mib: 64 }, JOB).unwrap();
    assert_eq!((huge.pages, huge.page_kib), (32, 2048));
}

fn the_exerciser_is_small(guest: &Guest) {
    let program = the_lab().program("memtide-load").unwrap();
    let size = Bytes::new(std::fs::metadata(&program).unwrap().len());
    let most = mib(1).saturating_add(crate::more_with_glibc(&program));
    assert!(size <= most, "the program has {size}");
    let memory = guest.run(exercise::load("--size 64M --passes 1 --hold"), JOB).unwrap();
    let cmd = "sed -n 's/VmRSS://p' /proc/$(pidof memtide-load | tr ' ' '\\n' | sort -n | tail -n 1)/status";
    let output: Output = guest.ask(Ask::Sh { cmd: cmd.to_owned() }, JOB).unwrap();
    let kib: u64 = output.text.split_whitespace().find_map(|word| word.parse().ok()).unwrap();
    let besides = Bytes::from_kib(kib).saturating_sub(mib(64));
    assert!(kib >= 64 << 10 && besides <= most, "64 MiB and at most {most} besides: {kib} KiB");
    guest.run(Ask::Cancel { job: memory.id() }, JOB).unwrap();
}

/// Two processes, each in a cgroup with 24 MiB of page cache: only the one that is named loses its cache. They keep the disk open: the last
/// close of a block device drops its cache.
fn a_real_kernel_reclaims_from_one_cgroup_alone(guest: &Guest) {
    let script = "reads() { mkdir -p /cg/$1; sh -c \"exec 3</dev/vda; echo \\$\\$ > /cg/$1/cgroup.procs; \
                    dd if=/dev/vda of=/dev/null bs=1M count=24 skip=$2; exec sleep 600\" >/dev/null 2>&1 & }; \
                  reads one 0; one=$!; reads two 32; two=$!; \
                  until [ \"$(cat /proc/$one/comm /proc/$two/comm | tr '\\n' ' ')\" = 'sleep sleep ' ]; do sleep 0.1; done; \
                  before=$(cat /cg/two/memory.current); host-report reclaim $one 16; \
                  echo $((before - $(cat /cg/two/memory.current))); \
                  echo $two > /cg/one/cgroup.procs; host-report reclaim $one 1; kill $one $two";
    let output: Output = guest.ask(Ask::Sh { cmd: script.to_owned() }, JOB).unwrap();
    let lines: Vec<&str> = output.text.lines().collect();
    let [reclaimed, other, shared] = lines[..] else { panic!("{}", output.text) };
    assert!(reclaimed.parse::<u64>().is_ok_and(|bytes| bytes >= 8 << 20), "{}", output.text);
    assert!(shared.contains("also holds other processes"), "{}", output.text);
    assert!(other.parse::<i64>().is_ok_and(|bytes| bytes.abs() < 4 << 20), "{}", output.text);
}

/// memtide's readers on a kernel with only cgroup v2: inside a guest.
fn a_host_inside_a_guest_is_read_through_cgroup_v2(guest: &Guest) {
    let script = "echo +memory > /cg/cgroup.subtree_control; mkdir -p /cg/vms; \
                  echo 134217728 > /cg/vms/memory.max; sleep 600 >/dev/null 2>&1 & pid=$!; \
                  echo $pid > /cg/vms/cgroup.procs; host-report --pid $pid; kill $pid";
    let output: Output = guest.ask(Ask::Sh { cmd: script.to_owned() }, JOB).unwrap();
    let report: serde_json::Value = serde_json::from_str(&output.text).unwrap_or_else(|error| {
        panic!("{error}: {}", output.text);
    });
    let text = report.to_string();
    assert!(text.contains("134217728"), "the limit of the cgroup: {text}");
    assert!(text.contains("oom_kills"), "its events: {text}");
}

pub fn freed_pages_come_back_and_the_balloon_moves() {
    let run = prepare("test-balloon");
    let guest = &start(&run, [reporting("balloon", mib(512), false)])[0];
    let idle = guest.footprint();
    let memory = guest.run(exercise::fill(7, 200, None), JOB).unwrap();
    assert!(guest.footprint() > idle.saturating_add(mib(150)));
    guest.run(Ask::Cancel { job: memory.id() }, JOB).unwrap();
    let back = idle.saturating_add(mib(40));
    guest.until("freed pages", JOB, |guest| Ok((guest.footprint() < back).then_some(()))).unwrap();

    guest.set_target(mib(256)).unwrap();
    guest.until("inflation", JOB, |guest| Ok((guest.actual()? <= mib(256)).then_some(()))).unwrap();
    guest.set_target(mib(512)).unwrap();
    guest.until("deflation", JOB, |guest| Ok((guest.actual()? >= mib(512)).then_some(()))).unwrap();
}

pub fn a_guests_own_oom_killer_is_survived() {
    let run = prepare("test-guest-oom");
    let guest = Guest::builder("oom").memory(mib(256)).start(&run, None).unwrap();
    guest.wait_up(BOOT).unwrap();
    // Overcommit, so that the allocation itself succeeds.
    let cmd = "echo 1 > /proc/sys/vm/overcommit_memory".to_owned();
    let _: Output = guest.ask(Ask::Sh { cmd }, JOB).unwrap();
    let error = guest.run(exercise::fill(7, 400, None), JOB).unwrap_err().to_string();
    assert!(error.contains("signal 9") && error.contains("Out of memory: Killed process"), "{error}");
    assert_eq!(guest.meminfo().unwrap().oom_kills(), 1);
}

pub fn a_small_host_kills_who_exceeds_it() {
    let run = prepare("test-small-host");
    let host = crate::small_host("test-guests", mib(320));
    let guest = Guest::builder("big").memory(mib(512)).start(&run, Some(&host)).unwrap();
    guest.wait_up(BOOT).unwrap();
    assert!(host.usage().unwrap() > mib(50));
    let filled = guest.run(exercise::fill(7, 300, None), JOB);
    assert!(filled.unwrap_err().to_string().contains("big"));
    memtide_lab::wait::until("the kill", JOB, || Ok((!guest.alive()).then_some(()))).unwrap();
    assert_eq!(host.oom_kills().unwrap(), 1);
    assert_eq!(guest.footprint(), Bytes::ZERO);
    drop(guest);
    let dir = host.dir().to_owned();
    drop(host);
    assert!(!dir.exists());
}

pub fn a_guest_comes_back_after_a_reset() {
    let run = prepare("test-reset");
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
