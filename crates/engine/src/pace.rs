//! The length of the engine's intervals between two ticks.
//!
//! **Rule.** 250 ms while memtide manages and something happens: an action was carried out; a guest is on the way to its target, was
//! just reset, waits for memory or stalled; the host is short of memory or over its commitment. Also 250 ms while a guest keeps less
//! than its full size, because it can stall at any moment, no matter what made it smaller. 100 ms while a guest waits for memory that
//! another guest is giving, a first step shows whether the host gains from a guest, or KSM scans in a burst. Otherwise the interval doubles each time, up to 1 s, and up to 2 s if nothing has changed for a minute. In
//! observe mode nobody waits for a decision, so nothing is urgent.
//!
//! A decision about many guests costs more, so the short intervals grow with the number of guests, up to 1 s: the interval of 100 ms from ten
//! guests on, the interval of 250 ms from 25, or from 12 if nothing happens and guests are only kept below their full size. They grow least if the waiting guest has stalled. A world of many guests looks for want
//! during the intervals, and ends them.
//!
//! An event ends an interval at once, but two ticks never begin less than [`LEAST`] apart. So a guest that produces events at full speed
//! costs the host at most twenty ticks a second.

use std::mem::{Discriminant, discriminant};

use memtide_model::{
    Answer, Bytes, GuestId, GuestReport, HostState, KsmVerdict, Mode, Moment, Proof, Report, Span, State,
    Verdict,
};

/// The shortest time between the beginnings of two ticks.
pub(crate) const LEAST: Span = Span::from_millis(50);
const URGENT: Span = Span::from_millis(250);
const AWAITED: Span = Span::from_millis(100);
const USUAL: Span = Span::from_secs(1);
const QUIET: Span = Span::from_secs(2);
const QUIET_AFTER: Span = Span::from_secs(60);

/// The length of the next interval, and everything that it depends on.
#[derive(Debug)]
pub(crate) struct Pace {
    interval: Span,
    changed_at: Moment,
    verdicts: Vec<(GuestId, Discriminant<Verdict>)>,
}

impl Pace {
    pub(crate) fn new() -> Self {
        Self { interval: URGENT, changed_at: Moment::default(), verdicts: Vec::new() }
    }

    /// The interval after the last tick.
    pub(crate) const fn interval(&self) -> Span {
        self.interval
    }

    /// Notes a tick at `at`.
    pub(crate) fn after(
        &mut self,
        at: Moment,
        mode: Mode,
        answers: &[Answer],
        report: &Report,
        state: &State,
    ) {
        if mode == Mode::Manage && is_urgent(at, answers, report, state) {
            self.changed_at = at;
            self.interval = match awaited(at, report, state) {
                Some(Need::Stall) => scaled(AWAITED, 1, report),
                Some(Need::Growth) => scaled(AWAITED, 10, report),
                None if bursts(report) || is_probed(state) => scaled(AWAITED, 10, report),
                None => scaled(URGENT, 10, report),
            };
            return;
        }
        let told = || report.guests.iter().map(|guest| (&guest.id, discriminant(&guest.verdict)));
        if !told().eq(self.verdicts.iter().map(|(id, verdict)| (id, *verdict))) {
            self.verdicts = told().map(|(id, verdict)| (id.clone(), verdict)).collect();
            self.changed_at = at;
        }
        if mode == Mode::Manage && is_withheld(report) {
            self.interval = scaled(URGENT, 20, report);
            return;
        }
        let longest = if at.since(self.changed_at) >= QUIET_AFTER { QUIET } else { USUAL };
        self.interval = self.interval.doubled().min(longest);
        assert!(self.interval > Span::ZERO, "an interval of zero would keep the engine busy forever");
    }
}

/// An interval with at least `each` milliseconds for each guest, but no longer than [`USUAL`].
fn scaled(interval: Span, each: u64, report: &Report) -> Span {
    let for_all = Span::from_millis(each.saturating_mul(report.guests.len() as u64));
    for_all.min(USUAL).max(interval)
}

