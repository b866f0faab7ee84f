//! The control process: reads requests, runs jobs in threads, and survives what happens to them.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, Sender, TryRecvError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use serde::Serialize;
use serde_json::json;

use crate::block::{Shape, Ticker, VERIFY};
use crate::pace::Pacer;
use crate::wire::{Answer, Ask, Filled, Hello, Hugepages, Reply, Request};
use crate::{MIB, cache, meminfo, shell, wire};

/// Jobs and blocks at a time.
pub const MAX_JOBS: usize = 64;

/// What a job's thread is told.
enum Event {
    /// The host ends the job.
    Cancel,
    /// The host wants the block read back, under this id.
    Verify(u64),
    /// The host wants the block gone, under this id.
    Free(u64),
    /// The block's process says something.
    Said(Answer),
    /// The command has ended and this was its output.
    Collected(io::Result<(String, bool)>),
    /// The process has closed its output.
    Closed,
}

type Events = Mutex<BTreeMap<u64, Sender<Event>>>;

/// The control process's state, shared with the threads of the jobs.
pub struct Control {
    program: PathBuf,
    proc: PathBuf,
    protected: bool,
    out: Mutex<Box<dyn Write + Send>>,
    /// Jobs that can be cancelled, by request id.
    jobs: Events,
    /// Blocks by seed.
    blocks: Events,
    /// Files that were read through the page cache, by path: open, so that what is cached of a block device stays.
    opened: Mutex<BTreeMap<String, File>>,
}

impl Control {
    /// A control process that answers on `out` and starts `program` for its blocks. Protects itself from the OOM killer
    /// where it may.
    #[must_use]
    pub fn new(program: PathBuf, out: Box<dyn Write + Send>) -> Arc<Self> {
        Arc::new(Self {
            program,
            proc: PathBuf::from("/proc"),
            protected: fs::write("/proc/self/oom_score_adj", "-1000").is_ok(),
            out: Mutex::new(out),
            jobs: Mutex::default(),
            blocks: Mutex::default(),
            opened: Mutex::default(),
        })
    }

    /// Obeys requests until the end of `from`.
    ///
    /// # Errors
    /// Where the channel cannot be read.
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
            Ask::Hugepages { mib } => self.finish(id, hugepages(&self.proc, mib)),
            Ask::Verify { seed } => self.tell_block(id, seed, Event::Verify(id)),
            Ask::Free { seed } => self.tell_block(id, seed, Event::Free(id)),
            Ask::Cancel { job } => {
                let told = lock(&self.jobs).get(&job).is_some_and(|to| to.send(Event::Cancel).is_ok());
                if told { self.done(id, &()) } else { self.error(id, &format!("no job {job} runs")) }
            }
            Ask::Anon { seed, mib, mib_per_s } => {
                self.start_block(id, Shape { seed, mib, mib_per_s: mib_per_s.unwrap_or(0) });
            }
            Ask::Cache { path, seed, offset_mib, mib, mib_per_s } => {
                self.start(id, move |control, events| {
                    let part = cache::Part { path: &path, seed, offset_mib, mib };
                    let mut pacer = Pacer::new(mib_per_s.and_then(|rate| rate.checked_mul(MIB)));
                    let mut ticker = Ticker::start();
                    let read = cache::read(&part, &mut pacer, |bytes| {
                        if matches!(events.try_recv(), Ok(Event::Cancel) | Err(TryRecvError::Disconnected)) {
                            return Err(io::Error::other("cancelled"));
                        }
                        if ticker.due() {
                            control.say(id, Answer::Progress { bytes });
                        }
                        Ok(())
                    });
                    let tally = read.map(|(tally, file)| {
                        let mut opened = lock(&control.opened);
                        if opened.len() < MAX_JOBS {
                            opened.entry(path.clone()).or_insert(file);
                        }
                        tally
                    });
                    control.finish(id, tally.map_err(|e| io::Error::new(e.kind(), format!("{path}: {e}"))));
                })
            }
            Ask::Sh { cmd } => self.start(id, move |control, events| {
                let output = run_shell(&cmd, control, id, events);
                control.finish(id, output);
            }),
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

