//! Who manages the small host's memory during an arm: nobody, memtide, or another rule to compare it with.

use std::path::Path;

use memtide_model::Bytes;

use crate::arm::NAMES;
use crate::daemon::Daemon;
use crate::error::LabError;
use crate::guest::Guest;
use crate::small_host::SmallHost;

/// What a manager is to manage.
#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
    /// A directory for its files.
    pub dir: &'a Path,
    /// The small host; the manager itself runs outside of it.
    pub host: &'a SmallHost,
    /// The guests, all booted.
    pub guests: &'a [Guest],
}

/// What a manager measured itself.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Measured {
    /// Seconds from a guest's stall to its grant, where it is measured: the median.
    pub seconds_to_grant: Option<f64>,
}

/// Who manages memory.
pub trait Manager {
    /// The arm's key in results.json.
    fn key(&self) -> &'static str;

    /// The arm's title for people.
    fn title(&self) -> &'static str;

    /// Whether balloons move under it. Where they do and should not, somebody else manages.
    fn moves_memory(&self) -> bool {
        true
    }

    /// Begins to manage. The work begins when this returns.
    ///
    /// # Errors
    /// Where it cannot begin.
    fn start(&mut self, place: Place<'_>) -> Result<(), LabError>;

    /// Called at each sample while the work goes on.
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
    fn key(&self) -> &'static str {
        "unmanaged"
    }

    fn title(&self) -> &'static str {
        "without memtide"
    }

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

/// The daemon, as an operator would start it. It finds the guests by itself.
#[derive(Debug)]
pub struct Memtide {
    daemon: Option<Daemon>,
}

impl Memtide {
    /// The daemon that was built together with this program.
    ///
    /// # Errors
    /// Where it was not built.
    pub fn find() -> Result<Self, LabError> {
        Daemon::program().map(|_| Self { daemon: None })
    }
}

/// The daemon's configuration: it manages the guests of the demo, and does not even see the others of this machine.
fn configuration(capacity: Bytes) -> String {
    let mib = capacity.whole_mib();
    format!("mode = \"manage\"\nbudget = \"{mib} MiB\"\ndiscover = [\"{NAMES}*\"]\n")
}

impl Manager for Memtide {
    fn key(&self) -> &'static str {
        "managed"
    }

    fn title(&self) -> &'static str {
        "with memtide"
    }

    fn start(&mut self, place: Place<'_>) -> Result<(), LabError> {
        self.daemon = Some(Daemon::start(place.dir, &configuration(place.host.capacity()))?);
        Ok(())
    }

    fn tick(&mut self, _: Place<'_>) -> Result<(), LabError> {
        self.daemon.as_mut().map_or(Ok(()), Daemon::check_alive)
    }

    fn stop(&mut self, _: Place<'_>) -> Result<Measured, LabError> {
        self.daemon.take().map_or(Ok(()), Daemon::stop)?;
        Ok(Measured::default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_guests_of_the_demo_are_managed() {
        let text = configuration(Bytes::from_mib(2048));
        assert_eq!(text, "mode = \"manage\"\nbudget = \"2048 MiB\"\ndiscover = [\"demo-*\"]\n");
    }
}
