//! What the metrics of one scrape are read from.

use memtide_api::view::{GuestStatus, Status};
use memtide_engine::LastTick;
use memtide_model::{GuestSeen, HostSeen};

use crate::tally::Sums;

/// The sources of one scrape.
#[derive(Clone, Copy, Debug)]
pub struct Scrape<'a> {
    /// The status at this moment.
    pub status: &'a Status,
    /// The last tick; `None` before the first.
    pub last: Option<&'a LastTick>,
    /// What was added up over all ticks.
    pub sums: &'a Sums,
}

impl<'a> Scrape<'a> {
    /// The host as it was seen last.
    pub(crate) fn host(&self) -> Option<&'a HostSeen> {
        self.last.map(|last| &last.seen.host)
    }

    /// The guests, with what was seen of each.
    pub(crate) fn guests(&self) -> impl Iterator<Item = (&'a GuestStatus, Option<&'a GuestSeen>)> {
        let last = self.last;
        self.status
            .guests
            .iter()
            .map(move |guest| (guest, last.and_then(|last| last.seen.guest(&guest.report.id))))
    }
}
