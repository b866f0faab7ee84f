//! The host's end against agents that are honest, silent, wrong and hostile.

use std::time::{Duration, Instant};

use memtide_agent::wire::{
    Answer, Ask, Can, Done, Hello, MAX_AGES, PressureEvent, Reply, Report, Request, VERSION,
};
use memtide_model::{Absence, Agent, AgentAge, AgentMemory, Bytes, Deed, Reading};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines, ReadHalf, WriteHalf};
use tokio::net::{UnixListener, UnixStream};

use super::AgentLink;
use crate::qemu::Peer as Listener;

/// Nothing here takes longer.
const DEADLINE: Duration = Duration::from_secs(30);

/// The guest's end.
struct Guest {
    listener: UnixListener,
    link: AgentLink,
    _dir: tempfile::TempDir,
}

struct Peer {
    hears: Lines<BufReader<ReadHalf<UnixStream>>>,
    says: WriteHalf<UnixStream>,
}

impl Guest {
    fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("agent");
        let listener = UnixListener::bind(&path).unwrap();
        Self { listener, link: AgentLink::start(path, Some(Listener::Names(std::process::id()))), _dir: dir }
    }

    /// A guest whose agent was greeted, and has reported 1 MiB of free memory.
    async fn that_has_reported() -> (Self, Peer) {
        let guest = Self::start();
        let mut peer = guest.accept().await;
        peer.is_greeted(VERSION).await;
        peer.reports(1).await;
        guest.until(|told| free(told).is_some()).await;
        (guest, peer)
    }

    async fn accept(&self) -> Peer {
        let (stream, _) = self.listener.accept().await.unwrap();
        let (hears, says) = tokio::io::split(stream);
        Peer { hears: BufReader::new(hears).lines(), says }
    }

    /// Waits until the link tells what is expected.
    async fn until(&self, expected: impl Fn(&Reading<Agent>) -> bool) -> Reading<Agent> {
        let by = Instant::now() + DEADLINE;
        loop {
            let told = self.link.told();
            if expected(&told) {
                return told;
            }
            assert!(Instant::now() < by, "still {told:?}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

impl Peer {
    async fn hear(&mut self) -> Request {
        let line = self.hears.next_line().await.unwrap().expect("the host is there");
        serde_json::from_str(&line).unwrap()
    }

    async fn say(&mut self, id: u64, answer: Answer) {
        let mut line = serde_json::to_vec(&Reply { id, answer }).unwrap();
        line.push(b'\n');
        self.says.write_all(&line).await.unwrap();
    }

    /// Answers the greeting.
    async fn is_greeted(&mut self, version: u32) {
        self.is_greeted_by(Hello { version, ..honest() }).await;
    }

    async fn is_greeted_by(&mut self, hello: Hello) {
        let request = self.hear().await;
        assert_eq!(request.ask, Ask::Hello { version: VERSION });
        self.say(request.id, Answer::Hello(Box::new(hello))).await;
    }

    async fn reports(&mut self, free: u64) {
        let memory = AgentMemory { free: Bytes::from_mib(free), ..AgentMemory::default() };
        self.say(0, Answer::Report(Box::new(Report { memory, ..Report::default() }))).await;
    }

    /// The next request of this kind, past all others.
    async fn asked(&mut self, is_it: impl Fn(&Ask) -> bool) -> u64 {
        loop {
            let request = self.hear().await;
            if is_it(&request.ask) {
                return request.id;
            }
        }
    }
}

fn honest() -> Hello {
    Hello {
        version: VERSION,
        agent: "0.1.0".to_owned(),
        kernel: "6.12".to_owned(),
        can: vec![Can::Report, Can::Refaults, Can::Trim],
        cannot: Default::default(),
        least_cache: Bytes::from_mib(64),
    }
}

fn free(told: &Reading<Agent>) -> Option<u64> {
    told.fresh().map(|agent| agent.memory.free.whole_mib())
}

fn trim() -> Ask {
    Ask::Trim { bytes: Bytes::from_mib(20), may_swap: false, last_resort: false }
}

#[tokio::test]
async fn an_agent_is_greeted_reports_and_works() {
    let guest = Guest::start();
    assert_eq!(guest.link.ask(trim()), Err(Absence::NotYet));
    let mut peer = guest.accept().await;
    peer.is_greeted(VERSION).await;
    peer.asked(|ask| matches!(ask, Ask::Report { .. })).await;
    peer.reports(100).await;
    let told = guest.until(|told| free(told) == Some(100)).await;
    let agent = told.fresh().unwrap();
    assert!(agent.trims && agent.counts_refaults && !agent.compacts && !agent.busy, "{agent:?}");

    guest.link.ask(trim()).unwrap();
    assert!(matches!(guest.link.ask(trim()), Err(Absence::Refused(_))), "one deed at a time");
    let id = peer.asked(|ask| matches!(ask, Ask::Trim { .. })).await;
    // An answer to something else is none.
    peer.say(id + 7, Answer::Done(Done::default())).await;
    peer.say(id, Answer::Done(Done { bytes: Some(Bytes::from_mib(18)), ..Done::default() })).await;
    let told = guest.until(|told| told.fresh().is_some_and(|agent| agent.ended == 1)).await;
    let agent = told.fresh().unwrap();
    assert_eq!((agent.freed, agent.busy), (Bytes::from_mib(18), false));
}

#[tokio::test]
async fn what_an_agent_cannot_do_and_ages_are_kept_in_bounds() {
    let guest = Guest::start();
    let mut peer = guest.accept().await;
    let why = format!("\u{1b}[31m{}", "x".repeat(9_000));
    let cannot = [(Can::Pressure, "no PSI".to_owned()), (Can::Ages, why), (Can::Unknown, "?".to_owned())];
    peer.is_greeted_by(Hello { cannot: cannot.into(), ..honest() }).await;
    let ages = |count: u64| {
        let age = |since_ms| AgentAge { since_ms, file: Bytes::from_mib(5), anon: Bytes::ZERO };
        Report { ages: (0..count).map(age).collect(), ..Report::default() }
    };
    peer.say(0, Answer::Report(Box::new(ages(200)))).await;
    let told = guest.until(|told| told.fresh().is_some()).await;
    let agent = told.fresh().unwrap();
    assert_eq!(agent.ages.len(), MAX_AGES);
    assert_eq!(agent.cannot.len(), 2, "{:?}", agent.cannot);
    assert_eq!(agent.cannot[&Can::Pressure], "no PSI");
    let why = &agent.cannot[&Can::Ages];
    assert!(why.starts_with("\\u{1b}[31mx") && why.len() < 200, "{why}");
    // A report without ages changes none.
    peer.say(0, Answer::Report(Box::new(ages(1)))).await;
    peer.reports(9).await;
    let told = guest.until(|told| free(told) == Some(9)).await;
    assert_eq!(told.fresh().unwrap().ages.len(), 1);
}

#[tokio::test]
async fn an_event_tells_what_is_available_and_wakes() {
    let (guest, mut peer) = Guest::that_has_reported().await;
    let available = Bytes::from_mib(9);
    peer.say(0, Answer::Pressure(PressureEvent { available, ..PressureEvent::default() })).await;
    tokio::time::timeout(DEADLINE, super::pressed(Some(&guest.link))).await.unwrap();
    let told = guest.link.told();
    assert_eq!(told.fresh().unwrap().memory.available, available);
    assert_eq!(free(&told), Some(1), "everything else is as reported");
}

#[tokio::test]
async fn a_limit_is_known_once_it_is_accepted() {
    let (guest, mut peer) = Guest::that_has_reported().await;
    for (answer, expected) in
        [(Answer::Refused("no".to_owned()), None), (Answer::Done(Done::default()), Some(4_000))]
    {
        guest.link.ask(Ask::CacheLimit { share: Some(4_000) }).unwrap();
        let id = peer.asked(|ask| matches!(ask, Ask::CacheLimit { .. })).await;
        peer.say(id, answer).await;
        let told = guest.until(|told| told.fresh().is_some_and(|agent| !agent.busy)).await;
        assert_eq!(told.fresh().unwrap().cache_limit.map(|share| share.basis_points()), expected);
    }
}

#[tokio::test]
async fn small_pieces_return_once_it_is_accepted_and_until_the_connection_ends() {
    let (guest, mut peer) = Guest::that_has_reported().await;
    let done = || Answer::Done(Done::default());
    for (on, answer, expected) in [
        (true, Answer::Refused("no".to_owned()), false),
        (true, done(), true),
        (false, done(), false),
        (true, done(), true),
    ] {
        guest.link.request(Deed::ReportPieces(on)).unwrap();
        let id = peer.asked(|ask| *ask == Ask::ReportPieces { on }).await;
        peer.say(id, answer).await;
        let told = guest.until(|told| told.fresh().is_some_and(|agent| !agent.busy)).await;
        assert_eq!(told.fresh().unwrap().pieces_return, expected);
    }
    drop(peer);
    let mut peer = guest.accept().await;
    peer.is_greeted(VERSION).await;
    peer.reports(2).await;
    let told = guest.until(|told| free(told) == Some(2)).await;
    assert!(!told.fresh().unwrap().pieces_return);
}

#[tokio::test]
async fn nonsense_is_skipped_and_a_flood_costs_nobody_anything() {
    let guest = Guest::start();
    let mut peer = guest.accept().await;
    // Before the greeting, nothing counts.
    peer.reports(666).await;
    peer.says.write_all(b"{]\n\xff\xfe\n\n").await.unwrap();
    peer.is_greeted(VERSION).await;
    let flood = vec![b'x'; 1 << 20];
    peer.says.write_all(&flood[..100_000]).await.unwrap();
    peer.says.write_all(b"\n").await.unwrap();
    peer.reports(7).await;
    guest.until(|told| free(told) == Some(7)).await;
    // A line without an end: the host reads a part of it each second, keeps nothing of it, and the link stays as it is.
    let mut says = peer.says;
    let writes = tokio::spawn(async move {
        for _ in 0..64 {
            if says.write_all(&flood).await.is_err() {
                return;
            }
        }
    });
    tokio::time::timeout(Duration::from_millis(500), writes).await.expect_err("it is read slowly");
    assert_eq!(free(&guest.link.told()), Some(7));
}

#[tokio::test]
async fn another_version_is_refused() {
    let guest = Guest::start();
    guest.accept().await.is_greeted(VERSION + 1).await;
    let told = guest.until(|told| matches!(told.why_not(), Some(Absence::Refused(_)))).await;
    assert!(told.why_not().unwrap().to_string().contains("version"), "{told:?}");
}

#[tokio::test]
async fn a_broken_connection_ends_the_deed_and_is_made_again() {
    let (guest, mut peer) = Guest::that_has_reported().await;
    guest.link.ask(trim()).unwrap();
    peer.asked(|ask| matches!(ask, Ask::Trim { .. })).await;
    drop(peer);
    let told = guest.until(|told| told.why_not() == Some(&Absence::Disconnected)).await;
    let agent = told.latest().unwrap();
    assert_eq!((agent.busy, agent.ended, agent.freed), (false, 1, Bytes::ZERO));
    let mut peer = guest.accept().await;
    peer.is_greeted(VERSION).await;
    peer.reports(2).await;
    guest.until(|told| free(told) == Some(2)).await;
}

#[tokio::test]
async fn a_silent_agent_is_asked_whether_it_lives_and_is_old_if_it_does_not_answer() {
    let (guest, mut peer) = Guest::that_has_reported().await;
    let id = peer.asked(|ask| *ask == Ask::Ping).await;
    peer.say(id, Answer::Done(Done::default())).await;
    peer.asked(|ask| *ask == Ask::Ping).await;
    assert!(guest.link.told().fresh().is_some(), "it lives");
    let told = guest.until(|told| told.why_not() == Some(&Absence::Silent)).await;
    assert_eq!(told.latest().map(|agent| agent.memory.free), Some(Bytes::from_mib(1)));
    assert_eq!(guest.link.ask(trim()), Err(Absence::Silent));
    // It has started again meanwhile.
    peer.is_greeted(VERSION).await;
    peer.reports(3).await;
    guest.until(|told| free(told) == Some(3)).await;
}

#[tokio::test]
async fn an_agent_that_answers_and_reports_nothing_is_old() {
    let (guest, mut peer) = Guest::that_has_reported().await;
    let told = loop {
        let told = guest.link.told();
        if told.fresh().is_none() {
            break told;
        }
        // It answers each question whether it lives.
        if let Ok(request) = tokio::time::timeout(Duration::from_secs(1), peer.hear()).await {
            peer.say(request.id, Answer::Done(Done::default())).await;
        }
    };
    assert!(
        matches!(&told, Reading::Stale { age, why: Absence::Silent, .. } if *age >= super::OLD.into()),
        "{told:?}"
    );
    assert_eq!(guest.link.ask(trim()), Err(Absence::Silent));
    peer.reports(4).await;
    guest.until(|told| free(told) == Some(4)).await;
}

#[tokio::test]
async fn another_process_at_the_socket_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("agent");
    let _listener = UnixListener::bind(&path).unwrap();
    let link = AgentLink::start(path, Some(Listener::IsNamed(1)));
    let by = Instant::now() + DEADLINE;
    while !matches!(link.told().why_not(), Some(Absence::Refused(_))) {
        assert!(Instant::now() < by, "{:?}", link.told());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
