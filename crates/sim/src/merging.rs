//! The host's KSM: which memory of the guests is merged, and what the scanning costs.
//!
//! **Rule.** A part of a guest's programs' memory can be *equal*: each other guest with such memory has the same. While KSM scans, it goes
//! over all memory that may be merged, again and again. It remembers a guest's pages on its first pass over them, and merges equal ones from the second
//! on; one copy stays. Memory that a program writes to, or frees, comes apart, and memory of a guest that may not be merged any more.
//!
//! The savings are divided among the guests by their merged memory, as `memtide-host` does with the kernel's counters. These counters fall only
//! when a pass comes to memory that has come apart or is gone: what a guest that has left had saved is counted until then, and the guests that shared
//! with it are credited with too much. The model knows no `smart_scan`.

use memtide_guest::Guest;
use memtide_model::{Bytes, KsmOrder, KsmRun, KsmSeen, KsmSettings, Moment, PAGE_4K, Span};

use crate::merged::{PASS, told_of};
use crate::resident::Resident;

/// Pages that are scanned in a second of processor time: measured on the machine of docs/results.md.
const SPEED: u64 = 400_000;

/// KSM as a host finds it: the kernel's defaults since Linux 6.8.
const FOUND: KsmSettings = KsmSettings {
    run: KsmRun::Stopped,
    pages_to_scan: 100,
    sleep_millisecs: 20,
    smart_scan: Some(true),
    advisor: Some(false),
};

/// KSM on the simulated host.
#[derive(Debug)]
pub(crate) struct Merging {
    settings: KsmSettings,
    /// Bytes scanned since the beginning of the pass.
    scanned: u64,
    full_scans: u64,
    cpu_us: u64,
    /// What merging saves, the same as the kernel counts it, and the copies that stay.
    saved: Bytes,
    told: Bytes,
    shared: Bytes,
    /// What the guests are credited with although it is not saved any more.
    stale: Bytes,
    /// Memory of guests that a pass has seen and that have left.
    left: Bytes,
    /// All memory that may be merged.
    mergeable: Bytes,
    /// What merging could save.
    can_save: Bytes,
}

impl Merging {
    pub(crate) const fn new() -> Self {
        Self {
            settings: FOUND,
            scanned: 0,
            full_scans: 0,
            cpu_us: 0,
            saved: Bytes::ZERO,
            told: Bytes::ZERO,
            shared: Bytes::ZERO,
            stale: Bytes::ZERO,
            left: Bytes::ZERO,
            mergeable: Bytes::ZERO,
            can_save: Bytes::ZERO,
        }
    }

    pub(crate) fn obey(&mut self, order: KsmOrder) {
        self.settings = order.after(self.settings);
    }

    /// Puts the settings back, as memtide's helper does once memtide is gone.
    pub(crate) fn put_back(&mut self) {
        self.settings = FOUND;
    }

    /// Lets `dt` pass up to `now`.
    pub(crate) fn pass(&mut self, residents: &mut [Resident], dt: Span, now: Moment) {
        let mergeable = residents.iter().filter(|resident| resident.merged.may).map(present);
        self.mergeable = Bytes::sum(mergeable);
        let (scanned, cpu_us) = self.scans(dt);
        self.cpu_us += cpu_us;
        self.scanned += scanned;
        // Without anything to scan, no pass comes to an end.
        let all = self.mergeable.get();
        self.full_scans += self.scanned.checked_div(all).unwrap_or(0);
        self.scanned = self.scanned.checked_rem(all).unwrap_or(0);
        let progress = Bytes::new(PASS).mul_div(scanned, all.max(1)).get();
        let mut can_merge = Vec::with_capacity(residents.len());
        for resident in residents.iter_mut() {
            let own = equal_now(resident);
            let written = times_written(resident, now);
            resident.merged.go_on(own, (progress, written), dt);
            let present = if resident.merged.may { present(resident) } else { Bytes::ZERO };
            resident.merged.note(self.full_scans, present);
            if resident.merged.may {
                can_merge.push(own);
            }
        }
        self.can_save = Bytes::new(saving(can_merge.iter().copied()));
        self.left = Bytes::sum(residents.iter().map(|resident| resident.left));
        self.divide(residents, progress);
    }

