//! A recorded run as a setup. It answers: what would another commitment, another reserve or other shares have done with these guests?
//!
//! **Rule.** A guest uses the same memory at the same times as recorded, and starts and ends as recorded. Its page cache at the beginning
//! is cold. Later gains of the cache are read once, evenly over the guest's life, because no counter tells which cache is used again. The
//! memory of others and the capacity are as recorded, and so is the size of a tmpfs that holds guests' memory: of several, the smallest.
//!
//! Memory that a guest wanted but did not get is not recorded. So the setup shows no more want than the recording.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read as _;
use std::path::Path;
use std::sync::Arc;

use memtide_engine::journal::{JournalError, Reader, header};
use memtide_guest::{Course, File, Kernel, Program, Spec};
use memtide_model::{
    Budget, Bytes, Config, GuestId, GuestSeen, MIB, Moment, Names, Record, Snapshot, Span, TmpfsId,
};

use crate::setup::{GuestSetup, HostSpec, Setup};

/// The least distance between two points of a course.
const POINTS_EVERY: Span = Span::from_secs(1);
/// A smaller change does not make a new point.
const LEAST_CHANGE: Bytes = Bytes::from_mib(1);
/// The model counts its kernel and the memory that the kernel keeps back as used. A recorded guest that uses less gets a smaller kernel.
const KERNEL: Bytes = Bytes::from_mib(60);
/// The rate at which growing guests fill memory: at least as fast as real guests did.
const FILLS: u64 = 1_000 * MIB;

/// The reasons why a journal gives no setup.
#[derive(Debug, thiserror::Error)]
pub enum FromJournalError {
    /// It cannot be read.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// It holds no decision.
    #[error("{0} holds no decision: name a journal's directory, or one of its files")]
    Empty(String),
    /// Nothing happens in it.
    #[error("{0} holds a single moment: nothing can be simulated")]
    NoTime(String),
    /// There is nobody in it.
    #[error("{0} holds no guest: nothing can be simulated")]
    NoGuest(String),
}

/// The setup of the run that the journal at `path` recorded. Damaged records at its end are left out.
///
/// # Errors
/// If the journal cannot be read, or holds no decision.
pub fn from_journal(path: &Path, seed: u64) -> Result<Setup, FromJournalError> {
    let mut recorded = Recorded::default();
    for record in Reader::open(path)? {
        match record {
            Ok(Record::Start { config, .. }) => recorded.config = Some(*config),
            Ok(Record::Tick(tick)) => recorded.hear(&tick.seen),
            Ok(Record::SetsKsm { .. } | Record::Note { .. }) => {}
            Err(error) if recorded.first.is_none() => return Err(error.into()),
            Err(_) => break,
        }
    }
    let name = || path.display().to_string();
    let setup = recorded.setup(seed).ok_or_else(|| FromJournalError::Empty(name()))?;
    match (setup.lasts, setup.guests.is_empty()) {
        (Span::ZERO, _) => Err(FromJournalError::NoTime(name())),
        (_, true) => Err(FromJournalError::NoGuest(name())),
        _ => Ok(setup),
    }
}

/// Whether the file at `path` begins as a file of a journal does, whole or not.
#[must_use]
pub fn is_journal(path: &Path) -> bool {
    let mut begins = [0; 8];
    let is_file = path.metadata().is_ok_and(|file| file.is_file());
    is_file
        && fs::File::open(path).and_then(|mut file| file.read_exact(&mut begins)).is_ok()
        && header().starts_with(&begins)
}

/// Moments and sizes, the earliest first.
#[derive(Debug, Default)]
struct Points(Vec<(Span, Bytes)>);

#[derive(Debug, Default)]
struct Recorded {
    config: Option<Config>,
    first: Option<Moment>,
    last: Moment,
    capacity: Bytes,
    other: Points,
    tmpfs: Option<(Bytes, TmpfsId)>,
    guests: BTreeMap<GuestId, Life>,
}

/// The recording of one guest.
#[derive(Debug)]
struct Life {
    first: Moment,
    last: Moment,
    seen: GuestSeen,
    used: Points,
    cache_first: Option<Bytes>,
    cache_last: Bytes,
    cache_gained: Bytes,
    least_used: Bytes,
    has_stalls: bool,
}

impl Points {
    fn add(&mut self, at: Span, size: Bytes) {
        match self.0.last() {
            Some((last, before))
                if at.as_millis() < last.as_millis() + POINTS_EVERY.as_millis()
                    || before.abs_diff(size) < LEAST_CHANGE => {}
            _ => self.0.push((at, size)),
        }
    }
}

impl Recorded {
    fn hear(&mut self, seen: &Snapshot) {
        let now = seen.taken_at;
        let first = *self.first.get_or_insert(now);
        self.last = now;
        self.capacity = self.capacity.max(seen.host.capacity);
        self.other.add(now.since(first), seen.host.other);
        let spaces = seen.tmpfs.iter().filter_map(|tmpfs| Some((tmpfs.space.latest()?.size, tmpfs.id)));
        self.tmpfs = self.tmpfs.into_iter().chain(spaces).min();
        for guest in &seen.guests {
            self.guests.entry(guest.id.clone()).or_insert_with(|| Life::new(guest, now)).hear(guest, now);
        }
    }