    /// Runs a job that can be cancelled in a thread of its own.
    fn start(self: &Arc<Self>, id: u64, job: impl FnOnce(&Arc<Self>, &Receiver<Event>) + Send + 'static) {
        let Some(events) = self.register(&self.jobs, id) else {
            return self.error(id, &"too many jobs, or one with this id runs");
        };
        let control = Arc::clone(self);
        thread::spawn(move || {
            job(&control, &events);
            lock(&control.jobs).remove(&id);
        });
    }

    fn register(&self, events: &Events, key: u64) -> Option<Receiver<Event>> {
        let mut all = lock(events);
        if all.len() >= MAX_JOBS || all.contains_key(&key) {
            return None;
        }
        let (sender, receiver) = mpsc::channel();
        all.insert(key, sender);
        Some(receiver)
    }

    fn tell_block(&self, id: u64, seed: u64, event: Event) {
        if lock(&self.blocks).get(&seed).is_none_or(|block| block.send(event).is_err()) {
            self.error(id, &format!("there is no block with the seed {seed}"));
        }
    }

    fn start_block(self: &Arc<Self>, id: u64, shape: Shape) {
        if lock(&self.jobs).contains_key(&id) {
            return self.error(id, &"a job with this id runs");
        }
        let Some(events) = self.register(&self.blocks, shape.seed) else {
            return self.error(id, &format!("too many blocks, or one has the seed {}", shape.seed));
        };
        let started =
            lock(&self.blocks).get(&shape.seed).cloned().map(|to| spawn_block(&self.program, shape, to));
        let control = Arc::clone(self);
        match started {
            Some(Ok((child, orders))) => {
                if let Some(to) = lock(&self.blocks).get(&shape.seed).cloned() {
                    lock(&self.jobs).insert(id, to);
                }
                let keeper =
                    Keeper { control, shape, filled_by: id, busy: Some(id), filled: false, child, orders };
                thread::spawn(move || keeper.keep(&events));
            }
            Some(Err(e)) => {
                lock(&self.blocks).remove(&shape.seed);
                self.error(id, &format!("no process for the block: {e}"));
            }
            None => self.error(id, &"the block vanished"),
        }
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
            // The host has gone: the job goes on, and there is nobody else to tell.
            eprintln!("memtide-load: cannot answer: {e}");
        }
    }
}

/// Keeps one block: forwards what its process says, and notices its end.
struct Keeper {
    control: Arc<Control>,
    shape: Shape,
    filled_by: u64,
    /// The job that runs on the block.
    busy: Option<u64>,
    /// Whether there is a block: the process has filled it.
    filled: bool,
    child: Child,
    orders: ChildStdin,
}

impl Keeper {
    fn keep(mut self, events: &Receiver<Event>) {
        let mut ended_by = None;
        for event in events {
            match event {
                Event::Said(answer) => self.forward(answer),
                Event::Verify(id) if self.busy.is_some() => {
                    self.control.error(id, &"a job runs on this block");
                }
                Event::Verify(id) => {
                    self.busy = Some(id);
                    // Where this fails the process is dead, and `Closed` follows.
                    let _ = writeln!(self.orders, "{VERIFY}");
                }
                Event::Free(id) => {
                    ended_by = ended_by.or(Some(id));
                    let _ = self.child.kill();
                }
                Event::Cancel => {
                    let _ = self.child.kill();
                }
                Event::Closed => break,
                Event::Collected(_) => {}
            }
        }
        self.end(ended_by);
    }

