//! The swap device of a compressed tier, and what lies in it.

/// A program whose memory compresses less than this, in thousandths, counts as incompressible: 4/3.
pub(crate) const COMPRESSES: u64 = 1_333;

/// The device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Device {
    pub(crate) size: u64,
    /// Whether the guest swaps to it.
    pub(crate) used: bool,
    /// All that was read back.
    pub(crate) read: u64,
    /// What a reset left in it.
    pub(crate) left: Content,
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Content {
    pub(crate) stored: u64,
    pub(crate) held: u64,
    pub(crate) incompressible: u64,
}

impl Content {
    pub(crate) fn add(&mut self, stored: u64, compresses: u64) {
        let is_bad = compresses < COMPRESSES;
        self.stored += stored;
        self.held += takes(stored, compresses);
        self.incompressible += if is_bad { stored } else { 0 };
    }
}

/// The host's memory for `stored` bytes that compress to one part in `compresses` thousandths.
const fn takes(stored: u64, compresses: u64) -> u64 {
    if compresses < COMPRESSES { stored } else { stored * 1_000 / compresses }
}
