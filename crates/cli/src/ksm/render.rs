//! The status of KSM as text.

use std::fmt::Write as _;

use memtide_api::history::KsmPoint;
use memtide_api::view::{KsmStatus, KsmUser};
use memtide_model::{Bytes, KsmParts, KsmReason, KsmReport, KsmVerdict, printable};

use crate::style::Style;
use crate::table::{Align, lines};

/// The width of a sparkline, in characters.
const WIDTH: usize = 60;
/// The cells of a sparkline, from the least to the most.
const CELLS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
/// The most processes that are shown.
const SHOWN: usize = 20;

/// The status as text.
pub fn status(status: &KsmStatus, style: Style) -> String {
    let Some(ksm) = &status.ksm else {
        return "this kernel has no KSM, or the configuration says `ksm = { mode = \"off\" }`\n".to_owned();
    };
    let mut out = String::new();
    let mut row = |name: &str, text: String| {
        // Writing to a String cannot fail.
        let _infallible = writeln!(out, "{name:<11}{text}");
    };
    let seen = &ksm.seen;
    let verdict = match ksm.verdict {
        KsmVerdict::Foreign => style.warn(&ksm.verdict.to_string()),
        _ => style.bold(&ksm.verdict.to_string()),
    };
    row("memtide", verdict);
    row(
        "kernel",
        match seen.cpu_time {
            Some(time) => format!("{}; {} passes, {time} of processor time", seen.settings, seen.full_scans),
            None => format!(
                "{}; {} passes; its processor time cannot be read, so it counts as a whole processor while it scans",
                seen.settings, seen.full_scans
            ),
        },
    );
    row("saved", saved(ksm));
    row("of which", told_apart(&status.parts));
    if let Some(text) = came_apart(&status.parts) {
        row("came apart", text);
    }
    row("mergeable", format!("{} of {}", seen.mergeable, processes(status.processes.len())));
    if let Some(line) = sparkline(&status.history) {
        row("last hour", line);
    }
    if let (Some((at, reason)), Some(now)) = (ksm.last_reason, status.decided_at) {
        row("last order", format!("{} ago: {reason}", now.since(at)));
    }
    if ksm.found.is_some() || !matches!(ksm.verdict, KsmVerdict::Observes | KsmVerdict::Foreign) {
        row("may use", format!("{} of processor time now", ksm.allowance));
    }
    if let Some(found) = ksm.found.filter(|_| ksm.verdict != KsmVerdict::Foreign) {
        row("found", format!("{found}; put back when memtide ends"));
    }
    let hangs =
        matches!(ksm.last_reason, Some((_, KsmReason::Hangs { .. }))) || ksm.verdict == KsmVerdict::Retries;
    if let Some(sparse) = seen.sparsest.as_ref().filter(|_| hangs) {
        let name = printable(&sparse.name);
        row("holes", format!("{} in {name} (process {}), the most of all", sparse.holes, sparse.pid));
    }
    if !seen.others.is_empty() {
        let set = if seen.others.len() == 1 { "sets" } else { "set" };
        row("others", format!("{} {set} KSM, too", seen.others.join(", ")));
    }
    out.push_str(&table(&status.processes));
    out
}

fn processes(count: usize) -> String {
    if count == 1 { "1 process".to_owned() } else { format!("{count} processes") }
}

fn saved(ksm: &KsmReport) -> String {
    let seen = &ksm.seen;
    let mut text = format!(
        "{} ({} of equal pages in {} of copies, {} of zeros)",
        seen.saved_in_all(),
        seen.saved,
        seen.shared,
        seen.zeros
    );
    match seen.profit {
        Some(profit @ ..0) => text.push_str(&format!(
            "; its records cost {} more than it saves",
            Bytes::new(profit.unsigned_abs())
        )),
        Some(profit) => {
            text.push_str(&format!("; {} without the kernel's records", Bytes::new(profit.unsigned_abs())))
        }
        None => {}
    }
    text
}

