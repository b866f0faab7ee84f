//! The agent's loop: one thread waits for everything, another one does a single deed at a time.
//!
//! **Rule.** A host that asks too much is read more slowly, and one that does not read is told less: the agent's memory is bounded by the size
//! of a few lines. The agent uses a hundredth of a CPU for reports at most: if its loop has used more, the next report comes later. Deeds do not
//! count: they are followed by the reports that matter most.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use memtide_host::{HostError, Root, Trigger, page_size};
use memtide_model::Share;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fd::{AsFd, OwnedFd};

use crate::Bounds;
use crate::deeds::{
    CacheLimit, Refused, Reporting, TierUse, Tools, Trim, abilities, compact, drop_cache, leave_tier,
    page_out, report_pieces, trim, use_tier,
};
use crate::facts::{Facts, cpu_ms, monotonic_ms};
use crate::groups::largest_groups;
use crate::lines::{Line, Lines};
use crate::log::Log;
use crate::port::{Got, Port};
use crate::silence;
use crate::wire::{
    Answer, Ask, Done, Hello, PressureEvent, Reply, Report, Request, SHORTEST_INTERVAL_MS, VERSION,
};

/// The wait before the channel is opened again: the first one, and the longest, in milliseconds.
const REOPEN_MS: [u64; 2] = [50, 1_000];
/// More than this is not kept for a host that does not read.
const MAX_UNSENT: usize = 64 << 10;
/// The most requests in a second.
const MAX_REQUESTS: u32 = 50;
/// Ages and cgroups are read with one report of this many: they cost more than the rest.
const RARELY: u64 = 10;
/// The agent uses one part in this many of a CPU for its reports.
const CPU_PART: u64 = 100;
/// The niceness of a deed, which yields to the guest's programs and to its balloon: on a guest's only CPU, a trim of the usual niceness leaves the
/// balloon beside it a fifth of its rate.
const DEEDS_NICE: i32 = 10;
/// The deed that lowers the order of free page reporting.
const PIECES: &str = "asked to report small pieces of free memory";
/// CPU time that it may have used beyond that, in milliseconds.
const CPU_SPARE_MS: u64 = 500;

/// The agent.
#[derive(Debug)]
pub struct Agent {
    root: Root,
    bounds: Bounds,
    facts: Facts,
    reporting: Reporting,
    tier: TierUse,
    log: Log,
    /// Ends the wait of the loop when a deed has ended.
    wake: OwnedFd,
    /// The results of deeds: the session and the id of the request, and what became of it.
    results: (Sender<Finished>, Receiver<Finished>),
    sessions: u64,
    working: bool,
    /// When it began to serve, in milliseconds of the monotonic clock, and the CPU time used until then.
    began: (u64, u64),
}

/// A deed that has ended.
#[derive(Debug)]
struct Finished {
    session: u64,
    /// The request's id; 0 for a step of the cache limit.
    id: u64,
    about: String,
    result: Result<Done, Refused>,
}

/// What a connection has asked for.
#[derive(Debug, Default)]
struct Session {
    number: u64,
    greeted: bool,
    unsent: Vec<u8>,
    lines: Lines,
    every_ms: Option<u64>,
    next_ms: u64,
    reports: u64,
    last: Option<Report>,
    trigger: Option<Trigger>,
    limit: Option<CacheLimit>,
    /// It drops page cache beyond the limit.
    drops: bool,
    /// The second that is counted, and its requests.
    second: (u64, u32),
}

