//! The keys of a scenario file, and the setup that they describe.

mod check;

use std::collections::BTreeSet;
use std::num::NonZeroU32;
use std::sync::Arc;

use memtide_config::{MistakeAt, read_policy};
use memtide_guest::{Course, File as FileSpec, Kernel, Program as ProgramSpec, Spec};
use memtide_model::{Budget, Bytes, Config, Fence, MIB, Span};
use serde::Deserialize;
use toml::Spanned;

use super::bounds::Keep;
use super::positions::Positions;
use super::values::{self, PerMille, Rate, Size, SizeOrFull, Time, Times};
use super::{Mistake, Scenario};
use crate::run::{Manager, known_as};
use crate::setup::{
    EqualMemory, Fault, FaultKind, GuestSetup, HostSpec, Lie, ProcessorsSpec, Setup, WhenFull,
};

/// The most guests in a scenario.
const MOST_GUESTS: u32 = 20_000;
/// The most repetitions of one fault: a machine looks at every fault all the time.
const MOST_TIMES: u64 = 10_000;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct File {
    #[serde(default)]
    about: String,
    #[serde(default = "an_hour", deserialize_with = "values::length")]
    lasts: Time,
    #[serde(default)]
    seed: u64,
    #[serde(default)]
    host: Host,
    /// Read by [`read_policy`].
    #[serde(default, rename = "memtide")]
    _memtide: serde::de::IgnoredAny,
    guest: Vec<Guest>,
    #[serde(default)]
    fault: Vec<FaultEntry>,
    #[serde(default)]
    keep: Vec<Keep>,
}

