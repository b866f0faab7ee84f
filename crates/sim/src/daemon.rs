//! memtide's daemon in a simulation: its engine, and what a daemon suffers (it is killed, its journal's disk is full).
//!
//! **Rule.** Only a setup in which the daemon suffers has a journal: a real one, in a directory of its own that is removed at the
//! end. A daemon that is killed leaves the world as it is; the next one goes on from what the journal tells.

use std::fs;
use std::path::PathBuf;

use memtide_engine::journal::Writer;
use memtide_engine::{Engine, resume};
use memtide_model::{Bytes, Config};
use tempfile::TempDir;

use crate::machine::Machine;
use crate::setup::FaultKind;

/// The most that the journal of a simulation keeps.
const MOST: Bytes = Bytes::from_mib(64);

/// An engine at work, and its journal.
pub(crate) struct Daemon {
    engine: Option<Engine<Machine>>,
    config: Config,
    disk: Option<Disk>,
}

struct Disk {
    dir: TempDir,
    is_full: bool,
}

impl Daemon {
    pub(crate) fn start(machine: Machine, config: &Config) -> Self {
        let needs =
            machine.ever_suffers(FaultKind::DaemonKilled) || machine.ever_suffers(FaultKind::DiskFull);
        // Without a directory for it, the run goes on without a journal, as a daemon does.
        let disk =
            if needs { tempfile::tempdir().ok().map(|dir| Disk { dir, is_full: false }) } else { None };
        let mut daemon = Self { engine: None, config: config.clone(), disk };
        daemon.begin(machine);
        daemon
    }

    /// The engine at work.
    pub(crate) const fn engine(&mut self) -> &mut Engine<Machine> {
        self.engine.as_mut().expect("a daemon is without an engine only while it is killed")
    }

    /// The world at the end, and what the daemon warns of: with a journal, it decides once more for that.
    pub(crate) fn stop(mut self) -> (Machine, Vec<String>) {
        let writes = self.disk.is_some();
        let engine = self.engine();
        let warnings = if writes {
            engine.tick();
            engine.board().latest().warnings.clone()
        } else {
            Vec::new()
        };
        let engine = self.engine.expect("a daemon is without an engine only while it is killed");
        (engine.into_world(), warnings)
    }

    /// Lets happen what happens to a daemon now.
    pub(crate) fn suffer(&mut self) {
        let (killed, full) = {
            let machine = self.engine().world_mut();
            (machine.suffers(FaultKind::DaemonKilled), machine.suffers(FaultKind::DiskFull))
        };
        if let Some(disk) = &mut self.disk {
            disk.fill(full);
        }
        if !killed {
            return;
        }
        let Some(engine) = self.engine.take() else { return };
        let mut machine = engine.into_world();
        machine.live_through(FaultKind::DaemonKilled);
        self.begin(machine);
    }

    /// A new engine, with what the last one wrote down.
    fn begin(&mut self, machine: Machine) {
        let now = memtide_engine::World::now(&machine);
        let mut engine = Engine::new(machine, self.config.clone());
        if let Some(disk) = &self.disk {
            let journal = disk.journal();
            let before = resume(&journal, now).ok().and_then(|before| before.state);
            engine = match Writer::open(&journal, MOST) {
                Ok((writer, _)) => engine.with_journal(writer),
                Err(error) => engine.with_journal_later(journal, MOST, &error),
            };
            if let Some(state) = before {
                engine = engine.with_state(state);
            }
        }
        self.engine = Some(engine);
    }
}

impl Disk {
    fn journal(&self) -> PathBuf {
        self.dir.path().join("journal")
    }

    /// Nothing can be written to a full disk: here a file stands in the way of the journal's directory.
    fn fill(&mut self, full: bool) {
        if full == self.is_full {
            return;
        }
        let (journal, aside) = (self.journal(), self.dir.path().join("aside"));
        let moved = match full {
            true => fs::rename(&journal, &aside).and_then(|()| fs::write(&journal, "in the way")),
            false => fs::remove_file(&journal).and_then(|()| fs::rename(&aside, &journal)),
        };
        if moved.is_ok() {
            self.is_full = full;
        }
    }
}
