//! The backend of libvirt in the cases that every backend must pass. Its daemon is a stand-in that speaks the real RPC.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::collections::BTreeMap;
use std::process::ExitCode;

use common::Tree;
use libtest_mimic::{Arguments, Trial};
use memtide_stand_in::conformance::{Behaviour, CASES, FULL, NOT_TODAY, PART, Stage};
use memtide_stand_in::libvirt::{self, Daemon};
use memtide_vmm::Backend;
use memtide_vmm::libvirt::ConfiguredDaemon;
use memtide_vmm::qemu::Qemu;

struct Domains {
    daemon: Daemon,
    pids: BTreeMap<String, u32>,
    tree: Tree,
    _dir: tempfile::TempDir,
    last_pid: u32,
}

impl Domains {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let daemon = Daemon::start(dir.path()).unwrap();
        Self { daemon, pids: BTreeMap::new(), tree: Tree::new(), _dir: dir, last_pid: 4_000_000 }
    }
}

impl Stage for Domains {
    fn backend(&mut self) -> Box<dyn Backend> {
        let socket = Some(self.daemon.socket().to_owned());
        let daemons = vec![ConfiguredDaemon { socket, monitor_commands: false }];
        Box::new(Qemu::new(self.tree.root(), []).with_libvirt(daemons))
    }

    fn start(&mut self, name: &str) {
        self.last_pid += 1;
        let uuid = self.daemon.add(name, self.last_pid, FULL.get()).unwrap();
        self.tree.add_libvirt(self.last_pid, name, &uuid);
        self.pids.insert(name.to_owned(), self.last_pid);
    }

    fn end(&mut self, name: &str) {
        self.daemon.remove(name);
        self.tree.remove(self.pids.remove(name).unwrap());
    }

    fn behave(&mut self, name: &str, behaviour: Behaviour) {
        self.daemon.change(name, |domain| {
            domain.stops_at = if behaviour == Behaviour::StopsPartWay { PART.get() >> 10 } else { 0 };
            domain.behaviour = match behaviour {
                Behaviour::Good | Behaviour::StopsPartWay => libvirt::Behaviour::Good,
                Behaviour::Refuses => libvirt::Behaviour::Refuses(NOT_TODAY),
                Behaviour::Hangs => libvirt::Behaviour::Frozen,
                Behaviour::Absurd => libvirt::Behaviour::Absurd,
            };
        });
    }
}

fn main() -> ExitCode {
    let trials = CASES.iter().map(|(name, case)| {
        Trial::test(*name, || {
            case(&mut Domains::new());
            Ok(())
        })
    });
    libtest_mimic::run(&Arguments::from_args(), trials.collect()).exit_code()
}
