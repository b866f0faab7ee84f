//! What a VMM tells of one guest.

use crate::{Absence, Balloon, Bytes, Fence, GuestStats, Hotplug, Reading, Span, StatsPolling};

/// What a VMM told of a guest's memory, and how old that is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Told {
    /// What the guest keeps with an empty balloon: memory at start, and what was plugged since.
    pub full: Bytes,
    /// The balloon; `actual` with the plugged memory of virtio-mem.
    pub balloon: Reading<Balloon>,
    /// virtio-mem devices together; absent where there is none.
    pub hotplug: Reading<Hotplug>,
    /// What the driver tells of the guest's memory.
    pub stats: Reading<GuestStats>,
    /// How the statistics are polled.
    pub polling: StatsPolling,
    /// The guest was reset, and its driver has not reported since.
    pub reset: bool,
    /// Why it must be left alone at the moment.
    pub fence: Option<Fence>,
}

impl Told {
    /// A guest of `full` bytes of which nothing else is known, because of `why`.
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

    /// The same `by` later, while nobody asked.
    #[must_use]
    pub fn later(self, by: Span) -> Self {
        Self {
            balloon: later(self.balloon, by),
            hotplug: later(self.hotplug, by),
            stats: later(self.stats, by),
            ..self
        }
    }

    /// The same `by` later, while nothing newer could be had because of `why`.
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
        // A device that is not there does not come with an answer.
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