    fn setup(self, seed: u64) -> Option<Setup> {
        let first = self.first?;
        let lasts = self.last.since(first);
        let names = Names::of(self.guests.keys());
        let guests = self.guests.iter().map(|(id, life)| {
            // A guest of the last snapshot stays to the end.
            let leaves = (life.last < self.last).then(|| life.last.since(first));
            GuestSetup {
                name: names.name(id),
                spec: Arc::new(life.spec()),
                equal: None,
                in_tmpfs: self.tmpfs.is_some_and(|(_, id)| life.seen.tmpfs == Some(id)),
                arrives: life.first.since(first),
                leaves,
            }
        });
        let host = HostSpec {
            memory: self.capacity,
            recorded_other: self.other.0.into(),
            tmpfs: self.tmpfs.map(|(size, _)| size),
            ..HostSpec::default()
        };
        let guests = guests.collect();
        let mut config = Config { budget: Budget::Size(self.capacity), ..self.config.unwrap_or_default() };
        name_guests(&mut config, self.guests.iter().map(|(id, life)| (names.name(id), &life.seen)));
        Some(Setup { lasts, seed, host, guests, faults: Vec::new(), config })
    }
}

/// Guests of a setup are all root's: each class with users names its recorded guests instead.
fn name_guests<'a>(config: &mut Config, guests: impl Iterator<Item = (String, &'a GuestSeen)>) {
    if config.classes.values().all(|class| class.users.is_none()) {
        return;
    }
    let mut members: BTreeMap<Arc<str>, Vec<String>> = BTreeMap::new();
    for (name, seen) in guests {
        let class = Arc::clone(config.class_of(seen.id.name(), seen.user).0);
        members.entry(class).or_default().push(name);
    }
    // Each guest has the class that it had, whatever the patterns of an earlier class match.
    config.classes.retain(|name, class| {
        if name.as_ref() == Config::DEFAULT_CLASS {
            return true;
        }
        (class.patterns, class.users) = (members.remove(name).unwrap_or_default(), None);
        !class.patterns.is_empty()
    });
}

impl Life {
    fn new(seen: &GuestSeen, now: Moment) -> Self {
        Self {
            first: now,
            last: now,
            seen: seen.clone(),
            used: Points::default(),
            cache_first: None,
            cache_last: Bytes::ZERO,
            cache_gained: Bytes::ZERO,
            least_used: Bytes::MAX,
            has_stalls: false,
        }
    }

    fn hear(&mut self, seen: &GuestSeen, now: Moment) {
        self.last = now;
        if seen.told.balloon.latest().is_some() {
            self.seen = seen.clone();
        }
        let Some(stats) = seen.told.stats.fresh() else { return };
        let Some(available) = stats.available else { return };
        let used = seen.actual().saturating_sub(available);
        self.least_used = self.least_used.min(used);
        self.used.add(now.since(self.first), used);
        self.has_stalls |= stats.alloc_stalls.is_some();
        let cache = stats.disk_caches.unwrap_or_default();
        self.cache_first.get_or_insert(cache);
        self.cache_gained = self.cache_gained.saturating_add(cache.saturating_sub(self.cache_last));
        self.cache_last = cache;
    }

    fn spec(&self) -> Spec {
        let default = Spec::default();
        let balloon = self.seen.told.balloon.latest();
        let kernel_size = KERNEL.min(self.least_used.mul_div(1, 2));
        // Memory that the model also counts as used: the kernel, its slab, and the watermark that is not available.
        let beside = kernel_size.saturating_add(default.slab).saturating_add(Bytes::from_mib(16));
        let wants: Vec<(Span, Bytes)> =
            self.used.0.iter().map(|(at, used)| (*at, used.saturating_sub(beside))).collect();
        let size = wants.first().map_or(Bytes::ZERO, |(_, used)| *used);
        let program =
            Program { rate: FILLS, course: Course::Recorded(wants.into()), ..Program::constant(size) };
        let cold = self.cache_first.unwrap_or_default();
        let lived = self.last.since(self.first).as_millis().max(1);
        let gained = self.cache_gained.saturating_sub(cold);
        let stream =
            File { size: None, cached: false, ..File::hot(Bytes::ZERO, gained.mul_div(1_000, lived).get()) };
        Spec {
            memory: self.seen.told.full,
            kernel: if self.has_stalls { Kernel::V6_12 } else { Kernel::V6_1 },
            kernel_size,
            balloon: balloon.is_some(),
            deflate_on_oom: balloon.is_some_and(|balloon| balloon.deflate_on_oom),
            free_page_reporting: balloon.is_some_and(|balloon| balloon.free_page_reporting),
            overhead: self.seen.cost.overhead,
            overhead_bound: self.seen.cost.overhead_bound,
            programs: vec![program],
            files: if stream.rate > 0 { vec![stream] } else { Vec::new() },
            cold,
            ..default
        }
    }
}
