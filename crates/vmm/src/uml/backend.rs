//! The instances of this host as guests.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use memtide_host::{ProcFs, RamBlock, RunTime};
use memtide_model::{
    About, Absence, Backend as Vmm, Bytes, Capabilities, Fact, FactSource, GuestId, Users, printable,
};

use super::control::UmlControl;
use super::discovery::{Discovery, Instance};
use super::mconsole::Mconsole;
use super::replies::{Console, ReplySockets};
use crate::backend::{Backend, Control, DiscoverError, Found, Process};

const UML: Vmm = Vmm::new("UML");
/// What an instance's process may grow by. Its kernel lives in the memory file: beyond that, it had 2 MiB, and grew by 48 KiB under load.
const LEAST_GROWTH: Bytes = Bytes::from_mib(4);

/// All UML instances of this host.
#[derive(Debug)]
pub struct Uml {
    discovery: Discovery,
    proc_fs: ProcFs,
    instances: BTreeMap<GuestId, Instance>,
    replies: ReplySockets,
    /// The process that plays all instances, in tests.
    player: Option<u32>,
}

impl Uml {
    /// The instances in the tree `root`, usually `/proc`. Their consoles answer to sockets in the directory `replies`.
    #[must_use]
    pub fn new(root: &Path, replies: PathBuf) -> Self {
        Self {
            discovery: Discovery::new(root),
            proc_fs: ProcFs::new(root),
            instances: BTreeMap::new(),
            replies: ReplySockets::new(replies),
            player: None,
        }
    }

    /// The same in a test whose instances are stand-ins in this process: their own processes are only files in the tree.
    #[must_use]
    pub fn played_here(self) -> Self {
        Self { player: Some(std::process::id()), ..self }
    }
}

impl Backend for Uml {
    fn discover(&mut self, ended: bool) -> Result<Option<Vec<Found>>, DiscoverError> {
        let scanned = self.discovery.scan(ended);
        self.replies.tend();
        match scanned {
            Ok(true) => {
                let instances = self.discovery.instances();
                self.instances = instances.map(|instance| (instance.id.clone(), instance.clone())).collect();
                Ok(Some(self.instances.values().map(found).collect()))
            }
            Ok(false) => Ok(None),
            Err(error) => Err(DiscoverError { vmm: UML, source: Box::new(error) }),
        }
    }

    fn admit(&mut self, users: Option<&Users>) {
        self.discovery.admit(users.cloned());
    }

    fn control(&mut self, id: &GuestId) -> Result<Box<dyn Control>, Absence> {
        let instance = self.instances.get(id).ok_or(Absence::Gone)?;
        let console = Console { path: instance.console.clone(), user: instance.user };
        let slot = self.replies.open(console);
        let agent = instance.agent.map(|line| (line, self.replies.terminal(instance.user)));
        let run_time = RunTime::open(&self.proc_fs, instance.pid);
        Ok(Box::new(UmlControl::new(
            Mconsole::new(slot, self.player.unwrap_or(instance.pid)),
            instance.memory,
            run_time,
            agent,
        )))
    }
}

fn found(instance: &Instance) -> Found {
    let file = instance.file.clone();
    Found {
        id: instance.id.clone(),
        vmm: UML,
        // Its kernel does not report freed pages.
        capabilities: Capabilities { reports_freed: false, plugs: true, ..Capabilities::BALLOON },
        full: instance.memory,
        withheld: None,
        process: Process {
            pid: instance.pid,
            user: Some(instance.user),
            ram: file.iter().cloned().map(RamBlock::File).collect(),
            shared: file.into_iter().collect(),
            least_growth: LEAST_GROWTH,
            ..Process::default()
        },
        facts: facts(instance),
        is_configured: false,
    }
}

/// What is known of an instance, for people.
fn facts(instance: &Instance) -> Vec<Fact> {
    let shown = |path: &Path| printable(&path.display().to_string());
    let mut all = vec![Fact::size(instance.memory, FactSource::CommandLine)];
    if let Some(file) = &instance.file {
        let says = format!("{}, a shared mapping of {}", instance.memory, shown(file));
        all.push(Fact::new(About::Ram, says, FactSource::Kernel));
    }
    all.push(Fact::new(About::Monitor, shown(&instance.console), FactSource::CommandLine));
    all.push(Fact::new(About::User, instance.user.to_string(), FactSource::Kernel));
    all
}
