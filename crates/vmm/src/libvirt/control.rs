//! The way to one guest of libvirt, over its daemon.
//!
//! **Problem.** Anybody can write a command line that looks like one of libvirt's, with the identity of another domain. A frozen QEMU holds up
//! every call about its domain, and only those.
//!
//! **Rule.** A process is a domain's if the daemon knows the identity that its command line names, and has written the number of this process into its file. At most one call about a domain is
//! unanswered at any time. If its answer is late, memtide waits for it before it asks again, and then discards it.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use memtide_agent::wire::TIER;
use memtide_host::{read_regular, within};
use memtide_model::{
    Absence, Bytes, Fence, Owner as Whose, PAGE_4K, Reading, Request, Terms, TierOrder, Told, printable,
};

use super::connection::{CallError, Pending};
use super::daemon::{Daemon, LateCall, Link, Mailbox, News, Owner};
use super::description::Description;
use super::picture::{Asked, Picture, Question};
use super::play::Play;
use super::protocol::{self, Domain, Event, Job, Procedure, Uuid};
use crate::agent::{AgentLink, pressed};
use crate::backend::{Control, Later, TierDevice, Wish};
use crate::qemu::GuestStatsAnswer;
use crate::qemu::socket::Peer;
use crate::stats_clock::Now;

/// How long a driver may take for its answer to a question out of turn.
const LOOKS: [Duration; 3] = [Duration::from_millis(3), Duration::from_millis(8), Duration::from_millis(20)];
/// Statistics up to this age are new enough.
const NEW_ENOUGH: Duration = Duration::from_millis(100);
/// The longest that the reading of a file with a process's number takes.
const READS_WITHIN: Duration = Duration::from_millis(200);
/// Mistakes in a domain's metadata that are told, and their longest part, in characters.
const MOST_MISTAKES: usize = 4;
const LONGEST_MISTAKE: usize = 200;
/// A number of a process, and the end of the line.
const LONGEST_NUMBER: u64 = 16;

/// A process that libvirt started, as the kernel and its command line tell.
#[derive(Clone, Debug)]
pub struct OfLibvirt {
    /// Its number.
    pub pid: u32,
    /// Its user.
    pub user: Option<u32>,
    /// The identity of its domain, according to its command line.
    pub uuid: Option<String>,
    /// Its size, according to its command line.
    pub full: Bytes,
    /// Who else sets its balloon.
    pub owner: Option<Whose>,
}

/// The way to one guest.
pub(crate) struct LibvirtControl {
    process: OfLibvirt,
    daemons: Vec<Arc<Daemon>>,
    home: Option<Home>,
    picture: Picture,
    play: Play,
    late: Option<(Pending, LateCall)>,
    /// Whether QEMU itself tells its statistics, once that is known.
    qemu_tells: Option<bool>,
    agent: Option<AgentLink>,
}

/// The daemon that has the guest, and its domain there.
struct Home {
    daemon: Arc<Daemon>,
    domain: Domain,
    mailbox: Arc<Mailbox>,
    is_read_only: bool,
    /// Only an administrator of the host can have described it.
    is_of_admin: bool,
}

impl LibvirtControl {
    pub(crate) fn new(process: OfLibvirt, daemons: Vec<Arc<Daemon>>) -> Self {
        Self {
            picture: Picture::new(process.full),
            play: Play::new(process.pid),
            process,
            daemons,
            home: None,
            late: None,
            qemu_tells: None,
            agent: None,
        }
    }

    async fn observe(&mut self, wish: Wish, deadline: Duration) -> Told {
        let by = Instant::now() + deadline;
        if let Err(why) = self.look(wish, by).await {
            self.picture.note_unreachable(why);
        }
        self.follow_agent(wish.keep_open);
        let told = self.picture.told(Now::read());
        let agent = self.agent.as_ref().map_or_else(Reading::unsupported, AgentLink::told);
        Told { agent, fence: told.fence.or(self.owned()), terms: self.terms(), ..told }
    }

    /// Whether only an administrator of the host can have described the guest.
    fn is_of_admin(&self) -> bool {
        self.home.as_ref().is_some_and(|home| home.is_of_admin)
    }

