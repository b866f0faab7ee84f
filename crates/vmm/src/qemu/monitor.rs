//! One guest's monitor: polls, changes, events.
//!
//! A poll is one exchange of a few commands (see `picture`), after two more exchanges if the balloon device must be looked for. A
//! *brief* monitor connects for the poll and closes afterwards, unless it is kept open for the next poll. A *dedicated* monitor stays open,
//! and its events are heard as they come.
//!
//! QEMU asks the guest for statistics only every N whole seconds. If memtide writes the interval 0 and then N, QEMU asks at once,
//! and an idle guest answers within some milliseconds. In this way memtide gets statistics in the middle of a second. It does so only
//! if it set the interval itself, and waits only briefly. The next poll reads later answers.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use memtide_model::{Absence, Bytes, GuestId, PAGE_4K, Span, Told};
use serde_json::json;

use super::balloon::{self, Device, Property};
use super::disks;
use super::link::Link;
use super::picture::{Picture, Question, read};
use super::qmp::{Command, Qmp, QmpError, Reply};
use super::signal::Signal;
use super::socket::Peer;
use super::tier;
use crate::back_off::BackOff;
use crate::backend::Wish;
use crate::round::Patience;
use crate::stats_clock::Now;

/// The time from the request for new statistics to the first look.
const FIRST_LOOK: Duration = Duration::from_millis(3);
const LATER_LOOKS: [Duration; 2] = [Duration::from_millis(8), Duration::from_millis(20)];
/// Statistics up to this age need no refresh.
const NEW_ENOUGH: Duration = Duration::from_millis(250);
/// How long a lost connection may take to come back while memtide only waits for events.
const RECONNECT: Duration = Duration::from_secs(2);
/// The first and the longest wait after a change without an answer. The engine waits for the answer to each change.
const CHANGES_WAIT: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(120));

/// How a monitor is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// Connect, act, close: another client may need the socket.
    Brief,
    /// Kept open: the socket belongs to memtide alone.
    Dedicated,
}

/// A monitor's facts about its guest.
#[derive(Clone, Debug)]
pub struct MonitorConfig {
    /// The guest.
    pub guest: GuestId,
    /// The sockets, in the order of the first attempts.
    pub paths: Vec<PathBuf>,
    /// The process that must listen there; `None`: any process.
    pub peer: Option<Peer>,
    /// How it is used.
    pub use_as: Use,
    /// Memory at start from the command line, used until QEMU answers.
    pub memory: Option<Bytes>,
}

/// Why a guest could not be changed.
#[derive(Debug, thiserror::Error)]
pub enum MonitorError {
    /// The monitor could not be reached, or QEMU refused.
    #[error("guest {guest}: the monitor failed")]
    Qmp {
        /// The guest.
        guest: GuestId,
        /// The cause.
        #[source]
        source: QmpError,
    },
    /// There is no balloon device.
    #[error("guest {guest} has no balloon: {why}")]
    NoBalloon {
        /// The guest.
        guest: GuestId,
        /// The reason.
        why: Absence,
    },
    /// A target that cannot be written: no multiple of 4 KiB, or nothing left beside what virtio-mem has plugged.
    #[error("guest {guest}: {target} is not a valid target with {plugged} plugged by virtio-mem")]
    Target {
        /// The guest.
        guest: GuestId,
        /// The requested target.
        target: Bytes,
        /// The memory that virtio-mem has plugged.
        plugged: Bytes,
    },
}

/// One guest's monitor.
#[derive(Debug)]
pub struct Monitor {
    guest: GuestId,
    use_as: Use,
    link: Link,
    picture: Picture,
    /// The waits after changes without an answer.
    changes: BackOff,
    /// A brief monitor stays open.
    stays_open: bool,
    /// The patience for the next poll.
    patience: Option<Patience>,
    /// Signals from exchanges that are not reported yet, in the order of their kind.
    untold: BTreeSet<Signal>,
}

