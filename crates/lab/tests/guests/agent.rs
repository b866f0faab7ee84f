//! The agent in a real guest: what it reports, what a trim brings back, and what the agent itself costs.

use std::time::Instant;

use memtide_agent::wire::{self, Can, Report};
use memtide_api::view::GuestDetail;
use memtide_lab::error::LabError;
use memtide_lab::guest::Guest;
use memtide_lab::guest::agent::Peer;
use memtide_lab::guest::channel::Job;
use memtide_lab::guest::disk::Disk;
use memtide_lab::machine::kernel::Which;
use memtide_lab::machine::lab::{Lab, Run};
use memtide_lab::machine::process::cpu_seconds;
use memtide_lab::managers::daemon::Daemon;
use memtide_lab::wait::until;
use memtide_lab::work::exercise::{self, load};
use memtide_load::exerciser::content::Tally;
use memtide_load::exerciser::report::Summary;
use memtide_load::helper::wire::{Ask, Output};
use memtide_model::{Bytes, Share};

use crate::{JOB, mib, prepare, reporting, say, start, start_in, the_lab, unhurt};

/// The disk that the guest reads once, in MiB.
const COLD: u64 = 200;
/// The seed of its content.
const DISK_SEED: u64 = 31;
/// The largest program of the agent, with musl.
const PROGRAM: Bytes = Bytes::from_kib(1536);
/// The most memory that the agent may have resident.
const RESIDENT: Bytes = Bytes::from_mib(2);

/// The output of a command in the guest.
fn sh(guest: &Guest, command: &str) -> String {
    let said: Output = guest.ask(Ask::Sh { cmd: command.to_owned() }, JOB).unwrap();
    said.text
}

/// Free memory on per-CPU lists.
fn on_cpus(guest: &Guest) -> Bytes {
    let pages = sh(guest, "awk '/count:/ { pages += $2 } END { print pages }' /proc/zoneinfo");
    Bytes::from_kib(4 * pages.trim().parse::<u64>().unwrap())
}

/// The memory that the agent has resident.
fn resident(guest: &Guest) -> Bytes {
    let status = sh(guest, "cat /proc/$(pidof memtide-agent)/status");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    Bytes::from_kib(line.trim().trim_end_matches(" kB").parse().unwrap())
}

pub fn the_agent_trims_cold_cache_and_hurts_nothing() {
    trims("agent", the_lab());
}

pub fn the_agent_does_the_same_on_linux_6_1() {
    crate::needs_debian_12("the old kernel is a package of Debian 12");
    trims("agent-old", &the_lab().with_kernel(Which::OfDebian12, &say).unwrap());
}

/// Linux 5.10 can drop page cache only all at once: the agent says so, and leaves it.
pub fn the_agent_says_what_linux_5_10_cannot_do() {
    crate::needs_debian_12("the old kernel is a package of Debian 11, whose keys Debian 12 has");
    let lab = the_lab().with_kernel(Which::OfDebian11, &say).unwrap();
    assert!(lab.qemu().unwrap().kernel.release.starts_with("5.10."), "{lab:?}");
    let (_run, guests, memory) = with_cold_cache("agent-5.10", &lab);
    let guest = &guests[0];

    let mut peer = Peer::connect(guest).unwrap();
    let hello = peer.greet().unwrap();
    say(&format!("{hello:?}"));
    let able = [Can::Report, Can::Pressure, Can::Refaults, Can::Compact];
    assert!(able.iter().all(|can| hello.can.contains(can)), "{hello:?}");
    assert!(!hello.can.contains(&Can::Trim) && !hello.can.contains(&Can::CacheLimit), "{hello:?}");
    let before = peer.report().unwrap();
    assert!(before.memory.unmapped_cache >= mib(COLD * 9 / 10), "{before:?}");
    let trim = |last_resort| wire::Ask::Trim { bytes: mib(100), may_swap: false, last_resort };
    for (last_resort, reason) in
        [(false, "memory.reclaim needs Linux 5.19"), (true, "does not allow drop_caches")]
    {
        let why = peer.done(trim(last_resort)).unwrap_err().to_string();
        assert!(why.contains(reason), "{why}");
    }
    peer.done(wire::Ask::Compact).unwrap();
    let after = peer.report().unwrap();
    assert!(after.memory.unmapped_cache >= mib(COLD * 9 / 10), "{after:?}");
    let tally: Tally = guest.ask(Ask::Order { load: memory.id(), line: "check".to_owned() }, JOB).unwrap();
    assert_eq!((tally.bytes, tally.mismatches), (100 << 20, 0));
    let resident = resident(guest);
    assert!(resident <= RESIDENT, "{resident}");
    unhurt(guest);
}

