//! KSM, the kernel's merging of equal pages: how it is set, what it tells, and what its governor remembers.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{BackOff, Bytes, Moment, Share, Span};

/// What memtide does about KSM.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KsmMode {
    /// Does not even look.
    Off,
    /// Shows what KSM does; changes nothing.
    #[default]
    Observe,
    /// Lets it scan in bursts. Needs [`Mode::Manage`](crate::Mode::Manage), too.
    Govern,
}

/// The operator's settings of KSM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KsmConfig {
    /// What memtide does about it.
    pub mode: KsmMode,
    /// The processor time that the kernel may spend on scanning: this share of one processor, averaged over some minutes.
    pub cpu: Share,
    /// A burst goes on while a pass over all mergeable memory saves at least this much for each second of the kernel's processor time.
    pub worth: Bytes,
}

impl Default for KsmConfig {
    fn default() -> Self {
        Self {
            mode: KsmMode::Observe,
            cpu: Share::percent(5).expect("a constant below 100"),
            worth: Bytes::from_mib(10),
        }
    }
}

/// `run` in `/sys/kernel/mm/ksm`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KsmRun {
    /// 0: nothing is scanned. What is merged stays merged.
    #[default]
    Stopped,
    /// 1: the kernel scans.
    Scanning,
    /// 2: everything was unmerged, and nothing is scanned.
    Unmerged,
}

impl KsmRun {
    /// The number that the kernel's file holds.
    #[must_use]
    pub const fn number(self) -> u64 {
        match self {
            Self::Stopped => 0,
            Self::Scanning => 1,
            Self::Unmerged => 2,
        }
    }

    /// From the number in the kernel's file.
    #[must_use]
    pub const fn of(number: u64) -> Option<Self> {
        match number {
            0 => Some(Self::Stopped),
            1 => Some(Self::Scanning),
            2 => Some(Self::Unmerged),
            _ => None,
        }
    }
}

/// How KSM is set: the files of `/sys/kernel/mm/ksm` that the governor writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KsmSettings {
    /// Whether it scans.
    pub run: KsmRun,
    /// Pages that are scanned without a pause.
    pub pages_to_scan: u64,
    /// The pause, in milliseconds.
    pub sleep_millisecs: u64,
    /// Whether pages that did not merge are left out for some passes; `None` before Linux 6.7.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub smart_scan: Option<bool>,
    /// Whether the kernel chooses `pages_to_scan` itself; `None` before Linux 6.8.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub advisor: Option<bool>,
}

impl KsmSettings {
    /// Whether these are the same. The kernel's advisor changes the pace by itself.
    #[must_use]
    pub fn are(self, other: Self) -> bool {
        let pace = |settings: Self| if settings.advisor == Some(true) { 0 } else { settings.pages_to_scan };
        pace(self) == pace(other) && Self { pages_to_scan: 0, ..self } == Self { pages_to_scan: 0, ..other }
    }

    /// Whether these settings are left if a write of `wanted` over `before` is interrupted, or has not begun, or is complete. Settings are written one after
    /// the other: scanning stops first, and begins last. Switching the advisor changes the pace by itself.
    #[must_use]
    pub fn is_between(self, before: Self, wanted: Self) -> bool {
        let stops = wanted.run != KsmRun::Scanning;
        let stopped = Self { run: if stops { wanted.run } else { before.run }, ..before };
        let advised = Self { advisor: wanted.advisor, ..stopped };
        let pages = Self { pages_to_scan: wanted.pages_to_scan, ..advised };
        let sleep = Self { sleep_millisecs: wanted.sleep_millisecs, ..pages };
        let smart = Self { smart_scan: wanted.smart_scan, ..sleep };
        // Between the switch of the advisor and the write of the pace, the pace is the kernel's.
        let is_advised = before.advisor != wanted.advisor
            && Self { pages_to_scan: advised.pages_to_scan, ..self } == advised;
        is_advised || [before, stopped, pages, sleep, smart, wanted].iter().any(|step| step.are(self))
    }

