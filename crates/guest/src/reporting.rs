//! Free page reporting: freed blocks return to the host by themselves, with a delay.
//!
//! **Rule.** A pass runs [`crate::Spec::reporting_delay`] after the first block was freed, and again after each further delay while blocks
//! remain. A pass reports at most [`crate::Spec::reporting_pass`]. It reports only blocks of 2 MiB and more, never the pieces (see
//! `pools`).

use memtide_model::MIB;

use crate::guest::Guest;

/// The size of a block (`pageblock_order`).
const BLOCK: u64 = 2 * MIB;

impl Guest {
    /// Free and backed memory in whole blocks.
    const fn reportable(&self) -> u64 {
        let blocks = self.pools.blocks();
        blocks - blocks % BLOCK
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
                self.pools.report(bytes);
                self.next_report = (self.reportable() > 0).then_some(self.now + delay);
            }
            None if self.reportable() > 0 => self.next_report = Some(self.now + delay),
            _ => {}
        }
    }
}