/// A guest with 100 MiB of memory in use, which the job returned has filled, and [`COLD`] MiB of page cache that it read once.
fn with_cold_cache(name: &str, lab: &Lab) -> (Run, Vec<Guest>, Job) {
    let run = Run::create(lab, &format!("test-{name}")).unwrap();
    let disk = Disk::ensure(lab.cache(), DISK_SEED, COLD).unwrap();
    let guests = start(&run, [reporting(name, mib(512), true).disk(&disk).agent(true)]);
    let memory = guests[0].begin(exercise::fill(5, 100, None)).unwrap();
    guests[0].finish::<Summary>(memory, "a filled load", JOB).unwrap();
    let cold = guests[0].begin(exercise::read_disk(&disk, COLD, None)).unwrap();
    guests[0].finish::<Summary>(cold, "a read disk", JOB).unwrap();
    (run, guests, memory)
}

fn trims(name: &str, lab: &Lab) {
    let (_run, guests, memory) = with_cold_cache(name, lab);
    let guest = &guests[0];

    let mut peer = Peer::connect(guest).unwrap();
    let hello = peer.greet().unwrap();
    say(&format!("{hello:?}"));
    let needed = [Can::Report, Can::Pressure, Can::Refaults, Can::Trim, Can::Compact];
    assert!(needed.iter().all(|can| hello.can.contains(can)), "{hello:?}");
    let before = peer.report().unwrap();
    say(&format!("before: {:?}", before.memory));
    assert!(before.memory.unmapped_cache >= mib(COLD * 9 / 10), "{before:?}");
    say(&format!("by age: {:?}", before.ages));
    let files = Bytes::sum(before.ages.iter().map(|age| age.file));
    assert_eq!(hello.can.contains(&Can::Ages), files >= mib(COLD * 9 / 10), "{before:?}");

    let footprint = guest.private();
    let done = peer.done(wire::Ask::Trim { bytes: mib(100), may_swap: false, last_resort: false }).unwrap();
    let bytes = done.bytes.unwrap();
    let after = peer.report().unwrap();
    say(&format!("{done:?}; after: {:?}", after.memory));
    assert!(bytes >= mib(90) && bytes <= mib(120), "{done:?}");
    assert!(matches!(done.means.as_deref(), Some("lru_gen" | "memory_reclaim")), "{done:?}");
    let held = |report: &Report| report.memory.unmapped_cache.saturating_add(report.memory.reclaimable_slab);
    let gone = held(&before).saturating_sub(held(&after));
    assert!(gone >= bytes.mul_div(9, 10), "{gone} of {bytes}");
    let free = |report: &Report| report.memory.free;
    assert!(free(&after).saturating_sub(free(&before)) >= bytes.mul_div(9, 10), "{before:?} {after:?}");
    // The lists may hold an eighth of the guest's memory, so a small trim could stay there whole.
    assert!(on_cpus(guest) <= mib(4), "{} stay on per-CPU lists", on_cpus(guest));
    peer.done(wire::Ask::Trim { bytes: mib(16), may_swap: false, last_resort: false }).unwrap();
    assert!(on_cpus(guest) <= mib(4), "{} stay on per-CPU lists", on_cpus(guest));
    assert_eq!(after.counters.swapped_out, before.counters.swapped_out);
    let available = [&before, &after].map(|report| report.memory.available);
    assert!(available[0].abs_diff(available[1]) <= mib(32), "what is available stays true: {available:?}");

    // What the guest freed is the host's, as far as it is in blocks that reporting returns.
    peer.done(wire::Ask::Compact).unwrap();
    until("the host has four fifths of it", JOB, || {
        let back = footprint.saturating_sub(guest.private());
        Ok((back >= bytes.mul_div(4, 5)).then_some(()))
    })
    .unwrap();
    let tally: Tally = guest.ask(Ask::Order { load: memory.id(), line: "check".to_owned() }, JOB).unwrap();
    assert_eq!((tally.bytes, tally.mismatches), (100 << 20, 0));
    let resident = resident(guest);
    say(&format!("the agent has {resident} resident; {}", sh(guest, "memtide-agent status").trim()));
    assert!(resident <= RESIDENT, "{resident}");
    let program = the_lab().program("memtide-agent").unwrap();
    let size = sh(guest, "wc -c < /proc/$(pidof memtide-agent)/exe");
    say(&format!("its program has {} bytes", size.trim()));
    let most = PROGRAM.saturating_add(crate::more_with_glibc(&program));
    assert!(size.trim().parse::<u64>().unwrap() <= most.get(), "{size}");
    rereads(guest, COLD);
    keeps_a_limit(guest, &mut peer);
    tells_of_stalls(guest, &mut peer);
    unhurt(guest);
}

