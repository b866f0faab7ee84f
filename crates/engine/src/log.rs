//! The engine's log messages: guests that appear, vanish, cannot be resized or do not follow; the host's state; a commitment that
//! is not kept; changes that fail. Each message appears when the condition begins and when it ends. At four ticks a second, a guest
//! that refuses everything would otherwise fill the log. A condition that often passes by itself, such as a missing driver while a
//! guest boots, is logged only after it has lasted for a while.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use memtide_model::{
    Absence, Answer, Bytes, GuestId, GuestReport, Hold, HostReport, HostState, Keeps, KsmReport, KsmVerdict,
    Mechanism, Moment, Names, Request, Span, Subject, Verdict,
};
use tracing::{debug, info, warn};

use crate::{Killed, Step};

/// A guest without a balloon is logged after this time. A boot takes less.
const BOOTS_WITHIN: Span = Span::from_secs(20);
/// A broken commitment is logged after this time, because a balloon needs a moment to follow.
const BREACH_LASTS: Span = Span::from_secs(2);
/// A smaller breach is not logged: the process of a guest grows by some pages now and then, and the ledger of a strict host may be full.
const LEAST_BREACH: Bytes = Bytes::from_mib(1);
/// A failure for another reason is logged at most this often. Otherwise a VMM that always changes its message would fill the log.
const OTHER_WORDS_AFTER: Span = Span::from_secs(60);
/// A failure without a later success is forgotten this long after its message.
const FORGOTTEN_AFTER: Span = Span::from_secs(600);
/// A guest that did not follow its target moves again after its size has changed by more than this.
const MOVED: Bytes = Bytes::from_mib(1);

/// The last messages.
#[derive(Debug, Default)]
pub(crate) struct Log {
    /// The key is the guest, and whether the change was a change of its target.
    failures: BTreeMap<(Subject, Mechanism), Failure>,
    /// The subjects of refused changes, each with the time of its message.
    refused: BTreeMap<String, Moment>,
    /// Whether the last reading of the host failed.
    misses_host: bool,
    /// Whether somebody else sets KSM.
    ksm_is_anothers: bool,
    guests: BTreeMap<GuestId, Complaints>,
    host: HostState,
    breach: Lasting<()>,
}

/// A failed change and its last message.
#[derive(Debug)]
struct Failure {
    why: String,
    said_at: Moment,
}

/// A condition that is logged after it has lasted for a while.
#[derive(Debug)]
struct Lasting<T> {
    now: Option<(T, Moment)>,
    said: Option<T>,
}

/// A problem with a guest that an operator may want to fix.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Complaint {
    NoBalloon(Absence),
    DoesNotFollow,
}

/// The complaint of a guest.
#[derive(Debug, Default)]
struct Complaints {
    lasting: Lasting<Complaint>,
    /// The guest's size at the time of the message.
    actual: Bytes,
    /// The hold in the last message.
    hold: Option<Hold>,
}

impl Log {
    /// Logs everything new in this tick, with the guests that were `killed` since the last one.
    pub(crate) fn step(&mut self, step: &Step, killed: &[Killed]) {
        let (now, report, names) = (step.seen.taken_at, &step.report, step.report.names());
        self.host(&report.host, now);
        self.guests(&report.guests, (&names, killed), now);
        self.refusals(step, now);
        self.reading(step);
        self.ksm(report.host.ksm.as_ref());
        // A guest without actions has not recovered. Old failures are forgotten.
        self.failures.retain(|_, failure| now.since(failure.said_at) < FORGOTTEN_AFTER);
        for (action, answer) in step.plan.actions.iter().zip(&step.answers) {
            let name = || names.subject(&action.subject);
            let which = (action.subject.clone(), action.request.mechanism());
            match answer {
                Answer::Accepted if matches!(action.request, Request::Merge(_) | Request::Share(_)) => {
                    let of = action.guest().map_or_else(String::new, |guest| format!("{}: ", guest.name()));
                    info!("KSM: {of}{}: {}", action.request, action.reason);
                    self.failures.remove(&which);
                }
                Answer::Accepted | Answer::Yielded(_) => {
                    debug!(subject = name(), request = %action.request, reason = %action.reason, "done");
                    if self.failures.remove(&which).is_some() {
                        info!(subject = name(), "requests succeed again");
                    }
                }
                Answer::Refused => {}
                Answer::Failed(why) => {
                    let failure = Failure::said(self.failures.remove(&which), why, now);
                    if failure.said_at == now {
                        warn!(subject = name(), request = %action.request, why, "failed");
                    }
                    self.failures.insert(which, failure);
                }
            }
        }
    }

