//! The types of the API: the daemon writes them and the commands read them.

use std::fmt;

use memtide_engine::{Counters, LastTick, Published};
use memtide_model::{
    About, Backend, Bytes, Commitment, Fact, FactSource, Fence, GuestId, GuestReport, GuestSeen, HostReport,
    KsmParts, KsmProcess, KsmReport, KsmVerdict, Mode, Moment, Moves, Names, Offers, Outsiders, Parts,
    Polling, Pressure, Reading, Span, SwapCounters, TmpfsReport, Told, UnderWay, Verdict, Withheld, counted,
    name_given, printable,
};
use serde::{Deserialize, Serialize};

use crate::history::{History, KsmPoint, Tried};

/// `GET /v1/status`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// The version of the daemon.
    pub version: String,
    /// Whether the daemon may act.
    pub mode: Mode,
    /// The promise of the ledger.
    pub commitment: Commitment,
    /// What is going on, in one sentence; `None` without guests, or if the last decision is old.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sentence: Option<String>,
    /// Facts that an operator should know now.
    pub warnings: Vec<String>,
    /// The rights that the daemon has given up, and those that it could not; a phrase each.
    #[serde(default)]
    pub confined: Vec<String>,
    /// Counts since the daemon started.
    pub counters: Counters,
    /// How long the oldest decision waits that is to be written to the journal; `None` if none waits for long.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unwritten: Option<Span>,
    /// The time of the last decision; `None` before the first.
    pub decided_at: Option<Moment>,
    /// The time since then, when this was told; `None` in the stream of events, whose ticks have just been decided.
    #[serde(default)]
    pub age: Option<Span>,
    /// The time that it took to observe, decide and act.
    pub took: Span,
    /// The host's side of the ledger.
    pub host: HostReport,
    /// Traffic of the host's swap; absent if the host has no swap.
    pub swap: Option<SwapCounters>,
    /// How long programs of the host have waited for memory since its boot; absent if its kernel has no PSI.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub pressure: Option<Pressure>,
    /// The guests, ordered by identity.
    pub guests: Vec<GuestStatus>,
    /// Guests that are not among these, because the list `users` of the configuration does not have their users.
    #[serde(default)]
    pub outsiders: Outsiders,
}

/// One guest in `GET /v1/status`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestStatus {
    /// The name for people: `name`, or `name@start` if several guests have this name.
    pub name: String,
    /// Its process.
    pub pid: u32,
    /// Its backend.
    pub backend: Backend,
    /// How its statistics are polled.
    pub polling: Polling,
    /// The numbers behind the last decision.
    #[serde(flatten)]
    pub report: GuestReport,
    /// Where its memory is; `None` from a daemon that does not tell.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub parts: Option<Parts>,
    /// How its programs have waited for memory since its boot.
    #[serde(default)]
    pub stalled: Stalled,
    /// How much it matters now; `None` from a daemon that does not tell.
    #[serde(default)]
    pub matter: Option<Matter>,
    /// Its present state, in a few words.
    pub state: String,
    /// The reason for its last change, in words.
    pub last_reason: Option<String>,
    /// The time since that change.
    pub last_change: Option<Span>,
    /// Whether its class lets KSM merge its memory, and KSM cannot: it is a file.
    #[serde(default)]
    pub cannot_share: bool,
}

/// How much a guest matters now: the order in which guests are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Matter {
    /// It lacks memory, and waits for it.
    Waits,
    /// It does not do what memtide asked for.
    Stuck,
    /// It gets memory.
    Gets,
    /// It gives memory.
    Gives,
    /// It was just hurt, held or changed by somebody else.
    Unusual,
    /// It has the memory that it should have.
    Steady,
    /// memtide does not manage it.
    Apart,
}

impl Matter {
    /// All of them, what matters most first.
    pub const ALL: [Self; 7] =
        [Self::Waits, Self::Stuck, Self::Gets, Self::Gives, Self::Unusual, Self::Steady, Self::Apart];

