//! The VMM's answers about one guest.

use crate::{Absence, Balloon, Bytes, Fence, GuestStats, Hotplug, Reading, Span, StatsPolling};

/// A VMM's answers about a guest's memory, with their age.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Told {
    /// Memory that the guest keeps with an empty balloon: memory at start plus memory plugged since.
    pub full: Bytes,
    /// The balloon. `actual` includes the memory that virtio-mem has plugged.
    pub balloon: Reading<Balloon>,
    /// All virtio-mem devices together; absent if there is none.
    pub hotplug: Reading<Hotplug>,
    /// The driver's statistics of the guest's memory.
    pub stats: Reading<GuestStats>,
    /// How the statistics are polled.
    pub polling: StatsPolling,
    /// The guest was reset, and its driver has not reported since then.
    pub reset: bool,
    /// Why memtide must leave the guest alone at the moment.
    pub fence: Option<Fence>,
}

impl Told {
    /// A guest of `full` bytes. Everything else is unknown because of `why`.
    #[must_use]
    pub fn nothing(full: Bytes, why: Absence) -> Self {
        Self {
            full,
            balloon: Reading::absent(why.clone()),
            hotplug: Reading::absent(why.clone()),
            stats: Reading::absent(why),
            polling: StatsPolling::Unknown,
            reset: false,
            fence: None,
        }
    }

    /// The same answers after `by`, if nobody asked again.
    #[must_use]
    pub fn later(self, by: Span) -> Self {
        Self {
            balloon: later(self.balloon, by),
            hotplug: later(self.hotplug, by),
            stats: later(self.stats, by),
            ..self
        }
    }

    /// The same answers after `by`, if newer ones are not available because of `why`.
    #[must_use]
    pub fn aged(self, by: Span, why: &Absence) -> Self {
        Self {
            balloon: aged(self.balloon, by, why),
            hotplug: aged(self.hotplug, by, why),
            stats: aged(self.stats, by, why),
            ..self
        }
    }
}

fn later<T>(reading: Reading<T>, by: Span) -> Reading<T> {
    match reading {
        Reading::Fresh { value, age } => Reading::Fresh { value, age: add(age, by) },
        Reading::Stale { value, age, why } => Reading::Stale { value, age: add(age, by), why },
        absent @ Reading::Absent { .. } => absent,
    }
}

fn aged<T>(reading: Reading<T>, by: Span, why: &Absence) -> Reading<T> {
    match reading {
        Reading::Fresh { value, age } | Reading::Stale { value, age, .. } => {
            Reading::Stale { value, age: add(age, by), why: why.clone() }
        }
        // A guest without the device has no device later either.
        Reading::Absent { why: lasting @ (Absence::NoBalloon | Absence::Unsupported) } => {
            Reading::absent(lasting)
        }
        Reading::Absent { .. } => Reading::absent(why.clone()),
    }
}

fn add(a: Span, b: Span) -> Span {
    Span::from_millis(a.as_millis().saturating_add(b.as_millis()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_known_grows_old_and_says_why() {
        let hotplug = Hotplug { requested: Bytes::ZERO, plugged: Bytes::ZERO };
        let told = Told {
            hotplug: Reading::Fresh { value: hotplug, age: Span::from_millis(10) },
            balloon: Reading::absent(Absence::NoBalloon),
            ..Told::nothing(Bytes::from_mib(512), Absence::NotYet)
        };
        let later = told.aged(Span::from_millis(90), &Absence::Timeout);
        let age = Span::from_millis(100);
        assert_eq!(later.hotplug, Reading::Stale { value: hotplug, age, why: Absence::Timeout });
        assert_eq!(later.balloon, Reading::absent(Absence::NoBalloon));
        assert_eq!(later.stats, Reading::absent(Absence::Timeout));
    }
}