impl Agent {
    /// An agent that reads the kernel's files below `root`.
    ///
    /// # Errors
    /// If the kernel's numbers cannot be read.
    pub fn new(root: Root, bounds: Bounds, log: Log) -> Result<Self, HostError> {
        let reporting = Reporting::open(&root, log.folder(), page_size());
        let facts = Facts::open(&root, reporting.reported(&bounds))?;
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|errno| HostError::Read { path: PathBuf::from("an eventfd"), source: errno.into() })?;
        Ok(Self {
            root,
            bounds,
            facts,
            reporting,
            tier: TierUse::default(),
            log,
            wake,
            results: channel(),
            sessions: 0,
            working: false,
            began: (monotonic_ms(), 0),
        })
    }

    /// Serves the channel at `path` until `stop`.
    pub fn serve(&mut self, path: &Path, stop: &AtomicBool) {
        self.began = (monotonic_ms(), cpu_ms());
        let mut wait_ms = REOPEN_MS[0];
        while !stop.load(Ordering::Relaxed) {
            match Port::open(path) {
                Ok(port) => {
                    if self.session(&port, stop) {
                        wait_ms = REOPEN_MS[0];
                    }
                    self.log.is(&format!("waits for the host at {}", path.display()));
                }
                Err(error) => self.log.is(&format!("waits for {}: {error}", path.display())),
            }
            thread::sleep(Duration::from_millis(wait_ms));
            wait_ms = (wait_ms * 2).min(REOPEN_MS[1]);
        }
    }

    /// Serves one connection until nobody is at its other end. Returns whether anybody was.
    fn session(&mut self, port: &Port, stop: &AtomicBool) -> bool {
        self.sessions += 1;
        let mut session = Session { number: self.sessions, ..Session::default() };
        while !stop.load(Ordering::Relaxed) {
            match self.turn(port, &mut session) {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) => {
                    self.log.is(&format!("the channel is broken: {error}"));
                    break;
                }
            }
        }
        self.ends_pieces();
        session.greeted
    }

    /// Waits for the next thing to do, and does it. Returns whether somebody is at the other end.
    fn turn(&mut self, port: &Port, session: &mut Session) -> std::io::Result<bool> {
        if session.may_read() {
            let mut buffer = [0_u8; 4096];
            match port.read(&mut buffer)? {
                Got::Bytes(count) => self.hear(session, &buffer[..count]),
                Got::Nothing => {}
                Got::Nobody => return Ok(false),
            }
        }
        self.finish(session);
        self.report(session);
        self.limit(session);
        if !session.unsent.is_empty() {
            let written = port.write(&session.unsent)?;
            session.unsent.drain(..written);
        }
        self.wait(port, session)
    }

    fn wait(&mut self, port: &Port, session: &mut Session) -> std::io::Result<bool> {
        let mut flags = PollFlags::empty();
        if session.may_read() {
            flags |= PollFlags::IN;
        }
        if !session.unsent.is_empty() {
            flags |= PollFlags::OUT;
        }
        let timeout = Duration::from_millis(session.next_in(monotonic_ms()).min(1_000));
        let timeout = Timespec::try_from(timeout).map_err(|_| std::io::ErrorKind::InvalidInput)?;
        let pressed = {
            let mut fds = vec![
                PollFd::from_borrowed_fd(port.as_fd(), flags),
                PollFd::from_borrowed_fd(self.wake.as_fd(), PollFlags::IN),
            ];
            if let Some(trigger) = &session.trigger {
                fds.push(PollFd::from_borrowed_fd(trigger.as_fd(), PollFlags::PRI));
            }
            match poll(&mut fds, Some(&timeout)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            if fds[0].revents().intersects(PollFlags::HUP | PollFlags::ERR)
                && !fds[0].revents().contains(PollFlags::IN)
            {
                return Ok(false);
            }
            fds.get(2).is_some_and(|fd| fd.revents().contains(PollFlags::PRI))
        };
        // It was only to end the wait.
        let _ = rustix::io::read(&self.wake, &mut [0_u8; 8]);
        if pressed {
            self.pressed(session);
        }
        Ok(true)
    }

    fn hear(&mut self, session: &mut Session, piece: &[u8]) {
        let mut heard = Vec::new();
        session.lines.take(piece, |line| heard.push(line));
        for line in heard {
            session.counts_request();
            match line {
                Line::TooLong => session.say(0, Answer::Refused("the line is too long".to_owned())),
                Line::Whole(line) if line.is_empty() => {}
                Line::Whole(line) => match serde_json::from_slice::<Request>(&line) {
                    Ok(request) => self.obey(session, &request),
                    Err(error) if session.greeted => {
                        session.say(0, Answer::Refused(format!("not understood: {error}")));
                    }
                    Err(_) => {}
                },
            }
        }
    }

    fn obey(&mut self, session: &mut Session, Request { id, ask }: &Request) {
        if let Ask::Hello { version } = ask {
            self.sessions += 1;
            self.ends_pieces();
            *session = Session {
                number: self.sessions,
                greeted: true,
                unsent: std::mem::take(&mut session.unsent),
                lines: std::mem::take(&mut session.lines),
                second: session.second,
                ..Session::default()
            };
            let hello = self.hello();
            let cannot: Vec<String> =
                hello.cannot.iter().map(|(can, why)| format!("; cannot {}: {why}", can.word())).collect();
            self.log.is(&format!("connected to a host that speaks version {version}{}", cannot.concat()));
            return session.say(*id, Answer::Hello(Box::new(hello)));
        }
        if !session.greeted {
            return;
        }
        let answer = match *ask {
            Ask::Hello { .. } | Ask::Ping => Ok(Done::default()),
            Ask::Report { every_ms: 0 } => {
                session.every_ms = None;
                Ok(Done::default())
            }
            Ask::Report { every_ms } => {
                session.every_ms = Some(every_ms.max(SHORTEST_INTERVAL_MS));
                session.last = None;
                session.next_ms = 0;
                Ok(Done::default())
            }
            Ask::Pressure { stall_us, window_us } => self.watch(session, stall_us, window_us),
            Ask::CacheLimit { share } => self.set_limit(session, share),
            Ask::ReportPieces { on: false } => self.end_pieces().map(|()| Done::default()),
            Ask::Trim { .. }
            | Ask::Compact
            | Ask::ReportPieces { on: true }
            | Ask::UseTier { .. }
            | Ask::PageOut { .. } => {
                return self.start(session, *id, *ask);
            }
        };
        session.say(*id, answer.map_or_else(Answer::Refused, Answer::Done));
    }

    /// Free page reporting is again as the guest's kernel chose.
    fn end_pieces(&mut self) -> Result<(), String> {
        let now = monotonic_ms();
        match self.reporting.put_back() {
            Ok(true) => self.log.note(now, "free memory is reported as before".to_owned()),
            Ok(false) => {}
            Err(why) => {
                self.log.note(now, why.clone());
                return Err(why);
            }
        }
        Ok(())
    }

    /// The same; a failure is noted, and it is tried again at the next occasion.
    fn ends_pieces(&mut self) {
        let _ = self.end_pieces();
    }

    fn hello(&mut self) -> Hello {
        self.reporting.read_again();
        self.facts.report_as(self.reporting.reported(&self.bounds));
        let kernel = std::fs::read_to_string(self.root.proc("sys/kernel/osrelease")).unwrap_or_default();
        let total = self.facts.memory().map(|memory| memory.total).unwrap_or_default();
        let least_cache = self.bounds.least_cache(total);
        let mut tools = Tools { root: &self.root, facts: &mut self.facts, bounds: &self.bounds };
        let (can, cannot) = abilities(&mut tools, &self.reporting);
        Hello {
            version: VERSION,
            agent: env!("CARGO_PKG_VERSION").to_owned(),
            kernel: kernel.trim().to_owned(),
            can,
            cannot: cannot.into_iter().collect(),
            least_cache,
        }
    }

    fn watch(&mut self, session: &mut Session, stall_us: u64, window_us: u64) -> Result<Done, String> {
        session.trigger = None;
        if stall_us == 0 {
            return Ok(Done::default());
        }
        let [stall, window] = [stall_us, window_us].map(Duration::from_micros);
        let trigger = Trigger::open(&self.root.proc("pressure/memory"), stall, window);
        session.trigger = Some(trigger.map_err(|error| error.to_string())?);
        Ok(Done::default())
    }

    fn set_limit(&mut self, session: &mut Session, share: Option<u16>) -> Result<Done, String> {
        let Some(share) = share else {
            if session.limit.take().is_some() {
                self.log.note(monotonic_ms(), "the host does not limit page cache any more".to_owned());
            }
            return Ok(Done::default());
        };
        if !self.bounds.trim {
            let refused = Refused::Forbidden("a limit of page cache").to_string();
            self.log.note(monotonic_ms(), format!("asked to limit page cache: refused, {refused}"));
            return Err(refused);
        }
        let share = Share::from_basis_points(share).ok_or("a share is at most 10000 ten thousandths")?;
        self.log
            .note(monotonic_ms(), format!("the host limits unmapped page cache to {share} of all memory"));
        session.limit = Some(CacheLimit::new(share));
        Ok(Done::default())
    }

    /// Starts a deed in its own thread.
    fn start(&mut self, session: &mut Session, id: u64, ask: Ask) {
        if self.working {
            return session.say(id, Answer::Refused("busy with another request".to_owned()));
        }
        let about = match ask {
            Ask::Trim { bytes, may_swap, last_resort } => {
                let swap = if may_swap { ", with swap" } else { "" };
                let all = if last_resort { ", as a last resort all page cache" } else { "" };
                format!("asked to trim {bytes}{swap}{all}")
            }
            Ask::ReportPieces { .. } => PIECES.to_owned(),
            Ask::UseTier { on: true } => "asked to swap to the host's tier".to_owned(),
            Ask::UseTier { on: false } => "asked to read the host's tier back".to_owned(),
            Ask::PageOut { bytes } => {
                format!("asked to write {bytes} of programs' memory to the host's tier")
            }
            _ => "asked to compact free memory".to_owned(),
        };
        if let Ask::ReportPieces { .. } = ask
            && let Err(refused) = self.reporting.lower(&self.bounds)
        {
            self.log.note(monotonic_ms(), format!("{about}: refused, {refused}"));
            return session.say(id, Answer::Refused(refused.to_string()));
        }
        let tier = self.tier.clone();
        self.work(session.number, id, about, move |tools| match ask {
            Ask::Trim { bytes, may_swap, last_resort } => trim(tools, Trim { bytes, may_swap, last_resort }),
            Ask::ReportPieces { .. } => report_pieces(tools),
            Ask::UseTier { on: true } => use_tier(tools, &tier),
            Ask::UseTier { on: false } => leave_tier(tools, &tier),
            Ask::PageOut { bytes } => page_out(tools, &tier, bytes),
            _ => compact(tools),
        });
    }

    fn work(
        &mut self,
        session: u64,
        id: u64,
        about: String,
        deed: impl FnOnce(&mut Tools<'_>) -> Result<Done, Refused> + Send + 'static,
    ) {
        let (root, bounds, results) = (self.root.clone(), self.bounds, self.results.0.clone());
        let reported = self.facts.reported();
        let (failed, asked) = (self.results.0.clone(), about.clone());
        let begun = self.wake.try_clone().and_then(|wake| {
            thread::Builder::new().spawn(move || {
                // Only of this thread. If it fails, the deed is done all the same.
                let _ = rustix::process::nice(DEEDS_NICE);
                let result = Facts::open(&root, reported).map_err(Refused::from).and_then(|mut facts| {
                    deed(&mut Tools { root: &root, facts: &mut facts, bounds: &bounds })
                });
                // The agent has ended, or hears of it within a second.
                let _ = results.send(Finished { session, id, about, result });
                let _ = rustix::io::write(&wake, &1_u64.to_ne_bytes());
            })
        });
        self.working = true;
        if let Err(error) = begun {
            let _ = failed.send(Finished { session, id, about: asked, result: Err(error.into()) });
        }
    }

    /// Answers for deeds that have ended.
    fn finish(&mut self, session: &mut Session) {
        while let Ok(Finished { session: number, id, about, result }) = self.results.1.try_recv() {
            self.working = false;
            let answer = match result {
                // Each step of a limit would hide what else the host has asked for.
                Ok(done) if id == 0 => Answer::Done(done),
                Ok(done) => {
                    let (bytes, took) = (done.bytes.unwrap_or_default(), done.took_ms.unwrap_or(0));
                    let means = done.means.as_deref().unwrap_or("nothing");
                    self.log.note(monotonic_ms(), format!("{about}: {bytes} by {means} in {took} ms"));
                    Answer::Done(done)
                }
                Err(refused) => {
                    self.log.note(monotonic_ms(), format!("{about}: refused, {refused}"));
                    if about == PIECES {
                        self.ends_pieces();
                    }
                    Answer::Refused(refused.to_string())
                }
            };
            if number == session.number && id != 0 {
                session.say(id, answer);
            }
        }
    }

    /// Reports if it is time, and if anything has changed.
    fn report(&mut self, session: &mut Session) {
        let now = monotonic_ms();
        let Some(every_ms) = session.every_ms.filter(|_| now >= session.next_ms) else { return };
        let longest = every_ms.saturating_mul(RARELY);
        session.next_ms = now.saturating_add(self.rests_ms(now).clamp(every_ms, longest));
        if session.unsent.len() >= MAX_UNSENT {
            return;
        }
        let Ok(mut report) = self.facts.report() else { return };
        if session.last.as_ref().is_some_and(|last| silence::is_same(last, &report)) {
            return;
        }
        if session.reports.is_multiple_of(RARELY) {
            let page = self.facts.page();
            report.ages = self.facts.generations().map(|ages| ages.by_age(page)).unwrap_or_default();
            report.groups = largest_groups(&self.root);
        }
        session.reports += 1;
        session.last = Some(report.clone());
        session.say(0, Answer::Report(Box::new(report)));
    }

    /// The time without a report after which the loop has used no more CPU time than it may.
    fn rests_ms(&self, now: u64) -> u64 {
        let (began, used_before) = self.began;
        let may = (now - began) / CPU_PART + CPU_SPARE_MS;
        (cpu_ms() - used_before).saturating_sub(may).saturating_mul(CPU_PART)
    }

    /// Takes the next step of a cache limit.
    fn limit(&mut self, session: &mut Session) {
        let now = monotonic_ms();
        if self.working || session.limit.as_ref().is_none_or(|limit| now < limit.next_ms()) {
            return;
        }
        let Some(limit) = &mut session.limit else { return };
        let Ok(report) = self.facts.report() else { return };
        let step = limit.due(&report);
        if let Some(waits_ms) = limit.pause_ms(&report) {
            let seconds = waits_ms / 1000;
            self.log
                .note(now, format!("page cache beyond the host's limit is in use: it waits for {seconds} s"));
        }
        let began = step.is_some() && !session.drops;
        session.drops = step.is_some();
        if began {
            self.log.note(now, "drops page cache beyond the host's limit".to_owned());
        }
        if let Some(bytes) = step {
            self.work(session.number, 0, "the host's limit of page cache".to_owned(), move |tools| {
                drop_cache(tools, Trim { bytes, may_swap: false, last_resort: false })
            });
        }
    }

    /// Tells the host of stalls. A report follows as soon as one may: its counters show what the stalls are about.
    fn pressed(&mut self, session: &mut Session) {
        if session.unsent.len() >= MAX_UNSENT {
            return;
        }
        let (Some(stalls), Ok(memory)) = (self.facts.stalls(), self.facts.memory()) else { return };
        let available = memory.available;
        let now = monotonic_ms();
        session.say(0, Answer::Pressure(PressureEvent { at_ms: now, stalls, available }));
        // A loop that has used too much CPU time rests for longer than an interval.
        let rests = session.every_ms.is_none_or(|every_ms| session.next_ms > now.saturating_add(every_ms));
        if let Some(last) = session.last.as_ref().filter(|_| !rests) {
            session.next_ms = session.next_ms.min(last.made_ms.saturating_add(SHORTEST_INTERVAL_MS));
        }
    }
}

impl Session {
    fn say(&mut self, id: u64, answer: Answer) {
        let line = serde_json::to_vec(&Reply { id, answer }).unwrap_or_default();
        self.unsent.extend_from_slice(&line);
        self.unsent.push(b'\n');
    }

    /// Whether more requests are read: not for a host that reads no answers, or asks too often.
    fn may_read(&self) -> bool {
        let (second, count) = self.second;
        self.unsent.len() < MAX_UNSENT && !(count >= MAX_REQUESTS && monotonic_ms() / 1000 == second)
    }

    fn counts_request(&mut self) {
        let now = monotonic_ms() / 1000;
        self.second = if self.second.0 == now { (now, self.second.1.saturating_add(1)) } else { (now, 1) };
    }

    /// The time until the next report or step, in milliseconds.
    fn next_in(&self, now: u64) -> u64 {
        let report = self.every_ms.map(|_| self.next_ms);
        let limit = self.limit.as_ref().map(CacheLimit::next_ms);
        let next = report.into_iter().chain(limit).min().unwrap_or(u64::MAX);
        next.saturating_sub(now)
    }
}