    /// The bytes that are scanned in `dt`, and the processor time that this takes.
    fn scans(&self, dt: Span) -> (u64, u64) {
        if self.settings.run != KsmRun::Scanning || self.mergeable.is_zero() {
            return (0, 0);
        }
        let turn_us = (self.settings.pages_to_scan.saturating_mul(1_000_000) / SPEED).max(1);
        let elapsed_us = dt.as_millis() * 1_000;
        let pause_us = self.settings.sleep_millisecs.saturating_mul(1_000);
        let cpu_us = Bytes::new(elapsed_us).mul_div(turn_us, turn_us.saturating_add(pause_us)).get();
        (cpu_us * SPEED / 1_000_000 * PAGE_4K.bytes().get(), cpu_us)
    }

    /// Divides the savings among the guests. Memory without a twin is not merged.
    fn divide(&mut self, residents: &mut [Resident], progress: u64) {
        let second = second_largest(residents.iter().map(|resident| resident.merged.bytes));
        let with_twin = |resident: &Resident| resident.merged.bytes.min(second);
        let all = Bytes::sum(residents.iter().map(|resident| Bytes::new(with_twin(resident))));
        self.shared = Bytes::new(second);
        self.saved = all.saturating_sub(self.shared);
        self.told = told_of(self.saved, self.told, progress);
        self.stale = Bytes::ZERO;
        for resident in residents {
            let own = Bytes::new(with_twin(resident));
            let merged = &mut resident.merged;
            merged.saved = own.mul_div(self.saved.get(), all.get().max(1));
            merged.told = told_of(merged.saved, merged.told, progress);
            self.stale = self.stale.saturating_add(merged.told.saturating_sub(merged.saved));
        }
    }

    /// KSM as the daemon sees it.
    pub(crate) fn seen(&self) -> KsmSeen {
        KsmSeen {
            settings: self.settings,
            full_scans: self.full_scans,
            saved: self.told,
            shared: self.shared,
            cpu_time: Some(self.cpu_time()),
            mergeable: self.mergeable,
            left: self.left,
            ..KsmSeen::default()
        }
    }

    /// The processor time that scanning has taken.
    pub(crate) const fn cpu_time(&self) -> Span {
        Span::from_millis(self.cpu_us / 1_000)
    }

    /// What the guests are credited with although it is not saved any more.
    pub(crate) const fn stale(&self) -> Bytes {
        self.stale
    }

    /// What merging saves, and what it could save.
    pub(crate) const fn saves(&self) -> (Bytes, Bytes) {
        (self.saved, self.can_save)
    }
}

/// A guest's memory that the host backs, and that KSM may merge.
fn present(resident: &Resident) -> Bytes {
    let backed = |guest: &Guest| guest.size().footprint.saturating_sub(guest.spec().overhead);
    resident.guest.as_ref().map_or(Bytes::ZERO, backed)
}

/// How often a guest has written to all of its equal memory.
fn times_written(resident: &Resident, now: Moment) -> u64 {
    let every = resident.plan.equal.and_then(|plan| plan.changes_every);
    let lives = now.since(resident.started);
    every.map_or(0, |every| lives.as_millis() / every.as_millis().max(1))
}

/// The equal memory of a guest now.
fn equal_now(resident: &Resident) -> u64 {
    let Some((plan, guest)) = resident.plan.equal.zip(resident.guest.as_ref()) else { return 0 };
    let programs = guest.size().used.saturating_sub(guest.spec().kernel_size);
    plan.size.min(programs).get()
}

/// What is saved if each guest has this much merged: all but one copy.
fn saving(merged: impl Iterator<Item = u64> + Clone) -> u64 {
    let second = second_largest(merged.clone());
    merged.map(|own| own.min(second)).sum::<u64>().saturating_sub(second)
}

