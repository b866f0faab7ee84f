//! A stand-in in its own process, which discovery finds like a QEMU.
//!
//! **Problem.** Tests and benchmarks of the whole daemon need many guests that are found, asked and changed like real ones, and
//! cost the machine almost nothing.
//!
//! **Rule.** Any program can become a stand-in: it calls [`is_stand_in`] first, and then [`run`] if the answer is yes. It is started
//! through a link whose name begins like QEMU's, with a command line like QEMU's. An option that QEMU does not have makes it a
//! stand-in. Requests come as lines on its standard input, and its news go as datagrams to the process that started it. It ends with
//! its input, so no stand-in outlives its test.

use std::io::{self, Write};
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use memtide_agent::wire::PORT;
use memtide_model::Bytes;
use serde::{Deserialize, Serialize};

use super::workload::{News, Reporter, Work, Workload};
use super::{AgentBehaviour, Behaviour, Machine, StandIn};

/// The option with the description of the stand-in.
const OPTION: &str = "-standin";
/// The name of the link. The kernel uses it as the process's name.
const LINK: &str = "qemu-system-standin";

/// The description of a stand-in.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Spec {
    /// The guest's name.
    pub name: String,
    /// Memory at start, in MiB.
    pub mib: u64,
    /// Its treatment of clients.
    pub behaviour: Behaviour,
    /// The guest's workload.
    pub workload: Workload,
    /// The socket of its monitor.
    pub monitor: PathBuf,
    /// The socket for its news.
    pub news: PathBuf,
    /// The agent in its guest, and the socket of its port.
    pub agent: Option<(AgentBehaviour, PathBuf)>,
}

/// A request to a stand-in.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
enum Request {
    Stall { more: u64 },
    Calm,
    Count,
    Clock { ahead: i64 },
    Hush,
}

/// News of one guest.
#[derive(Debug, Deserialize)]
struct NewsOf {
    guest: String,
    news: News,
}

/// Whether this process was started as a stand-in.
#[must_use]
pub fn is_stand_in() -> bool {
    let program = std::env::args_os().next().unwrap_or_default();
    Path::new(&program).file_name().is_some_and(|name| name == LINK)
}

/// Runs the stand-in that this process was started as, until its input ends.
///
/// # Errors
/// If the command line does not describe a stand-in, or if its socket cannot be bound.
pub fn run() -> io::Result<()> {
    let text = std::env::args().skip_while(|arg| arg != OPTION).nth(1).unwrap_or_default();
    let spec: Spec = serde_json::from_str(&text)?;
    let reporter = Reporter::to(&spec.news, &spec.name)?;
    let work = Work::new(spec.workload, Bytes::from_mib(spec.mib)).reporting_to(Some(reporter));
    let machine = Machine { work: Some(work), ..Machine::new(spec.mib) };
    let stand_in = StandIn::start(&spec.monitor, machine, spec.behaviour)?;
    if let Some((behaviour, port)) = &spec.agent {
        stand_in.serve_agent(port, *behaviour)?;
    }
    stand_in.tell(&News::Ready);
    for line in io::stdin().lines() {
        stand_in.follow(serde_json::from_str(&line?)?);
    }
    Ok(())
}

impl StandIn {
    fn follow(&self, request: Request) {
        let news = self.change(|machine| {
            machine.advance();
            let is_full = machine.target >= machine.boot;
            let work = machine.work.as_mut()?;
            match request {
                Request::Stall { .. } if is_full => return Some(News::IsFull),
                Request::Stall { more } => work.stall(more, Instant::now()),
                Request::Calm => work.calm(),
                Request::Clock { ahead } => machine.clock_ahead = ahead,
                Request::Hush => work.hush(),
                Request::Count => {
                    return Some(News::Counted {
                        commands: self.commands_so_far(),
                        connections: self.connections() as u64,
                    });
                }
            }
            None
        });
        if let Some(news) = news {
            self.tell(&news);
        }
    }

    fn tell(&self, news: &News) {
        self.change(|machine| machine.work.as_ref().inspect(|work| work.tell(news)).is_some());
    }
}

/// A directory in which stand-ins are started and their news arrive.
#[derive(Debug)]
pub struct Stage {
    directory: PathBuf,
    news: UnixDatagram,
    started: AtomicUsize,
}

impl Stage {
    /// A stage in `directory`. The stand-ins run this process's own program.
    ///
    /// # Errors
    /// If the link or the socket cannot be made.
    pub fn new(directory: &Path) -> io::Result<Self> {
        std::os::unix::fs::symlink(std::env::current_exe()?, directory.join(LINK))?;
        let news = UnixDatagram::bind(directory.join("news"))?;
        Ok(Self { directory: directory.to_owned(), news, started: AtomicUsize::new(0) })
    }

    /// Starts a guest of `mib` MiB, and waits until its monitor can be connected to.
    ///
    /// # Errors
    /// If the guest cannot be started, or does not come up within half a minute.
    pub fn start(&self, name: &str, mib: u64, behaviour: Behaviour, workload: Workload) -> io::Result<Actor> {
        self.start_guest((name, mib), behaviour, workload, None)
    }

