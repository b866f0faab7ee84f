//! Swap in compressed memory (zram), for experiments that request it.
//!
//! It serves the whole machine, and its memory is charged to nobody. So it is only as large as an experiment needs, is
//! announced with the command to undo it, and is removed when this value is dropped.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use memtide_model::Bytes;

use crate::error::LabError;
use crate::machine::process;

const CONTROL: &str = "/sys/class/zram-control";

/// A zram device in use as swap.
#[derive(Debug)]
pub struct ZramSwap {
    number: u32,
    device: PathBuf,
    size: Bytes,
}

impl ZramSwap {
    /// Adds a zram device of `size` and swaps to it.
    ///
    /// # Errors
    /// [`LabError::Missing`] if the kernel has no zram or this process may not use it.
    pub fn on(size: Bytes, say: &dyn Fn(&str)) -> Result<Self, LabError> {
        if !Path::new(CONTROL).exists() {
            // If there is no such module, the next line reports it.
            let _ = process::run(Command::new("modprobe").arg("zram"));
        }
        let add = Path::new(CONTROL).join("hot_add");
        let missing = |why: String| LabError::Missing(format!("no swap on compressed memory: {why}"));
        let number = fs::read_to_string(&add).map_err(|e| missing(format!("{}: {e}", add.display())))?;
        let number: u32 = number.trim().parse().map_err(|e| missing(format!("{number}: {e}")))?;
        let device = PathBuf::from(format!("/dev/zram{number}"));
        let swap = Self { number, device, size };
        swap.begin().map_err(|e| missing(e.with_cause()))?;
        let name = swap.device.display();
        let by_hand = swap.by_hand();
        say(&format!("swapping to {name} ({size}) until the arm ends; to undo it by hand: {by_hand}"));
        Ok(swap)
    }

    fn by_hand(&self) -> String {
        format!("swapoff {} && echo {} > {CONTROL}/hot_remove", self.device.display(), self.number)
    }

    fn begin(&self) -> Result<(), LabError> {
        let size = self.attribute("disksize");
        fs::write(&size, self.size.get().to_string()).map_err(LabError::file(&size))?;
        self.make_node()?;
        process::run(Command::new("mkswap").arg(&self.device))?;
        process::run(Command::new("swapon").args(["-p", "100"]).arg(&self.device))?;
        Ok(())
    }

    /// Creates the device node if nobody else does (in a container).
    fn make_node(&self) -> Result<(), LabError> {
        if self.device.exists() {
            return Ok(());
        }
        let numbers = self.attribute("dev");
        let text = fs::read_to_string(&numbers).map_err(LabError::file(&numbers))?;
        let (major, minor) = text.trim().split_once(':').unwrap_or_default();
        process::run(Command::new("mknod").arg(&self.device).args(["b", major, minor])).map(|_| ())
    }

    fn attribute(&self, name: &str) -> PathBuf {
        Path::new("/sys/block").join(format!("zram{}", self.number)).join(name)
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
        self.size
    }
}

impl Drop for ZramSwap {
    fn drop(&mut self) {
        // Try each step: steps that were never reached fail, but the next one is still needed.
        let off = process::run(Command::new("swapoff").arg(&self.device));
        let _ = fs::write(self.attribute("reset"), "1");
        let removed = fs::write(Path::new(CONTROL).join("hot_remove"), self.number.to_string());
        if let Err(removed) = removed {
            let why = off.err().map_or_else(|| removed.to_string(), |off| format!("{off}; {removed}"));
            eprintln!("{} stays ({why}); to undo it by hand: {}", self.device.display(), self.by_hand());
        }
    }
}
