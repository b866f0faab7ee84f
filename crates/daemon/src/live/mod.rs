//! The real host and its guests as a [`World`].
//!
//! Each observation asks all guests at once and waits at most `ASK_WITHIN`. Then it reads the guests' cost (`costs`) and the host's
//! memory. A guest that does not answer gives an old or absent reading; it never delays the others. `pressure` wakes the engine.

mod cgroups;
mod costs;
mod ending;
mod facts;
mod nodes;
mod outsiders;
mod pressure;
mod survey;
mod swap;
mod tiers;

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use memtide_api::history::History;
use memtide_config::Settings;
use memtide_engine::{Applied, ApplyError, Ask, Asking, Killed, Wake, World, host_clock};
use memtide_host::{Cgroup, GuestCost, HostError, HostSensor, KsmGuest, KsmSensor, Meminfo, Root, Trigger};
use memtide_model::{
    Absence, Action, Answer, Budget, Bytes, Config, Cost, Fence, GuestId, GuestSeen, HostSeen, KsmMode,
    KsmSeen, Missed, Mode, Moment, Outsiders, Reading, Request, Snapshot, State, Told, WallClock,
};
use memtide_vmm::{Admitted, Backend, Fleet, Seen, Wish};
use tokio::runtime::Handle;
use tracing::{info, warn};

use self::cgroups::Cgroups;
use self::costs::{Costs, Weighing};
use self::ending::Ending;
use self::nodes::Nodes;
use self::pressure::trigger as pressure_trigger;
use self::swap::HostSwap;
use self::tiers::Tiers;
use crate::guest_locks::GuestLocks;
use crate::helpers::ksm::{self, Merger};
use crate::helpers::reclaim::Reclaimer;
use crate::helpers::split::Splitter;
use crate::helpers::tier::TierMaker;
use crate::orders::Orders;

/// The longest that an observation waits for the guests' monitors.
const ASK_WITHIN: Duration = Duration::from_millis(400);
/// The longest that a look between two ticks waits for the guests' monitors.
const LOOK_WITHIN: Duration = Duration::from_millis(100);
/// The longest that an action waits for a monitor.
const ACT_WITHIN: Duration = Duration::from_millis(1000);
/// Why the host cannot be observed.
#[derive(Debug, thiserror::Error)]
pub enum LiveError {
    /// The host's own memory.
    #[error("cannot read the host's memory")]
    Host(#[from] HostError),
}

/// What the world shares with the API.
#[derive(Clone, Debug)]
pub struct Shared {
    /// What is told of the guests.
    pub history: History,
    /// What operators ask for.
    pub orders: Orders,
}

/// Everything that is opened before the daemon gives its rights up.
pub struct Rights {
    /// Fires when the host's tasks stall for memory.
    pub trigger: Option<Trigger>,
    /// Reclaims from cgroups.
    pub reclaimer: Reclaimer,
    /// Splits torn huge pages.
    pub splitter: Splitter,
    /// Sets KSM.
    pub merger: Merger,
    /// Makes tiers.
    pub tier_maker: TierMaker,
}

impl Rights {
    /// Opens everything, and starts the helpers of a daemon with this configuration. Puts back what a former run, which was killed, has left
    /// of KSM.
    #[must_use]
    pub fn open(config: &Config, before: Option<&State>) -> Self {
        let manages = config.mode == Mode::Manage;
        let (reclaimer, splitter) = (Reclaimer::start(manages), Splitter::start(manages));
        let left = before.and_then(|state| ksm::left_behind(&Root::system(), &state.ksm));
        let mut merger = Merger::start(config.governs_ksm() || left.is_some());
        if let Some(found) = left {
            match merger.leave(found) {
                Ok(()) => info!("KSM is as it was found before memtide was killed: {found}"),
                Err(why) => warn!("KSM is not as it was found before memtide was killed ({found}): {why}"),
            }
        }
        if !config.governs_ksm() {
            merger = Merger::none();
        }
        let tier_maker = TierMaker::start(manages && config.has_tiers());
        Self { trigger: pressure_trigger(), reclaimer, splitter, merger, tier_maker }
    }