    /// What the guest's description asks for. A user who describes their own guests gains nothing by it.
    fn terms(&self) -> Option<Terms> {
        let terms = &self.picture.description()?.terms;
        (self.is_of_admin() && !terms.are_none()).then(|| terms.clone())
    }

    /// Why memtide may not set the guest's memory, whatever the guest does.
    fn owned(&self) -> Option<Fence> {
        let only_reads = self.home.as_ref().is_some_and(|home| home.is_read_only);
        self.process.owner.or(only_reads.then_some(Whose::LibvirtLetsRead)).map(Fence::Owned)
    }

    /// Talks to the guest's agent while memtide manages.
    fn follow_agent(&mut self, manages: bool) {
        let port = self.picture.description().and_then(|description| description.agent.clone());
        self.agent = match (port, self.agent.take()) {
            (Some(port), None) if manages => {
                // libvirt makes the sockets of its guests. What an administrator's daemon says of the place is true.
                let user = self.process.user.unwrap_or(u32::MAX);
                let of_user = Peer::OfUser { pid: self.process.pid, user };
                Some(AgentLink::start(port, (!self.is_of_admin()).then_some(of_user)))
            }
            (Some(_), agent) => agent.filter(|_| manages),
            (None, _) => None,
        };
    }

    async fn look(&mut self, wish: Wish, by: Instant) -> Result<(), Absence> {
        self.settle_home(by).await?;
        let is_in_play = self.play.is_on() || wish.sizes;
        let guests = self.home.as_ref().map_or(1, |home| home.daemon.guests());
        let asked = Asked { is_in_play, has_agent: self.agent.is_some(), guests };
        let questions = self.picture.questions(asked, Instant::now());
        if questions.is_empty() {
            return Ok(());
        }
        let refreshes = wish.refresh_stats && is_in_play && self.picture.may_refresh(NEW_ENOUGH, Now::read());
        for question in questions {
            if question == Question::Stats && refreshes {
                self.refresh(by).await?;
            } else {
                self.ask(question, by).await?;
            }
        }
        self.picture.settle();
        Ok(())
    }

    /// Asks one question and notes the answer.
    async fn ask(&mut self, question: Question, by: Instant) -> Result<(), Absence> {
        let malformed = |_| Absence::Malformed;
        match question {
            Question::Description => {
                let body = self.call(Procedure::DomainGetXmlDesc, Domain::with_no_flags, by).await?;
                let xml = protocol::read_text(&body).map_err(malformed)?;
                let description = Description::read(&xml).map_err(malformed)?;
                let is_told = self.is_of_admin() && self.picture.has_other_terms(&description);
                for mistake in description.mistakes.iter().take(MOST_MISTAKES).filter(|_| is_told) {
                    let mistake: String =
                        printable(&mistake.to_string()).chars().take(LONGEST_MISTAKE).collect();
                    tracing::warn!(pid = self.process.pid, "libvirt's metadata of this guest: {mistake}");
                }
                self.picture.described(description, Instant::now());
            }
            Question::State => {
                let body = self.call(Procedure::DomainGetState, Domain::with_no_flags, by).await?;
                self.picture.state(protocol::read_state(&body).map_err(malformed)?);
            }
            Question::Job => {
                match self.try_call(Procedure::DomainGetJobStats, Domain::with_no_flags, by).await {
                    Ok(body) => self.picture.job(Job::read(&body).map_err(malformed)?),
                    // A migration that comes in: only its source tells of it.
                    Err(Failure::Call(CallError::Refused(refusal))) if refusal.is_unsupported() => {
                        self.picture.job(Job::INCOMING);
                    }
                    Err(failure) => return Err(failure.absence()),
                }
            }
            Question::Stats => {
                let body = self.call(Procedure::DomainMemoryStats, Domain::memory_stats, by).await?;
                let stats = protocol::read_memory_stats(&body).map_err(malformed)?;
                self.picture.size(&stats, Instant::now());
                let may_ask = self.home.as_ref().is_some_and(|home| home.daemon.place.monitor_commands);
                if may_ask && self.qemu_tells != Some(false) {
                    match (self.ask_qemu(by).await, self.qemu_tells) {
                        (Ok(()), _) => {
                            self.qemu_tells = Some(true);
                            return Ok(());
                        }
                        // A QEMU that never tells: libvirt's statistics are less, and something. Both in turn would look like news.
                        (Err(Absence::Unsupported | Absence::Malformed | Absence::Refused(_)), None) => {
                            self.qemu_tells = Some(false);
                        }
                        (failed, _) => return failed,
                    }
                }
                self.picture.statistics(&stats, Now::read());
            }
            Question::Disks if self.picture.counts_disks() => {
                // The balloon and the statistics are told: nothing that happens here makes them less.
                let answer = self.try_call(Procedure::DomainBlockStatsFlags, Domain::disk_stats, by).await;
                let reads = answer.ok().and_then(|body| protocol::read_disk_stats(&body).ok());
                match reads {
                    Some(reads) => self.picture.read_disks(reads, Instant::now()),
                    None => self.picture.disks_are_refused(),
                }
            }
            Question::Disks => self.picture.read_disks(None, Instant::now()),
        }
        Ok(())
    }

