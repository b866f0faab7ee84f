//! The measures of a simulation, the same for every manager.
//!
//! **Terms.** *Starved*: a program asked for memory and got less than a tenth of it. *Hungry*: the balloon's target is below the memory
//! that kernel and programs use. *Lacking*: a guest starves, is hungry, or reads data again that its cache once had. A guest's *fair share*
//! is its part, by shares, of the host's memory without the others' use and the VMMs' overheads. *Above its fair share* counts only touched
//! memory, and only while another guest lacks memory. Something is *wrong* while a guest starves or is hungry, or while the host is above
//! its capacity.

use memtide_guest::{Guest, Progress, Size};
use memtide_model::{Bytes, Span};
use serde::Serialize;

use crate::host::Host;
use crate::merging::Merging;
use crate::resident::Resident;
use crate::setup::Setup;

/// Samples of a run's course: enough for a plot, few enough for a page.
const SAMPLES: u64 = 480;
/// A higher rate of refaults means that a guest lacks memory, in bytes a second.
const REFAULTS: u64 = 1 << 20;

/// All measures of a run.
#[derive(Clone, Debug)]
pub struct Measures {
    /// The guests, in the order of the setup.
    pub guests: Vec<GuestMeasures>,
    /// The host.
    pub host: HostMeasures,
    /// The course of the run.
    pub samples: Vec<Sample>,
    shares: Vec<u64>,
    sample_every: Span,
    sample_at: Span,
    calm_from: Span,
    last_wrong: Option<Span>,
    /// Reused at each look.
    sizes: Vec<Option<Size>>,
}

/// The measures of one guest. Times in milliseconds unless a name says microseconds; memory in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct GuestMeasures {
    /// Time in which its programs would have worked, summed over all programs, in microseconds.
    pub busy_us: u64,
    /// Work done, as the time that it takes at full speed, in microseconds.
    pub done_us: u64,
    /// Time in which a program starved.
    pub starved_ms: u64,
    /// Time in which it was hungry.
    pub hungry_ms: u64,
    /// Bytes read again after the cache had already held them.
    pub refaults: u64,
    /// Programs killed for lack of memory. A guest that the host kills counts as one.
    pub kills: u64,
    /// Targets written.
    pub targets: u64,
    /// Targets that change direction.
    pub turns: u64,
    /// Bytes that its balloon moved, in both directions.
    pub moved: u64,
    /// Bytes that its programs wrote to its tier.
    #[serde(skip_serializing_if = "is_nothing")]
    pub to_tier: u64,
    /// Bytes that they read back from it.
    #[serde(skip_serializing_if = "is_nothing")]
    pub from_tier: u64,
    /// Bytes that its targets moved, in both directions.
    pub target_moved: u64,
    /// The most above its fair share while another guest lacked memory.
    pub above_fair: u64,
    /// Its memory that KSM has merged, at the end.
    pub merged: u64,
    /// When it last starved or was hungry; zero if never. Milliseconds since the beginning.
    #[serde(skip)]
    pub wrong_at: u64,
    #[serde(skip)]
    direction: i8,
    #[serde(skip)]
    life: u64,
    #[serde(skip)]
    last: Option<Progress>,
    /// When the host's OOM killer or a full tmpfs ended it, in milliseconds since the beginning. It does not come back.
    pub lost_at: Option<u64>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
const fn is_nothing(bytes: &u64) -> bool {
    *bytes == 0
}

/// The measures of the host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct HostMeasures {
    /// The most above its capacity, including swapped memory, in bytes.
    pub above_capacity: u64,
    /// Time above its capacity, in milliseconds.
    pub above_ms: u64,
    /// The most memory in use, in bytes.
    pub most_used: u64,
    /// Guests ended by its OOM killer, or because their tmpfs was full.
    pub killed_guests: u64,
    /// The most memory in swap, in bytes.
    pub most_swapped: u64,
    /// The most memory of guests in its tmpfs, in bytes.
    pub most_in_tmpfs: u64,
    /// What KSM saved, summed over the milliseconds of the run, in bytes.
    #[serde(skip)]
    pub saved: u128,
    /// What it could have saved, summed in the same way.
    #[serde(skip)]
    pub could_save: u128,
    /// The processor time that KSM's scanning took, in milliseconds.
    pub ksm_cpu_ms: u64,
}

