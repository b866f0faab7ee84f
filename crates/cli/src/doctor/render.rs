//! The findings for people, and for programs.
//!
//! Problems come first. Equal findings of several guests are printed once. Names, paths and messages come from outside: control
//! characters in them never reach a terminal.

use std::fmt::Write as _;

use memtide_doctor::facts::{Daemon, Facts, Informant, MemoryCgroups, SwapKind};
use memtide_doctor::{Finding, Fix, Severity, Subject};
use memtide_model::{KsmRun, Mode, counted, printable};
use serde::Serialize;

use crate::style::Style;

/// Longer lines are broken, except lines for the operator to type.
const WIDTH: usize = 110;
/// At most this many names are listed.
const MOST_NAMES: usize = 8;

/// The whole report for programs.
#[derive(Serialize)]
pub struct Json<'a> {
    version: &'static str,
    problems: usize,
    warnings: usize,
    hints: usize,
    host: Vec<String>,
    daemon: String,
    guests: Vec<JsonGuest<'a>>,
    findings: &'a [Finding],
}

#[derive(Serialize)]
struct JsonGuest<'a> {
    name: &'a str,
    pid: u32,
    libvirt: bool,
    managed: bool,
    told_by: &'static str,
}

/// The findings for programs.
pub fn json<'a>(facts: &'a Facts, findings: &'a [Finding]) -> Json<'a> {
    let guest = |guest: &'a memtide_doctor::facts::GuestFacts| JsonGuest {
        name: &guest.name,
        pid: guest.pid,
        libvirt: guest.is_of_libvirt(),
        managed: guest.managed,
        told_by: match guest.informant {
            Informant::Monitor => "monitor",
            Informant::Daemon => "daemon",
            Informant::Nobody => "nobody",
        },
    };
    Json {
        version: env!("CARGO_PKG_VERSION"),
        problems: count(findings, Severity::Problem),
        warnings: count(findings, Severity::Warning),
        hints: count(findings, Severity::Hint),
        host: host(facts),
        daemon: daemon(facts),
        guests: facts.guests.iter().map(guest).collect(),
        findings,
    }
}

/// The findings for people.
pub fn text(facts: &Facts, findings: &[Finding], style: Style) -> String {
    let mut out = String::new();
    wrap(&mut out, "host    ", &host(facts).join(", "));
    wrap(&mut out, "guests  ", &guests(facts));
    wrap(&mut out, "daemon  ", &daemon(facts));
    if let Daemon::None { .. } = &facts.daemon {
        for (line, label) in facts.start().iter().zip(["start one:", "or:       "]) {
            let _infallible = writeln!(out, "        {label} {}", printable(line));
        }
    }
    for group in groups(findings) {
        out.push('\n');
        write_group(&mut out, &group, style);
    }
    out.push('\n');
    wrap(&mut out, "", &sum(facts, findings));
    out
}

fn count(findings: &[Finding], severity: Severity) -> usize {
    findings.iter().filter(|finding| finding.severity == severity).count()
}

/// The last line: the numbers of findings, or, without any, the things that were checked.
fn sum(facts: &Facts, findings: &[Finding]) -> String {
    if findings.is_empty() {
        let of_host = "memory, swap, overcommit, huge pages, KSM, pressure and cgroups";
        return match facts.guests.len() + facts.instances.len() {
            0 => format!("the host lacks nothing: checked its {of_host}; there are no guests to check"),
            guests => format!(
                "nothing is lacking: checked the host's {of_host}, and the monitor, balloon, statistics and pinned memory of {}",
                counted(guests as u64, "guest")
            ),
        };
    }
    let of = |severity: Severity| counted(count(findings, severity) as u64, severity.name());
    format!("{}, {}, {}", of(Severity::Problem), of(Severity::Warning), of(Severity::Hint))
}

/// The facts of the host, part by part.
fn host(facts: &Facts) -> Vec<String> {
    let host = &facts.host;
    let mut parts =
        vec![format!("Linux {}", printable(host.release.as_deref().unwrap_or("of an unknown release")))];
    if let Some(memory) = host.memory.value() {
        let arc =
            if host.arc.is_zero() { String::new() } else { format!(" ({} of it in ZFS's cache)", host.arc) };
        parts.push(format!("{} with {} available{arc}", memory.total, memory.available));
    }
    if let Some((dir, limit)) = &facts.cgroups.small_host {
        parts.push(format!("guests in {} with {limit}", printable(&dir.display().to_string())));
    }
    let swap = |swap: &memtide_doctor::facts::Swap| {
        let kind = match swap.kind {
            SwapKind::Zram => "zram",
            SwapKind::ZramWithDisk => "zram and a disk",
            SwapKind::Disk => "a disk",
        };
        format!("{} on {kind}", swap.size)
    };
    let swaps: Vec<String> = host.swaps.iter().map(swap).collect();
    parts.push(if swaps.is_empty() { "no swap".to_owned() } else { format!("swap {}", swaps.join(" and ")) });
    parts.push(
        host.thp
            .as_ref()
            .map_or("no transparent huge pages".to_owned(), |thp| format!("THP {}", printable(&thp.enabled))),
    );
    parts.push(
        match host.ksm.map(|ksm| ksm.run) {
            None => "no KSM",
            Some(KsmRun::Scanning) => "KSM on",
            Some(_) => "KSM off",
        }
        .to_owned(),
    );
    parts.push(if host.pressure.value().is_some() { "PSI on" } else { "no PSI" }.to_owned());
    match facts.cgroups.version {
        MemoryCgroups::V1 => parts.push("cgroups v1".to_owned()),
        MemoryCgroups::V2 => parts.push("cgroups v2".to_owned()),
        MemoryCgroups::None => {}
    }
    parts
}

