//! The agent on a Unix socket, against a captured tree in place of the kernel's files.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use memtide_agent::wire::{Answer, Can, MAX_LINE, Reply, TIER};
use memtide_agent::{Agent, Bounds, Log};
use memtide_host::Root;
use memtide_model::Bytes;
use tempfile::TempDir;

/// No answer takes longer.
const DEADLINE: Duration = Duration::from_secs(20);

const MEMINFO: &str = "MemTotal: 1024000 kB\nMemFree: 100000 kB\nMemAvailable: 600000 kB\nMapped: 20480 kB\n\
    Active(file): 204800 kB\nInactive(file): 307200 kB\nDirty: 0 kB\nWriteback: 0 kB\nSReclaimable: 10240 kB\n\
    SwapTotal: 0 kB\nSwapFree: 0 kB\n";
const VMSTAT: &str =
    "nr_free_pages 25000\nworkingset_refault_file 100\nworkingset_activate_file 10\noom_kill 0\n";

/// A running agent with its tree.
struct Host {
    dir: TempDir,
    listener: UnixListener,
    stop: Arc<AtomicBool>,
    agent: Option<JoinHandle<()>>,
}

/// The host's end of a connection.
struct Peer {
    stream: UnixStream,
    lines: BufReader<UnixStream>,
}

impl Host {
    fn start(bounds: Bounds) -> Self {
        Self::start_with(bounds, |_| {})
    }

    /// A host whose guest's kernel has more files, which `more` writes.
    fn start_with(bounds: Bounds, more: impl FnOnce(&dyn Fn(&str, &str))) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = dir.path().join("root").join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("proc/meminfo", MEMINFO);
        write("proc/vmstat", VMSTAT);
        write("proc/buddyinfo", "Node 0, zone DMA32 1 1 1 1 1 1 1 1 1 5 7\n");
        write("proc/sys/vm/compact_memory", "");
        write("proc/sys/kernel/osrelease", "6.12.48\n");
        write("sys/fs/cgroup/memory.reclaim", "");
        more(&write);
        let path = dir.path().join("port");
        let listener = UnixListener::bind(&path).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let root = Root::at(dir.path().join("root"));
        let mut agent = Agent::new(root, bounds, Log::new(Some(dir.path().join("status.json")))).unwrap();
        let stops = Arc::clone(&stop);
        let agent = thread::spawn(move || agent.serve(&path, &stops));
        Self { dir, listener, stop, agent: Some(agent) }
    }

    fn accept(&self) -> Peer {
        let (stream, _) = self.listener.accept().unwrap();
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        let lines = BufReader::new(stream.try_clone().unwrap());
        Peer { stream, lines }
    }

    fn file(&self, path: &str) -> String {
        fs::read_to_string(self.dir.path().join("root").join(path)).unwrap()
    }

    fn replace(&self, path: &str, text: &str) {
        fs::write(Path::new(self.dir.path()).join("root").join(path), text).unwrap();
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(agent) = self.agent.take() {
            agent.join().unwrap();
        }
    }
}

impl Peer {
    fn send(&mut self, line: &str) {
        self.stream.write_all(format!("{line}\n").as_bytes()).unwrap();
    }