/// One moment of a run. Memory in bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Sample {
    /// Milliseconds since the beginning.
    pub at: u64,
    /// The total cost to the host.
    pub used: u64,
    /// Memory used by others than guests.
    pub other: u64,
    /// The guests, in the order of the setup; `None` for a guest that is not running.
    pub guests: Vec<Option<GuestSample>>,
}

/// A guest at one moment. Memory in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct GuestSample {
    /// Memory that it keeps.
    pub actual: u64,
    /// Memory that it was last asked to keep.
    pub target: u64,
    /// Memory that kernel and programs use.
    pub used: u64,
    /// Page cache.
    pub cache: u64,
    /// Its cost to the host.
    pub footprint: u64,
}

impl Measures {
    /// Measures of a run that has not started.
    #[must_use]
    pub fn new(setup: &Setup) -> Self {
        let shares =
            setup.guests.iter().map(|plan| u64::from(setup.config.class_of(&plan.name, None).1.shares));
        Self {
            guests: vec![GuestMeasures::default(); setup.guests.len()],
            host: HostMeasures::default(),
            samples: Vec::new(),
            shares: shares.collect(),
            sample_every: Span::from_millis((setup.lasts.as_millis() / SAMPLES).max(1)),
            sample_at: Span::ZERO,
            calm_from: setup.calm_from(),
            last_wrong: None,
            sizes: Vec::new(),
        }
    }

    /// Notes a target that a manager writes.
    pub(crate) fn note_target(&mut self, index: usize, before: Option<Bytes>, target: Bytes) {
        let guest = &mut self.guests[index];
        let Some(before) = before else { return };
        let direction = match target.cmp(&before) {
            std::cmp::Ordering::Less => -1,
            std::cmp::Ordering::Equal => return,
            std::cmp::Ordering::Greater => 1,
        };
        guest.targets += 1;
        guest.target_moved += target.abs_diff(before).get();
        guest.turns += u64::from(guest.direction != 0 && guest.direction != direction);
        guest.direction = direction;
    }

    /// Measures everything after another `dt`, at `at` from the beginning.
    pub(crate) fn watch(&mut self, residents: &[Resident], host: &Host, dt: Span, at: Span) {
        let millis = dt.as_millis();
        let mut sizes = std::mem::take(&mut self.sizes);
        sizes.clear();
        let (mut lacking, mut wrong) = (0_usize, false);
        let mut lacks_at = usize::MAX;
        for (index, (resident, measured)) in residents.iter().zip(&mut self.guests).enumerate() {
            let Some((guest, size)) = resident.guest.as_ref().zip(resident.size()) else {
                sizes.push(None);
                measured.miss(resident.lost, millis, at);
                continue;
            };
            let refaults = measured.add(resident.lives, guest.progress());
            measured.merged = resident.merged.bytes;
            let hungry = guest.target() < size.used.min(guest.spec().memory);
            if hungry {
                measured.hungry_ms += millis;
            }
            if hungry || size.starves {
                measured.wrong_at = at.as_millis();
                wrong = true;
            }
            if hungry || size.starves || refaults * 1_000 > REFAULTS * millis {
                (lacking, lacks_at) = (lacking + 1, index);
            }
            sizes.push(Some(size));
        }
        if lacking > 0 {
            self.compare(residents, host, &sizes, (lacking, lacks_at));
        }
        self.sizes = sizes;
        wrong |= self.look_at(host, residents, millis);
        if wrong {
            self.last_wrong = Some(at);
        }
        if at >= self.sample_at {
            self.sample(residents, host, at);
            self.sample_at = Span::from_millis(at.as_millis() + self.sample_every.as_millis());
        }
    }

    /// Measures what KSM does for another `dt`.
    pub(crate) fn watch_merging(&mut self, merging: &Merging, dt: Span) {
        let (saved, can_save) = merging.saves();
        let over = |bytes: Bytes| u128::from(bytes.get()) * u128::from(dt.as_millis());
        self.host.saved += over(saved);
        self.host.could_save += over(can_save);
        self.host.ksm_cpu_ms = merging.cpu_time().as_millis();
    }

    /// Notes the guests' memory that a tmpfs holds.
    pub(crate) fn watch_tmpfs(&mut self, held: Bytes) {
        self.host.most_in_tmpfs = self.host.most_in_tmpfs.max(held.get());
    }

