//! A stand-in for QEMU's monitor: real QMP over a real socket, without a guest behind it.
//!
//! It serves one client at a time, as QEMU does: a second one connects and hears nothing. Its balloon moves towards
//! its target step by step, one step at each look, so that a test needs no clock. It can also misbehave: see
//! [`Behaviour`].
//!
//! It runs on a thread of its own and ends when it is dropped.

mod answers;
mod machine;

use std::collections::VecDeque;
use std::io::{self, BufRead, BufReader, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use serde_json::{Value, json};

pub use machine::Machine;

/// Names of commands that are remembered.
const MOST_COMMANDS: usize = 4096;

/// How a stand-in treats its clients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Behaviour {
    /// As QEMU does.
    #[default]
    Honest,
    /// Accepts connections and says nothing, like a monitor that somebody else holds.
    NoGreeting,
    /// Greets, agrees, and never answers again.
    SilentAfterGreeting,
    /// Sends lines that are no JSON.
    Garbage,
    /// Sends one line without an end.
    EndlessLine,
    /// Is honest, but sends events as fast as they are read.
    EventFlood,
    /// Greets, agrees, and closes in the middle of an answer.
    HalfMessage,
    /// Answers with identifiers that nobody used.
    WrongIds,
    /// Answers with values of another shape.
    WrongTypes,
    /// Refuses every command.
    Refuse,
}

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
    machine: Mutex<Machine>,
    /// To write to the client; held while a write waits for a client that does not read.
    writer: Mutex<Option<UnixStream>>,
    /// To hang up, also on a client that does not read.
    client: Mutex<Option<UnixStream>>,
    commands: Mutex<VecDeque<String>>,
    connections: Mutex<usize>,
    ending: AtomicBool,
}

impl StandIn {
    /// Listens at `path` for `machine`.
    ///
    /// # Errors
    /// Where the socket cannot be bound.
    pub fn start(path: &Path, machine: Machine, behaviour: Behaviour) -> io::Result<Self> {
        let listener = UnixListener::bind(path)?;
        let shared = Arc::new(Shared {
            behaviour: Mutex::new(behaviour),
            machine: Mutex::new(machine),
            writer: Mutex::new(None),
            client: Mutex::new(None),
            commands: Mutex::new(VecDeque::new()),
            connections: Mutex::new(0),
            ending: AtomicBool::new(false),
        });
        let of_thread = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("stand-in".to_owned())
            .spawn(move || of_thread.serve(&listener))?;
        Ok(Self { path: path.to_owned(), shared, thread: Some(thread) })
    }

    /// Changes the machine behind the monitor.
    pub fn change<T>(&self, change: impl FnOnce(&mut Machine) -> T) -> T {
        change(&mut lock(&self.shared.machine))
    }

    /// Treats clients differently from the next command on.
    pub fn behave(&self, behaviour: Behaviour) {
        *lock(&self.shared.behaviour) = behaviour;
    }

    /// Sends an event to the client, if there is one.
    pub fn event(&self, name: &str, data: &Value) {
        self.shared.send(&event(name, data));
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

    /// How many clients were accepted so far.
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
        // Ends the wait for a client. Where the queue is full, one of those in it ends it.
        drop(UnixStream::connect(&self.path));
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been reported on its own.
            let _ = thread.join();
        }
        // Somebody else may have removed the directory before.
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
            // A drop that came in between found no client to hang up.
            if self.ending.load(Ordering::SeqCst) {
                return;
            }
            // A client that leaves in the middle is nothing unusual.
            let _ = self.converse(&stream);
            *lock(&self.client) = None;
            *lock(&self.writer) = None;
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    fn converse(&self, stream: &UnixStream) -> io::Result<()> {
        let mut writer = stream;
        match *lock(&self.behaviour) {
            Behaviour::NoGreeting => return wait_for_end(stream),
            Behaviour::Garbage => writer.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")?,
            Behaviour::EndlessLine => loop {
                writer.write_all(&[b'x'; 4096])?;
            },
            _ => self.send(&json!({"QMP": {"version": {"qemu": {"micro": 2, "minor": 0, "major": 10},
                "package": "stand-in"}, "capabilities": ["oob"]}})),
        }
        std::thread::scope(|scope| {
            let result = self.answer_all(stream, || {
                scope.spawn(|| while self.try_send(&event("NOISE", &json!({"n": 1}))).is_ok() {});
            });
            let _ = stream.shutdown(Shutdown::Both);
            result
        })
    }

    fn answer_all(&self, stream: &UnixStream, flood: impl Fn()) -> io::Result<()> {
        for line in BufReader::new(stream).lines() {
            let Ok(command) = serde_json::from_str::<Value>(&line?) else { continue };
            let name = command["execute"].as_str().unwrap_or_default();
            self.remember(name);
            let behaviour = *lock(&self.behaviour);
            if name == "qmp_capabilities" {
                self.send(&json!({"return": {}, "id": command["id"]}));
                if behaviour == Behaviour::EventFlood {
                    flood();
                }
                continue;
            }
            let (answer, events) = answers::answer(&mut lock(&self.machine), name, &command["arguments"]);
            let mut message = match behaviour {
                Behaviour::SilentAfterGreeting => continue,
                Behaviour::WrongTypes => json!({"return": [[{"actual": "a lot", "status": 5}]]}),
                Behaviour::Refuse => answers::refusal("GenericError", "not\u{7} today"),
                _ => answer,
            };
            message["id"] = command["id"].clone();
            if behaviour == Behaviour::WrongIds {
                message["id"] = json!("nobody's");
            }
            if behaviour == Behaviour::HalfMessage {
                let text = message.to_string();
                let mut writer = stream;
                return writer.write_all(&text.as_bytes()[..text.len() / 2]);
            }
            for (name, data) in events {
                self.send(&event(name, &data));
            }
            self.send(&message);
        }
        Ok(())
    }

    fn remember(&self, command: &str) {
        let mut commands = lock(&self.commands);
        if commands.len() >= MOST_COMMANDS {
            commands.pop_front();
        }
        commands.push_back(command.to_owned());
    }

    fn send(&self, message: &Value) {
        // A client that is gone misses nothing.
        let _ = self.try_send(message);
    }

    fn try_send(&self, message: &Value) -> io::Result<()> {
        match lock(&self.writer).as_mut() {
            Some(client) => client.write_all(format!("{message}\r\n").as_bytes()),
            None => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    fn hang_up(&self) {
        if let Some(client) = lock(&self.client).as_ref() {
            let _ = client.shutdown(Shutdown::Both);
        }
    }
}

fn event(name: &str, data: &Value) -> Value {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    json!({"timestamp": {"seconds": now.as_secs(), "microseconds": now.subsec_micros()}, "event": name, "data": data})
}

fn wait_for_end(mut stream: &UnixStream) -> io::Result<()> {
    io::copy(&mut stream, &mut io::sink()).map(drop)
}

/// A panic elsewhere leaves plain data behind: it is as good as before.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
