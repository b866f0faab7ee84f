//! `memtide status`: the ledger as a bar and in numbers, and a table of the guests.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result};
use memtide_daemon::view::{GuestStatus, Status};
use memtide_model::{Bytes, Commitment, HostState, Mode, Verdict};

use crate::client;
use crate::style::Style;

/// The width of the bar in characters.
const BAR: u64 = 72;

/// Prints the status of the daemon at `socket`.
pub fn command(socket: &Path, json: bool) -> Result<ExitCode> {
    let body =
        client::get(socket, "/v1/status")?.context("the daemon has no status: is it of another version?")?;
    let mut out = std::io::stdout().lock();
    if json {
        out.write_all(&body)?;
        writeln!(out)?;
    } else {
        let status: Status = serde_json::from_slice(&body).context("the daemon is of another version")?;
        out.write_all(render(&status, Style::detect()).as_bytes())?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The status as text.
pub fn render(status: &Status, style: Style) -> String {
    let mut out = String::new();
    headline(&mut out, status, style);
    if status.decided_at.is_none() {
        out.push_str("no decision yet: the daemon has just begun\n");
        return out;
    }
    ledger(&mut out, status, style);
    for warning in &status.warnings {
        line(&mut out, &style.bad(&format!("! {warning}")));
    }
    out.push('\n');
    if status.guests.is_empty() {
        out.push_str("no guests found on this host\n");
    } else {
        table(&mut out, &status.guests, style);
    }
    out
}

fn line(out: &mut String, text: &str) {
    out.push_str(text);
    out.push('\n');
}

fn headline(out: &mut String, status: &Status, style: Style) {
    let mode = match status.mode {
        Mode::Observe => "observing (changes nothing)",
        Mode::Manage => "managing",
    };
    let commitment = match status.commitment {
        Commitment::Strict => "strict",
        Commitment::Elastic => "elastic",
    };
    let host = match status.host.state {
        HostState::High => style.good("high"),
        HostState::Soft => style.warn("soft"),
        HostState::Hard => style.bad("hard"),
        HostState::Low => style.bad("low"),
    };
    let name = style.bold(&format!("memtide {}", status.version));
    line(out, &format!("{name}  {mode}, {commitment}, host {host}"));
}

fn ledger(out: &mut String, status: &Status, style: Style) {
    let host = &status.host;
    let cells = |bytes: Bytes| bytes.mul_div(BAR, host.capacity.get().max(1)).get();
    let (guests, other, reserve) = (cells(host.footprints), cells(host.other), cells(host.reserve));
    let free = BAR.saturating_sub(guests + other + reserve);
    let cell = |count: u64, mark: &str| mark.repeat(usize::try_from(count.min(BAR)).unwrap_or(0));
    let bar = [
        style.guests(&cell(guests, "█")),
        style.dim(&cell(other, "▓")),
        cell(free, "·"),
        style.dim(&cell(reserve, "░")),
    ];
    line(out, &format!("[{}]", bar.concat()));
    line(
        out,
        &format!(
            "{} = █ guests {} + ▓ other {} + · free {} + ░ reserve {}",
            host.capacity, host.footprints, host.other, host.free, host.reserve
        ),
    );
    let mut promise = format!("guests can come to cost {}", host.reach);
    let _infallible = match status.commitment {
        Commitment::Strict if !host.self_deflation.is_zero() => {
            write!(promise, ", and {} by deflating their own balloons", host.self_deflation)
        }
        Commitment::Strict => Ok(()),
        Commitment::Elastic => write!(promise, "; a joint surge of {} is expected", host.surge),
    };
    line(out, &promise);
    if !host.breach.is_zero() {
        line(out, &style.bad(&format!("the commitment is not kept: {} are missing", host.breach)));
    } else if !host.unmet.is_zero() {
        line(out, &style.warn(&format!("guests lack {}; {} can be granted now", host.unmet, host.room)));
    }
    let savings = &host.savings;
    if !savings.ballooning.is_zero() || !savings.free_page_reporting.is_zero() {
        let reporting = if savings.free_page_reporting.is_zero() {
            String::new()
        } else {
            format!(" ({} of it by free page reporting alone)", savings.free_page_reporting)
        };
        line(out, &format!("could be had back: {} by ballooning{reporting}", savings.ballooning));
    }
    let swap =
        status.swap.map_or("n/a (no swap)".to_owned(), |swap| format!("{} since boot", swap.swapped_in));
    line(out, &style.dim(&format!("host swapped in: {swap}")));
}

fn table(out: &mut String, guests: &[GuestStatus], style: Style) {
    const HEADS: [&str; 8] =
        ["GUEST", "RESIDENT", "TARGET", "ACTUAL", "USED", "NEEDS", "STATE", "LAST CHANGE"];
    let rows: Vec<[String; 8]> = guests.iter().map(row).collect();
    let width = |column: usize| {
        rows.iter().map(|row| row[column].chars().count()).chain([HEADS[column].len()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..HEADS.len()).map(width).collect();
    let format_row = |cells: [&str; 8]| {
        let mut text = String::new();
        for (column, cell) in cells.iter().enumerate() {
            let pad = widths[column] - cell.chars().count().min(widths[column]);
            let pad = " ".repeat(pad);
            // Sizes to the right, words to the left, nothing after the last.
            match column {
                0 | 6 => text.push_str(&format!("{cell}{pad}  ")),
                7 => text.push_str(cell),
                _ => text.push_str(&format!("{pad}{cell}  ")),
            }
        }
        text.trim_end().to_owned()
    };
    line(out, &style.bold(&format_row(HEADS)));
    for (row, guest) in rows.iter().zip(guests) {
        let text = format_row(std::array::from_fn(|column| row[column].as_str()));
        line(out, &paint(&text, &guest.report.verdict, style));
    }
}

fn paint(text: &str, verdict: &Verdict, style: Style) -> String {
    match verdict {
        Verdict::Stuck { .. } | Verdict::WaitsForMemory { .. } => style.warn(text),
        Verdict::NotManaged | Verdict::NoBalloon(_) | Verdict::NoStats(_) => style.dim(text),
        _ => text.to_owned(),
    }
}

fn row(guest: &GuestStatus) -> [String; 8] {
    let report = &guest.report;
    let or_dash = |bytes: Option<Bytes>| bytes.map_or("-".to_owned(), |bytes| bytes.to_string());
    let last = match (&guest.last_reason, guest.last_change) {
        (Some(reason), Some(ago)) => format!("{ago} ago: {reason}"),
        _ => "-".to_owned(),
    };
    [
        guest.name.clone(),
        report.footprint.to_string(),
        or_dash(report.target),
        format!("{} of {}", report.actual, report.full),
        or_dash(report.used),
        if report.used.is_some() { report.demand.to_string() } else { "-".to_owned() },
        guest.state.clone(),
        last,
    ]
}
