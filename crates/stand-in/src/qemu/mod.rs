//! A stand-in for QEMU's monitor: real QMP over a real socket.
//!
//! It serves one client at a time, like QEMU: a second client connects and hears nothing. Its balloon moves one step towards its
//! target at each look, so a test needs no clock. It can also misbehave: see [`Behaviour`].
//!
//! It runs on its own thread and ends when it is dropped. [`process`] runs it as a separate process that looks like a QEMU, with a
//! guest at work behind it ([`Work`]).

mod agent;
mod answers;
mod hostile;
mod machine;
pub mod process;
mod workload;

use std::collections::VecDeque;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use rustix::event::{PollFd, PollFlags, poll};
use serde_json::{Value, json};

pub use agent::AgentBehaviour;
pub use hostile::{Behaviour, ESCAPES};
pub use machine::Machine;
pub use workload::{News, Work, Workload};

/// The most command names that are remembered.
const MOST_COMMANDS: usize = 512;

/// A running stand-in.
#[derive(Debug)]
pub struct StandIn {
    path: PathBuf,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    behaviour: Mutex<Behaviour>,
    machine: Arc<Mutex<Machine>>,
    /// For writing to the client. Held while a write waits for a client that does not read.
    writer: Mutex<Option<UnixStream>>,
    /// For hanging up, even on a client that does not read.
    client: Mutex<Option<UnixStream>>,
    commands: Mutex<VecDeque<String>>,
    commands_so_far: AtomicU64,
    connections: Mutex<usize>,
    ending: AtomicBool,
}

impl StandIn {
    /// Listens at `path` for `machine`.
    ///
    /// # Errors
    /// If the socket cannot be bound.
    pub fn start(path: &Path, machine: Machine, behaviour: Behaviour) -> io::Result<Self> {
        let listener = UnixListener::bind(path)?;
        let shared = Arc::new(Shared {
            behaviour: Mutex::new(behaviour),
            machine: Arc::new(Mutex::new(machine)),
            writer: Mutex::new(None),
            client: Mutex::new(None),
            commands: Mutex::new(VecDeque::new()),
            commands_so_far: AtomicU64::new(0),
            connections: Mutex::new(0),
            ending: AtomicBool::new(false),
        });
        let of_thread = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("stand-in".to_owned())
            .spawn(move || of_thread.serve(&listener))?;
        Ok(Self { path: path.to_owned(), shared, thread: Some(thread) })
    }

    /// Serves the port of an agent at `path`, until the process ends.
    ///
    /// # Errors
    /// If the socket cannot be bound.
    pub fn serve_agent(&self, path: &Path, behaviour: AgentBehaviour) -> io::Result<()> {
        agent::serve(path, behaviour, Arc::clone(&self.shared.machine))
    }

    /// Changes the machine behind the monitor.
    pub fn change<T>(&self, change: impl FnOnce(&mut Machine) -> T) -> T {
        change(&mut lock(&self.shared.machine))
    }

    /// Changes the behaviour, from the next command on.
    pub fn behave(&self, behaviour: Behaviour) {
        *lock(&self.shared.behaviour) = behaviour;
    }

    /// Sends an event to the client, if there is one.
    pub fn event(&self, name: &str, data: &Value) {
        self.shared.send(&event(name, data));
    }

    /// Sends any message to the client, if there is one.
    pub fn say(&self, message: &Value) {
        self.shared.send(message);
    }

    /// Closes the connection of the client, if there is one.
    pub fn hang_up(&self) {
        self.shared.hang_up();
    }

    /// The names of the newest commands, oldest first.
    #[must_use]
    pub fn commands(&self) -> Vec<String> {
        lock(&self.shared.commands).iter().cloned().collect()
    }

    /// The number of commands so far.
    #[must_use]
    pub fn commands_so_far(&self) -> u64 {
        self.shared.commands_so_far()
    }

    /// The number of accepted clients so far.
    #[must_use]
    pub fn connections(&self) -> usize {
        *lock(&self.shared.connections)
    }

    /// Whether a client is being served.
    #[must_use]
    pub fn has_client(&self) -> bool {
        lock(&self.shared.client).is_some()
    }
}

impl Drop for StandIn {
    fn drop(&mut self) {
        self.shared.ending.store(true, Ordering::SeqCst);
        self.shared.hang_up();
        // Ends the wait for a client. If the queue is full, one of the clients in it ends the wait.
        drop(UnixStream::connect(&self.path));
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was already reported.
            let _ = thread.join();
        }
        // The directory may already be removed.
        let _ = std::fs::remove_file(&self.path);
    }
}

