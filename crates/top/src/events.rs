//! What happened between two frames, and what memtide did, as entries of the running log.

use std::collections::HashMap;
use std::sync::Arc;

use memtide_api::history::GuestChange;
use memtide_api::recent::{Happened, says};
use memtide_engine::EventKind;
use memtide_model::{HostState, Subject, printable};

use crate::frame::{Frame, Matter, Row};
use crate::source::{Entry, Kind};

/// A change by memtide as an entry.
#[must_use]
pub fn of_change(change: &GuestChange) -> Entry {
    let tried = &change.tried;
    let (kind, end) = match (&tried.failed, tried.yielded) {
        (Some(why), _) => (EventKind::Failure, format!(" (failed: {why})")),
        (None, Some(bytes)) => (EventKind::Change, format!("; {bytes} came back")),
        (None, None) => (EventKind::Change, String::new()),
    };
    let guest = (change.guest != Subject::HOST).then(|| printable(&change.guest).into());
    let subject = if guest.is_none() { "the host: " } else { "" };
    let did = says(kind, guest.is_some(), &tried.change);
    let says = printable(&format!("{subject}{did}: {}{end}", tried.reason));
    Entry { at: tried.at, wall: tried.wall, kind: of_event(kind), guest, says }
}

/// An event of a daemon's history, or of a journal, as an entry.
#[must_use]
pub fn of_happened(happened: &Happened) -> Entry {
    let Happened { at, wall, kind, guest, says } = happened;
    let guest = guest.as_ref().map(|guest| printable(guest).into());
    Entry { at: *at, wall: *wall, kind: of_event(*kind), guest, says: printable(says) }
}

/// The kind of an event in the log.
#[must_use]
pub const fn of_event(kind: EventKind) -> Kind {
    match kind {
        EventKind::Kill | EventKind::Stall => Kind::Wait,
        EventKind::Grant | EventKind::Change => Kind::Change,
        EventKind::Failure => Kind::Failure,
        EventKind::Order => Kind::Order,
        EventKind::Came | EventKind::Went => Kind::Guests,
        EventKind::Host | EventKind::Note => Kind::Host,
    }
}

/// What `after` shows that `before` does not.
#[must_use]
pub fn between(before: &Frame, after: &Frame) -> Vec<Entry> {
    let entry = |kind, row: Option<&Row>, says: String| Entry {
        at: after.at,
        wall: after.wall,
        kind,
        guest: row.map(|row| Arc::clone(&row.shown)),
        says,
    };
    let mut found = Vec::new();
    let was: HashMap<&str, &Arc<Row>> = before.rows.iter().map(|row| (&*row.name, row)).collect();
    let is: HashMap<&str, &Arc<Row>> = after.rows.iter().map(|row| (&*row.name, row)).collect();
    for row in before.rows.iter().filter(|row| !is.contains_key(&*row.name)) {
        found.push(entry(Kind::Guests, Some(row), "is gone".to_owned()));
    }
    for row in &after.rows {
        let Some(old) = was.get(&*row.name) else {
            found.push(entry(Kind::Guests, Some(row), format!("is a new guest of {}", row.full)));
            continue;
        };
        if Arc::ptr_eq(old, row) {
            continue;
        }
        match (old.matter == Matter::Waits, row.matter == Matter::Waits) {
            (false, true) => found.push(entry(Kind::Wait, Some(row), row.state.to_string())),
            (true, false) => found.push(entry(Kind::Wait, Some(row), "waits no longer".to_owned())),
            _ => {}
        }
    }
    if before.host.state != after.host.state {
        found.push(entry(Kind::Host, None, host_state(after.host.state)));
    }
    found
}

/// A state of the host as a sentence.
fn host_state(state: HostState) -> String {
    match state {
        HostState::High => "the host has enough free memory again (high)".to_owned(),
        state => format!("the host is short of memory ({state})"),
    }
}
