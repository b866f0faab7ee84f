//! What memtide does not do although nobody would be harmed: changes that nobody wants, and asking too often. Another policy may have other manners.

use memtide_model::{Action, Bytes, Deed, Polling, Request, Span};

use super::known::Known;
use super::tmpfs::AllTmpfs;
use super::violation::{ASKS_EVERY, SPLITS_EVERY};
use super::wanted::Wanted;
use super::{Bench, Violation, is_ordered_trim};

impl Bench<'_> {
    /// What is bad about an action that breaks no promise. What a target takes is judged as it is taken ([`Wanted`]).
    pub(super) fn minds(&mut self, action: &Action) -> Option<Violation> {
        let index = self.index_of(action.guest()?)?;
        let guest = &self.guests[index];
        let id = || guest.seen.id.clone();
        let lately = |at, every| self.seen.taken_at.since(at) < every;
        match action.request {
            Request::PollStats(every) => {
                (!needs_poll(guest, every)).then(|| Violation::PollsForNothing(id()))
            }
            Request::Split if guest.record.split_at.is_some_and(|at| lately(at, SPLITS_EVERY)) => {
                Some(Violation::SplitsTooOften(id()))
            }
            Request::Agent(_) if guest.record.agent_asked_at.is_some_and(|at| lately(at, ASKS_EVERY)) => {
                Some(Violation::AsksTooOften(id()))
            }
            Request::Agent(
                deed @ (Deed::Trim(_) | Deed::Compact | Deed::ReportPieces(true) | Deed::PageOut(_)),
            ) => self.judge_freeing(index, deed),
            _ => None,
        }
    }

    /// What an agent frees must be wanted by others, or by the operator. Each request is judged by itself.
    fn judge_freeing(&mut self, index: usize, deed: Deed) -> Option<Violation> {
        let (config, witness, seen) = (self.config, self.witness, self.seen);
        let guest = &self.guests[index];
        let bytes = match deed {
            Deed::Trim(bytes) | Deed::PageOut(bytes) => bytes,
            _ => Bytes::ZERO,
        };
        let wanted = self.wanted.get_or_insert_with(|| Wanted::new(config, witness, seen, &self.guests));
        let tmpfs = self.tmpfs.get_or_insert_with(|| AllTmpfs::new(config, witness, seen, &self.guests));
        let is_wanted = wanted.is_wanted_from(guest, bytes) || tmpfs.is_wanted_from(guest, bytes);
        let is_right = is_wanted || is_ordered_trim(seen, guest, deed);
        (!is_right).then(|| Violation::AsksForNothing { guest: guest.seen.id.clone(), deed })
    }
}

/// Whether a guest's statistics are polled less often than this, or were never polled for memtide.
fn needs_poll(guest: &Known<'_>, every: Span) -> bool {
    match guest.seen.told.polling {
        Polling::Off => true,
        Polling::Every(present) => present > every || !guest.record.is_polled,
        Polling::Unknown => false,
    }
}
