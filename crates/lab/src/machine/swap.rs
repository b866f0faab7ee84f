//! Swap of the machine itself in compressed memory (zram), for experiments that request it.
//!
//! It serves the whole machine, and its memory is charged to nobody. So it is only as large as an experiment needs, is
//! announced with the command to undo it, and is removed when this value is dropped.

use std::process::Command;

use memtide_model::Bytes;

use crate::error::LabError;
use crate::machine::process;
use crate::machine::zram::Zram;

/// A zram device in use as swap.
#[derive(Debug)]
pub struct ZramSwap {
    zram: Zram,
}

impl ZramSwap {
    /// Adds a zram device of `size` and swaps to it.
    ///
    /// # Errors
    /// [`LabError::Missing`] if the kernel has no zram or this process may not use it.
    pub fn on(size: Bytes, say: &dyn Fn(&str)) -> Result<Self, LabError> {
        let missing =
            |e: LabError| LabError::Missing(format!("no swap on compressed memory: {}", e.with_cause()));
        let swap = Self { zram: Zram::create(size).map_err(missing)? };
        swap.begin().map_err(missing)?;
        let (node, undo) = (swap.zram.node().display(), swap.zram.by_hand());
        say(&format!(
            "swapping to {node} ({size}) until the arm ends; to undo it by hand: swapoff {node} && {undo}"
        ));
        Ok(swap)
    }

    fn begin(&self) -> Result<(), LabError> {
        process::run(Command::new("mkswap").arg(self.zram.node()))?;
        process::run(Command::new("swapon").args(["-p", "100"]).arg(self.zram.node()))?;
        Ok(())
    }

    /// Tests whether zram swap works here.
    ///
    /// # Errors
    /// As [`ZramSwap::on`].
    pub fn probe() -> Result<(), LabError> {
        Self::on(Bytes::from_mib(16), &|_| {}).map(drop)
    }

    /// Its size.
    #[must_use]
    pub const fn size(&self) -> Bytes {
        self.zram.size()
    }
}

impl Drop for ZramSwap {
    fn drop(&mut self) {
        // Fails if it was never swapped to. If it fails for another reason, the device cannot be removed, and says so.
        let _ = process::run(Command::new("swapoff").arg(self.zram.node()));
    }
}