const fn an_hour() -> Time {
    Time(Span::from_secs(3_600))
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Host {
    #[serde(deserialize_with = "values::memory")]
    memory: Option<Size>,
    other: Option<Size>,
    other_up_to: Option<Size>,
    other_changes: Option<Time>,
    swap: Option<Size>,
    splits: Option<bool>,
    tiers: Option<bool>,
    when_full: Option<Full>,
    #[serde(deserialize_with = "values::memory")]
    tmpfs: Option<Size>,
    processors: Option<NonZeroU32>,
    processors_busy: u32,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Full {
    Kill,
    Count,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Guest {
    name: Spanned<String>,
    #[serde(default = "one")]
    count: Spanned<u32>,
    #[serde(default, deserialize_with = "values::memory")]
    memory: Option<Size>,
    kernel: Option<KernelName>,
    starts: Option<Time>,
    starts_every: Option<Time>,
    ends: Option<Time>,
    boots_for: Option<Time>,
    balloon: Option<bool>,
    agent: Option<bool>,
    agent_takes: Option<Time>,
    deflate_on_oom: Option<bool>,
    counts_reads: Option<bool>,
    free_page_reporting: Option<bool>,
    inflates: Option<Rate>,
    deflates: Option<Rate>,
    deflates_itself: Option<Rate>,
    reclaims: Option<Rate>,
    disk: Option<Rate>,
    swap: Option<Size>,
    swap_speed: Option<Rate>,
    overhead: Option<Size>,
    overhead_bound: Option<Size>,
    kernel_uses: Option<Size>,
    torn: Option<PerMille>,
    #[serde(default)]
    gives_nothing: bool,
    uses: Option<Size>,
    cold_cache: Option<SizeOrFull>,
    equal: Option<Size>,
    equal_changes: Option<Time>,
    #[serde(default)]
    in_tmpfs: bool,
    #[serde(default)]
    program: Vec<Program>,
    #[serde(default)]
    file: Vec<FileEntry>,
}

fn one() -> Spanned<u32> {
    Spanned::new(0..0, 1)
}

#[derive(Clone, Copy, Debug, Deserialize)]
enum KernelName {
    #[serde(rename = "4.19")]
    V4_19,
    #[serde(rename = "6.1")]
    V6_1,
    #[serde(rename = "6.12")]
    V6_12,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Program {
    uses: Size,
    grows_to: Option<Size>,
    rate: Option<Rate>,
    at: Option<Time>,
    at_every: Option<Time>,
    holds: Option<Time>,
    every: Option<Time>,
    drifts_to: Option<Size>,
    drift: Option<Rate>,
    touches: Option<Rate>,
    touches_from: Option<Time>,
    compresses: Option<Times>,
    starts: Option<Time>,
    ends: Option<Time>,
    restarts: Option<Time>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct FileEntry {
    size: Option<Size>,
    rate: Rate,
    mapped: Option<bool>,
    cached: Option<bool>,
    dropped: Option<bool>,
    starts: Option<Time>,
    ends: Option<Time>,
    reads: Option<Time>,
    every: Option<Time>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct FaultEntry {
    at: Time,
    #[serde(default)]
    lasts: Option<Time>,
    every: Option<Spanned<Time>>,
    times: Option<u64>,
    guest: Option<Spanned<String>>,
    is: Spanned<FaultName>,
    target: Option<Size>,
    size: Option<Size>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum FaultName {
    Refuses,
    Stuck,
    SaysNothingAvailable,
    SaysAllAvailable,
    SaysStalls,
    SaysKills,
    SaysScans,
    SaysAnything,
    Silent,
    Reset,
    SelfDeflates,
    Vanishes,
    Paused,
    Migrating,
    Late,
    AnswersLost,
    ForeignTarget,
    Unreadable,
    Unknown,
    WrongSize,
    SaidPinned,
    HostUnreadable,
    ClockJumps,
    Suspended,
    DaemonKilled,
    DiskFull,
}

impl FaultName {
    /// Whether it happens to the host or the daemon, and to no guest.
    const fn is_of_host(self) -> bool {
        matches!(
            self,
            Self::HostUnreadable | Self::ClockJumps | Self::Suspended | Self::DaemonKilled | Self::DiskFull
        )
    }
}

impl File {
    pub(super) fn parse(text: &str) -> Result<Self, Mistake> {
        toml::from_str(text).map_err(|error| Mistake::of(text, &error))
    }

    pub(super) fn scenario(self, text: &str) -> Result<Scenario, Mistake> {
        let positions = Positions::of(text);
        check::check(&self, &positions)?;
        let guests = guests(&self.guest, text)?;
        let mut config = Config { budget: Budget::Size(self.host.spec().memory), ..Config::default() };
        let has_commitment = read_policy(text, "memtide", &mut config)
            .map_err(|MistakeAt { line, column, message }| Mistake { line, column, message })?;
        let faults = faults(&self.fault, &guests, self.lasts.0, text)?;
        let commitments = match has_commitment {
            true => vec![Manager::Memtide(std::mem::take(&mut config.commitment))],
            false => vec![Manager::STRICT, Manager::ELASTIC],
        };
        let names: Vec<&str> = guests.iter().map(|guest| guest.name.as_str()).collect();
        let bounds = self.keep.iter().enumerate();
        let bounds = bounds.map(|(index, keep)| keep.bounds(&names, &positions.top().nth("keep", index)));
        let bounds = bounds.collect::<Result<_, _>>()?;
        let setup =
            Setup { lasts: self.lasts.0, seed: self.seed, host: self.host.spec(), guests, faults, config };
        Ok(Scenario { about: self.about, setup, commitments, bounds })
    }
}

impl Host {
    fn spec(&self) -> HostSpec {
        let default = HostSpec::default();
        let other = self.other.map_or(default.other, |size| size.0);
        HostSpec {
            memory: self.memory.map_or(default.memory, |size| size.0),
            other,
            other_most: self.other_up_to.map_or(other, |size| size.0),
            noise_every: self.other_changes.map_or(default.noise_every, |time| time.0),
            swap: self.swap.map_or(default.swap, |size| size.0),
            splits: self.splits.unwrap_or(default.splits),
            tiers: self.tiers.unwrap_or(default.tiers),
            when_full: match self.when_full {
                Some(Full::Count) => WhenFull::Count,
                Some(Full::Kill) | None => WhenFull::Kill,
            },
            tmpfs: self.tmpfs.map(|size| size.0),
            processors: self.processors.map(|number| ProcessorsSpec { number, busy: self.processors_busy }),
            ..default
        }
    }
}

fn guests(entries: &[Guest], text: &str) -> Result<Vec<GuestSetup>, Mistake> {
    let mut guests: Vec<GuestSetup> = Vec::new();
    // Guests are told apart by what their ids keep of their names.
    let mut known = BTreeSet::new();
    for entry in entries {
        let count = *entry.count.get_ref();
        if count == 0 || count > MOST_GUESTS {
            let message = format!("count: write 1 to {MOST_GUESTS}");
            return Err(Mistake::at(text, &entry.count.span(), message));
        }
        let digits = count.to_string().len();
        for number in 0..count {
            let base = entry.name.get_ref();
            let name = match count {
                1 => base.clone(),
                _ => format!("{base}-{:0digits$}", number + 1),
            };
            if !known.insert(known_as(&name).name().to_owned()) {
                let message = format!("name: another guest is named `{name}`");
                return Err(Mistake::at(text, &entry.name.span(), message));
            }
            guests.push(entry.guest(name, u64::from(number)));
        }
    }
    Ok(guests)
}

/// `time` for the guest with this number, if each guest comes `every` after the one before.
fn staggered(time: Option<Time>, every: Option<Time>, number: u64) -> Span {
    let time = time.map_or(0, |time| time.0.as_millis());
    let every = every.map_or(0, |every| every.0.as_millis());
    Span::from_millis(time + every * number)
}

impl Guest {
    fn guest(&self, name: String, number: u64) -> GuestSetup {
        let default = Spec::default();
        let size = |size: Option<Size>, default: Bytes| size.map_or(default, |size| size.0);
        let rate = |rate: Option<Rate>, default: u64| rate.map_or(default, |rate| rate.0);
        let uses = self.uses.map(|size| ProgramSpec::constant(size.0));
        let programs = self.program.iter().map(|program| program.spec(number));
        let (cold, full_of_cold) = match self.cold_cache {
            Some(SizeOrFull::Size(bytes)) => (bytes, false),
            Some(SizeOrFull::Full) => (Bytes::ZERO, true),
            None => (Bytes::ZERO, false),
        };
        let overhead = size(self.overhead, default.overhead);
        let spec = Spec {
            memory: size(self.memory, default.memory),
            kernel: match self.kernel {
                Some(KernelName::V4_19) => Kernel::V4_19,
                Some(KernelName::V6_1) => Kernel::V6_1,
                Some(KernelName::V6_12) | None => Kernel::V6_12,
            },
            kernel_size: size(self.kernel_uses, default.kernel_size),
            slab: default.slab,
            boots_for: self.boots_for.map_or(default.boots_for, |time| time.0),
            balloon: self.balloon.unwrap_or(default.balloon),
            agent: self.agent.unwrap_or(default.agent),
            agent_takes: self.agent_takes.map_or(default.agent_takes, |time| time.0),
            deflate_on_oom: self.deflate_on_oom.unwrap_or(default.deflate_on_oom),
            counts_reads: self.counts_reads.unwrap_or(default.counts_reads),
            free_page_reporting: self.free_page_reporting.unwrap_or(default.free_page_reporting),
            reporting_delay: default.reporting_delay,
            reporting_pass: default.reporting_pass,
            inflates: rate(self.inflates, default.inflates),
            deflates: rate(self.deflates, default.deflates),
            deflates_itself: rate(self.deflates_itself, default.deflates_itself),
            reclaims: rate(self.reclaims, default.reclaims),
            disk: rate(self.disk, default.disk),
            swap: size(self.swap, default.swap),
            swap_speed: rate(self.swap_speed, default.swap_speed),
            overhead,
            overhead_bound: size(self.overhead_bound, overhead),
            torn_per_mille: self.torn.map_or(0, |share| share.0),
            gives_nothing: self.gives_nothing,
            programs: uses.into_iter().chain(programs).collect(),
            files: self.file.iter().map(FileEntry::spec).collect(),
            cold,
            full_of_cold,
        };
        GuestSetup {
            name,
            spec: Arc::new(spec),
            equal: self.equal.map(|size| EqualMemory {
                size: size.0,
                changes_every: self.equal_changes.map(|every| every.0),
            }),
            in_tmpfs: self.in_tmpfs,
            arrives: staggered(self.starts, self.starts_every, number),
            leaves: self.ends.map(|time| time.0),
        }
    }
}

impl Program {
    fn spec(&self, number: u64) -> ProgramSpec {
        let course = match (self.grows_to, self.drifts_to) {
            (Some(to), _) => Course::Rise {
                to: to.0,
                at: staggered(self.at, self.at_every, number),
                holds: self.holds.map(|time| time.0),
                every: self.every.map(|time| time.0),
            },
            (None, Some(to)) => Course::Drift { to: to.0, rate: self.drift.map_or(15 * MIB, |rate| rate.0) },
            (None, None) => Course::Constant,
        };
        let default = ProgramSpec::constant(self.uses.0);
        ProgramSpec {
            rate: self.rate.map_or(default.rate, |rate| rate.0),
            touches: self.touches.map_or(default.touches, |rate| rate.0),
            touches_from: self.touches_from.map_or(default.touches_from, |time| time.0),
            compresses: self.compresses.map_or(default.compresses, |times| times.0),
            course,
            starts: self.starts.map_or(default.starts, |time| time.0),
            ends: self.ends.map(|time| time.0),
            restarts: self.restarts.map_or(default.restarts, |time| Some(time.0)),
            ..default
        }
    }
}

impl FileEntry {
    fn spec(&self) -> FileSpec {
        FileSpec {
            size: self.size.map(|size| size.0),
            rate: self.rate.0,
            mapped: self.mapped.unwrap_or(false),
            cached: self.cached.unwrap_or(true) && self.size.is_some(),
            dropped: self.dropped.unwrap_or(false),
            starts: self.starts.map_or(Span::ZERO, |time| time.0),
            ends: self.ends.map(|time| time.0),
            periods: self.reads.zip(self.every).map(|(reads, every)| (reads.0, every.0)),
        }
    }
}

fn faults(
    entries: &[FaultEntry],
    guests: &[GuestSetup],
    end: Span,
    text: &str,
) -> Result<Vec<Fault>, Mistake> {
    let mut faults = Vec::new();
    for entry in entries {
        let kind = entry.kind(text)?;
        let lasts = entry.lasts();
        let begins = entry.begins(end, text)?;
        let happen = |guest| begins.iter().map(move |&at| Fault { at, lasts, guest, kind });
        let of_host = entry.is.get_ref().is_of_host();
        let wrong = |message: &str| Err(Mistake::at(text, &entry.is.span(), message));
        let Some(pattern) = entry.guest.as_ref().filter(|_| !of_host) else {
            if !of_host {
                return wrong("is: this fault needs a guest: add guest = \"NAME\"");
            }
            faults.extend(happen(None));
            continue;
        };
        let matching = guests.iter().enumerate();
        let matching =
            matching.filter(|(_, guest)| memtide_model::name_matches(pattern.get_ref(), &guest.name));
        let matching: Vec<usize> = matching.map(|(index, _)| index).collect();
        faults.extend(matching.iter().flat_map(|&index| happen(Some(index))));
        if matching.is_empty() {
            let message = format!("guest: there is no guest `{}`", pattern.get_ref());
            return Err(Mistake::at(text, &pattern.span(), message));
        }
    }
    Ok(faults)
}

impl FaultEntry {
    fn lasts(&self) -> Span {
        self.lasts.map_or(Span::from_millis(1), |time| time.0)
    }

    /// The moments at which it begins: once, or repeatedly after each `every`, `times` times or until the `end`.
    fn begins(&self, end: Span, text: &str) -> Result<Vec<Span>, Mistake> {
        let Some(every) = &self.every else {
            return Ok(vec![self.at.0]);
        };
        let wrong = |message: String| Err(Mistake::at(text, &every.span(), message));
        let (first, step) = (self.at.0.as_millis(), every.get_ref().0.as_millis());
        if step <= self.lasts().as_millis() {
            return wrong("every: the fault would start again before it ends".to_owned());
        }
        let until_end = end.as_millis().saturating_sub(first).div_ceil(step);
        let times = self.times.unwrap_or(u64::MAX).min(until_end);
        if times > MOST_TIMES {
            return wrong(format!("every: the fault would happen {times} times; at most {MOST_TIMES}"));
        }
        Ok((0..times).map(|number| Span::from_millis(first + number * step)).collect())
    }

    fn needs(&self, size: Option<&Size>, what: &str, key: &str, text: &str) -> Result<Bytes, Mistake> {
        let missing = || {
            let message = format!("is: {what} needs a value: add {key} = \"512 MiB\"");
            Mistake::at(text, &self.is.span(), message)
        };
        size.map(|size| size.0).ok_or_else(missing)
    }

    fn kind(&self, text: &str) -> Result<FaultKind, Mistake> {
        Ok(match self.is.get_ref() {
            FaultName::Refuses => FaultKind::Refuses,
            FaultName::Stuck => FaultKind::Stuck,
            FaultName::SaysNothingAvailable => FaultKind::Lies(Lie::NothingAvailable),
            FaultName::SaysAllAvailable => FaultKind::Lies(Lie::AllAvailable),
            FaultName::SaysStalls => FaultKind::Lies(Lie::Stalls),
            FaultName::SaysKills => FaultKind::Lies(Lie::Kills),
            FaultName::SaysScans => FaultKind::Lies(Lie::Scans),
            FaultName::SaysAnything => FaultKind::Lies(Lie::Random),
            FaultName::Silent => FaultKind::Silent,
            FaultName::Reset => FaultKind::Reset,
            FaultName::SelfDeflates => FaultKind::SelfDeflates,
            FaultName::Vanishes => FaultKind::Vanishes,
            FaultName::Paused => FaultKind::Fenced(Fence::Paused),
            FaultName::Migrating => FaultKind::Fenced(Fence::Migrating),
            FaultName::Late => FaultKind::Late,
            FaultName::AnswersLost => FaultKind::Lost,
            FaultName::ForeignTarget => {
                FaultKind::Foreign(self.needs(self.target.as_ref(), "a foreign target", "target", text)?)
            }
            FaultName::Unreadable => FaultKind::Unreadable,
            FaultName::Unknown => FaultKind::Unknown,
            FaultName::WrongSize => {
                FaultKind::TellsSize(self.needs(self.size.as_ref(), "a wrong size", "size", text)?)
            }
            FaultName::SaidPinned => FaultKind::SaidPinned,
            FaultName::HostUnreadable => FaultKind::HostUnreadable,
            FaultName::ClockJumps => FaultKind::ClockJumps,
            FaultName::Suspended => FaultKind::Suspended,
            FaultName::DaemonKilled => FaultKind::DaemonKilled,
            FaultName::DiskFull => FaultKind::DiskFull,
        })
    }
}
