//! The host's processors, if they are few: guests, their balloons and other programs share them.
//!
//! **Rule.** What guests do takes processor time: their programs and their reading, and moving a balloon. At its full speed, an inflation takes one
//! processor. Others keep some processors busy all the time. If all together want more than there is, each gets the same share of what it wants,
//! so everything takes longer. What guests want is known from what they got since the last look, and how much longer it took.

use crate::resident::Resident;
use crate::setup::ProcessorsSpec;

/// The processors of a host.
#[derive(Debug)]
pub(crate) struct Processors {
    spec: ProcessorsSpec,
    /// The processor time of each guest at the last look, in microseconds.
    before: Vec<u64>,
    /// Everything takes this many times as long, in thousandths.
    longer: u64,
}

impl Processors {
    pub(crate) const fn new(spec: ProcessorsSpec) -> Self {
        Self { spec, before: Vec::new(), longer: 1_000 }
    }

    /// Shares them among the guests for the next look, by what they wanted in the last `millis`.
    pub(crate) fn share(&mut self, guests: &mut [Resident], millis: u64) {
        self.before.resize(guests.len(), 0);
        let mut got = 0;
        for (guest, before) in guests.iter().zip(&mut self.before) {
            let now = guest.guest.as_ref().map_or(0, |guest| guest.progress().cpu_us);
            // A guest that was started again counts from zero.
            got += now.checked_sub(*before).unwrap_or(now);
            *before = now;
        }
        let whole = millis.max(1) * 1_000;
        let wanted = got.saturating_mul(self.longer) / 1_000 + u64::from(self.spec.busy) * whole;
        let has = u64::from(self.spec.number.get()) * whole;
        self.longer = (wanted.saturating_mul(1_000) / has).max(1_000);
        for resident in guests {
            resident.alive(|guest| guest.crowd(self.longer));
        }
    }
}
