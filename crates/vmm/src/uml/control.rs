//! A console as the way to its instance.

use std::time::{Duration, Instant};

use memtide_agent::facts;
use memtide_host::RunTime;
use memtide_model::{Absence, Balloon, Bytes, Fence, Reading, Request, Span, Told};

use super::kernel::{Kernel, min_free, switches};
use super::mconsole::{Mconsole, MconsoleError};
use super::plug::{Plug, Step};
use super::replies::Terminal;
use crate::agent::{AgentLink, pressed};
use crate::backend::{Control, Later, Wish};

/// The longest wait for an answer between two observations.
const STEP_DEADLINE: Duration = Duration::from_secs(2);
/// A kernel's reserve, if it does not tell: more than Linux keeps for 1 GiB.
const DEFAULT_RESERVE: Bytes = Bytes::from_mib(4);
/// A quiet instance is asked whether it is stopped at one look in this many.
const QUIET_LOOKS: u32 = 4;
/// One that rests is asked for its memory all the same at one look in this many.
const RESTING_LOOKS: u32 = 16;
/// An instance rests while its kernel runs for at most one part in this many of the time. One without work ran for 0.7 ms a second on a machine
/// with 2 busy cores, in five pieces. A kernel that runs for 3 ms can fill some MiB of memory.
const RESTS_BELOW: u32 = 333;
/// Context switches are compared over at least this time.
const STOPPED_FOR: Duration = Duration::from_millis(50);

/// The way to one instance.
#[derive(Debug)]
pub(super) struct UmlControl {
    console: Mconsole,
    plug: Plug,
    /// Memory that the instance's kernel keeps free for itself.
    reserve: Option<Bytes>,
    /// What its kernel told last.
    seen: Option<Kernel>,
    /// Looks in a row at which its memory was as before.
    quiet_looks: u32,
    /// How long its kernel has run, if the host's kernel tells.
    run_time: Option<RunTime>,
    /// How long it had run at the last look, after its answers, and when that was.
    ran: Option<(Duration, Instant)>,
    /// The last answers.
    latest: Told,
    latest_at: Instant,
    /// The context switches of its kernel, and when they were read.
    switches: Option<(u64, Instant)>,
    is_stopped: bool,
    /// No step before this moment.
    rests_until: Instant,
    /// Memory was moved since the last event.
    moved: bool,
    agent: Option<AgentLine>,
}

/// The serial line of the instance's agent.
#[derive(Debug)]
struct AgentLine {
    /// The number of its `ssl` device.
    number: u8,
    terminal: Terminal,
    /// Who only observes leaves the line to the memtide that manages.
    link: Option<AgentLink>,
}

impl UmlControl {
    pub(super) fn new(
        console: Mconsole,
        full: Bytes,
        run_time: Option<RunTime>,
        agent: Option<(u8, Terminal)>,
    ) -> Self {
        let now = Instant::now();
        Self {
            console,
            plug: Plug::new(full),
            reserve: None,
            seen: None,
            quiet_looks: 0,
            run_time,
            ran: None,
            latest: Told::claimed(full, Absence::NotYet),
            latest_at: now,
            switches: None,
            is_stopped: false,
            rests_until: now,
            moved: false,
            agent: agent.map(|(number, terminal)| AgentLine { number, terminal, link: None }),
        }
    }

    async fn observe(&mut self, wish: Wish, deadline: Duration) -> Told {
        let until = Instant::now() + deadline;
        self.follow_agent(wish.keep_open, until).await;
        let before = self.seen;
        let kernel = match self.look(until).await {
            Ok(kernel) => kernel,
            Err(error) => {
                let since = Span::from(self.latest_at.elapsed());
                return self.latest.clone().aged(since, &error.absence());
            }
        };
        // It has rebooted: the same process runs another kernel, which has all its memory.
        let reset = before.is_some_and(|before| kernel.booted_after(&before));
        if reset {
            self.plug = Plug::new(self.latest.full);
            self.plug.see(&kernel);
            self.reserve = None;
        }
        self.latest = self.told(&kernel);
        self.latest_at = Instant::now();
        Told { reset, ..self.latest.clone() }
    }

