//! Free page reporting: freed blocks return to the host by themselves, with a delay.
//!
//! **Rule.** A pass runs [`crate::Spec::reporting_delay`] after the first block was freed, and again after each further delay while blocks
//! remain. A pass reports at most [`crate::Spec::reporting_pass`]. It reports blocks of 2 MiB and more, and the larger of the loose pieces (see
//! `pools`) only as long as the guest's agent lets it: a sixteenth of them in a pass (`mm/page_reporting.c`).

use memtide_model::MIB;

use crate::guest::Guest;

/// The size of a block (`pageblock_order`).
const BLOCK: u64 = 2 * MIB;
/// The smallest piece.
const PIECE: u64 = 64 << 10;
/// A pass returns one part in this many of the pieces that there are.
const PASSES: u64 = 16;

impl Guest {
    /// Free and backed memory in whole blocks.
    const fn reportable(&self) -> u64 {
        let blocks = self.pools.blocks();
        blocks - blocks % BLOCK
    }

    /// Its agent lets reporting return pieces, too, or not.
    pub fn report_pieces(&mut self, on: bool) {
        self.pieces_return = on;
    }

    /// Pieces that reporting returns.
    const fn reportable_pieces(&self) -> u64 {
        if self.pieces_return { self.pools.larger_pieces() } else { 0 }
    }

    /// Whether a pass would find anything.
    const fn has_reportable(&self) -> bool {
        self.reportable() > 0 || self.reportable_pieces() >= PIECE
    }

    /// Reports the blocks that are due, and schedules the next pass.
    pub(crate) fn report_free_pages(&mut self) {
        if !self.spec.free_page_reporting || self.now < self.driver.up_at {
            return;
        }
        let delay = self.spec.reporting_delay.as_millis();
        match self.next_report {
            Some(at) if at <= self.now => {
                let bytes = self.reportable().min(self.spec.reporting_pass.get());
                let pieces = (self.reportable_pieces() / PASSES).max(PIECE).min(self.reportable_pieces());
                self.pools.report(bytes, pieces);
                self.next_report = self.has_reportable().then_some(self.now + delay);
            }
            None if self.has_reportable() => self.next_report = Some(self.now + delay),
            _ => {}
        }
    }
}