impl Shared {
    fn serve(&self, listener: &UnixListener) {
        while let Ok((stream, _)) = listener.accept() {
            if self.ending.load(Ordering::SeqCst) {
                return;
            }
            *lock(&self.connections) += 1;
            if let (Ok(writer), Ok(client)) = (stream.try_clone(), stream.try_clone()) {
                *lock(&self.writer) = Some(writer);
                *lock(&self.client) = Some(client);
            }
            // A drop that happened in between found no client to hang up on.
            if self.ending.load(Ordering::SeqCst) {
                return;
            }
            // A client may leave in the middle; that is normal.
            let _ = self.converse(&stream);
            *lock(&self.client) = None;
            *lock(&self.writer) = None;
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    fn converse(&self, stream: &UnixStream) -> io::Result<()> {
        let behaviour = *lock(&self.behaviour);
        if let Some(done) = behaviour.instead_of_greeting(stream) {
            return done;
        }
        let greeting = json!({"QMP": {"version": {"qemu": {"micro": 2, "minor": 0, "major": 10},
            "package": "stand-in"}, "capabilities": ["oob"]}});
        match behaviour {
            Behaviour::Drip => self.answer(stream, behaviour, &greeting)?,
            _ => self.send(&greeting),
        }
        std::thread::scope(|scope| {
            let result = self.answer_all(stream, || {
                scope.spawn(|| {
                    let noise =
                        [event("NOISE", &json!({"n": 1})), event("BALLOON_CHANGE", &json!({"actual": 1}))];
                    while noise.iter().all(|event| self.try_send(event).is_ok()) {}
                });
            });
            let _ = stream.shutdown(Shutdown::Both);
            result
        })
    }

    fn answer_all(&self, stream: &UnixStream, flood: impl Fn()) -> io::Result<()> {
        for line in BufReader::new(Awaited(stream)).lines() {
            let Ok(command) = serde_json::from_str::<Value>(&line?) else { continue };
            let name = command["execute"].as_str().unwrap_or_default();
            self.remember(name);
            let behaviour = *lock(&self.behaviour);
            if behaviour.drops(name) {
                return Ok(());
            }
            if behaviour.is_silent_to(name) {
                continue;
            }
            let arguments = &command["arguments"];
            let (answer, events) = match name {
                "qmp_capabilities" => (json!({"return": {}}), Vec::new()),
                // A refused command has no effect.
                _ if behaviour.refuses(name) => (json!({"return": {}}), Vec::new()),
                _ => answers::answer(&mut lock(&self.machine), name, arguments),
            };
            for (name, data) in events {
                self.send(&behaviour.event(event(name, &data), self.commands_so_far()));
            }
            let mut message = behaviour.answer(name, arguments, answer, self.commands_so_far());
            if name == "qmp_capabilities" {
                message["id"] = command["id"].clone();
                self.send(&message);
                if behaviour == Behaviour::EventFlood {
                    flood();
                }
                continue;
            }
            message["id"] = behaviour.id(&command["id"]);
            self.answer(stream, behaviour, &message)?;
        }
        Ok(())
    }

    /// Sends an answer in the way of `behaviour`.
    fn answer(&self, stream: &UnixStream, behaviour: Behaviour, message: &Value) -> io::Result<()> {
        let text = behaviour.text(message, self.commands_so_far());
        match behaviour.write(stream, &text) {
            Some(done) => done,
            None => self.try_send_text(&text),
        }
    }

    fn commands_so_far(&self) -> u64 {
        self.commands_so_far.load(Ordering::Relaxed)
    }

    fn remember(&self, command: &str) {
        self.commands_so_far.fetch_add(1, Ordering::Relaxed);
        let mut commands = lock(&self.commands);
        if commands.len() >= MOST_COMMANDS {
            commands.pop_front();
        }
        commands.push_back(command.to_owned());
    }

    fn send(&self, message: &Value) {
        // If the client is gone, nobody needs the message.
        let _ = self.try_send(message);
    }

    fn try_send(&self, message: &Value) -> io::Result<()> {
        self.try_send_text(&format!("{message}\r\n"))
    }

    fn try_send_text(&self, text: &str) -> io::Result<()> {
        match lock(&self.writer).as_mut() {
            Some(client) => client.write_all(text.as_bytes()),
            None => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    fn hang_up(&self) {
        if let Some(client) = lock(&self.client).as_ref() {
            let _ = client.shutdown(Shutdown::Both);
        }
    }
}

/// Waits for input like QEMU, with poll(2). A thread that waits in read(2) would also be woken by each read of its client.
struct Awaited<'a>(&'a UnixStream);

impl Read for Awaited<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        poll(&mut [PollFd::new(self.0, PollFlags::IN)], None)?;
        self.0.read(bytes)
    }
}

fn event(name: &str, data: &Value) -> Value {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    json!({"timestamp": {"seconds": now.as_secs(), "microseconds": now.subsec_micros()}, "event": name, "data": data})
}

/// Locks even after a panic elsewhere, because plain data stays valid.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
