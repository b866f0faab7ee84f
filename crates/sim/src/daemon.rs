//! memtide's daemon in a simulation: its engine, and the faults of a daemon (it is killed, or the disk of its journal is full).
//!
//! **Rule.** Only a setup with faults of the daemon has a journal. It is a real journal, in a directory of its own that is removed at the
//! end. A killed daemon leaves the world as it is; the next daemon resumes from the journal.

use std::fs;
use std::path::PathBuf;

use memtide_engine::journal::{LateWriter, Writer};
use memtide_engine::{Engine, resume};
use memtide_model::{Bytes, Config};
use tempfile::TempDir;

use crate::machine::Machine;
use crate::setup::FaultKind;

/// The largest size of a simulation's journal.
const MOST: Bytes = Bytes::from_mib(64);

/// A running engine and its journal.
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
        // Without a directory for the journal, the run continues without one, as a real daemon does.
        let disk =
            if needs { tempfile::tempdir().ok().map(|dir| Disk { dir, is_full: false }) } else { None };
        let mut daemon = Self { engine: None, config: config.clone(), disk };
        daemon.begin(machine);
        daemon
    }

    /// The running engine.
    pub(crate) const fn engine(&mut self) -> &mut Engine<Machine> {
        self.engine.as_mut().expect("a daemon is without an engine only while it is killed")
    }

    /// Returns the world at the end, and the daemon's warnings. With a journal, the daemon decides once more to get them.
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

    /// Applies the daemon's faults of this moment.
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

    /// Starts a new engine with the state from the last one's journal.
    fn begin(&mut self, machine: Machine) {
        let now = memtide_engine::World::now(&machine);
        let mut engine = Engine::new(machine, self.config.clone());
        if let Some(disk) = &self.disk {
            let journal = disk.journal();
            let before = resume(&journal, now).ok().and_then(|before| before.memory);
            engine = match Writer::open(&journal, MOST) {
                Ok((writer, _)) => engine.with_journal(writer),
                Err(error) => engine.with_journal(LateWriter::new(&journal, MOST, &error)),
            };
            if let Some(memory) = before {
                engine = engine.with_memory(memory);
            }
        }
        self.engine = Some(engine);
    }
}

impl Disk {
    fn journal(&self) -> PathBuf {
        self.dir.path().join("journal")
    }

    /// Makes the disk full: a file takes the place of the journal's directory, so nothing can be written there.
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
