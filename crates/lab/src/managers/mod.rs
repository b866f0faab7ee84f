//! The managers of the small host's memory during an arm: nobody, memtide, or another rule for comparison.

pub mod daemon;
pub mod memtide;
pub mod peer;

use std::path::Path;

use crate::error::LabError;
use crate::guest::Guest;
use crate::machine::small_host::SmallHost;

/// The small host that a manager manages.
#[derive(Clone, Copy, Debug)]
pub struct Managed<'a> {
    /// A directory for its files.
    pub dir: &'a Path,
    /// The small host. The manager itself runs outside of it.
    pub host: &'a SmallHost,
    /// The guests so far. The last ones may still be booting.
    pub guests: &'a [Guest],
}

/// Measurements of a manager itself.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Measured {
    /// The median of the seconds from a guest's need, as memtide sees it four times a second, to the size that it needed, if
    /// this is measured. Guests that still wait at the end count with their wait so far.
    pub seconds_to_grant: Option<f64>,
}

/// A manager of memory.
pub trait Manager {
    /// Whether it moves balloons. If they move under a manager that does not, somebody else manages.
    fn moves_memory(&self) -> bool {
        true
    }

    /// Starts to manage.
    ///
    /// # Errors
    /// If it cannot start.
    fn start(&mut self, managed: Managed<'_>) -> Result<(), LabError>;

    /// Called at each sample.
    ///
    /// # Errors
    /// If it no longer manages: this ends the arm.
    fn tick(&mut self, managed: Managed<'_>) -> Result<(), LabError>;

    /// Stops, and returns its measurements.
    ///
    /// # Errors
    /// If it failed.
    fn stop(&mut self, managed: Managed<'_>) -> Result<Measured, LabError>;
}

/// No manager.
#[derive(Clone, Copy, Debug, Default)]
pub struct Nobody;

impl Manager for Nobody {
    fn moves_memory(&self) -> bool {
        false
    }

    fn start(&mut self, _: Managed<'_>) -> Result<(), LabError> {
        Ok(())
    }

    fn tick(&mut self, _: Managed<'_>) -> Result<(), LabError> {
        Ok(())
    }

    fn stop(&mut self, _: Managed<'_>) -> Result<Measured, LabError> {
        Ok(Measured::default())
    }
}

/// A daemon that already runs on this machine would find these guests, too, and spoil the comparison. Nothing is known of a guest that is gone, or
/// that hangs.
///
/// # Errors
/// [`LabError::Disturbed`].
pub fn check_untouched<'a>(guests: impl IntoIterator<Item = &'a Guest>) -> Result<(), LabError> {
    for guest in guests {
        if guest.alive() && guest.actual().is_ok_and(|actual| actual != guest.memory()) {
            return Err(LabError::Disturbed { guest: guest.name().to_owned() });
        }
    }
    Ok(())
}