    /// Which helpers there are, in phrases for the log and the status.
    #[must_use]
    pub fn phrases(&self) -> Vec<String> {
        [self.reclaimer.phrase(), self.splitter.phrase(), self.merger.phrase(), self.tier_maker.phrase()]
            .into_iter()
            .flatten()
            .collect()
    }
}

/// The real host.
pub struct LiveWorld {
    root: Root,
    sensor: HostSensor,
    memory: Bytes,
    fleet: Fleet,
    /// The names of this daemon's guests.
    discover: Vec<String>,
    outsiders: outsiders::Shown,
    costs: Costs,
    ending: Ending,
    /// The footprints of the last look, in the order of the guests.
    footprints: Vec<(GuestId, Bytes)>,
    reclaimer: Reclaimer,
    splitter: Splitter,
    merger: Merger,
    tiers: Tiers,
    /// KSM is not governed any more, and not yet as it was found.
    leaves_ksm: bool,
    ksm: Option<KsmSensor>,
    history: History,
    orders: Orders,
    woken: Receiver<Wake>,
    config: Config,
    locks: GuestLocks,
    seen_at: (Moment, WallClock),
    host: HostReading,
    warned: Vec<String>,
    cgroups: Cgroups,
    swap: HostSwap,
    nodes: Nodes,
    killed: Vec<Killed>,
}

impl LiveWorld {
    /// The host of this machine. Wakes of the backends and of `trigger` go to `wake`, and are received from `woken`.
    ///
    /// # Errors
    /// If `/proc` is not as expected.
    pub fn new(
        handle: Handle,
        backends: Vec<Box<dyn Backend>>,
        settings: &Settings,
        wake: Sender<Wake>,
        woken: Receiver<Wake>,
        Rights { trigger, reclaimer, splitter, merger, tier_maker }: Rights,
        shared: Shared,
    ) -> Result<Self, LiveError> {
        let root = Root::system();
        let on_event = wake.clone();
        let discover = settings.discover.clone();
        let fleet = Fleet::start(handle, backends, admitted(&discover, &settings.config), move |_| {
            pressure::nudge(&on_event);
        });
        if let Some(trigger) = trigger {
            pressure::watch(trigger, wake);
        }
        let memory = Meminfo::read(&root)?.total;
        let unseen = HostSeen {
            capacity: memory,
            other: Bytes::ZERO,
            ending: Bytes::ZERO,
            torn: Reading::unsupported(),
            splits: false,
            tiers: false,
            swap: Reading::absent(Absence::NotYet),
            pressure: Reading::absent(Absence::NotYet),
            ksm: Reading::unsupported(),
            missed: Some(Missed { why: Absence::NotYet, age: None }),
        };
        let (cgroups, nodes) = (Cgroups::new(&root, memory), Nodes::open(&root));
        let world = Self {
            sensor: HostSensor::open(&root, settings.config.budget)?,
            memory,
            costs: Costs::open(&root)?,
            ending: Ending::default(),
            footprints: Vec::new(),
            reclaimer,
            splitter,
            merger,
            tiers: Tiers::new(&root, tier_maker),
            leaves_ksm: false,
            ksm: KsmSensor::open(&root).ok().flatten(),
            root,
            fleet,
            discover,
            outsiders: outsiders::Shown::default(),
            history: shared.history,
            orders: shared.orders,
            woken,
            config: settings.config.clone(),
            locks: GuestLocks::of_this_user(),
            seen_at: (Moment::default(), WallClock(0)),
            host: HostReading::new(unseen),
            warned: Vec::new(),
            cgroups,
            swap: HostSwap::default(),
            nodes,
            killed: Vec::new(),
        };
        world.say_budget();
        Ok(world)
    }

    /// Takes over what a new configuration changes about observing.
    fn reload(&mut self, config: &Config) {
        self.sensor.set_budget(config.budget);
        if self.config.governs_ksm() && !config.governs_ksm() {
            let left = self.merger.put_back();
            self.leaves_ksm = left.is_err();
            if let Err(why) = left {
                warn!("KSM is not as memtide found it: {why}; memtide tries again");
            }
        }
        if self.config.users != config.users {
            self.fleet.admit(admitted(&self.discover, config));
        }
        self.config = config.clone();
        self.say_budget();
    }