    /// Finds the terminal of the agent's line, and begins to talk there. Asks for its name until the agent has answered: UML makes the terminal
    /// when something in the instance opens the line.
    async fn follow_agent(&mut self, keep_open: bool, until: Instant) {
        let Some(agent) = &mut self.agent else { return };
        if !keep_open {
            agent.link = None;
            return;
        }
        let link = agent.link.get_or_insert_with(|| AgentLink::over_terminal(agent.terminal.clone()));
        if link.told().fresh().is_some() {
            return;
        }
        let (number, terminal) = (agent.number, agent.terminal.clone());
        // Without an answer, the next observation asks again.
        if let Ok(answer) = self.ask(&format!("config ssl{number}"), until).await
            && let Some(name) = answer.strip_prefix("pty:")
        {
            terminal.is_named(name.into());
        }
    }

    fn told(&self, kernel: &Kernel) -> Told {
        let removed = self.plug.removed();
        let agent = self.agent.as_ref().and_then(|agent| agent.link.as_ref()).map(AgentLink::told);
        let agent = agent.filter(|told| told.latest().is_some());
        let balloon =
            Balloon { actual: self.plug.actual(), deflate_on_oom: false, free_page_reporting: false };
        Told {
            balloon: Reading::now(balloon),
            hotplug: Reading::unsupported(),
            stats: Reading::now(kernel.stats(removed)),
            // Until an agent has reported, the kernel's own counters stand in for it.
            agent: agent.unwrap_or_else(|| Reading::now(kernel.as_agent(removed))),
            fence: self.is_stopped.then_some(Fence::Paused),
            ..Told::nothing(self.latest.full, Absence::NotYet)
        }
    }

    /// What the kernel tells. An instance that rests is as it was, and each question costs it as much as a second of rest.
    async fn look(&mut self, until: Instant) -> Result<Kernel, MconsoleError> {
        let before = self.ran.take();
        self.ran = self.has_run();
        if let Some(seen) = self.seen.filter(|_| !self.is_stopped && self.rests_since(before)) {
            self.quiet_looks += 1;
            return Ok(seen);
        }
        let looked = self.ask_all(until).await?;
        // Without what it ran for the answers.
        self.ran = self.has_run();
        Ok(looked)
    }

    /// How long its kernel has run until now.
    fn has_run(&self) -> Option<(Duration, Instant)> {
        Some((self.run_time.as_ref()?.read().ok()?, Instant::now()))
    }

    /// Whether its kernel has run too little since `before` to have changed anything. One that has not run at all may have been stopped.
    fn rests_since(&self, before: Option<(Duration, Instant)>) -> bool {
        let (Some((had_run, then)), Some((has_run, now))) = (before, self.ran) else { return false };
        let ran = has_run.saturating_sub(had_run);
        !ran.is_zero()
            && ran <= now.duration_since(then) / RESTS_BELOW
            && !self.quiet_looks.wrapping_add(1).is_multiple_of(RESTING_LOOKS)
    }

    /// Asks for everything that the kernel tells.
    ///
    /// The counters of an instance whose memory is as it was, to the byte, are as they were. It is asked from time to time whether it is stopped.
    async fn ask_all(&mut self, until: Instant) -> Result<Kernel, MconsoleError> {
        let kernel = self.memory(until).await?;
        if let Some(seen) = self.seen.filter(|seen| seen.has_the_memory_of(&kernel)) {
            self.quiet_looks += 1;
            if self.is_stopped || self.quiet_looks.is_multiple_of(QUIET_LOOKS) {
                let stat = self.ask("proc stat", until).await?;
                self.switched(switches(&stat));
            }
            return Ok(seen);
        }
        self.quiet_looks = 0;
        self.is_stopped = false;
        let vmstat = self.ask("proc vmstat", until).await?;
        if facts::number(&vmstat, "nr_free_pages").is_none() {
            return Err(self.mistrusts());
        }
        let kernel = kernel.with_vmstat(&vmstat);
        self.seen = Some(kernel);
        Ok(kernel)
    }

