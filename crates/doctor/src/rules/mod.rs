//! The rules: from facts to findings. Each is a small pure function. They are grouped by subject.
//!
//! **Rule for severities.** A *problem*: memtide cannot do its work, or would take memory from a guest without a gain for
//! the host. A *warning*: something works less well than it looks, or could not be checked. Everything else is a *hint*. A
//! guest that memtide does not manage (because of its class, or because libvirt owns it) has no problems.

mod agent;
mod balloon;
mod cgroups;
mod kernel;
mod memory;
mod others;
mod pinned;
mod promises;
mod sight;
mod tier;
mod uml;

use crate::facts::{Facts, GuestFacts};
use crate::finding::{Finding, Severity, Subject};

/// Rules about the host.
const OF_HOST: &[fn(&Facts) -> Option<Finding>] = &[
    promises::reserve,
    promises::held_for_good,
    promises::more_than_there_is,
    promises::self_deflations,
    promises::libvirt,
    memory::swap_on_disk,
    memory::strict_overcommit,
    memory::kept_free,
    memory::huge_pool,
    memory::torn,
    kernel::pressure,
    kernel::too_old,
    kernel::thp_off,
    kernel::thp_stalls,
    kernel::ksm_off,
    kernel::ksm_unmerges,
    kernel::ksm_busy,
    kernel::ksm_idle,
    kernel::ksm_shares,
    sight::configuration,
    sight::journal,
    sight::daemon,
    sight::processes,
    sight::discovery,
    sight::monitors,
    sight::mappings,
    sight::slow,
    cgroups::unseen,
];

/// Rules about one guest.
const OF_GUEST: &[fn(&Facts, &GuestFacts) -> Option<Finding>] = &[
    balloon::monitor,
    balloon::owned,
    balloon::relative_path,
    balloon::device,
    balloon::driver,
    balloon::paused,
    balloon::deflate_on_oom,
    balloon::free_page_reporting,
    balloon::not_negotiated,
    balloon::statistics,
    balloon::counters,
    agent::port,
    agent::silent,
    agent::limited,
    agent::pieces,
    pinned::devices,
    pinned::confidential,
    pinned::locked,
    pinned::huge_pages,
    pinned::private_file,
    pinned::withheld,
    pinned::on_disk,
    pinned::filled,
    memory::swapped,
    tier::port,
    tier::agent,
    tier::twice,
    kernel::not_mergeable,
    kernel::shares_in_vain,
    promises::claimed,
    promises::code_buffer,
];

/// All findings, the most important first.
#[must_use]
pub fn diagnose(facts: &Facts) -> Vec<Finding> {
    let of_host = OF_HOST.iter().filter_map(|rule| rule(facts));
    let of_guests =
        facts.guests.iter().flat_map(|guest| OF_GUEST.iter().filter_map(move |rule| rule(facts, guest)));
    let mut findings: Vec<Finding> = of_host.chain(of_guests).collect();
    findings.extend(cgroups::limits(facts));
    findings.extend(sight::unmatched(facts));
    findings.extend(others::not_counted(facts));
    findings.extend(others::outsiders(facts));
    findings.extend(uml::instances(facts));
    // The sort is stable: rules keep their order, and equal findings of several guests stay together.
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    findings
}

/// Whether memtide can take nothing from the guest: memtide does not manage it, or a rule finds a problem with it.
fn gives_nothing(facts: &Facts, guest: &GuestFacts) -> bool {
    let is_problem = |finding: Finding| finding.severity == Severity::Problem;
    let has_problem = || OF_GUEST.iter().any(|rule| rule(facts, guest).is_some_and(is_problem));
    guest.is_beyond_libvirt() || !guest.managed || has_problem()
}

/// A finding about this guest; at most a warning if memtide does not manage the guest.
fn of_guest(guest: &GuestFacts, rule: &'static str, severity: Severity, fact: impl Into<String>) -> Finding {
    let not_ours = guest.is_beyond_libvirt() || !guest.managed;
    let severity = if not_ours { severity.min(Severity::Warning) } else { severity };
    let subject = Subject::Guest { name: guest.name.clone(), pid: Some(guest.pid) };
    Finding { subject, ..Finding::of_host(rule, severity, fact) }
}
