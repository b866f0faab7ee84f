//! A stand-in in a process of its own, which discovery finds as it finds a QEMU.
//!
//! **Problem.** Tests and benchmarks of the whole daemon need many guests that are found, asked and changed like real ones,
//! and cost the machine next to nothing.
//!
//! **Rule.** Any program can become a stand-in: it calls [`is_stand_in`] first, and [`run`] where that says so. It is started
//! through a link whose name begins like QEMU's, with a command line as QEMU's; what makes it a stand-in is an option that QEMU
//! does not have. Orders come as lines on its standard input, news go as datagrams to whoever started it. It ends with its
//! input, so that no stand-in outlives its test.

use std::io::{self, Write};
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use memtide_model::Bytes;
use serde::{Deserialize, Serialize};

use super::workload::{News, Reporter, Work, Workload};
use super::{Behaviour, Machine, StandIn};

/// The option whose value is the stand-in itself.
const OPTION: &str = "-standin";
/// What the link is called: the kernel takes a process's name from it.
const LINK: &str = "qemu-system-standin";

/// What a stand-in is.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Spec {
    /// The guest's name.
    pub name: String,
    /// Memory at start, in MiB.
    pub mib: u64,
    /// How it treats its clients.
    pub behaviour: Behaviour,
    /// What the guest does.
    pub workload: Workload,
    /// Where its monitor is.
    pub monitor: PathBuf,
    /// Where news go.
    pub news: PathBuf,
}

/// What a stand-in is told to do.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
enum Order {
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

/// Is the stand-in that this process was started as, until its input ends.
///
/// # Errors
/// Where the command line is no stand-in's, or its socket cannot be bound.
pub fn run() -> io::Result<()> {
    let text = std::env::args().skip_while(|arg| arg != OPTION).nth(1).unwrap_or_default();
    let spec: Spec = serde_json::from_str(&text)?;
    let reporter = Reporter::to(&spec.news, &spec.name)?;
    let work = Work::new(spec.workload, Bytes::from_mib(spec.mib)).reporting_to(Some(reporter));
    let machine = Machine { work: Some(work), ..Machine::new(spec.mib) };
    let stand_in = StandIn::start(&spec.monitor, machine, spec.behaviour)?;
    stand_in.tell(&News::Ready);
    for line in io::stdin().lines() {
        stand_in.follow(serde_json::from_str(&line?)?);
    }
    Ok(())
}

impl StandIn {
    fn follow(&self, order: Order) {
        let news = self.change(|machine| {
            machine.advance();
            let is_full = machine.target >= machine.boot;
            let work = machine.work.as_mut()?;
            match order {
                Order::Stall { .. } if is_full => return Some(News::IsFull),
                Order::Stall { more } => work.stall(more, Instant::now()),
                Order::Calm => work.calm(),
                Order::Clock { ahead } => machine.clock_ahead = ahead,
                Order::Hush => work.hush(),
                Order::Count => {
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

/// A directory in which stand-ins are started, and where their news come to.
#[derive(Debug)]
pub struct Stage {
    directory: PathBuf,
    news: UnixDatagram,
    started: AtomicUsize,
}

impl Stage {
    /// A stage in `directory`, where this process's own program plays the stand-ins.
    ///
    /// # Errors
    /// Where the link or the socket cannot be made.
    pub fn new(directory: &Path) -> io::Result<Self> {
        std::os::unix::fs::symlink(std::env::current_exe()?, directory.join(LINK))?;
        let news = UnixDatagram::bind(directory.join("news"))?;
        Ok(Self { directory: directory.to_owned(), news, started: AtomicUsize::new(0) })
    }

    /// Starts a guest of `mib` MiB, and waits until its monitor can be connected to.
    ///
    /// # Errors
    /// Where it cannot be started or does not come up within half a minute.
    pub fn start(&self, name: &str, mib: u64, behaviour: Behaviour, workload: Workload) -> io::Result<Actor> {
        let number = self.started.fetch_add(1, Ordering::Relaxed);
        let monitor = self.directory.join(format!("{number}.qmp"));
        let news = self.directory.join("news");
        let spec = Spec { name: name.to_owned(), mib, behaviour, workload, monitor, news };
        let mut child = Command::new(self.directory.join(LINK))
            .arg0(LINK)
            .args(arguments(&spec)?)
            .stdin(Stdio::piped())
            .spawn()?;
        let orders = child.stdin.take().ok_or(io::ErrorKind::BrokenPipe)?;
        let actor = Actor { name: name.to_owned(), child, orders: Some(orders) };
        let deadline = Instant::now() + Duration::from_secs(30);
        match self.hear_of(name, deadline)? {
            Some(News::Ready) => Ok(actor),
            other => Err(io::Error::other(format!("{name} does not come up: {other:?}"))),
        }
    }

    /// The next news of the guest `name`, if any come before `deadline`. What others tell until then is lost.
    ///
    /// # Errors
    /// Where what comes is no news.
    pub fn hear_of(&self, name: &str, deadline: Instant) -> io::Result<Option<News>> {
        while let Some(told) = self.hear(deadline)? {
            if told.guest == name {
                return Ok(Some(told.news));
            }
        }
        Ok(None)
    }

    fn hear(&self, deadline: Instant) -> io::Result<Option<NewsOf>> {
        let left = deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        self.news.set_read_timeout(Some(left))?;
        let mut text = [0; 4096];
        match self.news.recv(&mut text) {
            Ok(length) => Ok(Some(serde_json::from_slice(&text[..length])?)),
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }
}

/// The command line, as QEMU would have it.
fn arguments(spec: &Spec) -> io::Result<Vec<String>> {
    let text = |text: &str| text.to_owned();
    Ok(vec![
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
        text(OPTION),
        serde_json::to_string(spec)?,
    ])
}

/// A stand-in in a process of its own. It ends when it is dropped.
#[derive(Debug)]
pub struct Actor {
    name: String,
    child: Child,
    orders: Option<ChildStdin>,
}

impl Actor {
    /// The guest's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its process.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Lets the guest want `more` bytes than it keeps, at once.
    ///
    /// # Errors
    /// Where it is gone.
    pub fn stall(&mut self, more: u64) -> io::Result<()> {
        self.order(Order::Stall { more })
    }

    /// Lets the guest want no more than before it stalled.
    ///
    /// # Errors
    /// Where it is gone.
    pub fn calm(&mut self) -> io::Result<()> {
        self.order(Order::Calm)
    }

    /// Lets the clock by which its statistics are dated be so many seconds ahead of this machine's.
    ///
    /// # Errors
    /// Where it is gone.
    pub fn set_clock(&mut self, ahead: i64) -> io::Result<()> {
        self.order(Order::Clock { ahead })
    }

    /// Lets its driver send no statistics any more.
    ///
    /// # Errors
    /// Where it is gone.
    pub fn hush(&mut self) -> io::Result<()> {
        self.order(Order::Hush)
    }

    /// Lets it tell what it was asked so far.
    ///
    /// # Errors
    /// Where it is gone.
    pub fn count(&mut self) -> io::Result<()> {
        self.order(Order::Count)
    }

    fn order(&mut self, order: Order) -> io::Result<()> {
        let line = serde_json::to_string(&order)?;
        match &mut self.orders {
            Some(orders) => writeln!(orders, "{line}"),
            None => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }
}

impl Drop for Actor {
    fn drop(&mut self) {
        // It ends with its input; one that hangs is killed. It may have ended already.
        self.orders = None;
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