    /// How much the guest of this report matters.
    #[must_use]
    pub fn of(report: &GuestReport) -> Self {
        match report.moves() {
            Some(Moves::Gets) => return Self::Gets,
            Some(Moves::Gives) => return Self::Gives,
            None => {}
        }
        match report.verdict {
            Verdict::WaitsForMemory { .. } => Self::Waits,
            Verdict::Stuck { .. } => Self::Stuck,
            Verdict::BackingOff { .. } | Verdict::Held(_) | Verdict::HoldEnds { .. } | Verdict::Reset => {
                Self::Unusual
            }
            Verdict::NotManaged | Verdict::Withheld(_) | Verdict::Fenced(_) | Verdict::NoBalloon(_) => {
                Self::Apart
            }
            _ => Self::Steady,
        }
    }
}

/// How a guest's programs have waited for memory since its boot, as far as it tells.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stalled {
    /// For how long some program waited, in microseconds (PSI); only an agent tells.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub some_us: Option<u64>,
    /// How many allocations waited; old drivers do not tell.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub count: Option<u64>,
}

impl Stalled {
    fn of(told: &Told) -> Self {
        Self {
            some_us: told.agent.latest().and_then(|agent| agent.stalls).map(|stalls| stalls.memory_some_us),
            count: told.stats.latest().and_then(|stats| stats.alloc_stalls),
        }
    }
}

/// `GET /v1/ksm`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KsmStatus {
    /// The time of the last decision; `None` before the first.
    pub decided_at: Option<Moment>,
    /// What was seen and done; `None` if the kernel has no KSM, or memtide does not look.
    pub ksm: Option<KsmReport>,
    /// Where the saving is, as far as the kernel tells.
    #[serde(default)]
    pub parts: KsmParts,
    /// What KSM saved in the last hour, the oldest first.
    pub history: Vec<KsmPoint>,
    /// The processes that KSM may merge.
    pub processes: Vec<KsmUser>,
}

/// A process that KSM may merge.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KsmUser {
    /// The guest, as the status shows it; `None` if it is no guest's process.
    pub guest: Option<String>,
    /// What the kernel tells of it.
    #[serde(flatten)]
    pub process: KsmProcess,
}

impl KsmStatus {
    /// The status of KSM, beside the `status` of the same moment.
    #[must_use]
    pub fn new(status: Status, history: &History) -> Self {
        let (mut points, processes) = history.ksm();
        let now = status.decided_at.zip(status.host.ksm.as_ref());
        points.extend(now.map(|(at, ksm)| KsmPoint::new(at, &ksm.seen)));
        let parts = |ksm: &KsmReport| KsmParts::of(&ksm.seen, &processes, ksm.burst_ended_with);
        let parts = status.host.ksm.as_ref().map(parts).unwrap_or_default();
        let user = |process: KsmProcess| {
            let guest = status.guests.iter().find(|guest| guest.pid == process.pid);
            KsmUser { guest: guest.map(|guest| guest.name.clone()), process }
        };
        let processes = processes.into_iter().map(user).collect();
        Self { decided_at: status.decided_at, ksm: status.host.ksm, parts, history: points, processes }
    }
}

/// `POST /v1/holds`: leave guests alone, or manage them again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HoldRequest {
    /// The guest, as the status shows it; `None` means all present guests.
    #[serde(default)]
    pub guest: Option<String>,
    /// The order.
    pub hold: Wanted,
    /// Its duration; `None` means until the next order.
    #[serde(rename = "for", default)]
    pub for_span: Option<Span>,
}

impl HoldRequest {
    /// The shortest duration of an order.
    pub const SHORTEST: Span = Span::from_secs(1);
    /// The longest duration: 100 years. Without a duration, an order lasts until `resume`.
    pub const LONGEST: Span = Span::from_secs(100 * 365 * 24 * 3600);

