//! memtide as the manager of an arm: the daemon, as an operator would start it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use memtide_api::view::Status;
use memtide_model::{Bytes, Commitment};

use crate::error::LabError;
use crate::machine::libvirtd::Libvirtd;
use crate::managers::daemon::Daemon;
use crate::managers::{Managed, Manager, Measured};
use crate::output::statistics::median;

/// A guest that lacks less than this does not count as waiting.
const LACK: Bytes = Bytes::from_mib(16);

/// The daemon. It finds the guests by itself.
#[derive(Debug)]
pub struct Memtide {
    commitment: Commitment,
    names: String,
    /// Further lines of its configuration.
    setting: String,
    daemon: Option<Daemon>,
    grants: Grants,
}

/// The guests' waits for memory that they need.
#[derive(Debug, Default)]
struct Grants {
    /// When a guest was first seen to lack memory, and the size that it needed then.
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
                // The need has passed without a grant.
                Some(_) if !lacks => {
                    self.waiting.remove(&guest.name);
                }
                _ => {}
            }
        }
    }
}

impl Memtide {
    /// The daemon built together with this program, for the guests whose names match `names`.
    ///
    /// # Errors
    /// If it was not built.
    pub fn find(commitment: Commitment, names: &str) -> Result<Self, LabError> {
        Daemon::program()?;
        let names = names.to_owned();
        Ok(Self { commitment, names, setting: String::new(), daemon: None, grants: Grants::default() })
    }

    /// The same with a further line of configuration.
    #[must_use]
    pub fn with(self, setting: &str) -> Self {
        Self { setting: format!("{setting}\n{}", self.setting), ..self }
    }

    /// The same for guests that `libvirtd` starts, if there is one.
    #[must_use]
    pub fn over(self, libvirtd: Option<&Arc<Libvirtd>>) -> Self {
        match libvirtd {
            Some(daemon) => Self { setting: format!("{}{}", self.setting, daemon.settings()), ..self },
            None => self,
        }
    }

    /// The daemon's configuration: it manages these guests, and does not even see other guests of this machine.
    fn configuration(&self, capacity: Bytes) -> String {
        let (names, mib, commitment) = (&self.names, capacity.whole_mib(), self.commitment);
        format!(
            "mode = \"manage\"\ncommitment = \"{commitment}\"\nbudget = \"{mib} MiB\"\ndiscover = [\"{names}\"]\n{setting}\n",
            setting = self.setting
        )
    }
}

impl Manager for Memtide {
    fn start(&mut self, managed: Managed<'_>) -> Result<(), LabError> {
        let configuration = self.configuration(managed.host.capacity());
        self.daemon = Some(Daemon::start(managed.dir, &configuration)?);
        Ok(())
    }

    fn tick(&mut self, _: Managed<'_>) -> Result<(), LabError> {
        let Some(daemon) = &mut self.daemon else { return Ok(()) };
        daemon.check_alive()?;
        self.grants.look(&daemon.status()?);
        Ok(())
    }

    fn stop(&mut self, _: Managed<'_>) -> Result<Measured, LabError> {
        self.daemon.take().map_or(Ok(()), Daemon::stop)?;
        let Grants { seconds, waiting } = std::mem::take(&mut self.grants);
        // Guests that still wait count with their wait so far.
        let unanswered = waiting.into_values().map(|(since, _)| since.elapsed().as_secs_f64());
        Ok(Measured { seconds_to_grant: median(seconds.into_iter().chain(unanswered)) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_guests_of_the_experiment_are_managed() {
        let memtide = Memtide {
            commitment: Commitment::Elastic,
            names: "demo-*".to_owned(),
            setting: String::new(),
            daemon: None,
            grants: Grants::default(),
        };
        let text = memtide.configuration(Bytes::from_mib(2048));
        assert!(text.contains("\"elastic\"\nbudget = \"2048 MiB\"\ndiscover = [\"demo-*\"]\n"), "{text}");
    }
}