/// Where the saving is. Only zeros are counted by the kernel.
fn told_apart(parts: &KsmParts) -> String {
    let KsmParts { zeros, within_at_least: within, across_at_most: across, .. } = parts;
    if across.is_zero() {
        return format!("{zeros} of zeros; {within} within single processes, nothing between processes");
    }
    format!(
        "{zeros} of zeros; {within} or more within single processes, {across} or less between processes (`memtide audit` estimates it)"
    )
}

/// What has come apart since it was merged.
fn came_apart(parts: &KsmParts) -> Option<String> {
    let (apart, fell) = (parts.apart, parts.fell);
    let texts = [
        (!apart.is_zero()).then(|| format!("{apart} that the saving still counts, until the next pass")),
        (!fell.is_zero()).then(|| format!("{fell} less is saved than at the end of the last burst")),
    ];
    let texts: Vec<String> = texts.into_iter().flatten().collect();
    (!texts.is_empty()).then(|| texts.join("; "))
}

/// What was saved over time; `None` with fewer than two points.
fn sparkline(points: &[KsmPoint]) -> Option<String> {
    let most = points.iter().map(|point| point.saved).max()?;
    let count = points.len();
    if count < 2 {
        return None;
    }
    let width = count.min(WIDTH);
    let cell = |nth: usize| {
        let (from, to) = (nth * count / width, (nth + 1) * count / width);
        let saved = points[from..to].iter().map(|point| point.saved).max().unwrap_or_default();
        let level = saved.mul_div(CELLS.len() as u64 - 1, most.get().max(1)).get();
        CELLS[usize::try_from(level).unwrap_or_default().min(CELLS.len() - 1)]
    };
    let cells: String = (0..width).map(cell).collect();
    let (first, last) = (points.first()?, points.last()?);
    Some(format!("{cells}  at most {most}; seen for {}", last.at.since(first.at)))
}

