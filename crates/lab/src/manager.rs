//! Who manages the small host's memory during an arm: nobody, memtide, or another rule to compare it with.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;

use memtide_daemon::view::Status;
use memtide_model::Bytes;

use crate::arm::NAMES;
use crate::daemon::Daemon;
use crate::error::LabError;
use crate::guest::Guest;
use crate::small_host::SmallHost;

/// A guest that lacks less than this is not waiting.
const LACK: Bytes = Bytes::from_mib(16);

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
    grants: Grants,
}

/// How long guests wait for what they need.
#[derive(Debug, Default)]
struct Grants {
    /// When a guest was first seen to lack something, and the size that it needed then.
    waiting: BTreeMap<String, (Instant, Bytes)>,
    seconds: Vec<f64>,
}

impl Grants {
    fn look(&mut self, status: &Status) {
        for guest in &status.guests {
            let report = &guest.report;
            let lacks = report.demand > report.actual.saturating_add(LACK);
            match self.waiting.get(&guest.name) {
                None if lacks && report.used.is_some() => {
                    self.waiting.insert(guest.name.clone(), (Instant::now(), report.demand));
                }
                Some((since, needed)) if report.actual.saturating_add(LACK) >= *needed => {
                    self.seconds.push(since.elapsed().as_secs_f64());
                    self.waiting.remove(&guest.name);
                }
                // The need is gone without a grant.
                Some(_) if !lacks => {
                    self.waiting.remove(&guest.name);
                }
                _ => {}
            }
        }
    }

    fn median(&mut self) -> Option<f64> {
        self.seconds.sort_by(f64::total_cmp);
        self.seconds.get(self.seconds.len() / 2).copied()
    }
}

impl Memtide {
    /// The daemon that was built together with this program.
    ///
    /// # Errors
    /// Where it was not built.
    pub fn find() -> Result<Self, LabError> {
        Daemon::program().map(|_| Self { daemon: None, grants: Grants::default() })
    }
}

/// The daemon's configuration: it manages the guests of the demo, and does not even see the others of this machine.
///
/// Elastic: four guests on twice their memory leave no room for a whole self-deflation (strict with one of them at once:
/// 3 t + 1024 MiB and four times 100 MiB of overhead in 2 GiB leave t = 190 MiB for each guest).
fn configuration(capacity: Bytes) -> String {
    let mib = capacity.whole_mib();
    format!(
        "mode = \"manage\"\ncommitment = \"elastic\"\nbudget = \"{mib} MiB\"\ndiscover = [\"{NAMES}*\"]\n"
    )
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
        let Some(daemon) = &mut self.daemon else { return Ok(()) };
        daemon.check_alive()?;
        self.grants.look(&daemon.status()?);
        Ok(())
    }

    fn stop(&mut self, _: Place<'_>) -> Result<Measured, LabError> {
        self.daemon.take().map_or(Ok(()), Daemon::stop)?;
        Ok(Measured { seconds_to_grant: std::mem::take(&mut self.grants).median() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_guests_of_the_demo_are_managed() {
        let text = configuration(Bytes::from_mib(2048));
        assert!(text.contains("budget = \"2048 MiB\"\ndiscover = [\"demo-*\"]\n"), "{text}");
    }
}
