//! The rules: from facts to findings. Each is a small pure function; they are grouped by what they look at.
//!
//! **Rule for severities.** A *problem* is where memtide cannot do its work, or where doing it would take memory from a
//! guest and give the host nothing. A *warning* is where something works less well than it looks, or could not be looked
//! at. All else is a *hint*. A guest that is not memtide's to manage (its class says so, or libvirt owns it) has no problems.

mod balloon;
mod cgroups;
mod kernel;
mod memory;
mod pinned;
mod promises;
mod sight;

use crate::facts::{Facts, GuestFacts};
use crate::finding::{Finding, Severity, Subject};

/// Rules about the host.
const OF_HOST: &[fn(&Facts) -> Option<Finding>] = &[
    promises::reserve,
    promises::held_for_good,
    promises::more_than_there_is,
    promises::libvirt,
    memory::swap_on_disk,
    memory::strict_overcommit,
    memory::kept_free,
    memory::huge_pool,
    kernel::pressure,
    kernel::too_old,
    kernel::thp_off,
    kernel::thp_stalls,
    kernel::ksm_off,
    kernel::ksm_unmerges,
    kernel::ksm_busy,
    kernel::ksm_idle,
    sight::configuration,
    sight::journal,
    sight::daemon,
    sight::processes,
    sight::discovery,
    sight::monitors,
    sight::mappings,
    cgroups::unseen,
];

/// Rules about one guest.
const OF_GUEST: &[fn(&Facts, &GuestFacts) -> Option<Finding>] = &[
    balloon::monitor,
    balloon::device,
    balloon::driver,
    balloon::paused,
    balloon::deflate_on_oom,
    balloon::free_page_reporting,
    balloon::not_negotiated,
    balloon::statistics,
    balloon::counters,
    pinned::devices,
    pinned::confidential,
    pinned::locked,
    pinned::huge_pages,
    pinned::on_disk,
    pinned::filled,
    memory::swapped,
    kernel::not_mergeable,
    promises::code_buffer,
];

/// All that is lacking, what matters most first.
#[must_use]
pub fn diagnose(facts: &Facts) -> Vec<Finding> {
    let of_host = OF_HOST.iter().filter_map(|rule| rule(facts));
    let of_guests =
        facts.guests.iter().flat_map(|guest| OF_GUEST.iter().filter_map(move |rule| rule(facts, guest)));
    let mut findings: Vec<Finding> = of_host.chain(of_guests).collect();
    findings.extend(cgroups::limits(facts));
    findings.extend(sight::unmatched(facts));
    // Rules stay in their order, and so does what is alike of several guests.
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    findings
}

/// Whether memtide can take nothing from the guest: it is not ours to manage, or a rule finds a problem with it.
fn gives_nothing(facts: &Facts, guest: &GuestFacts) -> bool {
    let is_problem = |finding: Finding| finding.severity == Severity::Problem;
    let has_problem = || OF_GUEST.iter().any(|rule| rule(facts, guest).is_some_and(is_problem));
    guest.is_of_libvirt() || !guest.managed || has_problem()
}

/// A finding about this guest; where it is not memtide's to manage, no problem.
fn of_guest(guest: &GuestFacts, rule: &'static str, severity: Severity, fact: impl Into<String>) -> Finding {
    let not_ours = guest.is_of_libvirt() || !guest.managed;
    let severity = if not_ours { severity.min(Severity::Warning) } else { severity };
    let subject = Subject::Guest { name: guest.name.clone(), pid: Some(guest.pid) };
    Finding { subject, ..Finding::of_host(rule, severity, fact) }
}