    /// Asks QEMU for its own statistics of the guest, with the counters that libvirt does not carry.
    async fn ask_qemu(&mut self, by: Instant) -> Result<(), Absence> {
        let balloon = self.picture.description().and_then(|description| description.balloon.as_ref());
        let alias = balloon.and_then(|balloon| balloon.alias.clone()).ok_or(Absence::Unsupported)?;
        let command = GuestStatsAnswer::command(&alias);
        let body =
            self.call(Procedure::MonitorCommand, |domain| domain.monitor_command(&command), by).await?;
        let text = protocol::read_text(&body).map_err(|_| Absence::Malformed)?;
        let answer = GuestStatsAnswer::read(&text)?;
        self.picture.answered(answer.stats, answer.last_update, Now::read());
        Ok(())
    }

    /// Makes QEMU ask the guest for statistics at once, and looks for them shortly afterwards.
    async fn refresh(&mut self, by: Instant) -> Result<(), Absence> {
        let Some(period) = self.picture.our_period() else { return Ok(()) };
        self.ask(Question::Stats, by).await?;
        let asked = Instant::now();
        for seconds in [0, period] {
            let set =
                self.call(Procedure::DomainSetMemoryStatsPeriod, |domain| domain.set_period(seconds), by);
            if let Err(why) = set.await {
                // Polling may be off: the description will tell.
                self.picture.doubt_description();
                return Err(why);
            }
        }
        self.picture.asks_at_once();
        for look in LOOKS {
            if self.picture.stats_advanced_since(asked) || asked + look >= by {
                break;
            }
            tokio::time::sleep_until((asked + look).into()).await;
            self.ask(Question::Stats, by).await?;
        }
        Ok(())
    }

    /// Makes a call about the guest's domain.
    async fn call(
        &mut self,
        procedure: Procedure,
        arguments: impl Fn(&Domain) -> Vec<u8>,
        by: Instant,
    ) -> Result<Vec<u8>, Absence> {
        self.try_call(procedure, arguments, by).await.map_err(|failure| failure.absence())
    }

    async fn try_call(
        &mut self,
        procedure: Procedure,
        arguments: impl Fn(&Domain) -> Vec<u8>,
        by: Instant,
    ) -> Result<Vec<u8>, Failure> {
        self.take_late()?;
        let home = self.home.as_ref().ok_or(Absence::NotYet)?;
        let link = home.daemon.link(self.process.pid, by).await.map_err(|why| match why {
            // It was there.
            Absence::NoControl => Absence::Disconnected,
            other => other,
        })?;
        let body = arguments(&home.domain);
        let answer = self.answer(&link, procedure, &body, by).await;
        if answer.as_ref().is_err_and(|error| !error.is_about_one_call() || is_gone(error)) {
            self.leave_home();
        }
        answer.map_err(Failure::Call)
    }

    /// Fails as long as an earlier call has no answer.
    fn take_late(&mut self) -> Result<(), Absence> {
        if self.late.as_mut().is_some_and(|(late, _)| late.take().is_none()) {
            return Err(Absence::Timeout);
        }
        self.late = None;
        Ok(())
    }