    /// Whether an order may last this long.
    #[must_use]
    pub fn may_last(span: Span) -> bool {
        (Self::SHORTEST..=Self::LONGEST).contains(&span)
    }

    /// The order in the body of a request.
    ///
    /// # Errors
    /// Why the body is not an order, for people.
    pub fn read(body: &[u8]) -> Result<Self, String> {
        let request: Self = serde_json::from_slice(body).map_err(|error| {
            let example = r#"{"guest": "web1", "hold": "hold", "for": 60000}"#;
            format!("the body is not an order such as {example}: {error}")
        })?;
        if request.for_span.is_some_and(|span| !Self::may_last(span)) {
            let why = "`for` is in milliseconds, from a second to 100 years; without it an order lasts until `resume`";
            return Err(why.to_owned());
        }
        if request.hold == Wanted::Resume && request.for_span.is_some() {
            return Err("`for` has no meaning with `resume`: leave it out".to_owned());
        }
        Ok(request)
    }
}

/// An order for a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Wanted {
    /// Leave it alone at its present size.
    Hold,
    /// Give it its limit, then leave it alone.
    Release,
    /// Manage it again.
    Resume,
}

/// As typed on the command line.
impl fmt::Display for Wanted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Hold => "hold",
            Self::Release => "release",
            Self::Resume => "resume",
        })
    }
}

/// The answer to `POST /v1/holds`: the guests after the decision that heard the order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HoldAnswer {
    /// Whether memtide manages.
    pub mode: Mode,
    /// Whether a decision has heard the order.
    pub decided: bool,
    /// Whether the order is in the journal, so that it survives a restart of the daemon.
    pub written: bool,
    /// The warnings of the status, such as the reason why memtide only observes.
    #[serde(default)]
    pub warnings: Vec<String>,
    /// The guests of the order.
    pub guests: Vec<GuestStatus>,
}

/// `GET /v1/guests/NAME`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestDetail {
    /// As in the status.
    #[serde(flatten)]
    pub status: GuestStatus,
    /// All observations of it.
    pub seen: GuestSeen,
    /// The tmpfs that holds its memory, if that has a limit.
    #[serde(default)]
    pub tmpfs: Option<TmpfsReport>,
    /// The reservation of its class.
    pub reservation: Bytes,
    /// Its limit.
    pub limit: Bytes,
    /// Its weight.
    pub shares: u32,
    /// What is known of its memory and its VMM, and from where.
    #[serde(default)]
    pub facts: Vec<Fact>,
    /// Its last changes, the newest last.
    pub changes: Vec<Tried>,
    /// The accepted requests whose memory has not all come back yet.
    #[serde(default)]
    pub under_way: Vec<UnderWay>,
    /// The clock of `changes[].at` now.
    pub now: Moment,
    /// Whether memtide may act.
    pub mode: Mode,
    /// What it could give now, and why that is not taken; `None` from a daemon that does not tell.
    #[serde(default)]
    pub offers: Option<Offers>,
}

/// The body of `POST /v1/cgroup-reclaims`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CgroupReclaimRequest {
    /// The guest, as the status shows it.
    pub guest: String,
    /// The most memory to reclaim from its cgroup on the host.
    pub bytes: Bytes,
}

impl CgroupReclaimRequest {
    /// The most memory that can be reclaimed at a time. The kernel takes up to seconds for each GiB.
    pub const MOST: Bytes = Bytes::from_mib(1024);

    /// The order in the body of a request.
    ///
    /// # Errors
    /// Why the body is not an order, for people.
    pub fn read(body: &[u8]) -> Result<Self, String> {
        let request: Self = serde_json::from_slice(body).map_err(|error| {
            let example = r#"{"guest": "web1", "bytes": 67108864}"#;
            format!("the body is not an order such as {example}: {error}")
        })?;
        if request.bytes.is_zero() {
            return Err("`bytes` must be more than zero".to_owned());
        }
        if request.bytes > Self::MOST {
            return Err(format!("at most {} at a time", Self::MOST));
        }
        Ok(request)
    }
}