    /// What a write that was killed must be put back to: `found`, if these settings are memtide's own. It has `written` settings before, and may have
    /// `tried` others. `None` if they are `found` already, or somebody else's, or if nothing was carried out.
    #[must_use]
    pub fn left_over(self, found: Self, written: Option<Self>, tried: Option<Self>) -> Option<Self> {
        // What is put back does not tell how `run` was found.
        let runs = [KsmRun::Stopped, KsmRun::Scanning, KsmRun::Unmerged].map(|run| Self { run, ..found });
        let befores = || runs.into_iter().filter(|before| before.to_put_back() == found.to_put_back());
        let is = |other: Option<Self>| other.is_some_and(|other| self.are(other));
        let is_untouched = befores().any(|before| self.are(before)) && !is(written) && !is(tried);
        let mut ours = befores().chain(written);
        let was_tried = tried.is_some_and(|tried| ours.any(|before| self.is_between(before, tried)));
        let is_put_back =
            [written, tried].into_iter().flatten().any(|written| self.is_between(written, found));
        ((was_tried || is_put_back) && !is_untouched && self != found).then_some(found)
    }

    /// What is put back if these were found. What is merged stays merged: the memory for its copies may not be there. And full speed is the
    /// rest of another memtide.
    #[must_use]
    pub fn to_put_back(self) -> Self {
        let is_full_speed = self.pages_to_scan == KsmOrder::PAGES && self.sleep_millisecs == 0;
        let run = match self.run {
            KsmRun::Unmerged => KsmRun::Stopped,
            KsmRun::Scanning if is_full_speed && self.advisor != Some(true) => KsmRun::Stopped,
            run => run,
        };
        Self { run, ..self }
    }

    /// What is put back over the `present` settings if these were found, and `written` over them: all of it, or, if somebody else has set KSM since, the
    /// pace as far as it still is what was written.
    #[must_use]
    pub fn over(self, written: Self, present: Self) -> Self {
        fn pick<T: PartialEq>(found: T, written: T, present: T) -> T {
            if present == written { found } else { present }
        }
        if present.are(written) {
            return self;
        }
        Self {
            pages_to_scan: pick(self.pages_to_scan, written.pages_to_scan, present.pages_to_scan),
            sleep_millisecs: pick(self.sleep_millisecs, written.sleep_millisecs, present.sleep_millisecs),
            smart_scan: pick(self.smart_scan, written.smart_scan, present.smart_scan),
            ..present
        }
    }
}

/// For people, as in `scans 20000 pages every 0 ms`.
impl fmt::Display for KsmSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.run, self.advisor) {
            (KsmRun::Stopped, _) => f.write_str("stopped"),
            (KsmRun::Unmerged, _) => f.write_str("everything unmerged"),
            (KsmRun::Scanning, Some(true)) => f.write_str("scans at the pace of the kernel's advisor"),
            (KsmRun::Scanning, _) => {
                write!(f, "scans {} pages every {} ms", self.pages_to_scan, self.sleep_millisecs)
            }
        }
    }
}

/// KSM at one moment. Counters are the kernel's.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KsmSeen {
    /// How it is set.
    pub settings: KsmSettings,
    /// Complete passes over all mergeable memory (`full_scans`).
    pub full_scans: u64,
    /// Memory that merging saves, zero pages apart (`pages_sharing`).
    pub saved: Bytes,
    /// Memory full of zeros that the kernel's own zero page replaces (`ksm_zero_pages`).
    pub zeros: Bytes,
    /// Copies that several pages share (`pages_shared`).
    pub shared: Bytes,
    /// What the kernel itself calls the profit: savings less the memory of its records (`general_profit`); negative if it costs more than
    /// it saves; `None` before Linux 6.4.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub profit: Option<i64>,
    /// Processor time of the kernel's thread `ksmd`; `None` if it cannot be read.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub cpu_time: Option<Span>,
    /// Memory that may be merged: anonymous memory that processes have marked for it.
    pub mergeable: Bytes,
    /// Memory of processes that a pass has seen and that have left since memtide has started. What takes its place is new, even if as much is mergeable as before.
    #[serde(default)]
    pub left: Bytes,
    /// Time for which tasks waited for a processor, in microseconds (`some` of /proc/pressure/cpu); `None` if the kernel does not tell.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub waited_us: Option<u64>,
    /// The process that KSM may merge with the largest holes in its memory. Passes over holes can take long.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub sparsest: Option<KsmSparse>,
    /// Programs on this host that set KSM, too.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub others: Vec<String>,
}