    fn forward(&mut self, answer: Answer) {
        let Some(id) = self.busy else { return };
        self.filled |= matches!(answer, Answer::Done(_));
        if !matches!(answer, Answer::Progress { .. }) {
            self.busy = None;
            lock(&self.control.jobs).remove(&id);
        }
        self.control.say(id, answer);
    }

    fn end(mut self, freed_by: Option<u64>) {
        let status = self.child.wait();
        // From here on nobody can send to this block; what was sent before is lost with it.
        lock(&self.control.blocks).remove(&self.shape.seed);
        lock(&self.control.jobs).remove(&self.filled_by);
        let why = status.map_or_else(|e| e.to_string(), describe);
        match (self.busy, freed_by) {
            (Some(id), None) => self.control.error(id, &format!("the block's process {why}")),
            (Some(id), Some(_)) => self.control.error(id, &"the block was freed"),
            (None, None) if self.filled => {
                self.control.say(self.filled_by, Answer::Lost(format!("the block's process {why}")));
            }
            (None, _) => {}
        }
        if let Some(id) = freed_by {
            self.control.done(id, &Filled { bytes: self.shape.mib.saturating_mul(MIB) });
        }
    }
}

fn describe(status: ExitStatus) -> String {
    match (status.signal(), status.code()) {
        (Some(9), _) => "was killed (signal 9): by the guest's OOM killer, or cancelled".to_owned(),
        (Some(signal), _) => format!("was killed by signal {signal}"),
        (None, Some(code)) => format!("ended with code {code}"),
        (None, None) => "ended".to_owned(),
    }
}

fn spawn_block(program: &Path, shape: Shape, to: Sender<Event>) -> io::Result<(Child, ChildStdin)> {
    let mut child =
        Command::new(program).args(shape.arguments()).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let (Some(orders), Some(answers)) = (child.stdin.take(), child.stdout.take()) else {
        return Err(io::Error::other("the process has no pipes"));
    };
    thread::spawn(move || listen(answers, &to));
    Ok((child, orders))
}

fn listen(answers: ChildStdout, to: &Sender<Event>) {
    for line in BufReader::new(answers).lines().map_while(Result::ok) {
        if let Ok(answer) = serde_json::from_str(&line)
            && to.send(Event::Said(answer)).is_err()
        {
            return;
        }
    }
    let _ = to.send(Event::Closed);
}

fn run_shell(cmd: &str, control: &Control, id: u64, events: &Receiver<Event>) -> io::Result<wire::Output> {
    let mut child = shell::start(cmd)?;
    let stdout = child.stdout.take().ok_or_else(|| io::Error::other("the process has no pipe"))?;
    let to = lock(&control.jobs).get(&id).cloned();
    thread::spawn(move || {
        let output = shell::collect(stdout);
        to.map(|to| to.send(Event::Collected(output)))
    });
    let mut cancelled = false;
    for event in events {
        match event {
            Event::Collected(output) if !cancelled => return shell::finish(&mut child, output?),
            Event::Collected(_) => break,
            _ => {
                cancelled = true;
                shell::kill(&child)?;
            }
        }
    }
    child.wait()?;
    Err(io::Error::other("cancelled"))
}

fn hugepages(proc: &Path, mib: u64) -> io::Result<Hugepages> {
    let setting = proc.join("sys/vm/nr_hugepages");
    let meminfo = fs::read_to_string(proc.join("meminfo"))?;
    let size = meminfo.lines().find_map(|line| line.strip_prefix("Hugepagesize:"));
    let page_kib: u64 = size
        .and_then(|rest| rest.split_whitespace().next()?.parse().ok())
        .filter(|&kib| kib > 0)
        .ok_or_else(|| io::Error::other("this kernel has no huge pages"))?;
    fs::write(&setting, (mib.saturating_mul(1024) / page_kib).to_string())?;
    let pages = fs::read_to_string(&setting)?.trim().parse().map_err(io::Error::other)?;
    Ok(Hugepages { pages, page_kib })
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
