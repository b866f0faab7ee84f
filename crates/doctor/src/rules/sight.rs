//! Facts that could not be seen, and missing needs of a daemon: permissions, space for the journal, sockets of the
//! configuration.

use memtide_model::{Absence, counted};

use crate::facts::{Daemon, Facts, GuestFacts, SocketTrouble, Trouble, Unmatched};
use crate::finding::{Finding, Severity, Subject};
use crate::quote::{file_name, shell, string};

/// The rights with which a daemon of another user can see and manage guests.
const DROP_IN: [&str; 2] = ["[Service]", "AmbientCapabilities=CAP_SYS_PTRACE CAP_DAC_OVERRIDE"];

/// The mappings of guests cannot be read.
pub(super) fn mappings(facts: &Facts) -> Option<Finding> {
    let names: Vec<&str> = facts
        .guests
        .iter()
        .filter(|guest| guest.mappings == Err(Absence::Forbidden))
        .map(|guest| guest.name.as_str())
        .collect();
    if names.is_empty() {
        return None;
    }
    // A running daemon has its own rights: only this look was limited.
    let severity =
        if matches!(facts.daemon, Daemon::Runs { .. }) { Severity::Hint } else { Severity::Warning };
    let fact =
        format!("user {} may not read the mappings (/proc/PID/smaps) of {}", facts.user, names.join(", "));
    let finding = Finding::of_host("sight.mappings", severity, fact)
        .costs("a VMM's own cost, and the memory that KSM merged, cannot be seen: these guests are counted too high")
        .fix("a shell", [facts.as_root("doctor")]);
    Some(finding.fix("for a daemon that is not root: systemctl edit memtide", DROP_IN))
}

/// Strangers' processes that delay their readers.
pub(super) fn slow(facts: &Facts) -> Option<Finding> {
    const MOST: usize = 8;
    if facts.slow.is_empty() {
        return None;
    }
    let named = facts.slow.iter().take(MOST).map(String::as_str).collect::<Vec<_>>().join(", ");
    let more = facts.slow.len().saturating_sub(MOST);
    let more = if more == 0 { String::new() } else { format!(" and {}", counted(more as u64, "other")) };
    let fact = format!(
        "{named}{more} took too long to read: each process gets 2 s, each search 4 s, and everything together 10 s"
    );
    Some(
        Finding::of_host("sight.slow", Severity::Warning, fact)
            .costs("this report lacks what they would tell; the kernel takes seconds to list the mappings of a process that has tens of thousands")
            .fix("a shell, if the host was only busy", [facts.as_root("doctor")]),
    )
}

/// Whether this user cannot reach the guest's monitor: because of the socket, or because its place cannot be seen.
pub(super) fn is_out_of_reach(guest: &GuestFacts) -> bool {
    match guest.told.balloon.why_not() {
        Some(Absence::Forbidden) => true,
        // In its own mount namespace the path means something else, and this user may not see whether the guest has one.
        Some(Absence::Disconnected) => guest.mappings == Err(Absence::Forbidden),
        _ => false,
    }
}

/// This user cannot connect to monitors.
pub(super) fn monitors(facts: &Facts) -> Option<Finding> {
    let hidden: Vec<&GuestFacts> =
        facts.guests.iter().filter(|guest| guest.managed && is_out_of_reach(guest)).collect();
    let first = hidden.first()?;
    let names: Vec<&str> = hidden.iter().map(|guest| guest.name.as_str()).collect();
    let path = first.monitors.first().map(|path| path.display().to_string()).unwrap_or_default();
    let (monitors, cost) = match names.len() {
        1 => (
            "monitor",
            "its balloon and statistics cannot be seen, and a daemon of this user could not manage it",
        ),
        _ => (
            "monitors",
            "their balloons and statistics cannot be seen, and a daemon of this user could not manage them",
        ),
    };
    let fact = format!("user {} cannot reach the {monitors} of {} ({path})", facts.user, names.join(", "));
    Some(
        Finding::of_host("sight.monitors", Severity::Warning, fact)
            .costs(cost)
            .fix("a shell", [facts.as_root("doctor")]),
    )
}

/// Other users' processes are hidden.
pub(super) fn processes(facts: &Facts) -> Option<Finding> {
    if !facts.host.hides_processes || facts.user == 0 {
        return None;
    }
    let fact = format!("/proc hides other users' processes from user {} (hidepid)", facts.user);
    Some(
        Finding::of_host("sight.processes", Severity::Warning, fact)
            .costs("guests of other users cannot be found; there may be more than this report shows")
            .fix("a shell", [facts.as_root("doctor")]),
    )
}

/// The search for guests failed.
pub(super) fn discovery(facts: &Facts) -> Option<Finding> {
    let why = facts.no_guests.as_ref()?;
    Some(
        Finding::of_host("sight.no-processes", Severity::Problem, format!("cannot look for guests: {why}"))
            .costs("nothing is known of any guest")
            .fix("a shell: /proc must be mounted", ["mount -t proc proc /proc"]),
    )
}