    /// Warns if the budget exceeds the host's memory, which then counts instead.
    fn say_budget(&self) {
        if let Budget::Size(budget) = self.config.budget
            && budget > self.memory
        {
            warn!("`budget` is {budget}, but this host has only {}: memtide uses that", self.memory);
        }
    }

    fn is_managing(&self) -> bool {
        self.config.mode == Mode::Manage
    }

    /// Fences the guests that another memtide manages, and gives up those that are not to be managed here.
    fn lock_guests(&mut self, seen: &mut [Seen], now: Moment) {
        let is_ours = |guest: &Seen| {
            self.config.mode == Mode::Manage && guest.found.capabilities.can_be_set && {
                let (found, terms) = (&guest.found, guest.told.terms.as_ref());
                self.config.class_by_terms(found.id.name(), found.process.user, terms).1.manage
            }
        };
        self.locks.keep_only(|id| {
            // They come ordered by identity.
            seen.binary_search_by(|guest| guest.found.id.cmp(id)).is_ok_and(|at| is_ours(&seen[at]))
        });
        for guest in seen.iter_mut().filter(|guest| is_ours(guest)) {
            if let Err(pid) = self.locks.lock(&guest.found.id, guest.found.process.pid, now) {
                guest.told.fence = Some(Fence::Another { pid });
            }
        }
    }

    /// Makes a request.
    fn request(&mut self, action: &Action) -> Result<Applied, Absence> {
        match (action.guest(), action.request) {
            (
                Some(guest),
                Request::SetTarget(_) | Request::PollStats(_) | Request::Agent(_) | Request::Share(_),
            ) => self.fleet.request(guest, action.request, ACT_WITHIN).map(|()| Applied::Accepted),
            (Some(guest), Request::Reclaim(bytes)) => {
                let seen = self.fleet.seen(guest).ok_or(Absence::Gone)?;
                let (pid, start) = (seen.found.process.pid, guest.start());
                self.reclaimer.reclaim(pid, start, bytes).map(Applied::Yielded)
            }
            (Some(guest), Request::Split) => {
                let seen = self.fleet.seen(guest).ok_or(Absence::Gone)?;
                let (pid, start) = (seen.found.process.pid, guest.start());
                self.splitter.split(pid, start).map(|()| Applied::Accepted)
            }
            (Some(guest), Request::Tier(order)) => {
                let now = self.seen_at.0;
                self.tiers.request(&self.fleet, guest, order, ACT_WITHIN, now).map(|()| Applied::Accepted)
            }
            (None, Request::Merge(order)) => {
                self.leaves_ksm = false;
                let seen = self.host.last.ksm.fresh().ok_or(Absence::NotYet)?;
                self.merger.set(order.after(seen.settings)).map(|()| Applied::Accepted)
            }
            (_, Request::Merge(_)) | (None, _) => Err(Absence::Unsupported),
        }
    }

    /// Looks at KSM, if the configuration says so.
    fn see_ksm(&mut self, guests: &[GuestSeen], now: Moment) -> Reading<KsmSeen> {
        let Some(sensor) = self.ksm.as_mut().filter(|_| self.config.ksm.mode != KsmMode::Off) else {
            return Reading::unsupported();
        };
        let of = |guest: &GuestSeen| KsmGuest { pid: guest.pid, merges: guest.told.merges.latest().copied() };
        let guests: Vec<KsmGuest> = guests.iter().map(of).collect();
        let hung = sensor.hangs();
        let read = sensor.read(&guests, self.config.governs_ksm(), now);
        if sensor.hangs() && !hung {
            warn!(
                "memtide does not know what KSM does: a look at the processes in /proc has not ended for a minute; \
                 the state and stack of memtide's thread `ksm` tell why"
            );
        }
        match read {
            Ok(Some(seen)) => {
                self.history.add_ksm(now, &seen, sensor.processes());
                Reading::now(seen)
            }
            Ok(None) => Reading::absent(Absence::NotYet),
            Err(error) => Reading::absent(error.absence()),
        }
    }

