//! Who manages the small host's memory during an arm: nobody, memtide, or another rule to compare it with.

pub mod daemon;
pub mod memtide;
pub mod peer;

use std::path::Path;

use crate::error::LabError;
use crate::guest::Guest;
use crate::machine::small_host::SmallHost;

/// What a manager is to manage.
#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
    /// A directory for its files.
    pub dir: &'a Path,
    /// The small host; the manager itself runs outside of it.
    pub host: &'a SmallHost,
    /// The guests so far; the last ones may still boot.
    pub guests: &'a [Guest],
}

/// What a manager measured itself.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Measured {
    /// Seconds from a guest's need, as memtide sees it four times a second, to the size that it needed, where that is measured: the
    /// median. Who waits at the end counts with what it has waited.
    pub seconds_to_grant: Option<f64>,
}

/// Who manages memory.
pub trait Manager {
    /// Whether balloons move under it. Where they do and should not, somebody else manages.
    fn moves_memory(&self) -> bool {
        true
    }

    /// Begins to manage.
    ///
    /// # Errors
    /// Where it cannot begin.
    fn start(&mut self, place: Place<'_>) -> Result<(), LabError>;

    /// Called at each sample.
    ///
    /// # Errors
    /// Where it does not manage any more: that ends the arm.
    fn tick(&mut self, place: Place<'_>) -> Result<(), LabError>;

    /// Ends, and says what it measured.
    ///
    /// # Errors
    /// Where it ended badly.
    fn stop(&mut self, place: Place<'_>) -> Result<Measured, LabError>;
}

/// Nobody.
#[derive(Clone, Copy, Debug, Default)]
pub struct Nobody;

impl Manager for Nobody {
    fn moves_memory(&self) -> bool {
        false
    }

    fn start(&mut self, _: Place<'_>) -> Result<(), LabError> {
        Ok(())
    }

    fn tick(&mut self, _: Place<'_>) -> Result<(), LabError> {
        Ok(())
    }

    fn stop(&mut self, _: Place<'_>) -> Result<Measured, LabError> {
        Ok(Measured::default())
    }
}

/// A daemon that already runs on this machine would find these guests, too, and spoil what is compared.
///
/// # Errors
/// [`LabError::Disturbed`]; or where a monitor does not answer.
pub fn check_untouched<'a>(guests: impl IntoIterator<Item = &'a Guest>) -> Result<(), LabError> {
    for guest in guests {
        if guest.actual()? != guest.memory() {
            return Err(LabError::Disturbed { guest: guest.name().to_owned() });
        }
    }
    Ok(())
}