/// Whether something is happening that should not wait. Failures do not count: a VMM that refuses is not asked more often.
fn is_urgent(at: Moment, answers: &[Answer], report: &Report, state: &State) -> bool {
    answers.contains(&Answer::Accepted)
        || report.host.state != HostState::High
        || report.host.breach > Bytes::ZERO
        || bursts(report)
        || report.guests.iter().any(|guest| {
            matches!(guest.verdict, Verdict::UnderWay | Verdict::Reset | Verdict::WaitsForMemory { .. })
        })
        || state.guests.values().any(|guest| guest.stalled.is_some_and(|(_, until)| until > at))
}

/// Whether a guest takes its first step, which shows whether the host gains from it: others wait for what comes after.
fn is_probed(state: &State) -> bool {
    state.guests.values().any(|guest| guest.gain.proof == Proof::None && guest.gain.step.is_some())
}

/// Whether KSM scans at full speed: a burst ends at the first decision after a pass that was not worth it.
fn bursts(report: &Report) -> bool {
    report.host.ksm.as_ref().is_some_and(|ksm| matches!(ksm.verdict, KsmVerdict::Bursts { .. }))
}

/// Why a waiting guest needs memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Need {
    /// It has stalled.
    Stall,
    /// It wants to grow.
    Growth,
}

/// The most urgent need of a guest that waits for memory that another guest is giving.
fn awaited(at: Moment, report: &Report, state: &State) -> Option<Need> {
    let gives = |guest: &GuestReport| matches!(guest.verdict, Verdict::Shrunk | Verdict::UnderWay);
    if report.host.unmet.is_zero() || !report.guests.iter().any(gives) {
        return None;
    }
    let stalled = |guest: &GuestReport| {
        matches!(guest.verdict, Verdict::WaitsForMemory { .. })
            && state
                .guests
                .get(&guest.id)
                .is_some_and(|state| state.stalled.is_some_and(|(_, until)| until > at))
    };
    Some(if report.guests.iter().any(stalled) { Need::Stall } else { Need::Growth })
}

/// Whether a guest that gets memory from memtide keeps less than its full size. Such a guest can stall at any moment, and waits for the next tick.
fn is_withheld(report: &Report) -> bool {
    let gets_nothing = |verdict: &Verdict| {
        matches!(
            verdict,
            Verdict::Observed
                | Verdict::NotManaged
                | Verdict::Withheld(_)
                | Verdict::NoBalloon(_)
                | Verdict::Fenced(_)
                | Verdict::Held(_)
        )
    };
    report.guests.iter().any(|guest| guest.actual < guest.full && !gets_nothing(&guest.verdict))
}

#[cfg(test)]
mod tests {
    use super::*;
    use memtide_model::{Absence, Fence, GuestState, HostReport};

    fn report(verdict: Verdict) -> Report {
        let guest = GuestReport {
            id: GuestId::new("web", 1, "boot"),
            class: "default".into(),
            footprint: None,
            merged: None,
            reach: Bytes::ZERO,
            actual: Bytes::ZERO,
            full: Bytes::ZERO,
            used: None,
            cache: Bytes::ZERO,
            headroom: Bytes::ZERO,
            demand: Bytes::ZERO,
            entitlement: Bytes::ZERO,
            target: None,
            unordered: Bytes::ZERO,
            bound_by: None,
            verdict,
        };
        Report { host: HostReport::default(), guests: vec![guest] }
    }

    fn after(pace: &mut Pace, secs: u64, mode: Mode, verdict: Verdict) -> Span {
        pace.after(Moment::from_millis(secs * 1000), mode, &[], &report(verdict), &State::default());
        pace.interval()
    }