    /// The last footprints of guests that were there at the last look and have ended. Remembers those of `guests`.
    fn ended(&mut self, guests: &[GuestSeen]) -> Bytes {
        let is_gone = |id: &GuestId| guests.binary_search_by(|guest| guest.id.cmp(id)).is_err();
        let ended = self.footprints.iter().filter(|(id, _)| is_gone(id)).map(|(_, footprint)| *footprint);
        let ended = Bytes::sum(ended);
        let known = |guest: &GuestSeen| Some((guest.id.clone(), *guest.cost.footprint.latest()?));
        self.footprints = guests.iter().filter_map(known).collect();
        ended
    }

    /// Looks for the cgroup that plays the host; the guests' processes decide which.
    fn find_small_host(&mut self, guests: &[Seen]) {
        let pids: Vec<u32> = guests.iter().map(|guest| guest.found.process.pid).collect();
        let found = Cgroup::small_host(&self.root, &pids, self.memory);
        if let Err(error) = found.and_then(|cgroup| self.sensor.set_small_host(cgroup)) {
            warn!("cannot read the guests' memory cgroup: {error}");
        }
    }

    /// Warns about everything that is wrong with the backends' configuration, each time that this changes.
    fn say_warnings(&mut self) {
        let warnings = self.fleet.warnings();
        if warnings != self.warned {
            warnings.iter().for_each(|line| warn!("{line}"));
            self.warned = warnings.to_vec();
        }
    }
}

/// All RAM that a guest must have mapped by now. Memory of virtio-mem is mapped whole, however little of it is plugged; a device that was added later is
/// in no option.
fn told_ram(guest: &Seen) -> Bytes {
    let told = guest.told.hotplug.latest();
    let plugged = told.map_or(Bytes::ZERO, |hotplug| hotplug.plugged);
    let most = told.map_or(Bytes::ZERO, |hotplug| hotplug.most);
    guest.told.full.saturating_sub(plugged).saturating_add(most.max(guest.found.process.virtio_mem))
}

impl LiveWorld {
    /// A guest with its cost, and what the kernel shows of its memory.
    fn weigh(&mut self, mut guest: Seen, how: Weighing, now: Moment) -> GuestSeen {
        let mut cost = self.costs.of(&guest.found, told_ram(&guest), guest.told.actual(), how, now);
        if matches!(self.config.budget, Budget::Size(_)) {
            // A budget is for all that the guests cost, wherever it lies.
            cost.in_pool = Bytes::ZERO;
        }
        self.tiers.count(guest.found.process.pid, guest.found.id.start(), &mut cost);
        let mapped = self.costs.ram_mapped(&guest.found.id);
        // Nobody has told another size than the assumed one.
        if guest.found.process.is_of_unknown_size && guest.told.claimed {
            guest.told.full = mapped.filter(|bytes| !bytes.is_zero()).unwrap_or(guest.told.full);
        }
        // The command line is known before the mappings are read.
        let withheld = guest.found.withheld.clone().or_else(|| self.costs.withheld(&guest.found.id));
        let mut seen = GuestSeen { withheld, ..look_of(guest, cost) };
        seen.bound_claims(mapped, self.memory);
        seen.tmpfs = self.costs.tmpfs_of(&seen.id, seen.told.full);
        seen
    }
}

impl World for LiveWorld {
    fn observe(&mut self, asking: &mut Asking) -> Snapshot {
        let (manages, locks, costs) = (self.is_managing(), &self.locks, &self.costs);
        self.fleet.told_of().iter().for_each(|id| asking.told_of(id));
        let wish = |id: &GuestId| {
            // Its manager keeps the connection open, and would have to close it for this daemon.
            let sizes = costs.asks_sizes(id);
            let ask = asking.ask(id).or(sizes.then_some(Ask::InTurn)).filter(|_| !locks.is_anothers(id))?;
            Some(Wish { refresh_stats: manages && ask == Ask::OutOfTurn, sizes, keep_open: manages })
        };
        let mut seen = self.fleet.observe(ASK_WITHIN, wish);
        let now = host_clock();
        let wall = wall_clock();
        self.seen_at = (now, wall);
        self.lock_guests(&mut seen, now);
        self.say_warnings();
        self.outsiders.follow(&self.root, self.fleet.outsiders(), now);
        if !self.costs.are_of(&seen) {
            self.find_small_host(&seen);
            let alive = |id: &GuestId| seen.iter().any(|guest| guest.found.id == *id);
            self.costs.keep_only(alive);
            self.history.keep_only(alive);
        }
        self.costs.survey(&seen, &self.history, now);
        let ksm = self.costs.ksm();
        let is_torn = self.host.last.torn.latest().is_some_and(|torn| *torn >= costs::TORN);
        let mut guests: Vec<GuestSeen> = seen
            .into_iter()
            .map(|guest| {
                let how = Weighing { weighs: asking.weigh(&guest.found.id), is_torn, ksm };
                self.weigh(guest, how, now)
            })
            .collect();
        // Its process has ended, and discovery does not know yet.
        guests.retain(|guest| guest.cost.footprint.why_not() != Some(&Absence::Gone));
        let ended = self.ended(&guests);
        self.tiers.look(!ended.is_zero(), now);
        let mut tmpfs = self.costs.tmpfs(&guests, now);
        let told = |id: &GuestId| self.fleet.seen(id)?.found.process.node;
        self.nodes.look(&mut guests, &mut tmpfs, told, now);
        self.killed.extend(self.cgroups.look(&guests, self.sensor.small_host(), now));
        let all = Bytes::sum(guests.iter().filter_map(|guest| guest.cost.footprint.latest().copied()));
        let in_pool = Bytes::sum(guests.iter().map(|guest| guest.cost.in_pool_resident));
        let tiers = guests.iter().filter_map(|guest| guest.cost.tier.latest());
        let in_tiers = Bytes::sum(tiers.map(|tier| tier.held));
        // The small host is an ancestor of every guest's cgroup: all guests lie in it. Huge pages of a pool and tiers are charged to no cgroup.
        let in_small_host = all.saturating_sub(in_pool).saturating_sub(in_tiers);
        let read = self.sensor.observe(GuestCost { all, in_small_host });
        if self.leaves_ksm && self.merger.put_back().is_ok() {
            info!("KSM is as memtide found it");
            self.leaves_ksm = false;
        }
        let ksm = self.see_ksm(&guests, now);
        let (splits, tiers) = (self.splitter.works(), self.tiers.works());
        let read = read.map(|host| {
            let ending = self.ending.look(host.other, ended, now);
            HostSeen { splits, tiers, ksm, ending, ..host }
        });
        let host = self.host.next(read, now);
        self.swap.look(&host.swap, now);
        // Last: an order that comes while the guests are asked need not wait for the next tick.
        let orders = self.orders.take(now);
        Snapshot { taken_at: now, wall, host, guests, tmpfs, orders }
    }