    async fn memory(&mut self, until: Instant) -> Result<Kernel, MconsoleError> {
        if self.reserve.is_none() {
            let told = self.ask("proc sys/vm/min_free_kbytes", until).await;
            self.reserve = match told {
                Ok(text) => Some(min_free(&text).unwrap_or(DEFAULT_RESERVE)),
                // A kernel without the file.
                Err(MconsoleError::Refused(_)) => Some(DEFAULT_RESERVE),
                Err(error) => return Err(error),
            };
        }
        let meminfo = self.ask("proc meminfo", until).await?;
        let kernel = Kernel::default().with_meminfo(&meminfo);
        // A kernel manages less than its memory file holds.
        let kernel = kernel.filter(|kernel| kernel.memory.total <= self.latest.full);
        let Some(kernel) = kernel else { return Err(self.mistrusts()) };
        self.plug.see(&kernel);
        Ok(kernel)
    }

    /// An answer is not one to what was asked.
    fn mistrusts(&mut self) -> MconsoleError {
        self.console.distrust();
        MconsoleError::Malformed
    }

    /// Whether the instance is stopped: a running one switches contexts, if only to answer.
    fn switched(&mut self, switches: Option<u64>) {
        let (Some(switches), now) = (switches, Instant::now()) else { return };
        match self.switches {
            Some((before, at)) if before == switches => {
                self.is_stopped = now.duration_since(at) >= STOPPED_FOR;
            }
            _ => {
                self.is_stopped = false;
                self.switches = Some((switches, now));
            }
        }
    }

    async fn ask(&mut self, command: &str, until: Instant) -> Result<String, MconsoleError> {
        self.console.ask(command, until.saturating_duration_since(Instant::now())).await
    }

    /// Carries out the next step. Returns it.
    async fn step(&mut self, until: Instant) -> Result<Step, MconsoleError> {
        let kernel = self.memory(until).await?;
        let step = self.plug.next(&kernel, self.reserve.unwrap_or(DEFAULT_RESERVE));
        let sent_at = Instant::now();
        self.plug.sends(step);
        if let Some(command) = step.command() {
            if !self.ask(&command, until).await?.is_empty() {
                return Err(self.mistrusts());
            }
            self.moved = true;
        }
        let pause = self.plug.did(step, sent_at.elapsed());
        self.rests_until = Instant::now() + pause;
        Ok(step)
    }

    async fn apply(&mut self, request: Request, deadline: Duration) -> Result<(), Absence> {
        let target = match request {
            Request::SetTarget(target) => target,
            Request::PollStats(_)
            | Request::Reclaim(_)
            | Request::Split
            | Request::Merge(_)
            | Request::Share(_)
            | Request::Tier(_) => {
                return Err(Absence::Unsupported);
            }
            Request::Agent(deed) => {
                let link = self.agent.as_ref().and_then(|agent| agent.link.as_ref());
                return link.ok_or(Absence::Unsupported)?.request(deed);
            }
        };
        self.plug.aim(target);
        let until = Instant::now() + deadline;
        let stepped = self.step(until).await;
        if stepped.is_err() {
            // What was refused is not tried again without a new request.
            self.plug.rest();
        }
        stepped.map(drop).map_err(MconsoleError::absence)
    }

    /// Waits until the size is reached, or until the agent tells of stalls.
    async fn next_event(&mut self) {
        let pressed = pressed(self.agent.as_ref().and_then(|agent| agent.link.as_ref()));
        tokio::select! {
            () = self.steps() => {}
            () = pressed => {}
        }
    }

    /// Steps until the size is reached. That is worth a look.
    async fn steps(&mut self) {
        while self.plug.is_moving() && !self.is_stopped {
            tokio::time::sleep_until(self.rests_until.into()).await;
            // The next observation says why.
            if let Err(_) | Ok(Step::Done) = self.step(Instant::now() + STEP_DEADLINE).await {
                break;
            }
        }
        if !std::mem::take(&mut self.moved) {
            std::future::pending::<()>().await;
        }
    }
}

impl Control for UmlControl {
    fn observe(&mut self, wish: Wish, deadline: Duration) -> Later<'_, Told> {
        Box::pin(self.observe(wish, deadline))
    }

    fn apply(&mut self, request: Request, deadline: Duration) -> Later<'_, Result<(), Absence>> {
        Box::pin(self.apply(request, deadline))
    }

    fn next_event(&mut self) -> Later<'_, ()> {
        Box::pin(self.next_event())
    }
}