    async fn answer(
        &mut self,
        link: &Link,
        procedure: Procedure,
        body: &[u8],
        by: Instant,
    ) -> Result<Vec<u8>, CallError> {
        let mut pending = link.connection.begin(procedure, body, by).await?;
        match pending.within(by).await {
            Some(answer) => answer,
            None => {
                self.late = Some((pending, link.late_call()));
                Err(CallError::Timeout)
            }
        }
    }

    /// Finds the daemon that has the guest, unless it is known.
    async fn settle_home(&mut self, by: Instant) -> Result<(), Absence> {
        self.take_late()?;
        if let Some(home) = &self.home {
            let news = home.mailbox.take();
            self.picture.note(&news, Now::read());
            // Its domain may run as another process now.
            if !news.missed && !news.events.contains(&Event::Lifecycle) {
                return Ok(());
            }
            self.leave_home();
        }
        let uuid = self.process.uuid.as_deref().and_then(Uuid::parse).ok_or_else(of_libvirt)?;
        let mut why = of_libvirt();
        for daemon in self.daemons.clone() {
            if self.late.is_some() || Instant::now() >= by {
                return Err(Absence::Timeout);
            }
            match self.find_at(&daemon, uuid, by).await {
                Ok(Some(home)) => {
                    self.home = Some(home);
                    return Ok(());
                }
                Ok(None) => {}
                // A daemon that is not there has no guests.
                Err(Absence::NoControl) => {}
                Err(failed) => why = failed,
            }
        }
        Err(why)
    }

    /// The guest's domain at `daemon`; `None` if it has none, or if its domain is another process.
    async fn find_at(
        &mut self,
        daemon: &Arc<Daemon>,
        uuid: Uuid,
        by: Instant,
    ) -> Result<Option<Home>, Absence> {
        let pid = self.process.pid;
        let link = daemon.link(pid, by).await?;
        let body = match self.answer(&link, Procedure::DomainLookupByUuid, &protocol::by_uuid(uuid), by).await
        {
            Ok(body) => body,
            Err(error) if is_gone(&error) => return Ok(None),
            Err(error) => return Err(error.absence()),
        };
        let domain = Domain::found(&body).map_err(|_| Absence::Malformed)?;
        let file = daemon.pid_file(link.user, &domain).filter(|_| domain.uuid == uuid && domain.id >= 0);
        let Some(file) = file else { return Ok(None) };
        if process_in(&file, pid).await? != Some(pid) {
            return Ok(None);
        }
        let mailbox = daemon.mailbox(uuid);
        let is_of_admin = link.user == 0 || daemon.place.owner == Owner::Named;
        let daemon = Arc::clone(daemon);
        Ok(Some(Home { daemon, domain, mailbox, is_read_only: link.is_read_only, is_of_admin }))
    }

    fn leave_home(&mut self) {
        if let Some(home) = self.home.take() {
            home.daemon.forget(home.domain.uuid, &home.mailbox);
            self.picture.note(&News { missed: true, ..News::default() }, Now::read());
        }
    }

    async fn apply(&mut self, request: Request, deadline: Duration) -> Result<(), Absence> {
        let by = Instant::now() + deadline;
        self.play.goes_on();
        if let Request::Agent(deed) = request {
            return self.agent.as_ref().ok_or(Absence::Unsupported)?.request(deed);
        }
        self.settle_home(by).await?;
        if self.owned().is_some() {
            return Err(Absence::Forbidden);
        }
        match request {
            Request::SetTarget(target) => self.set_target(target, by).await,
            Request::PollStats(every) => {
                let seconds = u32::try_from(every.as_millis().div_ceil(1000)).unwrap_or(u32::MAX);
                self.call(Procedure::DomainSetMemoryStatsPeriod, |domain| domain.set_period(seconds), by)
                    .await?;
                self.picture.note_our_period(seconds, Instant::now());
                Ok(())
            }
            // The device is named by its target; libvirt takes no other part into account.
            Request::Tier(TierOrder::Detach) => {
                let xml = tier_disk(Path::new("/dev/null"));
                self.call(Procedure::DomainDetachDeviceFlags, |domain| domain.device(&xml), by)
                    .await
                    .map(drop)
            }
            Request::Agent(_)
            | Request::Share(_)
            | Request::Tier(_)
            | Request::Reclaim(_)
            | Request::Split
            | Request::Merge(_) => Err(Absence::Unsupported),
        }
    }

