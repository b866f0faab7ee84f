//! `memtide web` as a person starts it, and what it answers.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};

use memtide_testing::Mortal;

use crate::common::{PLENTY, memtide};

/// A running `memtide web`.
pub struct Server {
    child: Mortal,
    /// The printed address.
    pub url: String,
}

impl Server {
    /// Starts it for the daemon at `socket`.
    pub fn start(socket: &Path) -> Self {
        let mut command = Command::new(memtide());
        command.arg("web").arg("--socket").arg(socket).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = Mortal::start(command.stderr(Stdio::null()));
        let mut url = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut url).unwrap();
        Self { child, url: url.trim().to_owned() }
    }

    /// Its process ID.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// `127.0.0.1:PORT`.
    pub fn host(&self) -> &str {
        self.url.strip_prefix("http://").unwrap().split_once('/').unwrap().0
    }

    /// The secret in the address.
    pub fn token(&self) -> &str {
        self.url.split_once('#').unwrap().1
    }

    /// The status and the whole answer to a request with these headers and this body.
    pub fn answer(&self, request: &str, headers: &[(&str, &str)], body: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(self.host()).unwrap();
        stream.set_read_timeout(Some(PLENTY)).unwrap();
        let headers: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        let length = body.len();
        write!(
            stream,
            "{request} HTTP/1.1\r\n{headers}Content-Length: {length}\r\nConnection: close\r\n\r\n{body}"
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let status = answer.split(' ').nth(1).unwrap_or_else(|| panic!("{request}: {answer}"));
        (status.parse().unwrap(), answer)
    }

    /// The same with the right host and the right token.
    pub fn trusted(&self, request: &str, body: &str) -> (u16, String) {
        let bearer = format!("Bearer {}", self.token());
        self.answer(request, &[("Host", self.host()), ("Authorization", &bearer)], body)
    }
}