impl KsmSeen {
    /// The memory that a process needs if all of its memory comes apart of which merging saves `saved`. Each process is credited with the same share
    /// of its merged pages. Of the kernel's own zero pages, any process may have all.
    #[must_use]
    pub fn apart(&self, saved: Bytes) -> Bytes {
        let all = self.saved.saturating_add(self.shared);
        saved.mul_div(all.get(), self.saved.get().max(1)).max(saved).saturating_add(self.zeros)
    }
}

/// A process whose memory KSM may merge.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KsmProcess {
    /// The process.
    pub pid: u32,
    /// Its command's name.
    pub name: String,
    /// Its anonymous memory.
    pub mergeable: Bytes,
    /// Its merged pages, each counted in full (`ksm_merging_pages`); `None` before Linux 6.1.
    pub merged: Option<Bytes>,
    /// Its pages that the kernel's zero page replaces (`ksm_zero_pages`); `None` before Linux 6.6.
    pub zeros: Option<Bytes>,
    /// What the kernel calls its profit (`ksm_process_profit`); `None` before Linux 6.4.
    pub profit: Option<i64>,
    /// Merged pages that have come apart since, because the process wrote to them. The kernel counts them as merged until its next pass. `None` if nothing is
    /// merged, if its mappings were not read since, or before Linux 6.7.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub apart: Option<Bytes>,
}

/// Where the saving is. The kernel does not count with whom a page is shared, so two of these are bounds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KsmParts {
    /// Pages full of zeros that the kernel's own page stands for. Counted.
    pub zeros: Bytes,
    /// Equal pages within one process save at least this much. Computed from the processes' counts.
    pub within_at_least: Bytes,
    /// Equal pages of different processes save at most this much. Computed from the processes' counts.
    pub across_at_most: Bytes,
    /// Merged pages that have come apart, and that the saving still counts. Read from the processes' pages now and then.
    pub apart: Bytes,
    /// How much less is saved than at the end of the last burst: the kernel has noticed it without a pass, as for zeros that were written to. Zero while it scans.
    pub fell: Bytes,
}

impl KsmParts {
    /// Of what was `seen`, with the counts of the `processes` that were looked at. `burst_ended_with` is all that was saved at the end of the last burst.
    ///
    /// Within a process, merging leaves one copy of each content, so it saves its merged pages less its contents. There are at most as many contents as copies on the
    /// host. The copies that the processes have together, less those of the host, are saved across processes.
    #[must_use]
    pub fn of(seen: &KsmSeen, processes: &[KsmProcess], burst_ended_with: Option<Bytes>) -> Self {
        let merged = || processes.iter().filter_map(|process| process.merged);
        let contents = Bytes::sum(merged().map(|merged| merged.min(seen.shared)));
        // Merged pages of processes that nobody has looked at.
        let unknown = seen.saved.saturating_add(seen.shared).saturating_sub(Bytes::sum(merged()));
        let across = contents.saturating_add(unknown).saturating_sub(seen.shared).min(seen.saved);
        let fell = match (seen.settings.run, burst_ended_with) {
            (KsmRun::Scanning, _) | (_, None) => Bytes::ZERO,
            (_, Some(saved)) => saved.saturating_sub(seen.saved_in_all()),
        };
        Self {
            zeros: seen.zeros,
            within_at_least: seen.saved.saturating_sub(across),
            across_at_most: across,
            apart: Bytes::sum(processes.iter().filter_map(|process| process.apart)),
            fell,
        }
    }
}

/// A process with holes in its memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KsmSparse {
    /// The process.
    pub pid: u32,
    /// Its command's name.
    pub name: String,
    /// Mapped memory that is not resident.
    pub holes: Bytes,
}

impl KsmSeen {
    /// All that KSM saves.
    #[must_use]
    pub const fn saved_in_all(&self) -> Bytes {
        self.saved.saturating_add(self.zeros)
    }
}

/// What the governor asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KsmOrder {
    /// Scan at full speed, without the kernel's advisor.
    Scan {
        /// Whether pages that did not merge may be left out for some passes.
        smart: bool,
    },
    /// Stop scanning. What is merged stays merged.
    Stop,
}

