//! The agent in the guest of a stand-in: the real protocol over a Unix socket, honest or not.
//!
//! It answers one client at a time, as QEMU's port does. An honest agent tells what the stand-in's [`Work`](super::Work) holds, and its trims
//! drop page cache there.

use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use memtide_agent::wire::{
    Answer, Ask, Can, Done, Hello, PressureEvent, Reply, Report, Request, SHORTEST_INTERVAL_MS, VERSION,
};
use memtide_model::{AgentCounters, AgentMemory, AgentStalls, Bytes};
use serde::{Deserialize, Serialize};

use super::hostile::{DRIP, repeat};
use super::{ESCAPES, Machine, lock};

/// How an agent treats the host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum AgentBehaviour {
    /// Like memtide-agent.
    #[default]
    Honest,
    /// Accepts connections and says nothing.
    Silent,
    /// Introduces itself, reports once, and never says anything again.
    SilentInTheMiddle,
    /// Reports, and never answers a request to do something.
    SilentToDeeds,
    /// Speaks another version of the protocol.
    OtherVersion,
    /// Sends lines that are not JSON.
    Garbage,
    /// Sends one line without an end.
    EndlessLine,
    /// Sends reports as fast as they are read.
    ReportFlood,
    /// Sends pressure events as fast as they are read.
    EventFlood,
    /// Introduces itself, and closes in the middle of a report.
    HalfMessage,
    /// Answers with other identifiers.
    WrongIds,
    /// Tells the largest numbers there are, and that it did all that it was asked for.
    Numbers,
    /// Tells refaults of its working set without end, and that it has no memory left.
    Beggar,
    /// Refuses everything, in text that must not reach a display.
    Escapes,
    /// Sends one byte every half second.
    Drip,
    /// Closes after each request.
    DropOnRequest,
}

impl AgentBehaviour {
    /// All behaviours except the honest one.
    pub const HOSTILE: [Self; 15] = [
        Self::Silent,
        Self::SilentInTheMiddle,
        Self::SilentToDeeds,
        Self::OtherVersion,
        Self::Garbage,
        Self::EndlessLine,
        Self::ReportFlood,
        Self::EventFlood,
        Self::HalfMessage,
        Self::WrongIds,
        Self::Numbers,
        Self::Beggar,
        Self::Escapes,
        Self::Drip,
        Self::DropOnRequest,
    ];
}

/// The longest time without a look at the guest, and thereby between two pressure events of a guest that stalls.
const LOOKS: Duration = Duration::from_millis(20);

/// Serves the agent's port at `path` on a thread of its own, until the process ends.
///
/// # Errors
/// If the socket cannot be bound.
pub(super) fn serve(path: &Path, behaviour: AgentBehaviour, machine: Arc<Mutex<Machine>>) -> io::Result<()> {
    let listener = UnixListener::bind(path)?;
    std::thread::Builder::new().name("agent".to_owned()).spawn(move || {
        while let Ok((stream, _)) = listener.accept() {
            // The host may leave in the middle; that is normal.
            let _ =
                Connection::new(&stream, behaviour, &machine).and_then(|mut connection| connection.serve());
        }
    })?;
    Ok(())
}

/// A connection of the host.
struct Connection<'a> {
    stream: &'a UnixStream,
    behaviour: AgentBehaviour,
    machine: &'a Mutex<Machine>,
    /// The interval of reports, the last one, and its time.
    every: Option<Duration>,
    told: Option<(Report, Instant)>,
    /// Whether the host wants pressure events, and whether the guest stalled at the last look.
    wants_events: bool,
    stalled: bool,
    began: Instant,
}

impl<'a> Connection<'a> {
    fn new(
        stream: &'a UnixStream,
        behaviour: AgentBehaviour,
        machine: &'a Mutex<Machine>,
    ) -> io::Result<Self> {
        stream.set_read_timeout(Some(LOOKS))?;
        let began = Instant::now();
        Ok(Self {
            stream,
            behaviour,
            machine,
            every: None,
            told: None,
            wants_events: false,
            stalled: false,
            began,
        })
    }