/// Memory that was freed in pieces of 64 KiB and a little more: the host gets more of it once the agent is asked, and the guest has its own
/// setting again when the host is gone.
pub fn freed_memory_in_small_pieces_returns() {
    let lab = the_lab();
    let run = Run::create(lab, "test-agent-pieces").unwrap();
    let guests = start(&run, [reporting("pieces", mib(512), true).agent(true)]);
    let guest = &guests[0];
    let order =
        || sh(guest, "cat /sys/module/page_reporting/parameters/page_reporting_order").trim().to_owned();
    let own = order();
    // 240 MiB in files of 64 KiB, of which each fourth stays.
    let files = r#"awk 'BEGIN { s = sprintf("%65536s", ""); for (i = 0; i < 3840; i++) { printf "%s", s > i; close(i) } }'"#;
    let said = sh(guest, &format!("mkdir -p /holes && cd /holes && {files} && ls | wc -l"));
    assert_eq!(said.trim(), "3840", "{said}");
    sh(guest, "cd /holes && ls | awk 'NR % 4' | xargs rm");
    let settled = || {
        let mut last = guest.private();
        until("what reporting returns by itself has returned", JOB, || {
            std::thread::sleep(std::time::Duration::from_secs(5));
            let before = std::mem::replace(&mut last, guest.private());
            Ok((before.saturating_sub(last) < mib(1)).then_some(last))
        })
        .unwrap()
    };
    let before = settled();
    let mut peer = Peer::connect(guest).unwrap();
    assert!(peer.greet().unwrap().can.contains(&Can::ReportPieces));
    let memory = peer.report().unwrap().memory;
    say(&format!("{} in pieces, {:?}; {}", memory.pieces, memory, sh(guest, "cat /proc/buddyinfo")));
    assert!(memory.pieces >= mib(24), "{memory:?}");
    let done = peer.done(wire::Ask::ReportPieces { on: true }).unwrap();
    assert_eq!(order(), "4");
    let expected = done.bytes.unwrap();
    until("the host has three quarters of the pieces", JOB, || {
        Ok((before.saturating_sub(guest.private()) >= expected.mul_div(3, 4)).then_some(()))
    })
    .unwrap();
    say(&format!("{expected} in pieces; {} came back", before.saturating_sub(settled())));
    peer.done(wire::Ask::ReportPieces { on: false }).unwrap();
    assert_eq!(order(), own);
    peer.done(wire::Ask::ReportPieces { on: true }).unwrap();
    drop(peer);
    until("the guest has its own setting again", JOB, || Ok((order() == own).then_some(()))).unwrap();
    // An agent that is killed finds it when it starts again.
    let mut peer = Peer::connect(guest).unwrap();
    peer.greet().unwrap();
    peer.done(wire::Ask::ReportPieces { on: true }).unwrap();
    assert_ne!(order(), own);
    sh(guest, "kill -9 $(pidof memtide-agent)");
    assert_ne!(order(), own);
    sh(guest, "memtide-agent >/dev/null 2>&1 &");
    until("the next agent has put it back", JOB, || Ok((order() == own).then_some(()))).unwrap();
    unhurt(guest);
}

/// A limit of page cache that is lower than what the guest has: it drops the rest, and no more.
fn keeps_a_limit(guest: &Guest, peer: &mut Peer) {
    let before = peer.report().unwrap();
    let limit = Share::percent(25).unwrap();
    let most = limit.of(before.memory.total);
    assert!(before.memory.unmapped_cache > most.saturating_add(mib(32)), "{before:?}");
    peer.done(wire::Ask::CacheLimit { share: Some(limit.basis_points()) }).unwrap();
    let after = until("page cache at its limit", JOB, || {
        let report = peer.report()?;
        Ok((report.memory.unmapped_cache <= most.saturating_add(mib(4))).then_some(report))
    })
    .unwrap();
    say(&format!(
        "{} of page cache, limited to {most}: {}",
        before.memory.unmapped_cache, after.memory.unmapped_cache
    ));
    assert!(after.memory.unmapped_cache >= most.mul_div(3, 4), "{after:?}");
    peer.done(wire::Ask::CacheLimit { share: None }).unwrap();
    rereads(guest, COLD);
    let free = peer.report().unwrap().memory;
    assert!(free.unmapped_cache > most.saturating_add(mib(32)), "no limit any more: {free:?}");
}