impl KsmOrder {
    /// Pages that are scanned without a pause at full speed. Writing `run` waits for them: some 50 ms.
    pub const PAGES: u64 = 20_000;

    /// The settings after this order, if they were `before`.
    #[must_use]
    pub fn after(self, before: KsmSettings) -> KsmSettings {
        match self {
            Self::Stop => KsmSettings { run: KsmRun::Stopped, ..before },
            Self::Scan { smart } => KsmSettings {
                run: KsmRun::Scanning,
                pages_to_scan: Self::PAGES,
                sleep_millisecs: 0,
                smart_scan: before.smart_scan.map(|_| smart),
                advisor: before.advisor.map(|_| false),
            },
        }
    }
}

impl fmt::Display for KsmOrder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Scan { smart: true } => "scan for equal pages",
            Self::Scan { smart: false } => "scan for equal pages, leaving none out",
            Self::Stop => "stop scanning for equal pages",
        })
    }
}

/// Why the governor asks for something, with the numbers behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KsmReason {
    /// There is memory that no burst has seen.
    NewMemory {
        /// That memory.
        new: Bytes,
    },
    /// Nothing is new, but contents may have become equal since the last burst.
    LooksAgain {
        /// Mergeable memory.
        mergeable: Bytes,
    },
    /// The present pass saves too little for its processor time.
    NotWorthIt {
        /// What it has saved so far.
        saved: Bytes,
        /// The processor time that it has taken so far.
        cpu_time: Span,
    },
    /// The processor time that the operator allows is used up.
    NoCpuTime,
    /// There is processor time again.
    GoesOn,
    /// KSM was scanning when memtide began to govern it.
    TakenOver,
    /// A pass takes far longer than it can, as in mappings with large holes.
    Hangs {
        /// The processor time of this pass so far.
        cpu_time: Span,
    },
    /// The guest's class shares memory.
    Shares,
    /// The guest's class does not share memory.
    DoesNotShare {
        /// The memory that it may need when its merged memory comes apart.
        apart: Bytes,
    },
}

impl fmt::Display for KsmReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NewMemory { new } => write!(f, "{new} of memory are new"),
            Self::LooksAgain { mergeable } => {
                write!(f, "pages in {mergeable} may have become equal since the last burst")
            }
            Self::NotWorthIt { saved, cpu_time } => {
                write!(f, "this pass saved {saved} for {cpu_time} of processor time")
            }
            Self::NoCpuTime => f.write_str("the allowed processor time is used up"),
            Self::GoesOn => f.write_str("there is processor time again"),
            Self::TakenOver => f.write_str("it was scanning when memtide took it over"),
            Self::Hangs { cpu_time } => {
                write!(f, "a pass has taken {cpu_time} of processor time and has not ended")
            }
            Self::Shares => f.write_str("`share` of its class allows it"),
            Self::DoesNotShare { apart } => {
                write!(f, "`share` of its class is false; it may need {apart} for what comes apart")
            }
        }
    }
}

/// What the governor remembers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KsmState {
    /// The settings as memtide found them; `None` while it has written none.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub found: Option<KsmSettings>,
    /// The settings after the last accepted order.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub written: Option<KsmSettings>,
    /// The settings after an order whose result is unknown: it may still be carried out.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub tried: Option<KsmSettings>,
    /// Since when somebody else sets KSM. The governor only observes from then on.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub foreign_since: Option<Moment>,
    /// The burst under way.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub burst: Option<KsmBurst>,
    /// Mergeable memory at the beginning of the last burst, without that of processes that have left, and at most what is mergeable now.
    pub scanned: Bytes,
    /// The least mergeable memory of the last seconds: all of it has been there for as long.
    #[serde(default)]
    pub least: KsmLeast,
    /// Since when enough memory has been new for a burst.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub new_since: Option<Moment>,
    /// Processor time that the kernel may still spend now, in microseconds; negative if it has spent more.
    pub allowance_us: i64,
    /// The counters of the last decision.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub last: Option<KsmMark>,
    /// Processor time of `ksmd` at the last decision, as the kernel told it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub told_cpu_time: Option<Span>,
    /// The pause for new memory after bursts that were not worth their time.
    #[serde(default)]
    pub in_vain: BackOff,
    /// The pause until memtide looks again although nothing is new.
    pub looks_again: BackOff,
    /// All that was saved at the end of the last burst.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub burst_ended_with: Option<Bytes>,
    /// No order before this moment: one has failed, or a pass did not end.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub rests_until: Option<Moment>,
    /// The newest order, and its reason.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub last_reason: Option<(Moment, KsmReason)>,
}

