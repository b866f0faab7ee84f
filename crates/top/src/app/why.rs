//! Why a guest had its memory at a moment of the past: what the frame and the log tell.

use std::sync::Arc;

use jiff::tz::TimeZone;
use memtide_model::SizePart;

use crate::clock;
use crate::frame::{Frame, Row};
use crate::source::Entry;

/// The text.
#[must_use]
pub fn in_words(row: &Row, frame: &Frame, log: &[Arc<Entry>], zone: &TimeZone) -> String {
    let mut lines = vec![format!("{}: {}", row.shown, row.state)];
    let mut line = |name: &str, text: String| lines.push(format!("  {name:<15}{text}"));
    line("at", clock::time(frame.wall, zone));
    line("keeps", format!("{} of {}", row.actual, row.full));
    line("its size", row.size.to_string());
    if let Some(cost) = &row.cost {
        line("its cost", cost.to_string());
    }
    line(
        "demand",
        row.needs.map_or("unknown without fresh statistics".to_owned(), |needs| needs.to_string()),
    );
    line("entitlement", format!("{}   its fair share", row.entitlement));
    line("target", row.target.map_or("none".to_owned(), |target| target.to_string()));
    if let Some(reason) = &row.reason {
        let ago = row
            .changed
            .map_or_else(String::new, |at| format!("{}: ", clock::time(clock::at(frame, at), zone)));
        line("last change", format!("{ago}{reason}"));
    }
    lines.push("what happened before, the newest first".to_owned());
    let own: Vec<&Arc<Entry>> =
        log.iter().filter(|entry| entry.guest.as_ref() == Some(&row.shown)).rev().take(20).collect();
    if own.is_empty() {
        lines.push("  nothing that is kept".to_owned());
    }
    for entry in own {
        lines.push(format!("  {} {}", clock::time(entry.wall, zone), entry.says));
    }
    lines.join("\n")
}

/// What a guest keeps, and what it needs.
#[must_use]
pub fn size(row: &Row) -> String {
    let keeps = if row.size.of_part(SizePart::Given).is_zero() {
        format!("all of {}", row.full)
    } else {
        format!("{} of {}", row.actual, row.full)
    };
    match row.needs {
        Some(needs) => format!("{keeps}, needs {needs}"),
        None => format!("{keeps}, no statistics"),
    }
}

/// Why a guest has its memory, in one sentence; a `long` one has its fair share, too.
#[must_use]
pub fn in_a_sentence(row: &Row, frame: &Frame, long: bool) -> String {
    let share = if long { format!("fair share {}; ", row.entitlement) } else { String::new() };
    let last = match (&row.reason, row.changed) {
        (Some(reason), Some(at)) => format!("{} ago: {reason}", frame.at.since(at)),
        _ => "memtide has not changed its size".to_owned(),
    };
    format!("{share}{last}")
}
