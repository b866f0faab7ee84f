//! A daemon of libvirt for tests: it speaks the real RPC about domains that it invents, or misbehaves on purpose.
//!
//! Its encoding is its own, so that a mistake in the client's cannot hide.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{SystemTime, UNIX_EPOCH};

const REMOTE: u32 = 0x2000_8086;
const REPLY: u32 = 1;
const MESSAGE: u32 = 2;

/// How a daemon treats its clients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Manners {
    /// As libvirtd does.
    #[default]
    Honest,
    /// It asks for a password.
    WantsPassword,
    /// It asks for a password at the socket for writing, and lets everybody read at the other one.
    OnlyReads,
    /// It says nothing.
    Silent,
    /// It sends bytes that are no frames.
    Garbage,
    /// It announces a frame of almost 4 GiB.
    Endless,
    /// It announces frames that are longer than what follows, and then ends the connection.
    Half,
    /// It answers calls that nobody made.
    Mixes,
    /// It sends events without a pause.
    Floods,
    /// Its lists claim more elements than there are bytes.
    Lies,
}

/// How a domain treats calls about it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Behaviour {
    /// Follows.
    #[default]
    Good,
    /// Refuses to set memory, with this message.
    Refuses(&'static str),
    /// Is frozen: calls about it are answered once it is not any more.
    Frozen,
    /// Tells numbers that no guest can have.
    Absurd,
}

/// A domain.
#[derive(Clone, Debug)]
pub struct Domain {
    /// Its identity.
    pub uuid: [u8; 16],
    /// Its process.
    pub pid: u32,
    /// Its size with an empty balloon, in KiB.
    pub full: u64,
    /// What it keeps, in KiB.
    pub actual: u64,
    /// What it has read from its disks, in bytes.
    pub disk_reads: u64,
    /// It follows to this size and no further, in KiB.
    pub stops_at: u64,
    /// Seconds between two polls of its statistics.
    pub period: u32,
    /// How it treats calls.
    pub behaviour: Behaviour,
    /// All targets that were written, in KiB, in their order.
    pub written: Vec<u64>,
    /// The calls about it that wait: their connection and their frame.
    held: Vec<(Arc<Mutex<UnixStream>>, Call)>,
}

#[derive(Clone, Debug)]
struct Call {
    program: u32,
    procedure: u32,
    serial: u32,
    body: Vec<u8>,
}

#[derive(Debug, Default)]
struct State {
    domains: BTreeMap<String, Domain>,
    manners: Manners,
    calls: BTreeMap<u32, u64>,
    clients: Vec<Arc<Mutex<UnixStream>>>,
    listeners: Vec<(Arc<Mutex<UnixStream>>, u32)>,
    next_id: i32,
    ends: bool,
}

/// A daemon that listens until it is dropped.
#[derive(Debug)]
pub struct Daemon {
    state: Arc<Mutex<State>>,
    socket: PathBuf,
    threads: Vec<JoinHandle<()>>,
}

