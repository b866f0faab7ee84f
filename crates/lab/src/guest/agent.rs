//! The host's end of an agent's port, without memtide: one request at a time.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use memtide_agent::wire::{Answer, Ask, Done, Hello, PressureEvent, Reply, Report, Request, VERSION};

use crate::error::LabError;
use crate::guest::Guest;

/// The longest wait for a line of the agent. The guest may be loading the agent from its initrd.
const LINE: Duration = Duration::from_secs(60);
/// The interval of the reports while one is waited for, in milliseconds.
const REPORT_MS: u64 = 250;

/// A connection to the agent of a guest.
#[derive(Debug)]
pub struct Peer {
    guest: String,
    stream: UnixStream,
    lines: BufReader<UnixStream>,
    asked: u64,
}

impl Peer {
    /// Connects to the agent of a guest that has a port for one.
    ///
    /// # Errors
    /// If nobody listens.
    pub fn connect(guest: &Guest) -> Result<Self, LabError> {
        let no_port = || LabError::Missing(format!("{} has no port for an agent", guest.name()));
        let path = guest.agent_path().ok_or_else(no_port)?;
        let stream = UnixStream::connect(path).map_err(LabError::file(path))?;
        stream.set_read_timeout(Some(LINE)).map_err(LabError::file(path))?;
        let lines = BufReader::new(stream.try_clone().map_err(LabError::file(path))?);
        Ok(Self { guest: guest.name().to_owned(), stream, lines, asked: 0 })
    }

    /// The answer to a request. Reports that come before it are left out.
    ///
    /// # Errors
    /// If the connection ends, or the agent says something that the protocol does not know.
    pub fn ask(&mut self, ask: Ask) -> Result<Answer, LabError> {
        self.asked += 1;
        let request = Request { id: self.asked, ask };
        let line = serde_json::to_string(&request).map_err(|error| self.error(error.to_string()))?;
        writeln!(self.stream, "{line}").map_err(|error| self.error(error.to_string()))?;
        loop {
            let reply = self.hear()?;
            if reply.id == self.asked {
                return Ok(reply.answer);
            }
        }
    }

    /// Greets the agent.
    ///
    /// # Errors
    /// As [`Peer::ask`], and if it does not introduce itself.
    pub fn greet(&mut self) -> Result<Hello, LabError> {
        match self.ask(Ask::Hello { version: VERSION })? {
            Answer::Hello(hello) => Ok(*hello),
            other => Err(self.error(format!("{other:?}"))),
        }
    }

    /// The agent does what it is asked for.
    ///
    /// # Errors
    /// As [`Peer::ask`], and if it refuses.
    pub fn done(&mut self, ask: Ask) -> Result<Done, LabError> {
        match self.ask(ask)? {
            Answer::Done(done) => Ok(done),
            other => Err(self.error(format!("{ask:?}: {other:?}"))),
        }
    }

    /// A report of now.
    ///
    /// # Errors
    /// As [`Peer::done`].
    pub fn report(&mut self) -> Result<Report, LabError> {
        self.done(Ask::Report { every_ms: REPORT_MS })?;
        loop {
            if let Answer::Report(report) = self.hear()?.answer {
                self.done(Ask::Report { every_ms: 0 })?;
                return Ok(*report);
            }
        }
    }

    /// The next event of pressure.
    ///
    /// # Errors
    /// If the connection ends, or nothing is heard for a minute.
    pub fn event(&mut self) -> Result<PressureEvent, LabError> {
        loop {
            if let Answer::Pressure(event) = self.hear()?.answer {
                return Ok(event);
            }
        }
    }

    fn hear(&mut self) -> Result<Reply, LabError> {
        let mut line = String::new();
        self.lines.read_line(&mut line).map_err(|error| self.error(error.to_string()))?;
        serde_json::from_str(&line).map_err(|error| self.error(format!("{error}: {line:?}")))
    }

    fn error(&self, why: String) -> LabError {
        LabError::Load { guest: self.guest.clone(), why: format!("its agent: {why}") }
    }
}