impl Monitor {
    /// A monitor without a connection.
    #[must_use]
    pub fn new(config: MonitorConfig) -> Self {
        Self {
            picture: Picture::new(config.memory),
            link: Link::new(config.paths, config.peer),
            changes: BackOff::new(CHANGES_WAIT.0, CHANGES_WAIT.1),
            stays_open: false,
            patience: None,
            guest: config.guest,
            use_as: config.use_as,
            untold: BTreeSet::new(),
        }
    }

    /// Makes the next poll look for its answers together with other polls.
    pub(super) fn be_patient(&mut self, patience: Patience) {
        self.patience = Some(patience);
    }

    /// Asks the guest's monitor, within `deadline`. Every missing value has a reason.
    pub async fn poll(&mut self, wish: Wish, deadline: Duration) -> Told {
        let by = Instant::now() + deadline;
        self.stays_open = wish.keep_open;
        let asked = self.ask(wish, by).await;
        self.finish(&asked);
        if let Err(error) = &asked {
            self.picture.note_unreachable(error.absence());
        }
        self.picture.polled(Now::read())
    }

    /// The present view of the guest, without asking.
    #[must_use]
    pub fn view(&self) -> Told {
        self.picture.polled(Now::read())
    }

    /// Why there is no connection that works: it was not tried yet, or it failed last time. `None` if it works or has worked.
    pub(super) fn why_not_connected(&self) -> Option<Absence> {
        self.link.why_not_connected()
    }

    /// The present view of a guest whose monitor is left alone.
    pub(super) fn leave_alone(&mut self, why: Absence) -> Told {
        self.picture.note_unreachable(why);
        self.view()
    }

    /// Closes the connection.
    pub fn close(&mut self) {
        self.link.close();
    }

    /// Writes the target: the total memory that the guest should keep, a multiple of 4 KiB.
    ///
    /// # Errors
    /// If the monitor cannot be reached or refuses, if there is no balloon, or if the target is impossible.
    pub async fn set_target(&mut self, target: Bytes, deadline: Duration) -> Result<(), MonitorError> {
        let by = Instant::now() + deadline;
        let done = self.write_target(target, by).await;
        self.act_finished(done)
    }

    /// Makes QEMU poll the balloon statistics at this interval, rounded up to whole seconds.
    ///
    /// # Errors
    /// If the monitor cannot be reached or refuses, or if there is no balloon.
    pub async fn set_polling(&mut self, every: Span, deadline: Duration) -> Result<(), MonitorError> {
        let by = Instant::now() + deadline;
        let done = self.write_interval(every.as_millis().div_ceil(1000), by).await;
        self.act_finished(done)
    }

    /// Lets KSM merge the guest's memory, or not.
    ///
    /// # Errors
    /// If the monitor cannot be reached or refuses, or if its memory has no such property.
    pub async fn set_sharing(&mut self, shares: bool, deadline: Duration) -> Result<(), MonitorError> {
        let by = Instant::now() + deadline;
        let done = self.write_sharing(shares, by).await;
        self.act_finished(done)
    }

    /// Plugs an open block device as the guest's tier.
    ///
    /// # Errors
    /// If the monitor cannot be reached or refuses.
    pub async fn attach_tier(&mut self, file: &OwnedFd, deadline: Duration) -> Result<(), MonitorError> {
        let done = self.plug_tier(Some(file), Instant::now() + deadline).await;
        self.act_finished(done)
    }

    /// Unplugs it. As long as the guest has it, this fails and is to be called again.
    ///
    /// # Errors
    /// If the guest still has it, or the monitor cannot be reached.
    pub async fn detach_tier(&mut self, deadline: Duration) -> Result<(), MonitorError> {
        let done = self.plug_tier(None, Instant::now() + deadline).await;
        self.act_finished(done)
    }