/// The names of its sockets: for writing, and for reading.
const SOCKETS: [&str; 2] = ["libvirt-sock", "libvirt-sock-ro"];

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Daemon {
    /// Starts a daemon in `dir`: its sockets are `dir/libvirt-sock` and `dir/libvirt-sock-ro`, and it keeps the numbers of its domains' processes below `dir/qemu`.
    ///
    /// # Errors
    /// If the socket cannot be bound.
    pub fn start(dir: &Path) -> io::Result<Self> {
        for state in ["qemu", "qemu/run"] {
            std::fs::create_dir_all(dir.join(state))?;
        }
        let state = Arc::<Mutex<State>>::default();
        let mut threads = Vec::new();
        for name in SOCKETS {
            let listener = UnixListener::bind(dir.join(name))?;
            let (shared, may_write) = (Arc::clone(&state), name == SOCKETS[0]);
            threads.push(thread::spawn(move || {
                for client in listener.incoming() {
                    let Ok(client) = client else { return };
                    if lock(&shared).ends {
                        return;
                    }
                    let shared = Arc::clone(&shared);
                    thread::spawn(move || _ = serve(client, &shared, may_write));
                }
            }));
        }
        Ok(Self { state, socket: dir.join(SOCKETS[0]), threads })
    }

    /// Its socket.
    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Adds a running domain of `full` bytes with an empty balloon, whose process is `pid`. Returns its identity.
    ///
    /// # Errors
    /// If the file with the number cannot be written.
    pub fn add(&self, name: &str, pid: u32, full: u64) -> io::Result<String> {
        let mut uuid = [7; 16];
        uuid[12..].copy_from_slice(&pid.to_be_bytes());
        let dir = self.socket.parent().unwrap_or(Path::new("/"));
        for state in ["qemu", "qemu/run"] {
            std::fs::write(dir.join(state).join(format!("{name}.pid")), pid.to_string())?;
        }
        let domain = Domain {
            uuid,
            pid,
            full: full >> 10,
            actual: full >> 10,
            disk_reads: 0,
            stops_at: 0,
            period: 0,
            behaviour: Behaviour::Good,
            written: Vec::new(),
            held: Vec::new(),
        };
        let mut state = lock(&self.state);
        state.domains.insert(name.to_owned(), domain);
        Ok(uuid.iter().map(|byte| format!("{byte:02x}")).collect())
    }

    /// Ends a domain.
    pub fn remove(&self, name: &str) {
        let mut state = lock(&self.state);
        if let Some(domain) = state.domains.remove(name) {
            state.tell(name, &domain, 318, &[5, 0]);
        }
    }

    /// Changes a domain. Calls that waited are answered if it is not frozen any more.
    pub fn change(&self, name: &str, change: impl FnOnce(&mut Domain)) {
        let mut state = lock(&self.state);
        let Some(domain) = state.domains.get_mut(name) else { return };
        change(domain);
        if domain.behaviour == Behaviour::Frozen {
            return;
        }
        for (client, call) in std::mem::take(&mut domain.held) {
            let answer = state.answer(&call);
            let _gone = send(&client, REPLY, &call, answer);
        }
    }

    /// What a domain is like now.
    #[must_use]
    pub fn domain(&self, name: &str) -> Option<Domain> {
        lock(&self.state).domains.get(name).cloned()
    }

    /// Makes somebody else, such as virsh, set a domain's memory, in KiB.
    pub fn set_memory(&self, name: &str, kib: u64) {
        let mut state = lock(&self.state);
        state.set_memory(name, kib);
    }

    /// How it treats its clients from now on.
    pub fn behave(&self, manners: Manners) {
        lock(&self.state).manners = manners;
    }

    /// How often a procedure was called.
    #[must_use]
    pub fn calls(&self, procedure: u32) -> u64 {
        lock(&self.state).calls.get(&procedure).copied().unwrap_or_default()
    }

    /// Ends all connections, as a daemon does that is restarted.
    pub fn drop_clients(&self) {
        let clients = std::mem::take(&mut lock(&self.state).clients);
        lock(&self.state).listeners.clear();
        for client in clients {
            let _gone = lock(&client).shutdown(std::net::Shutdown::Both);
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        lock(&self.state).ends = true;
        self.drop_clients();
        // A listener looks whether it ends with the next connection.
        for name in SOCKETS {
            let _woken = UnixStream::connect(self.socket.with_file_name(name));
        }
        self.threads.drain(..).for_each(|thread| _ = thread.join());
    }
}

/// A body, or the code and the words of a refusal.
type Answer = Result<Vec<u8>, (u32, String)>;

impl State {
    fn find(&self, uuid: &[u8]) -> Option<(&String, &Domain)> {
        self.domains.iter().find(|(_, domain)| domain.uuid == uuid)
    }

    fn set_memory(&mut self, name: &str, kib: u64) {
        let Some(domain) = self.domains.get_mut(name) else { return };
        domain.written.push(kib);
        domain.actual = if kib < domain.actual { kib.max(domain.stops_at) } else { kib };
        let domain = domain.clone();
        let size = domain.actual.to_be_bytes();
        self.tell_bytes(name, &domain, 331, &size);
    }

    fn tell(&self, name: &str, domain: &Domain, procedure: u32, words: &[u32]) {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
        self.tell_bytes(name, domain, procedure, &bytes);
    }

    /// Sends an event to everybody who has registered for it.
    fn tell_bytes(&self, name: &str, domain: &Domain, procedure: u32, rest: &[u8]) {
        let mut body = 0_u32.to_be_bytes().to_vec();
        put_domain(&mut body, name, domain);
        body.extend_from_slice(rest);
        let event = Call { program: REMOTE, procedure, serial: 0, body: Vec::new() };
        for (client, _) in &self.listeners {
            let _gone = send(client, MESSAGE, &event, Ok(body.clone()));
        }
    }

    /// The answer to a call about a domain or the daemon.
    fn answer(&mut self, call: &Call) -> Answer {
        let body = &call.body;
        match (call.program, call.procedure) {
            // AUTH_LIST
            (REMOTE, 66) => Ok(match self.manners {
                Manners::WantsPassword => words(&[1, 1]),
                Manners::Lies => words(&[u32::MAX, 0]),
                _ => words(&[1, 0]),
            }),
            // CONNECT_OPEN
            (REMOTE, 1) => Ok(Vec::new()),
            // REGISTER_ANY: the caller is noted where its connection is known.
            (REMOTE, 316) => {
                self.next_id += 1;
                Ok(self.next_id.to_be_bytes().to_vec())
            }
            // LOOKUP_BY_UUID
            (REMOTE, 24) => match body.get(..16).and_then(|uuid| self.find(uuid)) {
                Some((name, domain)) => {
                    let mut found = Vec::new();
                    put_domain(&mut found, name, domain);
                    Ok(found)
                }
                None => Err((42, "Domain not found".to_owned())),
            },
            _ => self.answer_about_a_domain(call),
        }
    }

    fn answer_about_a_domain(&mut self, call: &Call) -> Answer {
        let (name, rest) = domain_in(&call.body).ok_or((1, "no domain".to_owned()))?;
        let domain = self.domains.get(&name).ok_or((42, "Domain not found".to_owned()))?.clone();
        let word =
            |at: usize| rest.get(at..at + 4).and_then(|word| Some(u32::from_be_bytes(word.try_into().ok()?)));
        match call.procedure {
            // GET_XML_DESC
            14 => {
                let period = match domain.period {
                    0 => String::new(),
                    period => format!("<stats period='{period}'/>"),
                };
                let xml = format!(
                    "<domain id='1'><name>{name}</name><memory unit='KiB'>{}</memory><devices><memballoon model='virtio' \
                     autodeflate='on' freePageReporting='on'>{period}<alias name='balloon0'/></memballoon></devices></domain>",
                    domain.full
                );
                let mut text = Vec::new();
                put_text(&mut text, &xml);
                Ok(text)
            }
            // GET_STATE: running
            212 => Ok(words(&[1, 1])),
            // GET_JOB_STATS: none
            298 => Ok(words(&[0, 0])),
            // MEMORY_STATS
            159 => Ok(stats(&domain, self.manners)),
            // BLOCK_STATS_FLAGS, for the path "": all disks
            243 => Ok(disk_stats(&domain)),
            // SET_MEMORY_FLAGS
            204 => {
                if let Behaviour::Refuses(why) = domain.behaviour {
                    return Err((55, why.to_owned()));
                }
                let kib =
                    (u64::from(word(0).unwrap_or_default()) << 32) | u64::from(word(4).unwrap_or_default());
                self.set_memory(&name, kib);
                Ok(Vec::new())
            }
            // SET_MEMORY_STATS_PERIOD
            308 => {
                let period = word(0).unwrap_or_default();
                if let Some(domain) = self.domains.get_mut(&name) {
                    domain.period = period;
                }
                Ok(Vec::new())
            }
            _ => Err((3, "this function is not supported".to_owned())),
        }
    }
}

/// The statistics of a domain whose driver answers at once.
fn stats(domain: &Domain, manners: Manners) -> Vec<u8> {
    let second = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let scale = if domain.behaviour == Behaviour::Absurd { 1 << 50 } else { 1 };
    let of: [(u32, u64); 6] = [
        (6, domain.actual.saturating_mul(scale)),
        (4, domain.actual / 2),
        (5, domain.actual.saturating_mul(scale)),
        (8, domain.actual / 2),
        (9, second),
        (3, second),
    ];
    let count = if manners == Manners::Lies { u32::MAX } else { 6 };
    let mut body = count.to_be_bytes().to_vec();
    for (tag, value) in of {
        body.extend_from_slice(&tag.to_be_bytes());
        body.extend_from_slice(&value.to_be_bytes());
    }
    body
}

/// Typed parameters, of the type `llong`, and their number.
fn disk_stats(domain: &Domain) -> Vec<u8> {
    let of = [("rd_bytes", domain.disk_reads), ("rd_total_times", domain.disk_reads / 100)];
    let mut body = words(&[2]);
    for (name, value) in of {
        put_text(&mut body, name);
        body.extend_from_slice(&words(&[3]));
        body.extend_from_slice(&value.to_be_bytes());
    }
    body.extend_from_slice(&words(&[2]));
    body
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    out.extend_from_slice(&u32::try_from(text.len()).unwrap_or_default().to_be_bytes());
    out.extend_from_slice(text.as_bytes());
    out.resize(out.len().next_multiple_of(4), 0);
}

fn put_domain(out: &mut Vec<u8>, name: &str, domain: &Domain) {
    put_text(out, name);
    out.extend_from_slice(&domain.uuid);
    out.extend_from_slice(&1_u32.to_be_bytes());
}

/// The name of the domain that a body begins with, and what follows it.
fn domain_in(body: &[u8]) -> Option<(String, &[u8])> {
    let (length, rest) = body.split_first_chunk::<4>()?;
    let length = u32::from_be_bytes(*length) as usize;
    let name = String::from_utf8(rest.get(..length)?.to_vec()).ok()?;
    Some((name, rest.get(length.next_multiple_of(4) + 20..)?))
}

/// Sends a frame.
fn send(client: &Mutex<UnixStream>, kind: u32, call: &Call, answer: Answer) -> io::Result<()> {
    let (status, body) = match answer {
        Ok(body) => (0, body),
        Err((code, message)) => {
            let mut body = words(&[code, 10, 1]);
            put_text(&mut body, &message);
            // The level, and nothing else.
            body.extend(words(&[2, 0, 0, 0, 0, 0, 0, 0]));
            (1, body)
        }
    };
    let length = u32::try_from(28 + body.len()).unwrap_or_default();
    let mut frame = words(&[length, call.program, 1, call.procedure, kind, call.serial, status]);
    frame.extend(body);
    lock(client).write_all(&frame)
}

fn serve(stream: UnixStream, shared: &Mutex<State>, may_write: bool) -> io::Result<()> {
    let mut read = stream.try_clone()?;
    let client = Arc::new(Mutex::new(stream));
    lock(shared).clients.push(Arc::clone(&client));
    loop {
        let mut header = [0; 28];
        read.read_exact(&mut header)?;
        let word =
            |at: usize| u32::from_be_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
        let mut body = vec![0; (word(0) as usize).saturating_sub(28)];
        read.read_exact(&mut body)?;
        let call = Call { program: word(4), procedure: word(12), serial: word(20), body };
        let mut state = lock(shared);
        *state.calls.entry(call.procedure).or_default() += 1;
        let manners = state.manners;
        let is_about = domain_in(&call.body).map(|(name, _)| name);
        if let Some(domain) = is_about.and_then(|name| state.domains.get_mut(&name))
            && domain.behaviour == Behaviour::Frozen
        {
            domain.held.push((Arc::clone(&client), call));
            continue;
        }
        let answer = match manners {
            // AUTH_LIST
            Manners::OnlyReads if call.procedure == 66 && may_write => Ok(words(&[1, 1])),
            _ => state.answer(&call),
        };
        if call.procedure == 316 {
            state.listeners.push((Arc::clone(&client), call.serial));
        }
        drop(state);
        match manners {
            Manners::Silent => {}
            Manners::Garbage => lock(&client).write_all(&[0x5a; 64])?,
            Manners::Endless => lock(&client).write_all(&[0xff; 28])?,
            Manners::Half => {
                let mut half = words(&[4096, call.program, 1, call.procedure, REPLY, call.serial, 0]);
                half.push(1);
                lock(&client).write_all(&half)?;
                return lock(&client).shutdown(std::net::Shutdown::Both);
            }
            Manners::Mixes => {
                let other = Call { serial: call.serial.wrapping_add(77), ..call };
                send(&client, REPLY, &other, answer)?;
            }
            Manners::Floods => {
                send(&client, REPLY, &call, answer)?;
                let event = Call { program: REMOTE, procedure: 331, serial: 0, body: Vec::new() };
                let domain = Domain { uuid: [9; 16], ..nobody() };
                let mut body = 0_u32.to_be_bytes().to_vec();
                put_domain(&mut body, "nobody", &domain);
                for _ in 0..10_000 {
                    send(&client, MESSAGE, &event, Ok(body.clone()))?;
                }
            }
            Manners::Honest | Manners::WantsPassword | Manners::OnlyReads | Manners::Lies => {
                send(&client, REPLY, &call, answer)?
            }
        }
    }
}

const fn nobody() -> Domain {
    Domain {
        uuid: [0; 16],
        pid: 0,
        full: 0,
        actual: 0,
        disk_reads: 0,
        stops_at: 0,
        period: 0,
        behaviour: Behaviour::Good,
        written: Vec::new(),
        held: Vec::new(),
    }
}
