//! Files: the reads, the cached part, and the cost of a miss.
//!
//! **Rule.** A file of size S is read at random, at R bytes a second. If the cache lacks M bytes of it, a fraction M / S of the accesses
//! miss. Reading a missing byte takes 1 / disk seconds, so the work slows down to `1 / (1 + R × (M / S) / disk)`.

use memtide_model::Span;

use crate::spec::File;

/// The kernel remembers accesses for this long, in seconds: a page accessed within this time is not cold.
pub(crate) const HOT_FOR: u64 = 60;

/// A file and its cached part. Times in milliseconds from the start of the guest.
#[derive(Clone, Debug)]
pub(crate) struct Reading {
    pub(crate) spec: File,
    /// In the page cache.
    pub(crate) resident: u64,
    /// The most that the cache ever held of it. A missing byte below this mark is a refault.
    pub(crate) seen: u64,
    /// Bytes a second that were recently accessed.
    pub(crate) heat: u64,
}

/// The disk reads of a file during a step, and the work done.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Misses {
    /// Bytes read from the disk.
    pub(crate) read: u64,
    /// The part of them that the cache held before.
    pub(crate) refaults: u64,
    /// The work done, in microseconds.
    pub(crate) done: u64,
}

impl Reading {
    pub(crate) const fn new(spec: File) -> Self {
        Self { spec, resident: 0, seen: 0, heat: 0 }
    }

    pub(crate) fn size(&self) -> u64 {
        self.spec.size.map_or(0, memtide_model::Bytes::get)
    }

    /// The bytes that the cache lacks.
    pub(crate) fn missing(&self) -> u64 {
        self.size().saturating_sub(self.resident)
    }

    /// Whether the file is being read.
    pub(crate) fn is_read(&self, now: u64) -> bool {
        let begun = self.spec.starts.as_millis();
        if now < begun || self.spec.ends.is_some_and(|ends| ends.as_millis() <= now) || self.spec.rate == 0 {
            return false;
        }
        match self.spec.periods {
            Some((reads, every)) => (now - begun) % every.as_millis().max(1) < reads.as_millis(),
            None => true,
        }
    }

    /// The next moment after `now` at which reading starts or ends.
    pub(crate) fn next_change(&self, now: u64) -> u64 {
        let begun = self.spec.starts.as_millis();
        if now < begun {
            return begun;
        }
        let ends = self.spec.ends.map_or(u64::MAX, Span::as_millis);
        let ends = if ends > now { ends } else { u64::MAX };
        let Some((reads, every)) = self.spec.periods else { return ends };
        let (every, at) = (every.as_millis().max(1), (now - begun) % every.as_millis().max(1));
        let next = if at < reads.as_millis() { reads.as_millis() } else { every };
        ends.min(now + (next - at).max(1))
    }

    /// Cools down or heats up for `dt` milliseconds.
    pub(crate) fn breathe(&mut self, is_read: bool, dt: u64) {
        let (now, memory) = (if is_read { self.spec.rate } else { 0 }, 2 * HOT_FOR * 1_000);
        let dt = dt.min(memory);
        self.heat = if now > self.heat { now } else { self.heat - (self.heat - now) * dt / memory };
    }

    /// The cost of `dt` milliseconds of reading, from a disk with `disk` bytes a second.
    pub(crate) fn misses(&self, dt: u64, disk: u64) -> Misses {
        let (size, missing) = (u128::from(self.size().max(1)), u128::from(self.missing()));
        let (rate, disk, dt) = (u128::from(self.spec.rate), u128::from(disk.max(1)), u128::from(dt));
        // speed = disk × size / (disk × size + rate × missing)
        let (at_best, slowed) = (disk * size, disk * size + rate * missing);
        let done = dt * 1_000 * at_best / slowed;
        let read = rate * done / 1_000_000 * missing / size;
        let refaults = match missing {
            0 => 0,
            _ => read * u128::from(self.seen.saturating_sub(self.resident)) / missing,
        };
        let narrow = |value: u128| u64::try_from(value).unwrap_or(u64::MAX);
        Misses { read: narrow(read), refaults: narrow(refaults), done: narrow(done) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use memtide_model::{Bytes, MIB};

    #[test]
    fn a_miss_costs_the_time_that_the_disk_takes() {
        let mut file = Reading::new(File::hot(Bytes::from_mib(600), 400 * MIB));
        (file.resident, file.seen) = (600 * MIB, 600 * MIB);
        assert_eq!(file.misses(1_000, 100 * MIB).done, 1_000_000);
        // A quarter of the accesses miss: a second's work takes 1 + 400 × 1/4 / 100 = 2 s. So half of it is done, and 50 MiB are read.
        file.resident = 450 * MIB;
        let misses = file.misses(1_000, 100 * MIB);
        assert_eq!((misses.done, misses.read, misses.refaults), (500_000, 50 * MIB, 50 * MIB));
        // Reading bytes that the cache never held is not a refault.
        file.seen = 450 * MIB;
        assert_eq!(file.misses(1_000, 100 * MIB).refaults, 0);
    }

    #[test]
    fn a_file_is_read_in_its_periods() {
        let secs = |n| Span::from_secs(n);
        let spec = File { periods: Some((secs(10), secs(60))), ..File::hot(Bytes::from_mib(1), 1) };
        let file = Reading::new(File { starts: secs(100), ..spec });
        let read: Vec<bool> = [99, 100, 109, 110, 159, 160].map(|at| file.is_read(at * 1_000)).to_vec();
        assert_eq!(read, [false, true, true, false, false, true]);
        let next: Vec<u64> = [0, 105, 130].map(|at| file.next_change(at * 1_000) / 1_000).to_vec();
        assert_eq!(next, [100, 110, 160]);
    }
}