    fn serve(&mut self) -> io::Result<()> {
        if self.behaviour == AgentBehaviour::EndlessLine {
            return repeat(self.stream, usize::MAX);
        }
        let mut lines = BufReader::new(self.stream);
        let mut line = String::new();
        loop {
            match lines.read_line(&mut line) {
                Ok(0) => return Ok(()),
                Ok(_) => {
                    if let Ok(request) = serde_json::from_str::<Request>(&line) {
                        self.answer(&request)?;
                    }
                    line.clear();
                }
                Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                }
                Err(error) => return Err(error),
            }
            self.look()?;
        }
    }

    fn answer(&mut self, request: &Request) -> io::Result<()> {
        use AgentBehaviour as B;
        let is_hello = matches!(request.ask, Ask::Hello { .. });
        match self.behaviour {
            B::Silent => return Ok(()),
            B::DropOnRequest => return Err(io::ErrorKind::ConnectionAborted.into()),
            B::Garbage => return self.write(b"HTTP/1.1 400 Bad Request\r\n\r\n{]\n\xff\xfe\n"),
            B::SilentInTheMiddle if !is_hello && self.told.is_some() => return Ok(()),
            B::SilentToDeeds
                if matches!(
                    request.ask,
                    Ask::Trim { .. }
                        | Ask::Compact
                        | Ask::ReportPieces { .. }
                        | Ask::UseTier { .. }
                        | Ask::PageOut { .. }
                ) =>
            {
                return Ok(());
            }
            B::Escapes if !is_hello => return self.say(request.id, &Answer::Refused(ESCAPES.to_owned())),
            _ => {}
        }
        let answer = match request.ask {
            Ask::Hello { .. } => {
                self.every = None;
                self.wants_events = false;
                Answer::Hello(Box::new(self.hello()))
            }
            Ask::Report { every_ms } => {
                self.every = (every_ms > 0).then(|| Duration::from_millis(every_ms));
                self.told = None;
                Answer::Done(Done::default())
            }
            Ask::Pressure { stall_us, .. } => {
                self.wants_events = stall_us > 0;
                Answer::Done(Done::default())
            }
            Ask::Trim { bytes, .. } => {
                let dropped = match self.behaviour {
                    B::Numbers => Bytes::MAX,
                    _ => lock(self.machine).trim(bytes),
                };
                Answer::Done(Done { bytes: Some(dropped), ..Done::default() })
            }
            Ask::UseTier { .. } | Ask::PageOut { .. } if self.behaviour == B::Numbers => {
                Answer::Done(Done { bytes: Some(Bytes::MAX), ..Done::default() })
            }
            Ask::UseTier { .. } | Ask::PageOut { .. } => Answer::Refused("its guest has no tier".to_owned()),
            Ask::Ping | Ask::Compact | Ask::ReportPieces { .. } | Ask::CacheLimit { .. } => {
                Answer::Done(Done::default())
            }
        };
        self.say(request.id, &answer)
    }

    fn hello(&self) -> Hello {
        let version = if self.behaviour == AgentBehaviour::OtherVersion { VERSION + 1 } else { VERSION };
        let name = if self.behaviour == AgentBehaviour::Escapes { ESCAPES } else { "stand-in" };
        Hello {
            version,
            agent: name.to_owned(),
            kernel: name.to_owned(),
            can: vec![Can::Report, Can::Pressure, Can::Refaults, Can::Trim, Can::CacheLimit],
            cannot: [(Can::Ages, format!("{name} has no generations"))].into(),
            least_cache: Bytes::from_mib(64),
        }
    }

    /// Reports and events that are due.
    fn look(&mut self) -> io::Result<()> {
        use AgentBehaviour as B;
        let Some(every) = self.every else { return Ok(()) };
        match self.behaviour {
            B::SilentInTheMiddle if self.told.is_some() => return Ok(()),
            B::ReportFlood => loop {
                self.say(0, &Answer::Report(Box::new(self.report())))?;
            },
            B::EventFlood => loop {
                self.say(0, &Answer::Pressure(PressureEvent::default()))?;
            },
            B::HalfMessage => {
                self.write(br#"{"id":0,"report":{"made_ms":1,"mem"#)?;
                return Err(io::ErrorKind::ConnectionAborted.into());
            }
            _ => {}
        }
        let stalls = lock(self.machine).stalls();
        let has_event = self.wants_events && stalls && !self.stalled;
        if has_event {
            let report = self.report();
            let event = PressureEvent {
                at_ms: report.made_ms,
                stalls: report.stalls.unwrap_or_default(),
                available: report.memory.available,
            };
            self.say(0, &Answer::Pressure(event))?;
        }
        self.stalled = stalls;
        // After an event, a report follows as soon as one may.
        let soon = Duration::from_millis(SHORTEST_INTERVAL_MS);
        let waits = if has_event { every.min(soon) } else { every };
        if self.told.as_ref().is_some_and(|(_, at)| at.elapsed() < waits) {
            return Ok(());
        }
        let report = self.report();
        // An agent says what has changed.
        let is_new = self.told.as_ref().is_none_or(|(told, at)| {
            told.counters != report.counters
                || told.memory.available.abs_diff(report.memory.available) >= Bytes::from_mib(4)
                || at.elapsed() >= Duration::from_secs(5)
        });
        if is_new {
            self.say(0, &Answer::Report(Box::new(report.clone())))?;
            self.told = Some((report, Instant::now()));
        }
        Ok(())
    }

    fn report(&self) -> Report {
        let made_ms = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        match self.behaviour {
            AgentBehaviour::Numbers => {
                let most = Bytes::MAX;
                let memory = AgentMemory {
                    total: most,
                    free: most,
                    free_blocks: most,
                    pieces: most,
                    available: most,
                    unmapped_cache: most,
                    dirty: most,
                    reclaimable_slab: most,
                    swap_total: most,
                    swap_free: most,
                    anon: most,
                    tier_total: most,
                    tier_free: most,
                };
                Report { made_ms: u64::MAX, memory, ..Report::default() }
            }
            AgentBehaviour::Beggar => {
                let refaults = Bytes::from_mib(made_ms);
                let counters = AgentCounters {
                    refaults_file: refaults,
                    activations_file: refaults,
                    ..AgentCounters::default()
                };
                let stalls = AgentStalls {
                    io_some_us: made_ms * 1000,
                    memory_some_us: made_ms * 1000,
                    ..AgentStalls::default()
                };
                Report { made_ms, counters, stalls: Some(stalls), ..Report::default() }
            }
            _ => {
                let agent = lock(self.machine).agent().unwrap_or_default();
                Report {
                    made_ms,
                    memory: agent.memory,
                    counters: agent.counters,
                    stalls: agent.stalls,
                    ..Report::default()
                }
            }
        }
    }

    fn say(&mut self, id: u64, answer: &Answer) -> io::Result<()> {
        let id = if self.behaviour == AgentBehaviour::WrongIds { id.wrapping_mul(7) } else { id };
        let mut line = serde_json::to_vec(&Reply { id, answer: answer.clone() })?;
        line.push(b'\n');
        if self.behaviour == AgentBehaviour::Drip {
            for byte in line {
                self.write(&[byte])?;
                std::thread::sleep(DRIP);
            }
            return Ok(());
        }
        self.write(&line)
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut stream = self.stream;
        stream.write_all(bytes)
    }
}
