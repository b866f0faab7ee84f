//! The VMM's answers about one guest.

use serde::{Deserialize, Serialize};

use crate::{Absence, Balloon, Bytes, Fence, GuestStats, Hotplug, Reading, Span, StatsPolling};

/// A VMM's answers about a guest's memory, with their age.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
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
            balloon: self.balloon.later(by),
            hotplug: self.hotplug.later(by),
            stats: self.stats.later(by),
            ..self
        }
    }

    /// The same answers after `by`, if newer ones are not available because of `why`.
    #[must_use]
    pub fn aged(self, by: Span, why: &Absence) -> Self {
        Self {
            balloon: self.balloon.aged(by, why),
            hotplug: self.hotplug.aged(by, why),
            stats: self.stats.aged(by, why),
            ..self
        }
    }
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