impl KsmState {
    /// Nothing is remembered.
    #[must_use]
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }
}

/// The least mergeable memory over two stretches of time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KsmLeast {
    /// Over the stretch before the present one.
    pub before: Bytes,
    /// Over the present one so far.
    pub now: Bytes,
    /// When the present stretch began.
    pub since: Moment,
}

/// Counters at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KsmMark {
    /// The moment.
    pub at: Moment,
    /// Complete passes.
    pub full_scans: u64,
    /// All that KSM saved.
    pub saved: Bytes,
    /// Processor time of `ksmd`, as the governor counts it: if it cannot be read, it counts as a whole processor while the kernel scans.
    pub cpu_time: Span,
    /// Time for which tasks waited for a processor, in microseconds.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub waited_us: Option<u64>,
    /// Memory of processes that have left.
    #[serde(default)]
    pub left: Bytes,
}

/// A burst: scanning at full speed until it is no longer worth it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KsmBurst {
    /// The counters when it began.
    pub began: KsmMark,
    /// Mergeable memory when it began.
    pub mergeable: Bytes,
    /// The counters at the end of its last complete pass, or at its beginning.
    pub pass: KsmMark,
    /// Passes that must be complete before it may end.
    pub least_passes: u64,
    /// What it has saved: the sum of all rises. What the kernel finds to be gone meanwhile does not count against it.
    #[serde(default)]
    pub gained: Bytes,
    /// The same in the present pass.
    #[serde(default)]
    pub gained_in_pass: Bytes,
    /// Whether its passes may leave pages out.
    pub smart: bool,
    /// It has no processor time left, and waits for more.
    pub waits: bool,
}

/// What the governor is doing, for people.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KsmVerdict {
    /// Changes nothing, because it is set so.
    #[default]
    Observes,
    /// Changes nothing, because somebody else sets KSM.
    Foreign,
    /// Nothing new could be merged.
    Sleeps,
    /// New memory is there, and grows.
    Settles {
        /// Mergeable memory that no burst has seen.
        new: Bytes,
    },
    /// New memory is there, but the last burst saved too little.
    InVain {
        /// Mergeable memory that no burst has seen.
        new: Bytes,
    },
    /// Equal pages are being merged.
    Bursts {
        /// Complete passes of this burst.
        passes: u64,
    },
    /// There is something to do, but no processor time for it.
    Waits,
    /// Asks for nothing for a while: a pass did not end.
    Rests,
    /// Asks again in a while: nobody has carried out its last order.
    Retries,
    /// Guests that must not share memory come apart first.
    Separates,
}

impl KsmVerdict {
    /// The names of all verdicts, for programs.
    pub const NAMES: [&'static str; 10] = [
        "observes",
        "foreign",
        "sleeps",
        "settles",
        "in_vain",
        "bursts",
        "waits",
        "rests",
        "retries",
        "separates",
    ];

    /// The name, one of [`Self::NAMES`].
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Observes => "observes",
            Self::Foreign => "foreign",
            Self::Sleeps => "sleeps",
            Self::Settles { .. } => "settles",
            Self::InVain { .. } => "in_vain",
            Self::Bursts { .. } => "bursts",
            Self::Waits => "waits",
            Self::Rests => "rests",
            Self::Retries => "retries",
            Self::Separates => "separates",
        }
    }
}

impl fmt::Display for KsmVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Observes => f.write_str("observes"),
            Self::Foreign => f.write_str("observes: somebody else sets KSM"),
            Self::Sleeps => f.write_str("sleeps: nothing new to merge"),
            Self::Settles { new } => write!(f, "waits while new memory grows, {new} so far"),
            Self::InVain { new } => {
                write!(f, "waits with {new} of new memory: the last burst saved too little")
            }
            Self::Bursts { passes } => write!(f, "scans at full speed, {passes} passes done"),
            Self::Waits => f.write_str("waits for processor time"),
            Self::Rests => f.write_str("rests: a pass did not end"),
            Self::Retries => {
                f.write_str("tries again soon: its last order was not carried out (the log says why)")
            }
            Self::Separates => {
                f.write_str("waits for guests that must not share: the host has no room for what comes apart")
            }
        }
    }
}