/// A program that is throttled because its cgroup has too much memory: an event tells of it.
fn tells_of_stalls(guest: &Guest, peer: &mut Peer) {
    let before = peer.report().unwrap().stalls.unwrap();
    peer.done(wire::Ask::Pressure { stall_us: 70_000, window_us: 1_000_000 }).unwrap();
    let stalls = "cd /sys/fs/cgroup; echo +memory > cgroup.subtree_control; mkdir small; echo 16M > small/memory.high; \
                  (echo 0 > small/cgroup.procs; exec dd if=/dev/zero of=/dev/null bs=48M count=1) > /dev/null 2>&1 &";
    sh(guest, stalls);
    let event = peer.event().unwrap();
    say(&format!("{event:?}"));
    assert!(event.stalls.memory_some_us >= before.memory_some_us + 70_000, "{event:?}, before {before:?}");
    assert!(!event.available.is_zero(), "{event:?}");
    peer.done(wire::Ask::Pressure { stall_us: 0, window_us: 0 }).unwrap();
    sh(guest, "echo max > /sys/fs/cgroup/small/memory.high");
}

/// Reads the first `mib` MiB of the disk again, and checks them: what was dropped was no data.
fn rereads(guest: &Guest, mib: u64) {
    let disk = Disk::ensure(the_lab().cache(), DISK_SEED, mib).unwrap();
    let read = guest.begin(exercise::read_disk(&disk, mib, None)).unwrap();
    let summary: Summary = guest.finish(read, "reading its disk again", JOB).unwrap();
    assert_eq!(exercise::verified_by(&summary, DISK_SEED), mib << 20, "{summary:?}");
}

pub fn memtide_asks_the_agent_before_it_takes() {
    let run = prepare("test-agent-asked");
    let host = crate::small_host("agent-asked", mib(1300));
    let disk = Disk::ensure(the_lab().cache(), DISK_SEED, 400).unwrap();
    let cold = reporting("asked-cold", mib(1024), true).disk(&disk).agent(true);
    let guests = start_in(&run, &host, [cold, reporting("asked-grow", mib(1024), true)]);
    let [cold, grow] = &guests[..] else { unreachable!("two were started") };
    let read = cold.begin(exercise::read_disk(&disk, 400, None)).unwrap();
    cold.finish::<Summary>(read, "reading its disk", JOB).unwrap();
    let config = "mode = \"manage\"\nbudget = \"1300 MiB\"\ndiscover = [\"asked-*\"]\ncommitment = \"elastic\"\n\
                  [class.limited]\nmatch = [\"asked-cold\"]\ncache_limit = \"90%\"\n";
    let daemon = Daemon::start(run.path(), config).unwrap();
    let takes = grow.begin(load("--size 600M --grow 10M --seed 3 --passes 0 --hold 20s")).unwrap();
    grow.finish::<Summary>(takes, "taking memory", JOB).unwrap();
    let explained = daemon.command(&["explain", "asked-cold"]).unwrap();
    say(&daemon.command(&["status"]).unwrap());
    say(&explained);
    let log = sh(cold, "memtide-agent status");
    say(&log);
    let used = "stat=$(cat /proc/$(pidof memtide-agent)/stat); set -- ${stat##*) }; echo $((${12} + ${13}))";
    say(&format!("the agent has used {} ticks of 10 ms of CPU time", sh(cold, used).trim()));
    assert!(explained.contains("trim "), "{explained}");
    assert!(log.contains("asked to trim") && log.contains("limits unmapped page cache to 90%"), "{log}");
    // Its neighbour has freed its memory: nobody moves any more.
    until("a quiet guest", JOB, || {
        let explained = daemon.command(&["explain", "asked-cold"])?;
        Ok(explained.lines().next().is_some_and(|line| !line.contains("waits")).then_some(()))
    })
    .unwrap();
    is_heard_again_after_a_kill(&daemon, cold);
    let offer = daemon.command(&["reclaim", "asked-cold", "--by", "40M", "--dry-run"]).unwrap();
    say(&offer);
    assert!(offer.contains("40 MiB can be had") && offer.contains("in generations of"), "{offer}");
    // The command fails if the host has less back than was asked for: what is free in small pieces stays with the guest.
    let reclaimed = match daemon.command(&["reclaim", "asked-cold", "--by", "40M", "--hold", "10m"]) {
        Err(LabError::Failed { output, .. }) => output,
        other => other.unwrap(),
    };
    say(&reclaimed);
    assert!(reclaimed.contains("its agent dropped 4"), "{reclaimed}");
    assert!(reclaimed.contains("held by the operator"), "{reclaimed}");
    // It has page cache to give again.
    rereads(cold, 400);
    reclaims_to_a_size(&daemon, cold);
    daemon.stop().unwrap();
    rereads(cold, 400);
    guests.iter().for_each(unhurt);
    assert_eq!(host.oom_kills().unwrap(), 0);
}