    /// Compares each guest's touched memory with its fair share. `lacking` is the number of guests that lack memory; `lacks_at` is the last
    /// of them.
    fn compare(
        &mut self,
        residents: &[Resident],
        host: &Host,
        sizes: &[Option<Size>],
        (lacking, lacks_at): (usize, usize),
    ) {
        let (mut overheads, mut shares) = (Bytes::ZERO, 0);
        for ((resident, share), _) in
            residents.iter().zip(&self.shares).zip(sizes).filter(|(_, size)| size.is_some())
        {
            overheads = overheads.saturating_add(resident.plan.spec.overhead);
            shares += share;
        }
        let pool = host.capacity().saturating_sub(host.other).saturating_sub(overheads);
        for (index, size) in sizes.iter().enumerate() {
            let Some(size) = size.filter(|_| lacking > 1 || lacks_at != index) else { continue };
            let fair = pool.mul_div(self.shares[index], shares.max(1));
            let touched = size.footprint.saturating_sub(residents[index].plan.spec.overhead).min(size.actual);
            let above = &mut self.guests[index].above_fair;
            *above = (*above).max(touched.saturating_sub(fair).get());
        }
    }

    /// Notes the host's use, and returns whether it is above its capacity.
    fn look_at(&mut self, host: &Host, residents: &[Resident], millis: u64) -> bool {
        let measured = &mut self.host;
        measured.most_used = measured.most_used.max(host.used.get());
        measured.most_swapped = measured.most_swapped.max(host.swapped.get());
        measured.killed_guests = residents.iter().filter(|resident| resident.lost).count() as u64;
        if host.above.is_zero() {
            return false;
        }
        measured.above_capacity = measured.above_capacity.max(host.above.get());
        measured.above_ms += millis;
        true
    }

    fn sample(&mut self, residents: &[Resident], host: &Host, at: Span) {
        let of = |(guest, size): (&Guest, Size)| GuestSample {
            actual: size.actual.get(),
            target: guest.target().get(),
            used: size.used.get(),
            cache: size.cache.get(),
            footprint: size.footprint.get(),
        };
        let running = |resident: &Resident| resident.guest.as_ref().zip(resident.size()).map(of);
        let guests = residents.iter().map(running).collect();
        let (used, other) = (host.used.get(), host.other.get());
        self.samples.push(Sample { at: at.as_millis(), used, other, guests });
    }

    /// The time from the last fault to the last moment at which something was wrong. `None` if that moment is in the last twentieth of the
    /// time after the last fault.
    #[must_use]
    pub fn right_again(&self, lasts: Span) -> Option<Span> {
        if self.host.killed_guests > 0 {
            return None;
        }
        let Some(last) = self.last_wrong else { return Some(Span::ZERO) };
        let until_the_end = lasts.as_millis().saturating_sub(last.as_millis());
        let quiet = lasts.as_millis().saturating_sub(self.calm_from.as_millis());
        let after = last.as_millis().saturating_sub(self.calm_from.as_millis());
        (until_the_end > quiet / 20).then_some(Span::from_millis(after))
    }
}

impl GuestMeasures {
    /// Adds the guest's progress since the last look; `life` tells whether it is the same process. Returns the refaults.
    fn add(&mut self, life: u64, progress: Progress) -> u64 {
        let before = self.last.filter(|_| self.life == life).unwrap_or_default();
        (self.last, self.life) = (Some(progress), life);
        let refaults = progress.refaults - before.refaults;
        self.busy_us += progress.busy_us - before.busy_us;
        self.done_us += progress.done_us - before.done_us;
        self.starved_ms += progress.starved_ms - before.starved_ms;
        self.refaults += refaults;
        self.kills += progress.kills - before.kills;
        self.moved += progress.moved - before.moved;
        self.to_tier += progress.to_tier - before.to_tier;
        self.from_tier += progress.from_tier - before.from_tier;
        refaults
    }

    /// It is not there for `millis`. If the host killed it, the work that it would have done is lost.
    fn miss(&mut self, lost: bool, millis: u64, at: Span) {
        if !lost {
            return;
        }
        self.kills += u64::from(self.lost_at.is_none());
        self.lost_at.get_or_insert(at.as_millis());
        self.busy_us += millis * 1_000;
    }
}