/// The answer to `POST /v1/cgroup-reclaims`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CgroupReclaimAnswer {
    /// Whether memtide manages. A daemon that observes reclaims nothing.
    pub mode: Mode,
    /// What became of the order; `None` if no decision has heard it yet, or if memtide must leave the guest alone.
    pub tried: Option<Tried>,
    /// The guest.
    pub guest: GuestStatus,
}

impl Status {
    /// Decisions are at most two seconds apart, and one takes less than that: an older one is the last of a daemon that no longer decides.
    const TOO_OLD: Span = Span::from_secs(10);

    /// The age of the last decision, if it is too old.
    #[must_use]
    pub fn is_late_by(&self) -> Option<Span> {
        self.age.filter(|age| *age > Self::TOO_OLD)
    }

    /// What is going on, in one sentence; `None` without guests.
    #[must_use]
    pub fn in_a_sentence(&self) -> Option<String> {
        let first = self.guests.first()?.report.full;
        let count = self.guests.len() as u64;
        let sizes = || self.guests.iter().map(|guest| guest.report.full);
        let of = match sizes().all(|full| full == first) {
            true => format!("{} of {first}", counted(count, "guest")),
            false => format!("{} with {} together", counted(count, "guest"), Bytes::sum(sizes())),
        };
        let verb = if count == 1 { "runs" } else { "run" };
        let runs = format!("{of} {verb} in {}", self.host.footprints);
        if self.mode == Mode::Observe {
            return Some(format!("{runs}; memtide observes, and moves nothing"));
        }
        if self.is_late_by().is_some() {
            return None;
        }
        let number =
            |is: &dyn Fn(&GuestReport) -> bool| self.guests.iter().filter(|guest| is(&guest.report)).count();
        let giving = number(&|guest| guest.moves() == Some(Moves::Gives));
        let getting = number(&|guest| guest.moves() == Some(Moves::Gets));
        let doing = |(count, what): (usize, &str)| match count {
            0 => None,
            1 => Some(format!("1 is {what}")),
            many => Some(format!("{many} are {what}")),
        };
        let moving: Vec<String> =
            [(giving, "giving memory"), (getting, "getting more")].into_iter().filter_map(doing).collect();
        let moving = if moving.is_empty() { "nothing moves".to_owned() } else { moving.join(", ") };
        let waits = match number(&|guest| matches!(guest.verdict, Verdict::WaitsForMemory { .. })) {
            0 => "nobody waits for memory".to_owned(),
            1 => "1 waits for memory".to_owned(),
            many => format!("{many} wait for memory"),
        };
        Some(format!("{runs}; {moving}; {waits}"))
    }

    /// The status for the engine's published state.
    #[must_use]
    pub fn new(published: &Published) -> Self {
        let mut status = Self {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            mode: published.config.mode,
            commitment: published.config.commitment,
            sentence: None,
            warnings: published.warnings.clone(),
            confined: Vec::new(),
            counters: published.counters,
            unwritten: published.unwritten,
            decided_at: None,
            age: None,
            took: Span::ZERO,
            host: HostReport::default(),
            swap: None,
            pressure: None,
            guests: Vec::new(),
            outsiders: published.outsiders.clone(),
        };
        if let Some(last) = &published.last {
            status.decided_at = Some(last.seen.taken_at);
            status.took = last.took;
            status.host = last.report.host.clone();
            status.swap = last.seen.host.swap.latest().copied();
            status.pressure = last.seen.host.pressure.latest().copied();
            status.warnings.extend(managed_elsewhere(&last.report.guests));
            let foreign = last.report.host.ksm.as_ref().filter(|ksm| ksm.verdict == KsmVerdict::Foreign);
            status.warnings.extend(foreign.map(KsmReport::anothers));
            let names = last.report.names();
            let guests = last.report.guests.iter();
            status.guests =
                guests.filter_map(|report| GuestStatus::new((published, last), report, &names)).collect();
            status.sentence = status.in_a_sentence();
        }
        status
    }
}