    #[test]
    fn intervals_grow_while_nothing_happens_and_fall_at_once() {
        let mut pace = Pace::new();
        let manage = Mode::Manage;
        assert_eq!(after(&mut pace, 1, manage, Verdict::UnderWay), URGENT);
        assert_eq!(after(&mut pace, 2, manage, Verdict::Steady), URGENT.doubled());
        assert_eq!(after(&mut pace, 3, manage, Verdict::Steady), USUAL);
        assert_eq!(after(&mut pace, 4, manage, Verdict::Steady), USUAL);
        assert_eq!(after(&mut pace, 62, manage, Verdict::Steady), QUIET);
        assert_eq!(after(&mut pace, 63, manage, Verdict::Observed), USUAL);
        assert_eq!(after(&mut pace, 64, manage, Verdict::WaitsForMemory { lacks: Bytes::ZERO }), URGENT);
    }

    #[test]
    fn a_guest_that_was_made_smaller_is_watched_closely() {
        let mut pace = Pace::new();
        let mut small = report(Verdict::Steady);
        small.guests[0].full = Bytes::from_mib(1024);
        small.guests[0].actual = Bytes::from_mib(512);
        for secs in 1..100 {
            pace.after(Moment::from_millis(secs * 1000), Mode::Manage, &[], &small, &State::default());
        }
        assert_eq!(pace.interval(), URGENT);
        let gets_nothing =
            [Verdict::Fenced(Fence::Paused), Verdict::NotManaged, Verdict::NoBalloon(Absence::Unsupported)];
        for (verdict, begins) in gets_nothing.into_iter().zip([100, 200, 300]) {
            small.guests[0].verdict = verdict;
            for secs in begins..begins + 100 {
                pace.after(Moment::from_millis(secs * 1000), Mode::Manage, &[], &small, &State::default());
            }
            assert_eq!(pace.interval(), QUIET, "a guest that would get nothing is not watched");
        }
    }

    #[test]
    fn nothing_is_urgent_for_an_observer() {
        let mut pace = Pace::new();
        let mut low = report(Verdict::Observed);
        low.host.state = HostState::Low;
        pace.after(Moment::default(), Mode::Observe, &[], &low, &State::default());
        assert_eq!(pace.interval(), URGENT.doubled());
        pace.after(Moment::default(), Mode::Manage, &[], &low, &State::default());
        assert_eq!(pace.interval(), URGENT);
    }

    #[test]
    fn what_was_done_is_urgent_and_what_failed_is_not() {
        let (mut pace, steady) = (Pace::new(), report(Verdict::Steady));
        let failed = [Answer::Failed("refused".to_owned())];
        pace.after(Moment::default(), Mode::Manage, &failed, &steady, &State::default());
        assert_eq!(pace.interval(), URGENT.doubled());
        pace.after(Moment::default(), Mode::Manage, &[Answer::Accepted], &steady, &State::default());
        assert_eq!(pace.interval(), URGENT);
    }

    #[test]
    fn of_many_guests_one_that_stalled_is_helped_sooner_than_one_that_would_grow() {
        let one = |name: &str, verdict: Verdict| GuestReport {
            id: GuestId::new(name, 1, "boot"),
            ..report(verdict).guests.remove(0)
        };
        let waits = one("waits", Verdict::WaitsForMemory { lacks: Bytes::from_mib(1) });
        let gives = one("gives", Verdict::UnderWay);
        let others = (0..98).map(|number| one(&format!("vm-{number}"), Verdict::Steady));
        let stalled = GuestState {
            stalled: Some((Bytes::from_mib(512), Moment::from_millis(5_000))),
            ..GuestState::default()
        };
        let mut state = State::default();
        state.guests.insert(waits.id.clone(), Box::new(stalled));
        let mut many = Report { host: HostReport::default(), guests: vec![waits, gives] };
        many.guests.extend(others);
        many.host.unmet = Bytes::from_mib(1);
        let interval = |secs: u64| {
            let mut pace = Pace::new();
            pace.after(Moment::from_millis(secs * 1_000), Mode::Manage, &[], &many, &state);
            pace.interval()
        };
        assert!(interval(4) < interval(6), "{:?} {:?}", interval(4), interval(6));
    }
}
