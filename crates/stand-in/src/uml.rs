//! A console for tests that speaks real mconsole, or misbehaves on purpose.

use std::io;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use memtide_model::Bytes;

use memtide_vmm::uml::wire;

/// How often the stand-in looks whether it should end.
const LOOKS: Duration = Duration::from_millis(20);
/// Memory that its kernel allocates for itself outside its lists.
const OWN: Bytes = Bytes::from_mib(4);

/// How a stand-in treats requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manners {
    /// As a kernel does.
    Honest,
    /// Refuses to move memory, with this message.
    Refuses(&'static str),
    /// Says nothing.
    Silent,
    /// Tells numbers that no instance can have.
    Absurd,
    /// Answers with bytes that are no replies.
    Garbage,
    /// Says that more replies follow, and sends none.
    Half,
    /// Sends replies that nobody has asked for, as many as the socket takes.
    Floods,
    /// Answers each request with the answer to another one.
    Mixes,
    /// Answers to a version of the protocol that does not exist, with headers of its own.
    OtherVersion,
    /// Answers after the client has given up.
    Late(Duration),
}

/// The instance behind a stand-in.
#[derive(Clone, Copy, Debug)]
pub struct Machine {
    /// The size of its memory.
    pub full: Bytes,
    /// Memory that was unplugged.
    pub removed: Bytes,
    /// Memory is unplugged until the instance keeps this much, and no further.
    pub stops_at: Bytes,
    /// How it treats requests.
    pub manners: Manners,
    /// It was stopped by somebody: it switches no contexts.
    pub is_stopped: bool,
    /// Requests that it has read.
    pub asked: u64,
    /// Page faults since its boot.
    faults: u64,
    switches: u64,
}

/// A console that listens until it is dropped.
#[derive(Debug)]
pub struct StandIn {
    machine: Arc<Mutex<Machine>>,
    ends: Arc<Mutex<bool>>,
    thread: Option<JoinHandle<()>>,
}

impl StandIn {
    /// Starts a console at `path` for an instance of `full` bytes.
    ///
    /// # Errors
    /// If the socket cannot be bound.
    pub fn start(path: &Path, full: Bytes) -> io::Result<Self> {
        let socket = UnixDatagram::bind(path)?;
        socket.set_read_timeout(Some(LOOKS))?;
        let machine = Machine {
            full,
            removed: Bytes::ZERO,
            stops_at: Bytes::ZERO,
            manners: Manners::Honest,
            is_stopped: false,
            asked: 0,
            faults: 700,
            switches: 0,
        };
        let machine = Arc::new(Mutex::new(machine));
        let ends = Arc::new(Mutex::new(false));
        let (shared, over) = (Arc::clone(&machine), Arc::clone(&ends));
        let thread = std::thread::spawn(move || {
            while !*over.lock().unwrap_or_else(PoisonError::into_inner) {
                serve_one(&socket, &shared);
            }
        });
        Ok(Self { machine, ends, thread: Some(thread) })
    }

    /// The instance, to look at and to change.
    pub fn machine(&self) -> MutexGuard<'_, Machine> {
        self.machine.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for StandIn {
    fn drop(&mut self) {
        *self.ends.lock().unwrap_or_else(PoisonError::into_inner) = true;
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has already been printed.
            let _ended = thread.join();
        }
    }
}

fn serve_one(socket: &UnixDatagram, machine: &Mutex<Machine>) {
    let mut buffer = [0; wire::LONGEST];
    let Ok((got, from)) = socket.recv_from(&mut buffer) else { return };
    let Some(command) = buffer.get(..got).and_then(wire::command) else { return };
    let mut machine = machine.lock().unwrap_or_else(PoisonError::into_inner);
    machine.asked += 1;
    let (text, is_error) = match machine.answer(command) {
        Ok(text) => (text, false),
        Err(message) => (message, true),
    };
    let manners = machine.manners;
    drop(machine);
    let replies = wire::replies(&text, is_error);
    match manners {
        Manners::Silent => {}
        Manners::Honest | Manners::Refuses(_) | Manners::Absurd => send(socket, &from, &replies),
        Manners::Garbage => send(socket, &from, &[vec![0xff; 100]]),
        Manners::OtherVersion => send(socket, &from, &[b"\x03\0\0\0{\"err\":0}".to_vec()]),
        Manners::Half => {
            let mut first = replies.into_iter().next().unwrap_or_default();
            if let Some(more) = first.get_mut(4..8) {
                more.copy_from_slice(&1_u32.to_ne_bytes());
            }
            send(socket, &from, &[first]);
        }
        Manners::Floods => (0..100).for_each(|_| send(socket, &from, &replies)),
        Manners::Mixes => send(socket, &from, &wire::replies("OK", false)),
        Manners::Late(by) => {
            std::thread::sleep(by);
            send(socket, &from, &replies);
        }
    }
}

/// Sends replies as a kernel does: what does not fit into the queue is lost.
fn send(socket: &UnixDatagram, to: &SocketAddr, replies: &[Vec<u8>]) {
    let _no_waiting = socket.set_nonblocking(true);
    for reply in replies {
        let _lost = socket.send_to_addr(reply, to);
    }
    let _waiting = socket.set_nonblocking(false);
}

impl Machine {
    /// Boots anew: the same process runs another kernel.
    pub const fn reboots(&mut self) {
        (self.removed, self.faults) = (Bytes::ZERO, 70);
    }

    fn answer(&mut self, command: &str) -> Result<String, String> {
        if !self.is_stopped {
            self.switches += 1;
        }
        match command {
            "proc meminfo" => Ok(self.meminfo()),
            "proc vmstat" => {
                let faults = self.faults;
                Ok(format!("\nnr_free_pages 5\npgfault {faults}\npgmajfault 2\nworkingset_refault_file 0\n"))
            }
            "proc stat" => Ok(format!("\ncpu  1 0 0 0\nctxt {}\n", self.switches)),
            "proc sys/vm/min_free_kbytes" => Ok("\n2048\n".to_owned()),
            _ => match command.strip_prefix("config mem=") {
                Some(change) => self.plug(change),
                None => Err("Unknown command".to_owned()),
            },
        }
    }

    fn plug(&mut self, change: &str) -> Result<String, String> {
        if let Manners::Refuses(why) = self.manners {
            return Err(why.to_owned());
        }
        let kib = change.get(1..).and_then(|size| size.strip_suffix('K')?.parse().ok());
        let bytes = kib.map(Bytes::from_kib).ok_or("Failed to parse memory increment")?;
        let most = self.full.saturating_sub(self.stops_at);
        self.removed = match change.get(..1) {
            Some("-") => self.removed.saturating_add(bytes).min(most.max(self.removed)),
            Some("+") => self.removed.saturating_sub(bytes),
            _ => return Err("Expected increment to start with '-' or '+'".to_owned()),
        };
        Ok(String::new())
    }

    fn meminfo(&self) -> String {
        if self.manners == Manners::Absurd {
            let most = u64::MAX;
            return format!("\nMemTotal: {most} kB\nMemFree: 1 kB\nMemAvailable: {most} kB\n");
        }
        let total = self.full.saturating_sub(Bytes::from_mib(16));
        let gone = self.removed.saturating_add(OWN);
        let (total, free) = (total.get() >> 10, total.saturating_sub(gone).get() >> 10);
        format!("\nMemTotal: {total} kB\nMemFree: {free} kB\nMemAvailable: {free} kB\n")
    }
}
