//! The agent in a real guest: what it reports, what a trim brings back, and what the agent itself costs.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use memtide_agent::wire::{Answer, Can, Done, Hello, Reply, Report};
use memtide_lab::guest::Guest;
use memtide_lab::guest::disk::Disk;
use memtide_lab::machine::small_host::SmallHost;
use memtide_lab::managers::daemon::Daemon;
use memtide_lab::wait::until;
use memtide_lab::work::exercise::{self, load};
use memtide_load::exerciser::content::Tally;
use memtide_load::exerciser::report::Summary;
use memtide_load::helper::wire::{Ask, Output};
use memtide_model::Bytes;

use crate::{JOB, mib, prepare, reporting, say, start, start_in, the_lab, unhurt};

/// The disk that the guest reads once, in MiB.
const COLD: u64 = 200;
/// The most memory that the agent may have resident.
const RESIDENT: Bytes = Bytes::from_mib(2);

/// The host's end of an agent's port.
struct Peer {
    stream: UnixStream,
    lines: BufReader<UnixStream>,
    asked: u64,
}

impl Peer {
    fn connect(path: &Path) -> Self {
        let stream = UnixStream::connect(path).unwrap();
        stream.set_read_timeout(Some(JOB)).unwrap();
        let lines = BufReader::new(stream.try_clone().unwrap());
        Self { stream, lines, asked: 0 }
    }

    fn hear(&mut self) -> Reply {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line:?}"))
    }

    fn ask(&mut self, what: &str) -> Answer {
        self.asked += 1;
        writeln!(self.stream, r#"{{"id":{},"do":{what}}}"#, self.asked).unwrap();
        loop {
            let reply = self.hear();
            if reply.id == self.asked {
                return reply.answer;
            }
        }
    }

    fn greet(&mut self) -> Hello {
        match self.ask(r#""hello","version":1"#) {
            Answer::Hello(hello) => *hello,
            other => panic!("{other:?}"),
        }
    }

    fn done(&mut self, what: &str) -> Done {
        match self.ask(what) {
            Answer::Done(done) => done,
            other => panic!("{what}: {other:?}"),
        }
    }

    fn report(&mut self) -> Report {
        self.done(r#""report","every_ms":250"#);
        loop {
            if let Answer::Report(report) = self.hear().answer {
                self.done(r#""report","every_ms":0"#);
                return *report;
            }
        }
    }
}

/// The output of a command in the guest.
fn sh(guest: &Guest, command: &str) -> String {
    let said: Output = guest.ask(Ask::Sh { cmd: command.to_owned() }, JOB).unwrap();
    said.text
}

/// The memory that the agent has resident.
fn resident(guest: &Guest) -> Bytes {
    let status = sh(guest, "cat /proc/$(pidof memtide-agent)/status");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    Bytes::from_kib(line.trim().trim_end_matches(" kB").parse().unwrap())
}

pub fn the_agent_trims_cold_cache_and_hurts_nothing() {
    let run = prepare("test-agent");
    let disk = Disk::ensure(the_lab().cache(), 31, COLD).unwrap();
    let guests = start(&run, [reporting("agent-1", mib(512), true).disk(&disk).agent(true)]);
    let guest = &guests[0];
    let memory = guest.begin(exercise::fill(5, 100, None)).unwrap();
    guest.finish::<Summary>(memory, "a filled load", JOB).unwrap();
    let cold = guest.begin(exercise::read_disk(&disk, COLD, None)).unwrap();
    guest.finish::<Summary>(cold, "a read disk", JOB).unwrap();

    let mut peer = Peer::connect(guest.agent_path());
    let hello = peer.greet();
    say(&format!("{hello:?}"));
    let needed = [Can::Report, Can::Pressure, Can::Refaults, Can::Trim, Can::Compact];
    assert!(needed.iter().all(|can| hello.can.contains(can)), "{hello:?}");
    let before = peer.report();
    say(&format!("before: {:?}", before.memory));
    assert!(before.memory.unmapped_cache >= mib(COLD * 9 / 10), "{before:?}");

    let footprint = guest.private();
    let done = peer.done(r#""trim","bytes":104857600"#);
    let bytes = done.bytes.unwrap();
    let after = peer.report();
    say(&format!("{done:?}; after: {:?}", after.memory));
    assert!(bytes >= mib(90) && bytes <= mib(120), "{done:?}");
    let held = |report: &Report| report.memory.unmapped_cache.saturating_add(report.memory.reclaimable_slab);
    let gone = held(&before).saturating_sub(held(&after));
    assert!(gone >= bytes.mul_div(9, 10), "{gone} of {bytes}");
    assert_eq!(after.counters.swapped_out, before.counters.swapped_out);

    // What the guest freed is the host's, as far as it is in blocks that reporting returns.
    peer.done(r#""compact""#);
    until("the host has half of it", JOB, || {
        let back = footprint.saturating_sub(guest.private());
        Ok((back >= bytes.mul_div(1, 2)).then_some(()))
    })
    .unwrap();
    let tally: Tally = guest.ask(Ask::Order { load: memory.id(), line: "check".to_owned() }, JOB).unwrap();
    assert_eq!((tally.bytes, tally.mismatches), (100 << 20, 0));
    let resident = resident(guest);
    say(&format!("the agent has {resident} resident; {}", sh(guest, "memtide-agent status").trim()));
    assert!(resident <= RESIDENT, "{resident}");
    unhurt(guest);
}

pub fn memtide_asks_the_agent_before_it_takes() {
    let run = prepare("test-agent-asked");
    let host = SmallHost::create("agent-asked", mib(1300), Bytes::ZERO).unwrap();
    let disk = Disk::ensure(the_lab().cache(), 31, 400).unwrap();
    let cold = reporting("asked-cold", mib(1024), true).disk(&disk).agent(true);
    let guests = start_in(&run, &host, [cold, reporting("asked-grow", mib(1024), true)]);
    let [cold, grow] = &guests[..] else { unreachable!("two were started") };
    let read = cold.begin(exercise::read_disk(&disk, 400, None)).unwrap();
    cold.finish::<Summary>(read, "reading its disk", JOB).unwrap();
    let config = "mode = \"manage\"\nbudget = \"1300 MiB\"\ndiscover = [\"asked-*\"]\ncommitment = \"elastic\"\n\
                  [class.limited]\nmatch = [\"asked-cold\"]\ncache_limit = \"90%\"\n";
    let daemon = Daemon::start(run.path(), config).unwrap();
    let takes = grow.begin(load("--size 600M --grow 20M --seed 3 --passes 0 --hold 20s")).unwrap();
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
    let offer = daemon.command(&["reclaim", "asked-cold", "--by", "40M", "--dry-run"]).unwrap();
    say(&offer);
    assert!(offer.contains("40 MiB can be had"), "{offer}");
    let reclaimed = daemon.command(&["reclaim", "asked-cold", "--by", "40M", "--hold", "10m"]).unwrap();
    say(&reclaimed);
    assert!(reclaimed.contains("its agent dropped 40 MiB"), "{reclaimed}");
    assert!(reclaimed.contains("held by the operator"), "{reclaimed}");
    daemon.stop().unwrap();
    guests.iter().for_each(unhurt);
    assert_eq!(host.oom_kills().unwrap(), 0);
}
