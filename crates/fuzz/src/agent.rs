//! The channel between a host and an agent: whatever either end sends, the other one skips what it cannot read, in bounded memory, and
//! believes nothing that was not asked for.
//!
//! An input is everything that an agent sends after it was greeted; it then closes the connection. The same input is read as requests of a host.

use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use memtide_agent::wire::{Answer, Hello, MAX_LINE, Reply, Request, VERSION};
use memtide_agent::{Line, Lines};
use memtide_model::{Absence, Agent, Bytes, Reading};
use memtide_vmm::AgentLink;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixListener;
use tokio::runtime::{Builder, Runtime};

use crate::scratch;

/// Far longer than the wait for an agent that has closed its connection.
const DEADLINE: Duration = Duration::from_secs(30);

thread_local! {
    static DIRECTORY: TempDir = scratch::directory();
    static NEXT: Cell<u64> = const { Cell::new(0) };
    static RUNTIME: Runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
}

/// Reads `bytes` as the words of either end.
///
/// # Panics
/// If a property does not hold.
pub fn run(bytes: &[u8]) {
    for piece in [1, 7, bytes.len().max(1)] {
        let (mut lines, mut length) = (Lines::default(), 0);
        for part in bytes.chunks(piece) {
            lines.take(part, |line| {
                if let Line::Whole(line) = line {
                    assert!(line.len() < MAX_LINE, "a line of {} bytes", line.len());
                    length += line.len();
                    means_the_same::<Request>(&line);
                    means_the_same::<Reply>(&line);
                }
            });
        }
        assert!(length <= bytes.len());
    }
    let path = DIRECTORY.with(|directory| {
        NEXT.with(|next| {
            next.set(next.get() + 1);
            directory.path().join(format!("{}.agent", next.get()))
        })
    });
    RUNTIME.with(|runtime| runtime.block_on(speak(&path, bytes)));
}

/// A message means the same after it was written again.
fn means_the_same<T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug>(line: &[u8]) {
    let Ok(message) = serde_json::from_slice::<T>(line) else { return };
    let again = serde_json::to_string(&message).expect("it was read");
    assert_eq!(serde_json::from_str::<T>(&again).expect("it was written"), message);
}

async fn speak(path: &Path, said: &[u8]) {
    let listener = UnixListener::bind(path).expect("a socket of our own");
    let agent = tokio::spawn(serve(listener, said.to_vec()));
    let told = drive(path.to_owned()).await;
    agent.abort();
    std::fs::remove_file(path).expect("our own socket");
    let text = serde_json::to_string(&told).expect("a reading is text");
    assert_eq!(serde_json::from_str::<Reading<Agent>>(&text).expect("it was written"), told);
    if let Some(agent) = told.latest() {
        // Nothing was asked, so nothing was done.
        assert_eq!((agent.ended, agent.freed, agent.busy), (0, Bytes::ZERO, false));
    }
}

async fn drive(path: PathBuf) -> Reading<Agent> {
    let link = AgentLink::start(path, None);
    let by = Instant::now() + DEADLINE;
    loop {
        let told = link.told();
        if told.why_not().is_some_and(|why| *why != Absence::NotYet) {
            return told;
        }
        assert!(Instant::now() < by, "the agent has gone, and {told:?}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

async fn serve(listener: UnixListener, said: Vec<u8>) {
    let Ok((mut stream, _)) = listener.accept().await else { return };
    let (hears, mut says) = stream.split();
    let Ok(Some(line)) = BufReader::new(hears).lines().next_line().await else { return };
    let id = serde_json::from_str::<Request>(&line).map(|request| request.id).unwrap_or_default();
    let hello = Hello {
        version: VERSION,
        agent: String::new(),
        kernel: String::new(),
        can: Vec::new(),
        cannot: Default::default(),
        least_cache: Bytes::ZERO,
    };
    let mut line =
        serde_json::to_vec(&Reply { id, answer: Answer::Hello(Box::new(hello)) }).unwrap_or_default();
    line.push(b'\n');
    // The host may have hung up.
    let _ = says.write_all(&line).await;
    let _ = says.write_all(&said).await;
}