    /// Logs each refusal once. Targets in it change at each tick, so a guest's refusals are one message.
    fn refusals(&mut self, step: &Step, now: Moment) {
        self.refused.retain(|_, at| now.since(*at) < OTHER_WORDS_AFTER);
        for refusal in &step.refusals {
            let action = step.plan.actions.get(refusal.action);
            let who = action.map_or_else(String::new, |action| step.report.names().subject(&action.subject));
            if let Entry::Vacant(unsaid) = self.refused.entry(who) {
                let (subject, why) = (unsaid.key(), &refusal.why);
                warn!(subject, why, "a change is refused; the guest stays as it is");
                unsaid.insert(now);
            }
        }
    }

    fn reading(&mut self, step: &Step) {
        let missed = &step.seen.host.missed;
        match missed {
            Some(missed) if !self.misses_host => {
                warn!(why = %missed.why, "the host's memory cannot be read: no target is changed until then");
            }
            None if self.misses_host => info!("the host's memory can be read again"),
            _ => {}
        }
        self.misses_host = missed.is_some();
    }

    fn ksm(&mut self, ksm: Option<&KsmReport>) {
        // Without a reading, nobody knows.
        let Some(ksm) = ksm else { return };
        let is_anothers = ksm.verdict == KsmVerdict::Foreign;
        if is_anothers && !self.ksm_is_anothers {
            warn!("{}", ksm.anothers());
        } else if self.ksm_is_anothers && !is_anothers && ksm.verdict != KsmVerdict::Observes {
            info!("KSM: governed again");
        }
        self.ksm_is_anothers = is_anothers;
    }

    fn host(&mut self, host: &HostReport, now: Moment) {
        if host.state != self.host {
            match host.state {
                HostState::Low | HostState::Hard => {
                    warn!(state = %host.state, free = %host.free, "the host is short of memory");
                }
                HostState::Soft if self.host < host.state => {
                    info!(state = %host.state, free = %host.free, "the host's free memory runs low");
                }
                HostState::Soft | HostState::High => {
                    info!(state = %host.state, free = %host.free, "the host has memory again")
                }
            }
            self.host = host.state;
        }
        let breach = (host.breach >= LEAST_BREACH).then_some(());
        if self.breach.begins(breach, now, BREACH_LASTS).is_some() {
            warn!(missing = %host.breach, "the commitment is not kept: `memtide status` shows how to fix it");
        } else if self.breach.ends() {
            info!("the commitment is kept");
        }
    }

    fn guests(&mut self, reports: &[GuestReport], (names, killed): (&Names<'_>, &[Killed]), now: Moment) {
        let mut before = std::mem::take(&mut self.guests);
        for report in reports {
            let name = || names.name(&report.id);
            let mut complaints = before.remove(&report.id).unwrap_or_else(|| {
                info!(guest = name(), full = %report.full, class = %report.class, "new guest");
                Complaints::default()
            });
            let hold = match report.verdict {
                Verdict::Held(hold) => Some(hold),
                _ => None,
            };
            if matches!(report.verdict, Verdict::HoldEnds { .. }) {
                let verdict = report.verdict.in_words(names, now);
                info!(guest = name(), "{verdict}, and nobody else can give it");
            } else if hold != complaints.hold {
                say_hold(&name(), report.actual, hold);
            }
            complaints.hold = hold;
            match complaints.hear(&report.verdict, report.actual, now) {
                Some(Said::Begins(Complaint::NoBalloon(why))) => {
                    warn!(guest = name(), "left alone: {why}")
                }
                Some(Said::Begins(Complaint::DoesNotFollow)) => {
                    warn!(guest = name(), "uncooperative: does not follow its target");
                }
                Some(Said::Ends) => info!(guest = name(), "can be resized again"),
                None => {}
            }
            self.guests.insert(report.id.clone(), complaints);
        }
        for id in before.keys() {
            match killed.iter().find(|killed| killed.guest == *id) {
                Some(Killed { how, .. }) => warn!(guest = names.name(id), "is gone: {how}"),
                None => info!(guest = names.name(id), "is gone"),
            }
        }
    }
}

/// Logs the beginning of a hold with its cause, or the end of the hold.
fn say_hold(name: &str, size: Bytes, hold: Option<Hold>) {
    match hold.map(|hold| hold.keeps) {
        Some(Keeps::Foreign { from, .. }) => {
            warn!(guest = name, %from, to = %size, "held: somebody else moved its balloon; `memtide resume {name}` manages it again");
        }
        Some(keeps) => info!(guest = name, %size, "{keeps}"),
        None => info!(guest = name, "managed again"),
    }
}

impl Failure {
    /// A failure after the failure `before`. Its message is due `now` if there was none before, or if the last one had another
    /// reason and is old.
    fn said(before: Option<Self>, why: &str, now: Moment) -> Self {
        match before {
            Some(before) if before.why == why || now.since(before.said_at) < OTHER_WORDS_AFTER => before,
            _ => Self { why: why.to_owned(), said_at: now },
        }
    }
}

/// A message about a guest.
#[derive(Debug, PartialEq, Eq)]
enum Said {
    Begins(Complaint),
    Ends,
}

impl Complaints {
    fn hear(&mut self, verdict: &Verdict, actual: Bytes, now: Moment) -> Option<Said> {
        let (complaint, enough) = match verdict {
            Verdict::NoBalloon(why) => (Some(Complaint::NoBalloon(why.clone())), BOOTS_WITHIN),
            Verdict::Stuck { uncooperative: true, .. } => (Some(Complaint::DoesNotFollow), Span::ZERO),
            _ => (None, Span::ZERO),
        };
        if let Some(complaint) = self.lasting.begins(complaint, now, enough) {
            self.actual = actual;
            return Some(Said::Begins(complaint.clone()));
        }
        // A stuck guest has not recovered just because memtide does not ask it.
        let moved = actual.abs_diff(self.actual) > MOVED;
        let may_end = moved || self.lasting.said != Some(Complaint::DoesNotFollow);
        (may_end && self.lasting.ends()).then_some(Said::Ends)
    }
}

impl<T> Default for Lasting<T> {
    fn default() -> Self {
        Self { now: None, said: None }
    }
}

impl<T: Clone + PartialEq> Lasting<T> {
    /// The condition, if it has lasted for `enough` and has no message yet.
    fn begins(&mut self, what: Option<T>, now: Moment, enough: Span) -> Option<&T> {
        self.now = what.map(|what| match self.now.take() {
            Some((before, since)) if before == what => (before, since),
            _ => (what, now),
        });
        let (what, since) = self.now.as_ref()?;
        if now.since(*since) < enough || self.said.as_ref() == Some(what) {
            return None;
        }
        self.said = Some(what.clone());
        self.said.as_ref()
    }