/// The daemon's knowledge is missing.
pub(super) fn daemon(facts: &Facts) -> Option<Finding> {
    match &facts.daemon {
        Daemon::None { .. } | Daemon::Runs { .. } => None,
        Daemon::Forbidden { socket } => Some(
            Finding::of_host(
                "sight.daemon",
                Severity::Warning,
                format!("user {} may not use the daemon's socket {}", facts.user, socket.display()),
            )
            .costs("a monitor that the daemon holds looks as if somebody else had taken it")
            .fix("a shell", [facts.as_root("doctor")]),
        ),
        Daemon::Silent { socket } => {
            let fact = format!(
                "no daemon answers at {}: one listens there, but is stopped or hangs",
                socket.display()
            );
            Some(anew(facts, Finding::of_host("sight.daemon", Severity::Warning, fact)))
        }
        Daemon::Strange { socket, why } => {
            let fact = format!("{}: {why}", socket.display());
            Some(anew(facts, Finding::of_host("sight.daemon", Severity::Warning, fact)))
        }
    }
}

/// The fix for a daemon that does not answer is a new daemon. The service reads the default configuration.
fn anew(facts: &Facts, finding: Finding) -> Finding {
    let service = (!facts.configuration.is_named).then_some("sudo systemctl restart memtide");
    finding
        .costs("the daemon's knowledge is missing here; a monitor that it holds looks as if somebody else had taken it")
        .fix("a shell, if a service runs it", service)
        .fix("a shell, if you run it: stop it, then start another", [facts.as_root("run")])
}

/// The configuration cannot be used.
pub(super) fn configuration(facts: &Facts) -> Option<Finding> {
    Some(match facts.trouble.as_ref()? {
        Trouble::Refused(message) => Finding::of_host(
            "configuration.refused",
            Severity::Problem,
            format!("the configuration is refused: {message}"),
        )
        .costs("no daemon starts with it; this report assumes the defaults")
        .fix("a shell", [format!("${{EDITOR:-vi}} {}", shell(&facts.configuration.path.to_string_lossy()))]),
        Trouble::Unreadable(message) => {
            Finding::of_host("sight.configuration", Severity::Warning, message.clone())
                .costs("this report assumes the defaults")
                .fix("a shell", [facts.as_root("doctor")])
        }
    })
}

/// The journal does not fit.
pub(super) fn journal(facts: &Facts) -> Option<Finding> {
    let journal = facts.host.journal.as_ref().filter(|journal| journal.free < journal.needed)?;
    let dir = journal.dir.display();
    let fact =
        format!("{} are free at {dir}, but the journal may still grow by {}", journal.free, journal.needed);
    // Half of the free space, but at least the smallest journal.
    let fits = (journal.free.whole_mib() / 2).max(8);
    let line = format!("journal = {{ dir = {}, max = \"{fits} MiB\" }}", string(&dir.to_string()));
    Some(
        Finding::of_host("journal.room", Severity::Warning, fact)
            .costs("on a full disk, decisions are no longer written down, and nobody can replay them")
            .fix(facts.configuration.path.display().to_string(), [line]),
    )
}

/// Guests of the configuration without a process.
pub(super) fn unmatched(facts: &Facts) -> Vec<Finding> {
    facts.unmatched.iter().map(|unmatched| of_unmatched(facts, unmatched)).collect()
}

fn of_unmatched(facts: &Facts, unmatched: &Unmatched) -> Finding {
    let qmp = unmatched.qmp.display().to_string();
    let why = match unmatched.why {
        SocketTrouble::Forbidden => format!("user {} may not connect to it", facts.user),
        SocketTrouble::Gone => "it does not exist".to_owned(),
        SocketTrouble::NoSocket => "it is not a socket, and no QEMU can listen there".to_owned(),
        SocketTrouble::Unheard => "nobody listens there".to_owned(),
        SocketTrouble::NoGuest(pid) => format!("process {pid} listens there, and runs no guest"),
    };
    let fact = format!("configured with the socket {qmp}, which no QEMU has: {why}");
    let subject = Subject::Guest { name: unmatched.name.clone(), pid: None };
    let finding = Finding { subject, ..Finding::of_host("guest.unmatched", Severity::Warning, fact) }
        .costs("it is not managed; if a guest of this name runs, memtide uses whatever socket it has");
    let file = facts.configuration.path.display();
    let table = ["[[guest]]".to_owned(), format!("name = {}", string(&unmatched.name))];
    let finding = match unmatched.why {
        // A QEMU that listens there would delete the file.
        SocketTrouble::NoSocket => {
            let another = format!("qmp = \"/run/vm/{}-memtide.qmp\"", file_name(&unmatched.name));
            finding.fix(format!("{file}: name another path"), table.iter().cloned().chain([another]))
        }
        _ => finding
            .fix("QEMU's command line", [format!("-qmp unix:{},server=on,wait=off", qmp.replace(',', ",,"))]),
    };
    finding.fix(format!("or {file}: remove"), table)
}