fn table(users: &[KsmUser]) -> String {
    const HEADS: [(&str, Align); 7] = [
        ("PROCESS", Align::Left),
        ("PID", Align::Right),
        ("MERGEABLE", Align::Right),
        ("MERGED", Align::Right),
        ("APART", Align::Right),
        ("ZEROS", Align::Right),
        ("PROFIT", Align::Right),
    ];
    if users.is_empty() {
        return String::new();
    }
    let mut users: Vec<&KsmUser> = users.iter().collect();
    users.sort_by_key(|user| (std::cmp::Reverse(user.process.mergeable), user.process.pid));
    let size = |bytes: Option<Bytes>| bytes.map_or("-".to_owned(), |bytes| bytes.to_string());
    let profit = |profit: Option<i64>| match profit {
        Some(profit @ ..0) => format!("-{}", Bytes::new(profit.unsigned_abs())),
        Some(profit) => Bytes::new(profit.unsigned_abs()).to_string(),
        None => "-".to_owned(),
    };
    let rows = users.iter().take(SHOWN).map(|KsmUser { guest, process }| {
        [
            printable(guest.as_deref().unwrap_or(&process.name)),
            process.pid.to_string(),
            process.mergeable.to_string(),
            size(process.merged),
            size(process.apart),
            size(process.zeros),
            profit(process.profit),
        ]
    });
    let rows: Vec<[String; 7]> = rows.collect();
    let mut out = String::new();
    for line in std::iter::once(String::new()).chain(lines(HEADS, &rows)) {
        let _infallible = writeln!(out, "{line}");
    }
    if users.len() > SHOWN {
        let _infallible = writeln!(out, "and {} more", users.len() - SHOWN);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::slice;

    use memtide_model::{KsmProcess, KsmSeen, Moment, Span};

    const MIB: Bytes = Bytes::from_mib(1);

    #[test]
    fn the_status_tells_what_is_saved_and_why() {
        let seen = KsmSeen {
            full_scans: 4,
            saved: Bytes::from_mib(300),
            zeros: Bytes::from_mib(20),
            shared: Bytes::from_mib(100),
            profit: Some(300 << 20),
            cpu_time: Some(Span::from_millis(6_500)),
            mergeable: Bytes::from_mib(2048),
            others: vec!["ksmtuned".to_owned()],
            ..KsmSeen::default()
        };
        let report = KsmReport {
            verdict: KsmVerdict::Sleeps,
            seen,
            allowance: Span::from_secs(20),
            last_reason: Some((
                Moment::from_millis(70_000),
                KsmReason::NotWorthIt { saved: MIB, cpu_time: Span::from_secs(2) },
            )),
            ..KsmReport::default()
        };
        let history = (0..3).map(|nth| KsmPoint {
            at: Moment::from_millis(nth * 10_000),
            saved: Bytes::from_mib(160 * nth),
            cpu_time: None,
        });
        let process = KsmProcess {
            pid: 7,
            name: "qemu".to_owned(),
            mergeable: Bytes::from_mib(512),
            merged: Some(Bytes::from_mib(200)),
            zeros: None,
            profit: Some(-64),
            apart: Some(MIB),
        };
        let parts = KsmParts {
            fell: Bytes::from_mib(4),
            ..KsmParts::of(&report.seen, slice::from_ref(&process), None)
        };
        let status = KsmStatus {
            decided_at: Some(Moment::from_millis(90_000)),
            ksm: Some(report),
            parts,
            history: history.collect(),
            processes: vec![KsmUser { guest: Some("web".to_owned()), process }],
        };
        insta::assert_snapshot!(super::status(&status, Style::plain()), @r#"
        memtide    sleeps: nothing new to merge
        kernel     stopped; 4 passes, 6.5 s of processor time
        saved      320 MiB (300 MiB of equal pages in 100 MiB of copies, 20 MiB of zeros); 300 MiB without the kernel's records
        of which   20 MiB of zeros; 100 MiB or more within single processes, 200 MiB or less between processes (`memtide audit` estimates it)
        came apart 1 MiB that the saving still counts, until the next pass; 4 MiB less is saved than at the end of the last burst
        mergeable  2 GiB of 1 process
        last hour  ▁▄█  at most 320 MiB; seen for 20.0 s
        last order 20.0 s ago: this pass saved 1 MiB for 2.0 s of processor time
        may use    20.0 s of processor time now
        others     ksmtuned sets KSM, too

        PROCESS  PID  MERGEABLE   MERGED  APART  ZEROS  PROFIT
        web        7    512 MiB  200 MiB  1 MiB      -   -64 B
        "#);
    }

    #[test]
    fn a_saving_between_processes_that_is_ruled_out_is_no_bound() {
        let parts = KsmParts { within_at_least: MIB, ..KsmParts::default() };
        let told = "0 of zeros; 1 MiB within single processes, nothing between processes";
        assert_eq!(super::told_apart(&parts), told);
    }

    #[test]
    fn processor_time_that_cannot_be_read_is_said_to_be_unknown() {
        let report = KsmReport::default();
        let history = vec![KsmPoint { at: Moment::default(), saved: MIB, cpu_time: None }];
        let status = KsmStatus {
            decided_at: None,
            ksm: Some(report),
            parts: KsmParts::default(),
            history,
            processes: Vec::new(),
        };
        let text = super::status(&status, Style::plain());
        assert!(text.contains("its processor time cannot be read"), "{text}");
    }

    #[test]
    fn a_kernel_without_ksm_has_little_to_tell() {
        let status = KsmStatus {
            decided_at: None,
            ksm: None,
            parts: KsmParts::default(),
            history: Vec::new(),
            processes: Vec::new(),
        };
        assert!(super::status(&status, Style::plain()).contains("no KSM"));
    }
}