fn guests(facts: &Facts) -> String {
    let (all, instances) = (facts.guests.len() + facts.instances.len(), facts.instances.len());
    if all == 0 {
        return "none found".to_owned() + &left_out(facts);
    }
    let libvirt = facts.guests.iter().filter(|guest| guest.is_of_libvirt()).count();
    let told = |informant| facts.guests.iter().filter(|guest| guest.informant == informant).count();
    let mut parts = vec![format!("{all}, promised {} in total", facts.promised())];
    let asked = told(Informant::Monitor);
    for (count, what) in [
        (libvirt, "of libvirt"),
        (instances, "of UML"),
        (asked, if asked == 1 { "asked through its monitor" } else { "asked through their monitors" }),
        (told(Informant::Daemon), "reported by the daemon"),
    ] {
        if count > 0 {
            parts.push(format!("{count} {what}"));
        }
    }
    parts.join(", ") + &left_out(facts)
}

fn left_out(facts: &Facts) -> String {
    let by_name = (facts.left_out, "left out by `discover`");
    let by_user = (facts.outsiders.count, "left out by `users`");
    let left_out = [by_name, by_user].into_iter().filter(|(count, _)| *count > 0);
    let left_out: Vec<String> = left_out.map(|(count, how)| format!("{count} {how}")).collect();
    if left_out.is_empty() { String::new() } else { format!(" ({})", left_out.join(", ")) }
}

fn daemon(facts: &Facts) -> String {
    match &facts.daemon {
        Daemon::None { socket } | Daemon::Silent { socket } => {
            format!("none answers at {}", printable(&socket.display().to_string()))
        }
        Daemon::Forbidden { socket } => {
            format!("unknown: permission denied at {}", printable(&socket.display().to_string()))
        }
        Daemon::Strange { socket, .. } => {
            format!(
                "the program at {} is not memtide of this version",
                printable(&socket.display().to_string())
            )
        }
        Daemon::Runs { version, mode, .. } => {
            let mode = if *mode == Mode::Manage { "manages" } else { "observes" };
            format!("memtide {} runs and {mode}", printable(version))
        }
    }
}

/// Findings that differ only in the guest.
fn groups(findings: &[Finding]) -> Vec<Vec<&Finding>> {
    let mut groups: Vec<Vec<&Finding>> = Vec::new();
    for finding in findings {
        match groups.iter_mut().find(|group| group.first().is_some_and(|first| is_alike(first, finding))) {
            Some(group) => group.push(finding),
            None => groups.push(vec![finding]),
        }
    }
    groups
}

fn is_alike(a: &Finding, b: &Finding) -> bool {
    let nameless = |finding: &Finding, text: &str| match &finding.subject {
        Subject::Guest { name, .. } => text.replace(name.as_str(), "\0"),
        Subject::Host => text.to_owned(),
    };
    let fixes = |finding: &Finding| -> Vec<String> {
        let lines = finding.fixes.iter().flat_map(|fix| fix.lines.iter().chain([&fix.place]));
        lines.map(|line| nameless(finding, line)).collect()
    };
    (a.rule, a.severity, &a.fact, &a.cost) == (b.rule, b.severity, &b.fact, &b.cost) && fixes(a) == fixes(b)
}

fn write_group(out: &mut String, group: &[&Finding], style: Style) {
    let Some(first) = group.first() else { return };
    let label = match first.severity {
        Severity::Problem => style.bad("problem"),
        Severity::Warning => style.warn("warning"),
        Severity::Hint => style.dim("hint   "),
    };
    let heading = style.bold(&subjects(group));
    let _infallible = writeln!(out, "{label}  {heading}");
    wrap(out, "  ", &printable(&first.fact));
    wrap(out, "  costs  ", &printable(&first.cost));
    let differ = group.iter().any(|finding| finding.fixes != first.fixes);
    let likewise = match group.len() {
        2 if differ => ", and likewise for the other",
        _ if differ => ", and likewise for the others",
        _ => "",
    };
    for (number, fix) in first.fixes.iter().enumerate() {
        write_fix(out, fix, number == 0, likewise);
    }
}

fn write_fix(out: &mut String, Fix { place, lines }: &Fix, is_first: bool, likewise: &str) {
    let label = if is_first { "  fix    " } else { "         " };
    wrap(out, label, &format!("{}{likewise}:", printable(place)));
    for line in lines {
        let _infallible = writeln!(out, "           {}", printable(line));
    }
}

fn subjects(group: &[&Finding]) -> String {
    let mut names = group.iter().take(MOST_NAMES).map(|finding| match &finding.subject {
        Subject::Host => "the host".to_owned(),
        Subject::Guest { name, pid: Some(pid) } => format!("{} (process {pid})", printable(name)),
        Subject::Guest { name, pid: None } => printable(name),
    });
    let first = names.next().unwrap_or_default();
    let mut text = names.fold(first, |text, name| format!("{text}, {name}"));
    if group.len() > MOST_NAMES {
        let more = counted((group.len() - MOST_NAMES) as u64, "other");
        let _infallible = write!(text, " and {more}");
    }
    text
}

/// Writes the text after `label`, broken at spaces, with all lines aligned under the first.
fn wrap(out: &mut String, label: &str, text: &str) {
    let indent = label.chars().count();
    let mut line = label.to_owned();
    let mut is_empty = true;
    for word in text.split(' ') {
        if !is_empty && line.chars().count() + 1 + word.chars().count() > WIDTH {
            out.push_str(line.trim_end());
            out.push('\n');
            line = " ".repeat(indent);
            is_empty = true;
        }
        if !is_empty {
            line.push(' ');
        }
        line.push_str(word);
        is_empty = false;
    }
    out.push_str(line.trim_end());
    out.push('\n');
}