/// The second largest of `all`, or zero.
fn second_largest(all: impl Iterator<Item = u64>) -> u64 {
    let (_, second) = all.fold((0, 0), |(first, second), own| match own {
        own if own > first => (own, first),
        own => (first, second.max(own)),
    });
    second
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use memtide_guest::{Program, Spec};

    use super::*;
    use crate::setup::{BEGINS, EqualMemory, GuestSetup};

    fn guests(sizes: &[u64], changes_every: Option<Span>) -> Vec<Resident> {
        let resident = |(size, number): (&u64, u64)| {
            let programs = vec![Program::constant(Bytes::from_mib(400))];
            let spec = Spec { programs, ..Spec::default() };
            let plan = GuestSetup {
                name: format!("guest-{number}"),
                spec: Arc::new(spec),
                equal: Some(EqualMemory { size: Bytes::from_mib(*size), changes_every }),
                in_tmpfs: false,
                arrives: Span::ZERO,
                leaves: None,
            };
            let mut resident = Resident::new(plan, number);
            resident.start(BEGINS);
            resident.live(BEGINS.after(Span::from_secs(5)), Span::from_secs(5), false);
            resident
        };
        sizes.iter().zip(1..).map(resident).collect()
    }

    /// Lets `seconds` pass in steps of a quarter of a second.
    fn pass(merging: &mut Merging, guests: &mut [Resident], from: Moment, seconds: u64) -> Moment {
        let step = Span::from_millis(250);
        (0..seconds * 4).fold(from, |at, _| {
            let now = at.after(step);
            merging.pass(guests, step, now);
            now
        })
    }

    #[test]
    fn one_copy_of_what_several_guests_have_stays() {
        let (mut merging, mut guests) = (Merging::new(), guests(&[300, 200, 100], None));
        let now = pass(&mut merging, &mut guests, BEGINS, 10);
        assert_eq!(merging.saves(), (Bytes::ZERO, Bytes::from_mib(300)), "nobody scans");
        merging.obey(KsmOrder::Scan { smart: true });
        let now = pass(&mut merging, &mut guests, now, 5);
        assert_eq!(merging.saves().0, Bytes::from_mib(300));
        assert!(merging.seen().full_scans >= 2);
        // 500 MiB are merged into 200: the first guest's last 100 MiB have no twin.
        let saved: Vec<u64> = guests.iter().map(|guest| guest.merged.saved.whole_mib()).collect();
        assert_eq!(saved, [120, 120, 60]);
        let cpu_time = merging.cpu_time();
        merging.put_back();
        guests[2].merged.may = false;
        pass(&mut merging, &mut guests, now, 1);
        assert_eq!((merging.saves().0, merging.cpu_time()), (Bytes::from_mib(200), cpu_time));
        // Nobody scans, so nobody has noticed.
        assert_eq!((merging.seen().saved, merging.stale()), (Bytes::from_mib(300), Bytes::from_mib(100)));
        assert!(merging.seen().left.is_zero(), "nobody has left");
    }

    #[test]
    fn what_a_guest_that_has_left_saved_is_counted_until_the_next_pass() {
        let (mut merging, mut guests) = (Merging::new(), guests(&[300, 300, 300, 300], None));
        merging.obey(KsmOrder::Scan { smart: true });
        let now = pass(&mut merging, &mut guests, BEGINS, 10);
        merging.obey(KsmOrder::Stop);
        let present = guests[..2].iter().map(|guest| guest.footprint().saturating_add(guest.merged.saved));
        let present = Bytes::sum(present.map(|all| all.saturating_sub(guests[0].plan.spec.overhead)));
        guests[..2].iter_mut().for_each(Resident::end);
        let now = pass(&mut merging, &mut guests, now, 3);
        let mib = Bytes::from_mib;
        assert_eq!(merging.saves(), (mib(300), mib(300)));
        assert_eq!((merging.seen().saved, merging.seen().left), (mib(900), present));
        // Each of the others is still credited with three quarters of its 300 MiB, and saves half.
        assert_eq!(merging.stale(), mib(150));
        merging.obey(KsmOrder::Scan { smart: true });
        pass(&mut merging, &mut guests, now, 10);
        let told = merging.seen().saved;
        assert!(told < mib(301), "{told}");
        assert!(merging.stale() < mib(1), "{}", merging.stale());
    }

    #[test]
    fn what_is_written_comes_apart_and_needs_two_passes_again() {
        let every = Some(Span::from_secs(60));
        let (mut merging, mut guests) = (Merging::new(), guests(&[300, 300], every));
        merging.obey(KsmOrder::Scan { smart: true });
        let now = pass(&mut merging, &mut guests, BEGINS, 59);
        assert_eq!(merging.saves().0, Bytes::from_mib(300));
        merging.obey(KsmOrder::Stop);
        let now = pass(&mut merging, &mut guests, now, 3);
        assert_eq!(merging.saves(), (Bytes::ZERO, Bytes::from_mib(300)));
        merging.obey(KsmOrder::Scan { smart: true });
        pass(&mut merging, &mut guests, now, 5);
        assert_eq!(merging.saves().0, Bytes::from_mib(300));
    }
}