    /// The same with an agent in the guest.
    ///
    /// # Errors
    /// As [`Stage::start`].
    pub fn start_with_agent(
        &self,
        name: &str,
        mib: u64,
        workload: Workload,
        agent: AgentBehaviour,
    ) -> io::Result<Actor> {
        self.start_guest((name, mib), Behaviour::Honest, workload, Some(agent))
    }

    fn start_guest(
        &self,
        (name, mib): (&str, u64),
        behaviour: Behaviour,
        workload: Workload,
        agent: Option<AgentBehaviour>,
    ) -> io::Result<Actor> {
        let number = self.started.fetch_add(1, Ordering::Relaxed);
        let monitor = self.directory.join(format!("{number}.qmp"));
        let news = self.directory.join("news");
        let agent = agent.map(|agent| (agent, self.directory.join(format!("{number}.agent"))));
        let spec = Spec { name: name.to_owned(), mib, behaviour, workload, monitor, news, agent };
        let mut child = Command::new(self.directory.join(LINK))
            .arg0(LINK)
            .args(arguments(&spec)?)
            .stdin(Stdio::piped())
            .spawn()?;
        let requests = child.stdin.take().ok_or(io::ErrorKind::BrokenPipe)?;
        let actor = Actor { name: name.to_owned(), child, requests: Some(requests) };
        let deadline = Instant::now() + Duration::from_secs(30);
        match self.hear_of(name, deadline)? {
            Some(News::Ready) => Ok(actor),
            other => Err(io::Error::other(format!("{name} does not come up: {other:?}"))),
        }
    }

    /// The next news of the guest `name`, if any come before `deadline`. Earlier news of other guests are lost.
    ///
    /// # Errors
    /// If the received data is not news.
    pub fn hear_of(&self, name: &str, deadline: Instant) -> io::Result<Option<News>> {
        while let Some(told) = self.hear(deadline)? {
            if told.guest == name {
                return Ok(Some(told.news));
            }
        }
        Ok(None)
    }

    fn hear(&self, deadline: Instant) -> io::Result<Option<NewsOf>> {
        let mut text = [0; 4096];
        loop {
            let left = deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
            self.news.set_read_timeout(Some(left))?;
            match self.news.recv(&mut text) {
                Ok(length) => return Ok(Some(serde_json::from_slice(&text[..length])?)),
                Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                    return Ok(None);
                }
                // A process that was stopped and continued is interrupted in a wait with a timeout.
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}

/// A command line like QEMU's.
fn arguments(spec: &Spec) -> io::Result<Vec<String>> {
    let text = |text: &str| text.to_owned();
    let port = spec.agent.iter().flat_map(|(_, path)| {
        [
            text("-chardev"),
            format!("socket,id=agent,path={},server=on,wait=off", path.display()),
            text("-device"),
            format!("virtserialport,chardev=agent,name={PORT}"),
        ]
    });
    let first = vec![
        text("-name"),
        spec.name.replace(',', ",,"),
        text("-accel"),
        text("kvm"),
        text("-m"),
        format!("{}M", spec.mib),
        text("-device"),
        text("virtio-balloon-pci,id=balloon0,deflate-on-oom=on,free-page-reporting=on"),
        text("-qmp"),
        format!("unix:{},server=on,wait=off", spec.monitor.display()),
    ];
    Ok(first.into_iter().chain(port).chain([text(OPTION), serde_json::to_string(spec)?]).collect())
}

/// A stand-in in its own process. It ends when it is dropped.
#[derive(Debug)]
pub struct Actor {
    name: String,
    child: Child,
    requests: Option<ChildStdin>,
}

impl Actor {
    /// The guest's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The guest's process.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Makes the guest want `more` bytes than it keeps, at once.
    ///
    /// # Errors
    /// If the stand-in has ended.
    pub fn stall(&mut self, more: u64) -> io::Result<()> {
        self.request(Request::Stall { more })
    }

    /// Makes the guest want only as much as before it stalled.
    ///
    /// # Errors
    /// If the stand-in has ended.
    pub fn calm(&mut self) -> io::Result<()> {
        self.request(Request::Calm)
    }

    /// Sets the clock that dates its statistics `ahead` seconds ahead of this machine's clock.
    ///
    /// # Errors
    /// If the stand-in has ended.
    pub fn set_clock(&mut self, ahead: i64) -> io::Result<()> {
        self.request(Request::Clock { ahead })
    }

    /// Stops its driver's statistics.
    ///
    /// # Errors
    /// If the stand-in has ended.
    pub fn hush(&mut self) -> io::Result<()> {
        self.request(Request::Hush)
    }

    /// Makes it report the number of its commands and connections so far.
    ///
    /// # Errors
    /// If the stand-in has ended.
    pub fn count(&mut self) -> io::Result<()> {
        self.request(Request::Count)
    }

    fn request(&mut self, request: Request) -> io::Result<()> {
        let line = serde_json::to_string(&request)?;
        match &mut self.requests {
            Some(requests) => writeln!(requests, "{line}"),
            None => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }
}

impl Drop for Actor {
    fn drop(&mut self) {
        // It ends with its input. If it hangs, it is killed. It may have ended already.
        self.requests = None;
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