    fn apply(&mut self, action: &Action) -> Result<Applied, ApplyError> {
        let (applied, answer) = match self.request(action) {
            Ok(applied @ Applied::Accepted) => (Ok(applied), Answer::Accepted),
            Ok(applied @ Applied::Yielded(bytes)) => (Ok(applied), Answer::Yielded(bytes)),
            Err(why) => (Err(ApplyError { why: why.clone() }), Answer::Failed(why.to_string())),
        };
        let (at, wall) = self.seen_at;
        self.history.add(action, at, wall, &answer);
        applied
    }

    fn look(&mut self, due: &[GuestId]) -> Vec<(GuestId, Told)> {
        let locks = &self.locks;
        let is_due = |id: &GuestId| due.binary_search(id).is_ok() && !locks.is_anothers(id);
        let wish = Wish { keep_open: true, ..Wish::default() };
        self.fleet.ask(ASK_WITHIN, LOOK_WITHIN, |id| is_due(id).then_some(wish));
        let seen = due.iter().filter(|id| is_due(id)).filter_map(|id| self.fleet.seen(id));
        seen.map(|guest| (guest.found.id.clone(), guest.told)).collect()
    }

    fn warnings(&self) -> Vec<String> {
        self.swap.warning().into_iter().chain(self.cgroups.warnings()).collect()
    }