    /// Whether a logged condition is over, and its end has no message yet.
    fn ends(&mut self) -> bool {
        self.now.is_none() && self.said.take().is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The messages about a guest with these verdicts and sizes, one per second.
    fn said(seen: impl IntoIterator<Item = (Verdict, u64)>) -> Vec<(u64, Said)> {
        let mut complaints = Complaints::default();
        let hear = |(second, (verdict, mib)): (u64, (Verdict, u64))| {
            let heard = complaints.hear(&verdict, Bytes::from_mib(mib), Moment::from_millis(second * 1000));
            heard.map(|said| (second, said))
        };
        (0..).zip(seen).filter_map(hear).collect()
    }

    #[test]
    fn a_guest_that_boots_is_no_complaint_and_one_without_a_driver_is() {
        let none = || Verdict::NoBalloon(Absence::NoDriver);
        assert_eq!(said((0..60).map(|s| (if s < 19 { none() } else { Verdict::Steady }, 1024))), []);
        let heard = said((0..60).map(|s| (if s < 40 { none() } else { Verdict::Steady }, 1024)));
        assert_eq!(heard, [(20, Said::Begins(Complaint::NoBalloon(Absence::NoDriver))), (40, Said::Ends)]);
    }

    #[test]
    fn a_guest_that_is_tried_in_vain_is_said_once_until_it_moves() {
        let stuck = Verdict::Stuck { since: Span::ZERO, until: Moment::default(), uncooperative: true };
        let tried = |s: u64| (if s % 10 < 5 { stuck.clone() } else { Verdict::UnderWay }, 1024);
        let moves = (0..5).map(|s| (Verdict::UnderWay, 1000 - s * 10));
        let heard = said((0..60).map(tried).chain(moves));
        assert_eq!(heard, [(0, Said::Begins(Complaint::DoesNotFollow)), (60, Said::Ends)]);
    }

    #[test]
    fn a_refusal_in_other_words_is_said_once_a_minute() {
        let (mut last, mut said) = (None, Vec::new());
        for second in 0..150 {
            let now = Moment::from_millis(second * 1000);
            let failure = Failure::said(last, &format!("refused: {second}"), now);
            said.extend((failure.said_at == now).then_some(second));
            last = Some(failure);
        }
        assert_eq!(said, [0, 60, 120]);
        let same = Failure::said(last, "refused: 120", Moment::from_millis(1_000_000));
        assert_eq!(same.said_at, Moment::from_millis(120_000));
    }

    #[test]
    fn a_breach_that_passes_by_itself_is_not_said() {
        let mut breach = Lasting::default();
        let mut at = |millis: u64, is: bool| {
            let begins = breach.begins(is.then_some(()), Moment::from_millis(millis), BREACH_LASTS).is_some();
            (begins, breach.ends())
        };
        assert_eq!([(0, true), (1900, true), (2000, false)].map(|(t, is)| at(t, is)), [(false, false); 3]);
        assert_eq!(at(3000, true), (false, false));
        assert_eq!(at(5000, true), (true, false));
        assert_eq!(at(5250, true), (false, false));
        assert_eq!(at(5500, false), (false, true));
    }
}