    /// Attaches a tier, which libvirt's daemon opens by its path.
    async fn attach(&mut self, tier: TierDevice, deadline: Duration) -> Result<(), Absence> {
        let by = Instant::now() + deadline;
        self.settle_home(by).await?;
        if self.owned().is_some() {
            return Err(Absence::Forbidden);
        }
        let xml = tier_disk(&tier.path);
        self.call(Procedure::DomainAttachDeviceFlags, |domain| domain.device(&xml), by).await.map(drop)
    }

    async fn set_target(&mut self, target: Bytes, by: Instant) -> Result<(), Absence> {
        if self.picture.description().is_none() {
            self.ask(Question::Description, by).await?;
        }
        let wire = target.saturating_sub(self.picture.plugged());
        if wire.is_zero() || wire.round_down(PAGE_4K) != wire {
            return Err(Absence::Refused(format!("no balloon of libvirt can keep {target}")));
        }
        self.call(Procedure::DomainSetMemoryFlags, |domain| domain.set_memory(wire), by).await.map(drop)
    }

    async fn next_event(&mut self) {
        let mailbox = self.home.as_ref().map(|home| Arc::clone(&home.mailbox));
        let told = async {
            match mailbox {
                Some(mailbox) => mailbox.arrived.notified().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = told => {}
            () = pressed(self.agent.as_ref()) => {}
        }
    }
}

impl Drop for LibvirtControl {
    fn drop(&mut self) {
        self.leave_home();
    }
}

/// A tier in libvirt's words. No domain has a disk of this name by itself.
fn tier_disk(path: &Path) -> String {
    format!(
        "<disk type='block' device='disk'><driver name='qemu' type='raw' cache='none' discard='unmap'/>\
         <source dev='{}'/><target dev='vdzz' bus='virtio'/><serial>{TIER}</serial></disk>",
        path.display()
    )
}

impl Control for LibvirtControl {
    fn observe(&mut self, wish: Wish, deadline: Duration) -> Later<'_, Told> {
        Box::pin(self.observe(wish, deadline))
    }

    fn apply(&mut self, request: Request, deadline: Duration) -> Later<'_, Result<(), Absence>> {
        Box::pin(self.apply(request, deadline))
    }

    fn attach(&mut self, tier: TierDevice, deadline: Duration) -> Later<'_, Result<(), Absence>> {
        Box::pin(self.attach(tier, deadline))
    }

    fn next_event(&mut self) -> Later<'_, ()> {
        Box::pin(self.next_event())
    }
}

/// Why a call was not made, or failed.
enum Failure {
    NotMade(Absence),
    Call(CallError),
}

impl Failure {
    fn absence(self) -> Absence {
        match self {
            Self::NotMade(why) => why,
            Self::Call(error) => error.absence(),
        }
    }
}

impl From<Absence> for Failure {
    fn from(why: Absence) -> Self {
        Self::NotMade(why)
    }
}

fn of_libvirt() -> Absence {
    Absence::OwnedBy("libvirt".to_owned())
}

fn is_gone(error: &CallError) -> bool {
    matches!(error, CallError::Refused(refusal) if refusal.is_about_a_missing_domain())
}

/// The number of the process in `file`; `None` if there is no such file. `pid` is the process that it is about, whose user may hold the reading up.
async fn process_in(file: &Path, pid: u32) -> Result<Option<u32>, Absence> {
    let file = file.to_owned();
    let reading = tokio::task::spawn_blocking(move || {
        within(pid, READS_WITHIN, move || {
            let text = read_regular(&file, LONGEST_NUMBER)?;
            io::Result::Ok(String::from_utf8_lossy(&text).trim().parse::<u32>().ok())
        })
    });
    match reading.await {
        Ok(Some(Ok(number))) => Ok(number),
        Ok(Some(Err(error))) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Ok(Some(Err(_))) => Err(Absence::Forbidden),
        Ok(None) | Err(_) => Err(Absence::Overran),
    }
}