    fn hear(&mut self) -> Reply {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line:?}"))
    }

    /// The answer to a request, past all reports and events.
    fn ask(&mut self, id: u64, rest: &str) -> Answer {
        self.send(&format!(r#"{{"id":{id},{rest}}}"#));
        loop {
            let reply = self.hear();
            if reply.id == id {
                return reply.answer;
            }
        }
    }

    fn greet(&mut self) -> Answer {
        self.ask(1, r#""do":"hello","version":1"#)
    }
}

#[test]
fn it_introduces_itself_and_says_what_is_missing() {
    let host = Host::start(Bounds::default());
    let Answer::Hello(hello) = host.accept().greet() else { panic!("no hello") };
    assert_eq!((hello.version, hello.kernel.as_str()), (1, "6.12.48"));
    assert!(
        [Can::Report, Can::Refaults, Can::Trim, Can::Compact].iter().all(|can| hello.can.contains(can)),
        "{hello:?}"
    );
    assert!(hello.cannot.contains_key(&Can::Pressure) && hello.cannot.contains_key(&Can::Ages), "{hello:?}");
    assert_eq!(hello.least_cache, Bytes::from_mib(64));
}

#[test]
fn nothing_is_said_before_the_greeting() {
    let host = Host::start(Bounds::default());
    let mut peer = host.accept();
    peer.send("nonsense");
    peer.send(r#"{"id":5,"do":"ping"}"#);
    peer.send(r#"{"id":6,"do":"trim","bytes":1000000}"#);
    peer.send(r#"{"id":7,"do":"hello","version":1}"#);
    assert_eq!(peer.hear().id, 7);
    assert_eq!(host.file("sys/fs/cgroup/memory.reclaim"), "");
}

#[test]
fn a_report_follows_a_change_and_not_the_lack_of_one() {
    let host = Host::start(Bounds::default());
    let mut peer = host.accept();
    peer.greet();
    assert!(matches!(peer.ask(2, r#""do":"report","every_ms":250"#), Answer::Done(_)));
    let report = |peer: &mut Peer| match peer.hear().answer {
        Answer::Report(report) => report,
        other => panic!("{other:?}"),
    };
    let first = report(&mut peer);
    assert_eq!(first.memory.unmapped_cache, Bytes::from_mib(480));
    assert_eq!(first.memory.free_blocks, Bytes::from_mib(5 * 2 + 7 * 4));
    assert_eq!((first.counters.refaults_file, first.stalls), (Bytes::from_kib(400), None));
    host.replace("proc/meminfo", &MEMINFO.replace("MemFree: 100000", "MemFree: 200000"));
    let second = report(&mut peer);
    assert_eq!(second.memory.free, Bytes::from_kib(200_000));
    assert!(second.made_ms < first.made_ms + 5_000);
}

#[test]
fn what_other_threads_compute_does_not_make_its_reports_rare() {
    let host = Host::start(Bounds::default());
    let mut peer = host.accept();
    peer.greet();
    let begun = Instant::now();
    // A trim takes as much.
    while begun.elapsed() < Duration::from_secs(1) {
        std::hint::black_box(begun.elapsed());
    }
    let mut made = Vec::new();
    peer.ask(2, r#""do":"report","every_ms":250"#);
    for refaults in 1..=3 {
        host.replace("proc/vmstat", &VMSTAT.replace(" 100\n", &format!(" {refaults}0000\n")));
        let Answer::Report(report) = peer.hear().answer else { panic!("nothing else was asked for") };
        made.push(report.made_ms);
    }
    // One that used too much CPU time waits for ten intervals.
    assert!(made.windows(2).any(|pair| pair[1] - pair[0] < 1_000), "{made:?}");
}

#[test]
fn a_trim_asks_the_kernel_in_pieces_and_leaves_the_least_cache() {
    let host = Host::start(Bounds::default());
    let mut peer = host.accept();
    peer.greet();
    let Answer::Done(done) = peer.ask(2, r#""do":"trim","bytes":104857600"#) else { panic!("refused") };
    assert_eq!((done.bytes, done.means.as_deref()), (Some(Bytes::from_mib(100)), Some("memory_reclaim")));
    // The file keeps the last piece of 32 + 32 + 32 + 4 MiB over the first digits of the one before.
    assert!(host.file("sys/fs/cgroup/memory.reclaim").starts_with("4194304"));
    // 480 − 64 MiB may be asked for in all: the kernel need not take the 10 MiB of slab.
    let Answer::Done(done) = peer.ask(3, r#""do":"trim","bytes":10737418240"#) else { panic!("refused") };
    assert_eq!(done.bytes, Some(Bytes::from_mib(416)));
}

#[test]
fn what_the_kernel_only_claims_to_have_evicted_is_not_freed() {
    let host = Host::start_with(Bounds::default(), |write| {
        write("sys/kernel/mm/lru_gen/enabled", "0x0007\n");
        let generations = "memcg 1 /\n node 0\n 0 900000 0 76800\n 1 800000 0 0\n 2 700000 0 0\n 3 10 0 0\n";
        write("sys/kernel/debug/lru_gen", generations);
    });
    let mut peer = host.accept();
    let Answer::Hello(hello) = peer.greet() else { panic!("no hello") };
    assert!(hello.can.contains(&Can::Ages), "{hello:?}");
    let Answer::Done(done) = peer.ask(2, r#""do":"trim","bytes":67108864"#) else { panic!("refused") };
    assert!(
        host.file("sys/kernel/debug/lru_gen").starts_with("- 1 0 0 0 8192"),
        "the oldest generation first"
    );
    // No counter has changed: the next means is asked for all of it.
    assert_eq!((done.bytes, done.means.as_deref()), (Some(Bytes::from_mib(64)), Some("memory_reclaim")));
}

#[test]
fn a_limit_of_page_cache_leaves_room_for_what_else_is_asked() {
    let host = Host::start(Bounds::default());
    let mut peer = host.accept();
    peer.greet();
    assert!(matches!(peer.ask(2, r#""do":"cache_limit","share":2000"#), Answer::Done(_)));
    let lines = || fs::read_to_string(host.dir.path().join("status.json")).unwrap();
    for _ in 0..3 {
        host.replace("sys/fs/cgroup/memory.reclaim", "");
        let begun = Instant::now();
        while host.file("sys/fs/cgroup/memory.reclaim").is_empty() {
            assert!(begun.elapsed() < DEADLINE, "a step each second");
            thread::sleep(Duration::from_millis(20));
        }
    }
    assert_eq!(lines().matches("drops page cache beyond the host's limit").count(), 1, "{}", lines());
    let others = ["memory_reclaim", "is in use"];
    assert!(others.iter().all(|other| !lines().contains(other)), "no line for each step: {}", lines());
}

#[test]
fn the_administrator_has_the_last_word() {
    let host = Host::start(Bounds {
        trim: false,
        compact: false,
        report_pieces: false,
        tier: false,
        ..Bounds::default()
    });
    let mut peer = host.accept();
    peer.greet();
    for request in [
        r#""do":"use_tier","on":true"#,
        r#""do":"page_out","bytes":1000000"#,
        r#""do":"trim","bytes":1000000"#,
        r#""do":"compact""#,
        r#""do":"cache_limit","share":1000"#,
        r#""do":"report_pieces","on":true"#,
    ] {
        assert!(
            matches!(peer.ask(2, request), Answer::Refused(why) if why.contains("administrator")),
            "{request}"
        );
    }
    let status = fs::read_to_string(host.dir.path().join("status.json")).unwrap();
    assert!(status.contains("refused"), "{status}");
}

#[test]
fn small_pieces_are_reported_until_the_host_is_gone() {
    let parameter = "sys/module/page_reporting/parameters/page_reporting_order";
    let host = Host::start_with(Bounds::default(), |write| write(parameter, "9\n"));
    let order = || host.file(parameter).trim().to_owned();
    let mut peer = host.accept();
    peer.greet();
    let on = r#""do":"report_pieces","on":true"#;
    match peer.ask(2, on) {
        // One block of each order from 4 to 8: 31 × 64 KiB.
        Answer::Done(done) => assert_eq!(done.bytes, Some(Bytes::from_kib(31 * 64))),
        other => panic!("{other:?}"),
    }
    assert_eq!(order(), "4");
    assert!(matches!(peer.ask(3, r#""do":"report_pieces","on":false"#), Answer::Done(_)));
    assert_eq!(order(), "9");

    peer.ask(4, on);
    assert_eq!(order(), "4");
    drop(peer);
    let mut next = host.accept();
    next.greet();
    assert_eq!(order(), "9", "a new connection finds the guest as it was");
    next.ask(5, on);
    drop(next);
    let begun = Instant::now();
    while order() != "9" {
        assert!(begun.elapsed() < DEADLINE, "the connection has ended, and nothing was put back");
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_tier_is_known_written_to_and_kept_when_the_host_is_gone() {
    let swaps = "Filename Type Size Used Priority\n/dev/vda partition 524288 131072 100\n";
    let host = Host::start_with(Bounds::default(), |write| {
        write("proc/swaps", swaps);
        write("sys/block/vda/serial", TIER);
        write("proc/meminfo", &format!("{MEMINFO}AnonPages: 300000 kB\n"));
    });
    let mut peer = host.accept();
    let Answer::Hello(hello) = peer.greet() else { panic!("no hello") };
    assert!(hello.can.contains(&Can::Tier), "{hello:?}");
    let Answer::Done(done) = peer.ask(2, r#""do":"use_tier","on":true"#) else { panic!("refused") };
    assert_eq!(done.bytes, Some(Bytes::from_mib(512)));
    let Answer::Done(done) = peer.ask(3, r#""do":"page_out","bytes":4194304"#) else { panic!("refused") };
    assert_eq!((done.bytes, done.means.as_deref()), (Some(Bytes::ZERO), Some("memory_reclaim")));
    assert_eq!(host.file("sys/fs/cgroup/memory.reclaim"), "4194304 swappiness=max");
    peer.ask(4, r#""do":"report","every_ms":250"#);
    let Answer::Report(report) = peer.hear().answer else { panic!("nothing else was asked for") };
    let memory = report.memory;
    assert_eq!(memory.anon, Bytes::from_kib(300_000));
    assert_eq!((memory.tier_total, memory.tier_free), (Bytes::from_mib(512), Bytes::from_mib(384)));
    drop(peer);
    host.accept().greet();
    assert_eq!(host.file("proc/swaps"), swaps);
}

#[test]
fn a_guest_without_a_tier_says_so() {
    let host = Host::start_with(Bounds::default(), |write| write("proc/swaps", "Filename\n"));
    let mut peer = host.accept();
    peer.greet();
    let refused = peer.ask(2, r#""do":"page_out","bytes":4194304"#);
    assert!(matches!(&refused, Answer::Refused(why) if why.contains("no tier")), "{refused:?}");
    assert!(matches!(peer.ask(3, r#""do":"use_tier","on":false"#), Answer::Done(_)));
    let refused = peer.ask(4, r#""do":"use_tier","on":true"#);
    assert!(matches!(&refused, Answer::Refused(why) if why.contains("5 s")), "{refused:?}");
}

#[test]
fn the_last_resort_needs_both_sides() {
    let host = Host::start(Bounds::default());
    let mut peer = host.accept();
    peer.greet();
    let answer = peer.ask(2, r#""do":"trim","bytes":1000000,"last_resort":true"#);
    assert!(matches!(answer, Answer::Refused(why) if why.contains("drop_caches")));
}

#[test]
fn hostile_input_is_survived() {
    let host = Host::start(Bounds::default());
    let mut peer = host.accept();
    peer.greet();
    peer.send(&"x".repeat(4 * MAX_LINE));
    assert!(matches!(peer.hear().answer, Answer::Refused(why) if why.contains("too long")));
    peer.stream.write_all(&[0xff, 0, 0x80, b'\n']).unwrap();
    assert!(matches!(peer.hear().answer, Answer::Refused(_)));
    peer.send(r#"{"id":3,"do":"format_disk"}"#);
    assert!(matches!(peer.hear().answer, Answer::Refused(_)));
    peer.send(r#"{"id":3,"do":"cache_limit","share":65000}"#);
    assert!(matches!(peer.hear().answer, Answer::Refused(_)));
    assert!(matches!(peer.ask(4, r#""do":"ping""#), Answer::Done(_)));
}

#[test]
fn a_flood_is_read_slowly_and_answered_whole() {
    let host = Host::start(Bounds::default());
    let mut peer = host.accept();
    peer.greet();
    for id in 2..120 {
        peer.send(&format!(r#"{{"id":{id},"do":"ping"}}"#));
    }
    for id in 2..120 {
        assert_eq!(peer.hear().id, id);
    }
}

#[test]
fn greetings_are_requests_like_all_others() {
    let host = Host::start(Bounds::default());
    let mut peer = host.accept();
    let begun = Instant::now();
    for id in 1..=350 {
        peer.send(&format!(r#"{{"id":{id},"do":"hello","version":1}}"#));
    }
    for id in 1..=350 {
        assert_eq!(peer.hear().id, id);
    }
    // Fifty in each second of the clock, or the hundred of one piece.
    assert!(begun.elapsed() >= Duration::from_secs(1), "{:?}", begun.elapsed());
    // What follows a greeting in the same piece is not lost.
    peer.stream.write_all(b"{\"id\":351,\"do\":\"hello\",\"version\":1}\n{\"id\":352,\"do\":").unwrap();
    assert_eq!(peer.hear().id, 351);
    peer.send("\"ping\"}");
    assert_eq!(peer.hear().id, 352);
}

#[test]
fn it_connects_again_and_forgets_what_was_asked() {
    let host = Host::start(Bounds::default());
    let mut peer = host.accept();
    peer.greet();
    peer.ask(2, r#""do":"report","every_ms":250"#);
    drop(peer);
    let mut peer = host.accept();
    peer.greet();
    // No report is between the greeting and this answer, although the interval has passed.
    thread::sleep(Duration::from_millis(600));
    peer.send(r#"{"id":9,"do":"ping"}"#);
    assert_eq!(peer.hear().id, 9);
}