    /// The next relevant event. A dedicated monitor that lost its connection reconnects. A brief monitor, and a monitor that has never
    /// answered, wait forever. Cancel-safe.
    pub async fn next_event(&mut self) -> Signal {
        loop {
            if let Some(signal) = self.untold.pop_first() {
                return signal;
            }
            if self.use_as == Use::Brief || !self.link.has_worked() {
                std::future::pending::<()>().await;
            }
            if let Some(until) = self.link.backs_off_until() {
                tokio::time::sleep_until(until.into()).await;
            }
            let by = Instant::now() + RECONNECT;
            let Ok(qmp) = self.link.open_now(by).await else { continue };
            let heard = match qmp.negotiate(by).await {
                Ok(()) => qmp.next_event().await,
                Err(error) => Err(error),
            };
            match heard {
                Ok(event) => {
                    self.untold.extend(self.picture.event(&event, Now::read()));
                }
                Err(error) => {
                    tracing::debug!(guest = %self.guest, %error, "lost the connection to the monitor");
                    self.link.failed(&error);
                    self.picture.note_unreachable(error.absence());
                }
            }
        }
    }

    /// The sizes of the guest's memory may have changed: the next poll asks for them.
    pub(super) const fn doubt_sizes(&mut self) {
        self.picture.doubt_sizes();
    }

    async fn ask(&mut self, wish: Wish, by: Instant) -> Result<(), QmpError> {
        if !self.link.is_open() {
            self.picture.note_silence();
        }
        let qmp = self.link.open(by).await?;
        qmp.be_patient(self.patience.take());
        let now = Now::read();
        let looked = self.picture.device_is_due(now);
        if looked {
            look_for_device(qmp, &mut self.picture, by).await?;
        }
        if wish.sizes {
            self.picture.doubt_sizes();
        }
        let questions = self.picture.questions(looked, now);
        let asks_disks = self.picture.asks_disks();
        if wish.refresh_stats && self.picture.may_refresh(NEW_ENOUGH, now) {
            refresh(qmp, &mut self.picture, questions, by).await?;
        } else {
            exchange(qmp, &mut self.picture, &questions, by).await?;
        }
        if asks_disks {
            ask_disks(qmp, &mut self.picture, by).await?;
        }
        self.note_events();
        // A monitor that was kept open reports only now the events since the last poll.
        if let Some(qmp) = self.link.connection().filter(|_| self.picture.run_state_is_due()) {
            exchange(qmp, &mut self.picture, &[Question::RunState], by).await?;
        }
        self.picture.settle();
        Ok(())
    }

    /// Notes the events that came during an exchange.
    fn note_events(&mut self) {
        let Some(qmp) = self.link.connection() else { return };
        let now = Now::read();
        for event in qmp.take_events() {
            let signal = self.picture.event(&event, now);
            // A brief monitor hears events only by chance, and has just asked.
            self.untold.extend(signal.filter(|_| self.use_as == Use::Dedicated));
        }
    }

    /// Fails while memtide leaves the monitor alone after a change without an answer.
    fn may_change(&self) -> Result<(), Failure> {
        self.changes.why().map_or(Ok(()), |why| Err(Failure::Qmp(QmpError::BackingOff(why))))
    }

    async fn write_target(&mut self, target: Bytes, by: Instant) -> Result<(), Failure> {
        self.may_change()?;
        let was_open = self.link.is_open();
        let qmp = self.link.open_now(by).await?;
        if self.picture.device_is_due(Now::read()) {
            look_for_device(qmp, &mut self.picture, by).await?;
        }
        if !was_open || self.picture.may_have_plugged() {
            // The size may have changed since the last poll, and without a connection no event was heard.
            exchange(qmp, &mut self.picture, &[Question::MemoryDevices], by).await?;
        }
        let plugged = self.picture.plugged();
        let wire = target.saturating_sub(plugged);
        if wire.is_zero() || wire.round_down(PAGE_4K) != wire {
            return Err(Failure::Target(target, plugged));
        }
        let command = Command::with("balloon", &json!({ "value": wire.get() }));
        match qmp.execute::<serde_json::Value>(command, by).await {
            Err(QmpError::Refused(refusal)) if refusal.class == "DeviceNotActive" => {
                Err(Failure::NoBalloon(Absence::NoBalloon))
            }
            other => Ok(other.map(drop)?),
        }
    }

