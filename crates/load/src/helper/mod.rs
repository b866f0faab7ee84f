//! The lab's helper inside a guest: serves requests, and survives whatever happens to the jobs that they start.
//!
//! **Terms.** A *job* is one request on the control channel. It lasts until its final answer. A *load* is an exerciser that a
//! job has started, in its own process.
//!
//! **Rule.** The helper protects itself from the guest's OOM killer, and makes loads its preferred victims. Whatever happens
//! to a load, the control channel stays up and reports it ([`wire::Answer::Lost`]).

pub mod hugepages;
mod load;
pub mod meminfo;
pub mod shell;
pub mod wire;

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, BufRead, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use serde::Serialize;
use serde_json::json;

use load::Line;
use wire::{Answer, Ask, Hello, Reply, Request};

/// The most jobs and loads at a time.
pub const MAX_JOBS: usize = 64;

/// An event for the thread of a job.
enum Event {
    /// The host cancels the job. The id is that of the cancel request.
    Cancel(u64),
    /// The host sends a command for the load, under this id.
    Order(u64, String),
    /// The load wrote a line.
    Said(Line),
    /// The load has closed its output; this is its error output.
    Closed(String),
    /// The command has ended; this is its output.
    Collected(io::Result<(String, bool)>),
}

/// The helper's state, shared with the job threads.
pub struct Helper {
    program: PathBuf,
    proc: PathBuf,
    protected: bool,
    out: Mutex<Box<dyn Write + Send>>,
    /// Running commands and live loads, by the id of the request that started them.
    jobs: Mutex<BTreeMap<u64, Sender<Event>>>,
}

impl Helper {
    /// An helper that answers on `out` and starts `program` for its loads. It protects itself from the OOM killer if it may.
    #[must_use]
    pub fn new(program: PathBuf, out: Box<dyn Write + Send>) -> Arc<Self> {
        Arc::new(Self {
            program,
            proc: PathBuf::from("/proc"),
            protected: fs::write("/proc/self/oom_score_adj", "-1000").is_ok(),
            out: Mutex::new(out),
            jobs: Mutex::default(),
        })
    }

    /// Serves requests until `from` ends.
    ///
    /// # Errors
    /// If the channel cannot be read.
    pub fn serve(self: &Arc<Self>, from: &mut impl BufRead) -> io::Result<()> {
        loop {
            let line = match wire::read_line(from) {
                Ok(Some(line)) => line,
                Ok(None) => return Ok(()),
                Err(e) if e.kind() == io::ErrorKind::InvalidData => {
                    self.error(0, &e);
                    continue;
                }
                Err(e) => return Err(e),
            };
            if line.is_empty() {
                continue;
            }
            match serde_json::from_slice::<Request>(&line) {
                Ok(request) => self.obey(request),
                Err(e) => self.error(0, &format!("not understood: {e}")),
            }
        }
    }

    fn obey(self: &Arc<Self>, Request { id, ask }: Request) {
        match ask {
            Ask::Hello => self.done(id, &self.hello()),
            Ask::Meminfo => self.finish(id, meminfo::read(&self.proc)),
            Ask::Hugepages { mib } => self.finish(id, hugepages::reserve(&self.proc, mib)),
            Ask::Load { options } => {
                self.start(id, move |helper, events| load::keep(helper, id, &options, events))
            }
            Ask::Sh { cmd } => self.start(id, move |helper, events| helper.run_shell(id, &cmd, events)),
            Ask::Order { load, line } => self.tell(load, id, Event::Order(id, line)),
            Ask::Cancel { job } => self.tell(job, id, Event::Cancel(id)),
        }
    }

    fn hello(&self) -> Hello {
        let kernel = fs::read_to_string(self.proc.join("sys/kernel/osrelease")).unwrap_or_default();
        Hello {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            kernel: kernel.trim().to_owned(),
            protected: self.protected,
        }
    }

    /// Runs a job in its own thread. The job answers all requests that reach it.
    fn start(self: &Arc<Self>, id: u64, job: impl FnOnce(&Arc<Self>, &Receiver<Event>) + Send + 'static) {
        let (sender, events) = mpsc::channel();
        {
            let mut jobs = lock(&self.jobs);
            if jobs.len() >= MAX_JOBS || jobs.contains_key(&id) {
                return self.error(id, &"too many jobs, or one with this id runs");
            }
            jobs.insert(id, sender);
        }
        let helper = Arc::clone(self);
        thread::spawn(move || {
            job(&helper, &events);
            helper.forget(id, &events);
        });
    }

    /// Ends the job. Requests that came too late get an error.
    fn forget(&self, id: u64, events: &Receiver<Event>) {
        lock(&self.jobs).remove(&id);
        for event in events.try_iter() {
            if let Event::Cancel(asked) | Event::Order(asked, _) = event {
                self.error(asked, &no_job(id));
            }
        }
    }

    fn tell(&self, job: u64, id: u64, event: Event) {
        let told = lock(&self.jobs).get(&job).is_some_and(|to| to.send(event).is_ok());
        if !told {
            self.error(id, &no_job(job));
        }
    }

    /// The channel for events of a job.
    fn sender(&self, id: u64) -> Option<Sender<Event>> {
        lock(&self.jobs).get(&id).cloned()
    }

    fn run_shell(&self, id: u64, cmd: &str, events: &Receiver<Event>) {
        let output = self.shell_output(id, cmd, events);
        self.finish(id, output);
    }

    fn shell_output(&self, id: u64, cmd: &str, events: &Receiver<Event>) -> io::Result<wire::Output> {
        let mut child = shell::start(cmd)?;
        let stdout = child.stdout.take().ok_or_else(|| io::Error::other("the process has no pipe"))?;
        let to = self.sender(id);
        thread::spawn(move || {
            let output = shell::collect(stdout);
            to.map(|to| to.send(Event::Collected(output)))
        });
        let mut cancelled_by = None;
        for event in events {
            match event {
                Event::Collected(output) if cancelled_by.is_none() => {
                    return shell::finish(&mut child, output?);
                }
                Event::Collected(_) => break,
                Event::Cancel(asked) => {
                    cancelled_by = Some(asked);
                    shell::kill(&child)?;
                }
                Event::Order(asked, _) => self.error(asked, &"only a load takes commands"),
                Event::Said(_) | Event::Closed(_) => {}
            }
        }
        child.wait()?;
        if let Some(asked) = cancelled_by {
            self.done(asked, &());
        }
        Err(io::Error::other("cancelled"))
    }

    fn finish<T: Serialize>(&self, id: u64, result: io::Result<T>) {
        match result {
            Ok(outcome) => self.done(id, &outcome),
            Err(e) => self.error(id, &e),
        }
    }

    fn done(&self, id: u64, outcome: &impl Serialize) {
        self.say(id, Answer::Done(json!(outcome)));
    }

    fn error(&self, id: u64, why: &impl ToString) {
        self.say(id, Answer::Error(why.to_string()));
    }

    fn say(&self, id: u64, answer: Answer) {
        let mut out = lock(&self.out);
        let written =
            serde_json::to_vec(&Reply { id, answer }).map_err(io::Error::from).and_then(|mut line| {
                line.push(b'\n');
                out.write_all(&line)?;
                out.flush()
            });
        if let Err(e) = written {
            // The host has gone. The job continues, and there is nobody to report to.
            eprintln!("memtide-load: cannot answer: {e}");
        }
    }

    fn program(&self) -> &Path {
        &self.program
    }
}

fn no_job(id: u64) -> String {
    format!("no job {id} runs")
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