impl GuestStatus {
    fn new(
        (published, last): (&Published, &LastTick),
        report: &GuestReport,
        names: &Names<'_>,
    ) -> Option<Self> {
        let seen = last.seen.guests.iter().find(|guest| guest.id == report.id)?;
        let reason = last.state.guests.get(&report.id).and_then(|remembered| remembered.last_reason);
        Some(Self {
            name: names.name(&report.id),
            pid: seen.pid,
            backend: seen.backend.clone(),
            polling: seen.told.polling,
            report: report.clone(),
            parts: Some(Parts::of(seen, report)),
            stalled: Stalled::of(&seen.told),
            matter: Some(Matter::of(report)),
            state: match (&report.verdict, seen.told.polling) {
                (Verdict::Observed, Polling::Off) => "observed; nobody polls its statistics".to_owned(),
                _ => report.in_words(names, last.seen.taken_at),
            },
            last_reason: reason.map(|(_, reason)| reason.to_string()),
            last_change: reason.map(|(at, _)| last.seen.taken_at.since(at)),
            cannot_share: seen.capabilities.plugs && published.config.class_of_seen(seen).1.share,
        })
    }
}

impl GuestDetail {
    /// The guest with this name: the one that is shown, or the one that it was given.
    #[must_use]
    pub fn find(published: &Published, history: &History, name: &str) -> Option<Self> {
        let last = published.last.as_ref()?;
        let (names, id) = (last.report.names(), guest_id(published, name)?);
        let report = last.report.guests.iter().find(|guest| guest.id == id)?;
        let status = GuestStatus::new((published, last), report, &names)?;
        let seen = last.seen.guests.iter().find(|guest| guest.id == status.report.id)?.clone();
        let (_, class) = published.config.class_of_seen(&seen);
        let bounds = memtide_model::Bounds::of(&class, seen.told.full);
        let tmpfs = last.report.host.tmpfs.iter().find(|tmpfs| Some(tmpfs.id) == seen.tmpfs).cloned();
        Some(Self {
            tmpfs,
            facts: facts(
                &seen,
                history,
                last.state.guests.get(&seen.id).and_then(|guest| guest.polled_before),
            ),
            changes: history.of(&seen.id),
            under_way: last.state.guests.get(&seen.id).map_or_else(Vec::new, |guest| guest.under_way.clone()),
            reservation: bounds.reservation(),
            limit: bounds.limit(),
            shares: class.shares,
            now: last.seen.taken_at,
            mode: published.config.mode,
            offers: None,
            status,
            seen,
        })
    }

    /// The same with what it could give now: that is a decision about all guests.
    #[must_use]
    pub fn with_offers(mut self, published: &Published) -> Self {
        self.offers = published.last.as_ref().and_then(|last| {
            memtide_engine::offers(&published.config, &last.state, &last.seen, &self.seen.id)
        });
        self
    }
}

/// The guest with this name: the one that is shown, or the one that it was given.
pub(crate) fn guest_id(published: &Published, name: &str) -> Option<GuestId> {
    let report = &published.last.as_ref()?.report;
    let names = report.names();
    let found = report.guests.iter().find(|guest| is_called(&names.name(&guest.id), name))?;
    Some(found.id.clone())
}

/// Whether a guest that is shown as `shown` is meant by `name`: `shown` itself, or the whole name that the guest was given.
#[must_use]
pub fn is_called(shown: &str, name: &str) -> bool {
    shown == name || shown == name_given(name)
}