/// `memtide reclaim --to`: nothing if the guest costs no more, else until it costs as little.
fn reclaims_to_a_size(daemon: &Daemon, guest: &Guest) {
    daemon.command(&["resume", guest.name()]).unwrap();
    let cost = daemon.guest(guest.name()).unwrap().status.report.footprint.unwrap();
    let to = |size: Bytes| {
        let size = format!("{}M", size.whole_mib());
        match daemon.command(&["reclaim", guest.name(), "--to", &size]) {
            Err(LabError::Failed { output, .. }) => (false, output),
            other => (true, other.unwrap()),
        }
    };
    let (_, nothing) = to(cost.saturating_add(mib(64)));
    assert!(nothing.contains("costs the host") && nothing.contains("already"), "{nothing}");
    let most = cost.saturating_sub(mib(40));
    let (is_enough, said) = to(most);
    say(&said);
    let after = daemon.guest(guest.name()).unwrap().status.report.footprint.unwrap();
    // What is free in small pieces stays with the guest. The command fails then.
    assert!(!is_enough || after <= most.saturating_add(mib(16)), "{after} instead of {most}: {said}");
    assert!(after < cost && said.contains("it costs the host"), "{after} after {cost}: {said}");
}

/// Kills the agent. The guest starts it again; memtide greets it, and tells it once more what it must know.
fn is_heard_again_after_a_kill(daemon: &Daemon, guest: &Guest) {
    let ended = sh(guest, "rm /run/memtide-agent/status.json; kill -9 $(pidof memtide-agent) && echo ended");
    assert!(ended.contains("ended"), "{ended}");
    until("another agent that was greeted", JOB, || {
        let log = sh(guest, "cat /run/memtide-agent/status.json 2> /dev/null");
        Ok(log.contains("limits unmapped page cache to 90%").then_some(()))
    })
    .unwrap();
    daemon
        .until("the agent", JOB, guest.name(), |detail| detail.seen.told.agent.fresh().map(|_| ()))
        .unwrap();
}

/// In place of the agent, a program that begs and floods: it answers the greeting, then reports without a pause that nothing is left, that its
/// working set refaults and that all tasks stall, each time more, and claims to have trimmed all there is. Later it sends a line that has no end.
const HOSTILE: &str = r#"cat > /tmp/hostile <<'END'
#!/bin/sh
echo $$ > /tmp/hostile.pid
[ -e /tmp/endless ] && exec tr '\0' x < /dev/zero > /dev/virtio-ports/org.memtide.agent.0
exec 3<> /dev/virtio-ports/org.memtide.agent.0
say() { echo "{\"id\":$id,$1}" >&3; }
while read -r line <&3; do
    id=${line#*:}
    id=${id%%,*}
    case $line in
    *hello*)
        say '"hello":{"version":1,"agent":"9","kernel":"9","can":["report","pressure","refaults","trim","compact"],"cannot":{"ages":"\u001b[2J"},"least_cache":0}'
        kill $! 2> /dev/null
        awk -f /tmp/flood >&3 & ;;
    *) say '"done":{"bytes":18446744073709551615}' ;;
    esac