    fn outsiders(&self) -> Outsiders {
        self.outsiders.list().clone()
    }

    fn killed(&mut self) -> Vec<Killed> {
        std::mem::take(&mut self.killed)
    }

    fn puts_ksm_back(&mut self) -> bool {
        self.merger.has_set() && self.merger.put_back().is_ok()
    }

    fn wait(&mut self, at_most: Duration) -> Wake {
        let mut wake = match self.woken.recv_timeout(at_most) {
            Ok(wake) => wake,
            Err(RecvTimeoutError::Timeout) => return Wake::Timeout,
            Err(RecvTimeoutError::Disconnected) => return Wake::Stop,
        };
        // Several events at once are one.
        while wake == Wake::Event {
            match self.woken.try_recv() {
                Ok(next) => wake = next,
                Err(_) => break,
            }
        }
        if let Wake::Reload(config) = &wake {
            self.reload(config);
        }
        wake
    }
}

/// The last reading of the host's memory. If the next one fails, it counts on, but as an old one.
struct HostReading {
    last: HostSeen,
    read_at: Option<Moment>,
}

impl HostReading {
    /// Nothing was read yet; `unseen` stands for it.
    const fn new(unseen: HostSeen) -> Self {
        Self { last: unseen, read_at: None }
    }

    /// The reading at `now`.
    fn next(&mut self, read: Result<HostSeen, HostError>, now: Moment) -> HostSeen {
        match read {
            Ok(host) => (self.last, self.read_at) = (host, Some(now)),
            Err(error) => {
                let age = self.read_at.map(|at| now.since(at));
                let (swap, pressure) = (&self.last.swap, &self.last.pressure);
                let why = error.absence();
                return HostSeen {
                    swap: swap.clone().aged(age.unwrap_or_default(), &why),
                    pressure: pressure.clone().aged(age.unwrap_or_default(), &why),
                    ksm: self.last.ksm.clone().aged(age.unwrap_or_default(), &why),
                    missed: Some(Missed { why, age }),
                    ..self.last.clone()
                };
            }
        }
        self.last.clone()
    }
}

/// The guests of a daemon with this configuration.
fn admitted(names: &[String], config: &Config) -> Admitted {
    Admitted { names: names.to_vec(), users: Some(config.users.clone()) }
}

/// One guest: what its VMM told, and what it costs.
fn look_of(Seen { found, told }: Seen, cost: Cost) -> GuestSeen {
    GuestSeen {
        id: found.id.clone(),
        pid: found.process.pid,
        user: found.process.user,
        backend: found.vmm.clone(),
        capabilities: found.capabilities,
        cost,
        tmpfs: None,
        withheld: None,
        told,
    }
}

fn wall_clock() -> WallClock {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    WallClock(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use memtide_model::Span;

    use super::*;

    #[test]
    fn a_failed_reading_of_the_host_is_missed_and_the_last_one_ages() {
        let host = |other| HostSeen::of(Bytes::from_mib(2048), Bytes::from_mib(other));
        let failed = || Err(HostError::Gone { pid: 1 });
        let at = Moment::from_millis;
        let mut reading = HostReading::new(host(0));
        let first = reading.next(failed(), at(1000));
        assert_eq!(first.missed, Some(Missed { why: Absence::Gone, age: None }));
        assert_eq!(reading.next(Ok(host(100)), at(2000)), host(100));
        for (now, age) in [(2250, 250), (62_000, 60_000)] {
            let old = reading.next(failed(), at(now));
            let missed = Some(Missed { why: Absence::Gone, age: Some(Span::from_millis(age)) });
            assert_eq!(old, HostSeen { missed, ..host(100) });
        }
        assert_eq!(reading.next(Ok(host(300)), at(63_000)), host(300));
    }
}
