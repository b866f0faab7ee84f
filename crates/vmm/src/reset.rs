//! Whether a guest was reset and its driver has not reported since then.
//!
//! After a reset QEMU still reports the old `actual` until the new driver writes its own. Meanwhile the number promises memory that
//! the guest may already be touching. memtide learns about a reset from the event (dedicated monitors) or from its traces: the driver is
//! gone, statistics were never updated, counters went back. The reset is over when the driver has reported: it sends statistics from
//! a later second, it changes `actual`, or it works with an empty balloon, so that no number can be wrong.

use memtide_model::Bytes;

/// Watches for a reset and for the first report after it.
#[derive(Debug, Default)]
pub(crate) struct ResetWatch {
    mark: Option<Mark>,
}

#[derive(Debug)]
struct Mark {
    /// The second of the reset, since 1970. Statistics of a later second are newer.
    second: u64,
    /// QEMU's `actual` at the reset.
    actual: Option<Bytes>,
}

impl ResetWatch {
    /// The guest was reset in this second, while QEMU reported `actual`. A second reset before the first report only
    /// changes the second.
    pub(crate) fn seen(&mut self, second: u64, actual: Option<Bytes>) {
        match &mut self.mark {
            Some(mark) => mark.second = mark.second.max(second),
            None => self.mark = Some(Mark { second, actual }),
        }
    }

    /// The driver sent statistics in this second.
    pub(crate) fn stats_of(&mut self, second: u64) {
        if self.mark.as_ref().is_some_and(|mark| second > mark.second) {
            self.mark = None;
        }
    }

    /// The driver works and QEMU reports `actual`. `boot` is the memory that the guest keeps with an empty balloon.
    pub(crate) fn driver_with(&mut self, actual: Bytes, boot: Bytes) {
        let moved = |mark: &Mark| mark.actual.is_some_and(|before| before != actual);
        if self.mark.as_ref().is_some_and(|mark| moved(mark) || actual >= boot) {
            self.mark = None;
        }
    }

    /// The driver has certainly reported.
    pub(crate) fn over(&mut self) {
        self.mark = None;
    }

    /// Whether a report is still missing.
    pub(crate) const fn is_pending(&self) -> bool {
        self.mark.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: Bytes = Bytes::from_mib(300);
    const BOOT: Bytes = Bytes::from_mib(512);

    fn reset() -> ResetWatch {
        let mut watch = ResetWatch::default();
        watch.seen(100, Some(SMALL));
        watch
    }

    #[test]
    fn a_reset_is_over_with_statistics_of_a_later_second() {
        let mut watch = reset();
        watch.stats_of(100);
        assert!(watch.is_pending());
        watch.stats_of(101);
        assert!(!watch.is_pending());
    }

    #[test]
    fn a_reset_is_over_when_actual_moves_or_the_balloon_is_empty() {
        let mut watch = reset();
        watch.driver_with(SMALL, BOOT);
        assert!(watch.is_pending());
        watch.driver_with(Bytes::from_mib(510), BOOT);
        assert!(!watch.is_pending());

        let mut watch = ResetWatch::default();
        watch.seen(100, Some(BOOT));
        watch.driver_with(BOOT, BOOT);
        assert!(!watch.is_pending());
    }

    #[test]
    fn a_second_reset_asks_for_a_later_report() {
        let mut watch = reset();
        watch.seen(105, Some(BOOT));
        watch.stats_of(103);
        assert!(watch.is_pending());
        watch.stats_of(106);
        assert!(!watch.is_pending());
    }
}