done
kill $! 2> /dev/null
END
cat > /tmp/flood <<'END'
function u(name) { return sprintf("\"%s\":%.0f,", name, n) }
BEGIN {
    while (1) {
        n += 1000000
        m = "\"total\":1,\"free\":0,\"free_blocks\":0,\"available\":0,\"unmapped_cache\":0,\"dirty\":0,\"reclaimable_slab\":0,\"swap_total\":0,\"swap_free\":0"
        c = u("refaults_file") u("refaults_anon") u("activations_file") u("activations_anon") u("alloc_stalls") "\"swapped_in\":0,\"swapped_out\":0,\"oom_kills\":0"
        s = u("memory_some_us") u("memory_full_us") u("io_some_us") "\"io_full_us\":0"
        printf "{\"id\":0,\"report\":{%s\"memory\":{%s},\"counters\":{%s},\"stalls\":{%s}}}\n", u("made_ms"), m, c, s; fflush()
        printf "{\"id\":0,\"pressure\":{%s\"stalls\":{%s},\"available\":0}}\n", u("at_ms"), s; fflush()
    }
}
END
chmod +x /tmp/hostile; mv /bin/memtide-agent /bin/an-agent; ln -s /tmp/hostile /bin/memtide-agent; kill -9 $(pidof memtide-agent)"#;

/// A guest whose agent lies and floods, later with a line that has no end, beside an honest one with cold page cache and one that grows up to its fair
/// share: it has no more than its own share meanwhile, and costs neither them nor memtide anything.
pub fn a_hostile_agent_gains_its_share_at_most() {
    let run = prepare("test-agent-hostile");
    let budget = mib(2300);
    let host = crate::small_host("agent-hostile", budget);
    let disk = Disk::ensure(the_lab().cache(), DISK_SEED, 400).unwrap();
    let builders =
        ["rude-hostile", "rude-cold", "rude-grow"].map(|name| reporting(name, mib(1024), true).agent(true));
    let [hostile, cold, grow] = builders;
    let guests = start_in(&run, &host, [hostile, cold.disk(&disk), grow]);
    let [hostile, cold, grow] = &guests[..] else { unreachable!("three were started") };
    let read = cold.begin(exercise::read_disk(&disk, 400, None)).unwrap();
    cold.finish::<Summary>(read, "reading its disk", JOB).unwrap();
    sh(hostile, HOSTILE);
    let config =
        "mode = \"manage\"\nbudget = \"2300 MiB\"\ndiscover = [\"rude-*\"]\ncommitment = \"strict\"\n";
    let mut daemon = Daemon::start(run.path(), config).unwrap();
    let begun = Instant::now();
    let loud = daemon.until("the lies", JOB, hostile.name(), |detail| {
        let agent = detail.seen.told.agent.latest()?;
        (agent.counters.alloc_stalls > 1_000_000).then(|| agent.clone())
    });
    assert_eq!(loud.unwrap().cannot[&Can::Ages], "\\u{1b}[2J", "nothing that a terminal obeys");

    for round in 0..2 {
        if round == 1 {
            sh(hostile, "touch /tmp/endless; killall awk; kill -9 $(cat /tmp/hostile.pid)");
        }
        let options = format!("--size 380M --grow 20M --seed {round} --passes 0 --hold 20s");
        let takes = grow.begin(load(&options)).unwrap();
        let has_it = |detail: &GuestDetail| (detail.status.report.footprint? >= mib(450)).then_some(());
        daemon.until("what it takes", JOB, grow.name(), has_it).unwrap();
        let report = daemon.guest(hostile.name()).unwrap().status.report;
        say(&format!("the liar keeps {}, its target is {:?}", report.actual, report.target));
        assert!(
            report.actual.max(report.target.unwrap()) <= budget.mul_div(1, 3).saturating_sub(mib(100)),
            "{report:?}"
        );
        grow.finish::<Summary>(takes, "taking memory", JOB).unwrap();
    }
    daemon.check_alive().unwrap();
    let status = std::fs::read_to_string(format!("/proc/{}/status", daemon.pid())).unwrap();
    let most =
        status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap().trim().trim_end_matches(" kB");
    let used = cpu_seconds(daemon.pid()).unwrap();
    let passed = begun.elapsed().as_secs_f64();
    say(&format!("memtide had at most {most} KiB resident, and used {used:.1} s of CPU in {passed:.0} s"));
    assert!(most.parse::<u64>().unwrap() <= 64 << 10, "{most} KiB");
    assert!(used <= passed / 4.0, "{used} s in {passed} s");
    let log = sh(cold, "memtide-agent status");
    assert!(log.contains("asked to trim"), "{log}");
    daemon.stop().unwrap();
    rereads(cold, 400);
    guests.iter().for_each(unhurt);
    assert_eq!(host.oom_kills().unwrap(), 0);
}
