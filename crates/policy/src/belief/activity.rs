//! How much of a CPU a guest uses.
//!
//! **Problem.** No counter tells which guest's page cache is in use before some of it is gone. But page cache is used by programs, and programs use
//! CPU time, which the host counts.
//!
//! **Rule.** The CPU time of a guest's VMM is averaged over half a minute, or since the guest was first seen. Inflations, and what an agent does for
//! memtide, cost CPU time, too: meanwhile the mean stays. Of a UML instance, only its kernel's time is known; reads of page cache are part
//! of it. Of the page cache of a guest that uses `q` of a CPU, `Q / (Q + q)` is likely to be cold ([`IDLE_CPU`]). Those whose cache is likely to
//! be cold give first, and give most of what is wanted.
//!
//! **Property.** A guest without a reading counts as one that uses a whole CPU. Without any readings, page cache comes in proportion to its size.

use memtide_model::{Activity, Bytes, Moment, Reading, Span};

use crate::constants::{ACTIVITY_OVER, IDLE_CPU, READ_AGAIN_US, REPORTS_EVERY};

/// A whole CPU, in thousandths.
const WHOLE_CPU: u64 = 1_000;

/// The activity after another reading of the CPU time. `disturbed_at`: when the guest was last seen working for memtide.
#[must_use]
pub fn observe(
    before: Activity,
    cpu_time: &Reading<Span>,
    disturbed_at: Option<Moment>,
    now: Moment,
) -> Activity {
    let Reading::Fresh { value: used, age } = *cpu_time else { return before };
    let made = now.before(age);
    let after = Activity { read: Some((made, used)), ..before };
    let Some((at, used_before)) = before.read else { return after };
    let elapsed = made.since(at);
    if elapsed < REPORTS_EVERY {
        return before;
    }
    if disturbed_at.is_some_and(|disturbed_at| disturbed_at >= at) {
        return after;
    }
    let observed = before.observed.plus(elapsed).min(ACTIVITY_OVER);
    let used = used.as_millis().saturating_sub(used_before.as_millis());
    let (elapsed, all) = (elapsed.as_millis().min(observed.as_millis()), observed.as_millis());
    let rate = used.saturating_mul(WHOLE_CPU) / made.since(at).as_millis();
    let mean = before.mean.saturating_mul(all - elapsed).saturating_add(rate.saturating_mul(elapsed)) / all;
    Activity { observed, mean, ..after }
}

/// The CPU time that a guest uses, in thousandths of one CPU.
#[must_use]
pub fn uses(activity: &Activity) -> u64 {
    if activity.observed == Span::ZERO { WHOLE_CPU } else { activity.mean }
}

/// The work that a guest is expected to lose for each MiB of page cache that it reads again, in microseconds: it only loses what it would have done.
#[must_use]
pub fn loses(activity: &Activity) -> u64 {
    READ_AGAIN_US.saturating_mul(uses(activity) / 10) / (WHOLE_CPU / 10)
}

/// The part of a guest's page `cache` that is likely to be cold.
#[must_use]
pub fn likely_cold(cache: Bytes, activity: &Activity) -> Bytes {
    cache.mul_div(IDLE_CPU, IDLE_CPU.saturating_add(uses(activity)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The activity after readings at these seconds, of these milliseconds of CPU time.
    fn after(readings: &[(u64, u64)]) -> Activity {
        readings.iter().fold(Activity::default(), |before, &(secs, used)| {
            let used = Reading::now(Span::from_millis(used));
            observe(before, &used, None, Moment::from_millis(secs * 1_000))
        })
    }

    #[test]
    fn the_mean_is_over_all_that_was_seen_and_then_over_half_a_minute() {
        let cold = |activity| likely_cold(Bytes::from_mib(1004), &activity).whole_mib();
        assert_eq!(cold(after(&[])), 4);
        assert_eq!(cold(after(&[(10, 700)])), 4, "one reading tells nothing");
        let (idle, some) = (after(&[(10, 700), (12, 704)]), after(&[(10, 700), (12, 764), (14, 764)]));
        assert_eq!((idle.mean, cold(idle)), (2, 669));
        assert_eq!((some.mean, cold(some)), (16, 200));
        let worked = after(&[(10, 0), (40, 30_000)]);
        assert_eq!((worked.mean, cold(worked)), (1_000, 4));
        let rests = after(&[(10, 0), (40, 30_000), (55, 30_000)]);
        assert_eq!(rests.mean, 500);
    }

    #[test]
    fn an_inflation_is_no_activity_and_a_missing_reading_changes_nothing() {
        let quiet = after(&[(10, 700), (12, 704)]);
        let at = |secs: u64| Moment::from_millis(secs * 1_000);
        let inflated = observe(quiet, &Reading::now(Span::from_millis(2_704)), Some(at(13)), at(14));
        assert_eq!((inflated.mean, inflated.read), (2, Some((at(14), Span::from_millis(2_704)))));
        assert_eq!(observe(quiet, &Reading::unsupported(), None, at(14)), quiet);
        let soon = Reading::Fresh { value: Span::from_millis(900), age: Span::from_millis(1_500) };
        assert_eq!(observe(quiet, &soon, None, at(14)), quiet, "half a second is too short");
    }
}
