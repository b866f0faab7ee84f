//! Decisions as text that a person can review.
//!
//! One line for each action, with the time since the first tick:
//!
//! ```text
//! +12.250s web target 512 MiB → 384 MiB: 128 MiB idle (needs 300 MiB); 100 MiB needed elsewhere
//! ```
//!
//! A line also appears if the verdict about a guest changed without an action, such as `+12.500s web: steady`. The text of a recorded trace is kept beside the
//! trace. If a change of the policy is intended, the change of this text is reviewed.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::mem::discriminant;
use std::sync::Arc;

use memtide_model::{
    Action, Answer, Bytes, Config, GuestId, GuestSeen, Moment, Names, Record, Report, Snapshot, Span, State,
    Tick, Verdict, Witness,
};

use crate::policy::{Policy, own_policy};
use crate::settle::memory;
use crate::step::{Decider, Step};

/// The actions of one tick, one line each, with their reasons and answers; empty if there are none.
#[must_use]
pub fn describe(tick: &Tick) -> String {
    let names = tick.seen.names();
    let mut out = String::new();
    for (index, action) in tick.plan.actions.iter().enumerate() {
        out.push_str(&action_text(
            &names,
            action,
            action.guest().and_then(|guest| actual_of(&tick.seen, guest)),
        ));
        if let Some(Answer::Failed(why)) = tick.answers.get(index) {
            out.push_str(" [failed: ");
            out.push_str(why);
            out.push(']');
        }
        out.push('\n');
    }
    for refusal in &tick.refusals {
        let _ = writeln!(out, "refused: {}", refusal.why);
    }
    out
}

/// Decides again from `records` with memtide's own policy. Returns the decisions as text.
#[must_use]
pub fn golden(records: impl IntoIterator<Item = Record>) -> String {
    golden_with(own_policy(), records)
}

/// Decides again from `records` with `policy`. Returns the decisions as text.
///
/// Unlike a [`replay`](crate::replay()), this function follows the policy even if it decides differently from the records. It
/// assumes that such a plan succeeds. If the plan is equal, it uses the recorded answers.
#[must_use]
pub fn golden_with(policy: Arc<dyn Policy>, records: impl IntoIterator<Item = Record>) -> String {
    let mut teller =
        Teller { policy, decider: None, first: None, verdicts: BTreeMap::new(), out: String::new() };
    for record in records {
        match record {
            Record::Start { config, state, witness, .. } => teller.start(*config, memory(state, witness)),
            Record::Tick(tick) => teller.tick(*tick),
            Record::SetsKsm { .. } | Record::Note { .. } => {}
        }
    }
    teller.out
}

struct Teller {
    policy: Arc<dyn Policy>,
    decider: Option<Decider>,
    first: Option<Moment>,
    verdicts: BTreeMap<GuestId, Verdict>,
    out: String,
}

impl Teller {
    /// A start without a former decision begins a new run. Any other start brings a configuration. It brings the state only if there is
    /// none yet, because another policy than the recorded one has another state.
    fn start(&mut self, config: Config, memory: (State, Witness)) {
        let memory = match self.decider.take() {
            Some(running) if memory.0.decided_at.is_some() => (running.state, running.witness),
            _ => {
                self.verdicts.clear();
                memory
            }
        };
        self.decider = Some(Decider::new(Arc::clone(&self.policy), config, memory));
    }

    fn tick(&mut self, tick: Tick) {
        let Some(decider) = &mut self.decider else { return };
        let Tick { seen, plan: old_plan, refusals: old_refusals, answers: old_outcomes, .. } = tick;
        let (step, before) = decider.step(seen, |decider, step| {
            if step.plan == old_plan && step.refusals == old_refusals {
                old_outcomes
            } else if decider.may_apply() {
                let answer = |place| if step.is_refused(place) { Answer::Refused } else { Answer::Accepted };
                (0..step.plan.actions.len()).map(answer).collect()
            } else {
                Vec::new()
            }
        });
        let Step { seen, plan, report, refusals, answers } = step;
        let at = since_text(seen.taken_at.since(*self.first.get_or_insert(seen.taken_at)));
        let names = seen.names();
        for (index, action) in plan.actions.iter().enumerate() {
            let had = action.guest().and_then(|id| {
                let target = before.guests.get(id).and_then(|guest| guest.target);
                target.or_else(|| actual_of(&seen, id))
            });
            let how = match answers.get(index) {
                Some(Answer::Failed(why)) => format!(" [failed: {why}]"),
                Some(Answer::Refused) => " [refused]".to_owned(),
                Some(Answer::Accepted | Answer::Yielded(_)) | None => String::new(),
            };
            let _ = writeln!(self.out, "{at} {}{how}", action_text(&names, action, had));
        }
        for refusal in &refusals {
            let _ = writeln!(self.out, "{at} refused: {}", refusal.why);
        }
        let acted: BTreeSet<&GuestId> = plan.actions.iter().filter_map(Action::guest).collect();
        self.verdicts((seen.taken_at, &at), &names, &acted, report);
    }

    fn verdicts(
        &mut self,
        (now, at): (Moment, &str),
        names: &Names<'_>,
        acted: &BTreeSet<&GuestId>,
        report: Report,
    ) {
        let old = std::mem::take(&mut self.verdicts);
        for guest in report.guests {
            let same =
                old.get(&guest.id).is_some_and(|old| discriminant(old) == discriminant(&guest.verdict));
            if !same && !acted.contains(&guest.id) {
                let words = guest.verdict.in_words(names, now);
                let _ = writeln!(self.out, "{at} {}: {words}", names.name(&guest.id));
            }
            self.verdicts.insert(guest.id, guest.verdict);
        }
    }
}

fn actual_of(seen: &Snapshot, guest: &GuestId) -> Option<Bytes> {
    seen.guest(guest).map(GuestSeen::actual)
}

/// One action in one line: `web target 512 MiB → 384 MiB: reason`.
pub(crate) fn action_text(names: &Names<'_>, action: &Action, had: Option<Bytes>) -> String {
    let name = names.subject(&action.subject);
    match (action.request.size(), had) {
        (Some(target), Some(had)) => {
            format!("{name} target {had} → {target}: {}", action.reason)
        }
        _ => format!("{name} {}: {}", action.request, action.reason),
    }
}

/// `+12.250s`.
pub(crate) fn since_text(since: Span) -> String {
    let millis = since.as_millis();
    format!("+{}.{:03}s", millis / 1000, millis % 1000)
}