    async fn write_interval(&mut self, seconds: u64, by: Instant) -> Result<(), Failure> {
        self.may_change()?;
        let qmp = self.link.open_now(by).await?;
        if self.picture.device().is_none() || self.picture.device_is_due(Now::read()) {
            look_for_device(qmp, &mut self.picture, by).await?;
        }
        let Some(device) = self.picture.device() else {
            return Err(Failure::NoBalloon(Absence::NoBalloon));
        };
        qmp.execute::<serde_json::Value>(device.set_interval(seconds), by).await?;
        self.picture.note_our_interval(seconds, Now::read());
        Ok(())
    }

    async fn write_sharing(&mut self, shares: bool, by: Instant) -> Result<(), Failure> {
        self.may_change()?;
        let qmp = self.link.open_now(by).await?;
        let commands: Vec<Command> =
            self.picture.memory().iter().filter_map(|part| part.set_merge(shares)).collect();
        let replies = qmp.batch(&commands, by).await?;
        // What came of it shows in the next answer.
        exchange(qmp, &mut self.picture, &[Question::Memory], by).await?;
        match replies.into_iter().find_map(Result::err) {
            Some(refusal) => Err(Failure::Qmp(QmpError::Refused(refusal))),
            None => Ok(()),
        }
    }

    async fn plug_tier(&mut self, file: Option<&OwnedFd>, by: Instant) -> Result<(), Failure> {
        self.may_change()?;
        let qmp = self.link.open_now(by).await?;
        match file {
            Some(file) => tier::attach(qmp, file, by).await?,
            None => tier::detach(qmp, by).await?,
        }
        Ok(())
    }

    fn act_finished(&mut self, done: Result<(), Failure>) -> Result<(), MonitorError> {
        let guest = self.guest.clone();
        match done {
            Ok(()) => {
                self.changes.worked();
                self.finish(&Ok(()));
                Ok(())
            }
            Err(Failure::Qmp(source)) => {
                if matches!(source, QmpError::Timeout) {
                    self.changes.failed(source.absence());
                }
                let failed = Err(source);
                self.finish(&failed);
                failed.map_err(|source| MonitorError::Qmp { guest, source })
            }
            Err(Failure::NoBalloon(why)) => {
                self.finish(&Ok(()));
                Err(MonitorError::NoBalloon { guest, why })
            }
            Err(Failure::Target(target, plugged)) => {
                self.finish(&Ok(()));
                Err(MonitorError::Target { guest, target, plugged })
            }
        }
    }

    /// Ends an exchange: notes the events that came with it, and closes the connection unless it stays open.
    fn finish(&mut self, done: &Result<(), QmpError>) {
        self.note_events();
        if let Some(qmp) = self.link.connection() {
            qmp.free_buffer();
        }
        if self.use_as == Use::Brief && !self.stays_open {
            self.link.close();
        }
        match done {
            Ok(()) | Err(QmpError::Refused(_)) => self.link.worked(),
            Err(error) => self.link.failed(error),
        }
    }
}

/// Why a change failed, still without the guest's name.
enum Failure {
    Qmp(QmpError),
    NoBalloon(Absence),
    Target(Bytes, Bytes),
}

impl From<QmpError> for Failure {
    fn from(error: QmpError) -> Self {
        Self::Qmp(error)
    }
}

/// Asks the questions in one exchange and notes the answers.
async fn exchange(
    qmp: &mut Qmp,
    picture: &mut Picture,
    questions: &[Question],
    by: Instant,
) -> Result<(), QmpError> {
    let (questions, commands) = with_commands(picture, questions);
    let replies = qmp.batch(&commands, by).await?;
    note(picture, &questions, &replies, Now::read());
    Ok(())
}