/// KSM for people and programs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KsmReport {
    /// What memtide does.
    pub verdict: KsmVerdict,
    /// What was seen, with the settings after this decision.
    pub seen: KsmSeen,
    /// The settings as memtide found them; `None` while it has written none.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub found: Option<KsmSettings>,
    /// All that was saved at the end of the last burst.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub burst_ended_with: Option<Bytes>,
    /// Processor time that the kernel may still spend now.
    pub allowance: Span,
    /// The newest order's reason, and when it was given.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub last_reason: Option<(Moment, KsmReason)>,
}

impl KsmReport {
    /// That somebody else sets KSM, and what ends it: a sentence for an operator.
    #[must_use]
    pub fn anothers(&self) -> String {
        let who = if self.seen.others.is_empty() {
            "somebody else".to_owned()
        } else {
            self.seen.others.join(", ")
        };
        format!(
            "{who} sets KSM (it {}): memtide only observes it until `ksm.mode` is set to \"observe\" and back to \"govern\", with a reload after each",
            self.seen.settings
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The names of all variants that serde knows: it lists them if it meets another one.
    fn serdes_names() -> Vec<String> {
        let error = serde_json::from_str::<KsmVerdict>("\"another\"").unwrap_err().to_string();
        let (_, known) = error.split_once("expected one of ").unwrap();
        known.split('`').skip(1).step_by(2).map(str::to_owned).collect()
    }

    #[test]
    fn the_saving_is_told_apart_as_far_as_the_counts_tell() {
        let mib = Bytes::from_mib;
        let process = |merged: Option<u64>, apart: Option<u64>| KsmProcess {
            merged: merged.map(mib),
            apart: apart.map(mib),
            ..KsmProcess::default()
        };
        let seen = |saved, shared| KsmSeen {
            saved: mib(saved),
            shared: mib(shared),
            zeros: mib(7),
            ..KsmSeen::default()
        };
        let parts = |seen: &KsmSeen, processes: &[KsmProcess]| {
            let parts = KsmParts::of(seen, processes, None);
            (parts.within_at_least, parts.across_at_most)
        };
        // One process with 100 MiB of 10 MiB: all 90 MiB are within it.
        assert_eq!(parts(&seen(90, 10), &[process(Some(100), None)]), (mib(90), mib(0)));
        // Two of them have each at most the 10 MiB: 10 + 10 - 10 across, the rest within.
        let two = [process(Some(50), None), process(Some(50), None)];
        assert_eq!(parts(&seen(90, 10), &two), (mib(80), mib(10)));
        // Two with the same 50 MiB, perhaps: nothing must be within.
        assert_eq!(parts(&seen(50, 50), &two), (mib(0), mib(50)));
        // Nobody has looked at a process with 60 of the 100 MiB.
        assert_eq!(parts(&seen(90, 10), &[process(Some(40), None), process(None, None)]), (mib(30), mib(60)));
        let apart = [process(Some(50), Some(3)), process(Some(50), Some(4))];
        let ended = KsmParts::of(&seen(90, 10), &apart, Some(mib(100)));
        assert_eq!((ended.zeros, ended.apart, ended.fell), (mib(7), mib(7), mib(3)));
        let mut scans = seen(90, 10);
        scans.settings.run = KsmRun::Scanning;
        assert_eq!(KsmParts::of(&scans, &apart, Some(mib(100))).fell, mib(0));
    }

    #[test]
    fn a_verdict_has_one_name() {
        assert_eq!(serdes_names(), KsmVerdict::NAMES);
        for name in KsmVerdict::NAMES {
            let texts = [format!("\"{name}\""), format!("{{\"{name}\": {{\"new\": 0, \"passes\": 0}}}}")];
            let verdict =
                texts.iter().find_map(|text| serde_json::from_str::<KsmVerdict>(text).ok()).unwrap();
            assert_eq!(verdict.name(), name);
        }
    }
}