/// What is known of a guest, with what its VMM says of its size.
fn facts(seen: &GuestSeen, history: &History, polled_before: Option<Polling>) -> Vec<Fact> {
    let mut facts = history.facts(&seen.id);
    // An instance of UML has no other size than that of its command line.
    if !seen.told.claimed && !seen.capabilities.plugs {
        let hotplug = seen.told.hotplug.latest();
        let plugged = hotplug.map_or_else(String::new, |hotplug| {
            format!(", {} of it by virtio-mem, which can plug {}", hotplug.plugged, hotplug.most)
        });
        let full = seen.told.full;
        let started_with = full.saturating_sub(hotplug.map_or(Bytes::ZERO, |hotplug| hotplug.plugged));
        let named = facts.iter().find_map(|fact| fact.bytes.filter(|_| fact.about == About::Size));
        if let Some(named) = named.filter(|named| *named != started_with) {
            let says = format!(
                "its start names {named}, its VMM tells {full}, with all that was plugged since: {full} counts"
            );
            facts.push(Fact::new(About::Contradiction, says, FactSource::Vmm));
        }
        facts.push(Fact::new(About::Size, format!("{full}{plugged}"), FactSource::Vmm));
    }
    if let Some(terms) = &seen.told.terms {
        facts.push(Fact::new(About::Terms, printable(&terms.in_words()), FactSource::Libvirt));
    }
    if let Some(Fence::Owned(owner)) = seen.told.fence {
        facts.push(Fact::new(About::Balloon, owner.to_string(), FactSource::Vmm));
    }
    if let Some(Polling::Every(every)) = polled_before {
        let says = format!("was polled every {every} before memtide, which restores this when it stops");
        facts.push(Fact::new(About::Polling, says, FactSource::Vmm));
    }
    if let Some(why @ Withheld::GivesNothing { .. }) = &seen.withheld {
        facts.retain(|fact| fact.about != About::Gives);
        facts.push(Fact::new(About::Gives, format!("nothing: {why}"), FactSource::Kernel));
    }
    facts.sort_by_key(|fact| fact.about);
    facts
}

/// The guests that other daemons manage, one line for each of these daemons.
fn managed_elsewhere(guests: &[GuestReport]) -> Vec<String> {
    let mut counts = std::collections::BTreeMap::<u32, usize>::new();
    for guest in guests {
        if let Verdict::Fenced(Fence::Another { pid }) = guest.verdict {
            *counts.entry(pid).or_default() += 1;
        }
    }
    let all = guests.len();
    let line = |(pid, count): (u32, usize)| {
        format!(
            "another memtide (process {pid}) manages {count} of {all} guests: this one only observes them"
        )
    };
    counts.into_iter().map(line).collect()
}

/// The quality of a reading, for people: `4.2 s old`, `4.2 s old: reason` or `absent: reason`.
#[must_use]
pub fn quality<T>(reading: &Reading<T>) -> String {
    match reading {
        Reading::Fresh { age, .. } => format!("{age} old"),
        Reading::Stale { age, why, .. } => format!("{age} old: {why}"),
        Reading::Absent { why } => format!("absent: {why}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guest_is_found_by_what_is_shown_and_by_the_whole_name_that_it_was_given() {
        let long = "n".repeat(500);
        let shown = name_given(&long);
        for (shown, name, is_it) in [
            ("web", "web", true),
            ("web@17", "web@17", true),
            // Two guests have this name: a bare name means neither.
            ("web@17", "web", false),
            ("a_b", "a@b", true),
            (&shown, &long, true),
            (&shown, &format!("{long}n"), false),
        ] {
            assert_eq!(is_called(shown, name), is_it, "{shown} {name}");
        }
    }

    #[test]
    fn an_order_is_told_to_people_in_the_word_that_programs_write() {
        for wanted in [Wanted::Hold, Wanted::Release, Wanted::Resume] {
            assert_eq!(serde_json::to_value(wanted).unwrap(), wanted.to_string());
        }
    }
}