/// Asks what the guest has read from its disks, by itself: the answer has a part for each layer of each disk. A QEMU whose answer is too long for memtide is not
/// asked again.
async fn ask_disks(qmp: &mut Qmp, picture: &mut Picture, by: Instant) -> Result<(), QmpError> {
    let asked = exchange(qmp, picture, &[Question::Disks], by).await;
    picture.disks_are_too_many |= matches!(asked, Err(QmpError::Malformed(_)));
    asked
}

/// The questions that have a command, with their commands.
fn with_commands(picture: &Picture, questions: &[Question]) -> (Vec<Question>, Vec<Command>) {
    questions.iter().filter_map(|&question| Some((question, picture.command(question)?))).unzip()
}

fn note(picture: &mut Picture, questions: &[Question], replies: &[Reply], now: Now) {
    for (question, reply) in questions.iter().zip(replies) {
        picture.answer(*question, reply, now);
    }
}

/// Looks for the balloon device and reads its properties.
async fn look_for_device(qmp: &mut Qmp, picture: &mut Picture, by: Instant) -> Result<(), QmpError> {
    let replies = qmp.batch(&balloon::search(), by).await?;
    let mut containers = replies.iter().map(read::<Vec<Property>>);
    let (Some(named), Some(anonymous)) = (containers.next(), containers.next()) else { return Ok(()) };
    let found = match (named, anonymous) {
        (Ok(named), Ok(anonymous)) => {
            picture.disks_elsewhere = disks::are_elsewhere([&named, &anonymous]);
            Ok(balloon::find([&named, &anonymous]))
        }
        (Err(why), _) | (_, Err(why)) => Err(why),
    };
    let found = match found {
        Ok(Some(device)) => Ok(Some(with_properties(qmp, device, by).await?)),
        other => other,
    };
    picture.note_device(found, Now::read());
    Ok(())
}

async fn with_properties(qmp: &mut Qmp, device: Device, by: Instant) -> Result<Device, QmpError> {
    let commands = [device.get(balloon::DEFLATE_ON_OOM), device.get(balloon::FREE_PAGE_REPORTING)];
    let replies = qmp.batch(&commands, by).await?;
    // An older QEMU without a property does not have the feature.
    let mut on = replies.iter().map(|reply| read::<bool>(reply).unwrap_or(false));
    let (deflate_on_oom, free_page_reporting) = (on.next() == Some(true), on.next() == Some(true));
    Ok(Device { deflate_on_oom, free_page_reporting, ..device })
}

/// Asks the questions, makes QEMU ask the guest for statistics at once, and looks for them shortly afterwards.
async fn refresh(
    qmp: &mut Qmp,
    picture: &mut Picture,
    mut questions: Vec<Question>,
    by: Instant,
) -> Result<(), QmpError> {
    // First, because differences from this read must be newer than it. And the guest answers while QEMU answers the rest.
    questions.retain(|question| *question != Question::Stats);
    questions.splice(0..0, [Question::Stats, Question::StopPolling, Question::StartPolling]);
    let (questions, commands) = with_commands(picture, &questions);
    let (looks, look_commands) = with_commands(picture, &[Question::Stats]);
    let asked = Now::read();
    let replies = qmp.batch_and_then(&commands, FIRST_LOOK, &look_commands, by).await?;
    let (replies, of_the_look) = replies.split_at(questions.len().min(replies.len()));
    note(picture, &questions, replies, asked);
    note(picture, &looks, of_the_look, Now::read());
    match picture.take_refreshed() {
        Some(asked) => await_stats(qmp, picture, asked, by).await,
        None => Ok(()),
    }
}

/// Looks for refreshed statistics again, if they have not come yet.
async fn await_stats(
    qmp: &mut Qmp,
    picture: &mut Picture,
    asked: Instant,
    by: Instant,
) -> Result<(), QmpError> {
    for look in LATER_LOOKS {
        if picture.stats_advanced_since(asked) || asked + look >= by {
            return Ok(());
        }
        tokio::time::sleep_until((asked + look).into()).await;
        exchange(qmp, picture, &[Question::Stats], by).await?;
    }
    Ok(())
}
