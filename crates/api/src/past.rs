//! A journal in the types of the API: what a client would have read then.
//!
//! Not in a journal: the confinement, the counters, how long a tick took, guests that `users` keeps out, warnings about the daemon itself, and what is
//! known of a guest from its process. These are empty. The changes of a guest reach back as far as the journal, also before its daemon's start.

use memtide_engine::journal::JournalError;
use memtide_engine::{Past, Recorded};

use crate::history::{History, KEPT};
use crate::view::{GuestDetail, Status, guest_id};

/// The status that was published. If another version decided, a warning says what that means.
#[must_use]
pub fn status(past: &Past) -> Status {
    let mut status = Status::new(&past.published);
    status.version.clone_from(&past.version);
    status.warnings.splice(0..0, past.differs.iter().map(ToString::to_string));
    status
}

/// The guest of this name, as it was published; `None` if there was none.
///
/// # Errors
/// If its last changes cannot be read.
pub fn guest(recorded: &Recorded, past: &Past, name: &str) -> Result<Option<GuestDetail>, JournalError> {
    let history = History::default();
    let Some(id) = guest_id(&past.published, name) else { return Ok(None) };
    for done in recorded.tried(past.place, &id, KEPT)? {
        history.add(&done.action, done.at, done.wall, &done.answer);
    }
    let detail = GuestDetail::find(&past.published, &history, name);
    Ok(detail.map(|detail| detail.with_offers(&past.published)))
}
