//! What the engine says aloud: guests that appear, vanish, cannot be resized or do not give; the host's state; a commitment
//! that is not kept; changes that fail. Each is said when it begins and when it ends: at four ticks a second a guest that
//! refuses everything would fill the log.

use std::collections::BTreeMap;

use memtide_model::{
    ApplyOutcome, Bytes, GuestId, GuestReport, HostReport, HostState, Report, Tick, Verdict,
};
use tracing::{debug, info, warn};

/// What was said last.
#[derive(Debug, Default)]
pub(crate) struct Log {
    failures: BTreeMap<GuestId, String>,
    violations: Vec<String>,
    /// The guests that are there, each with what it was complained of.
    guests: BTreeMap<GuestId, Option<String>>,
    host: HostState,
    breach: bool,
}

impl Log {
    /// Says what is new in `tick`.
    pub(crate) fn tick(&mut self, tick: &Tick, report: &Report) {
        self.host(&report.host);
        self.guests(&report.guests);
        if tick.violations != self.violations {
            for violation in &tick.violations {
                warn!(%violation, "the plan is not applied");
            }
            self.violations.clone_from(&tick.violations);
        }
        let mut failures = BTreeMap::new();
        for (action, outcome) in tick.plan.actions.iter().zip(&tick.outcomes) {
            match outcome {
                ApplyOutcome::Done => {
                    debug!(guest = %action.guest, change = %action.change, reason = %action.reason, "done");
                    if self.failures.contains_key(&action.guest) {
                        info!(guest = %action.guest, "changes are carried out again");
                    }
                }
                ApplyOutcome::Failed(why) => {
                    if self.failures.get(&action.guest) != Some(why) {
                        warn!(guest = %action.guest, change = %action.change, why, "failed");
                    }
                    failures.insert(action.guest.clone(), why.clone());
                }
            }
        }
        self.failures = failures;
    }

    fn host(&mut self, host: &HostReport) {
        if host.state != self.host {
            match host.state {
                HostState::Low | HostState::Hard => {
                    warn!(state = ?host.state, free = %host.free, "the host is short of memory");
                }
                HostState::Soft | HostState::High => {
                    info!(state = ?host.state, free = %host.free, "the host")
                }
            }
            self.host = host.state;
        }
        let breach = host.breach > Bytes::ZERO;
        if breach != self.breach {
            if breach {
                warn!(missing = %host.breach, "the commitment is not kept");
            } else {
                info!("the commitment is kept");
            }
            self.breach = breach;
        }
    }

    fn guests(&mut self, reports: &[GuestReport]) {
        let mut before = std::mem::take(&mut self.guests);
        for report in reports {
            let complaint = complaint(&report.verdict);
            let said = before.remove(&report.id);
            if said.is_none() {
                info!(guest = %report.id, full = %report.full, class = %report.class, "a guest");
            }
            match (said.flatten(), &complaint) {
                (said, Some(now)) if said.as_ref() != Some(now) => warn!(guest = %report.id, "{now}"),
                (Some(_), None) => info!(guest = %report.id, "can be resized again"),
                _ => {}
            }
            self.guests.insert(report.id.clone(), complaint);
        }
        for id in before.keys() {
            info!(guest = %id, "is gone");
        }
    }
}

/// What an operator may want to change about a guest.
fn complaint(verdict: &Verdict) -> Option<String> {
    match verdict {
        Verdict::NoBalloon(why) => Some(format!("left alone: {why}")),
        Verdict::Stuck { uncooperative: true, .. } => Some("does not follow its target".to_owned()),
        _ => None,
    }
}
