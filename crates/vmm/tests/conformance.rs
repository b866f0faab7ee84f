//! QEMU's backend in the cases that every backend must pass. Its guests are stand-ins that speak real QMP.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::collections::BTreeMap;
use std::process::ExitCode;

use common::Tree;
use libtest_mimic::{Arguments, Trial};
use memtide_stand_in::conformance::{Behaviour, CASES, FULL, PART, Stage};
use memtide_stand_in::qemu::{self, Machine, StandIn};
use memtide_vmm::Backend;
use memtide_vmm::qemu::Qemu;

struct Qemus {
    /// Dropped before the directory of their sockets.
    guests: BTreeMap<String, (u32, StandIn)>,
    tree: Tree,
    sockets: tempfile::TempDir,
    last_pid: u32,
}

impl Qemus {
    fn new() -> Self {
        let sockets = tempfile::tempdir().unwrap();
        Self { tree: Tree::new(), sockets, guests: BTreeMap::new(), last_pid: 100 }
    }
}

impl Stage for Qemus {
    fn backend(&mut self) -> Box<dyn Backend> {
        Box::new(Qemu::new(self.tree.root(), []))
    }

    fn start(&mut self, name: &str) {
        self.last_pid += 1;
        let path = self.sockets.path().join(format!("{name}-{}", self.last_pid));
        let machine = Machine::new(FULL.whole_mib());
        let stand_in = StandIn::start(&path, machine, qemu::Behaviour::Honest).unwrap();
        self.tree.add_qemu(self.last_pid, name, &path);
        self.guests.insert(name.to_owned(), (self.last_pid, stand_in));
    }

    fn end(&mut self, name: &str) {
        let (pid, _stand_in) = self.guests.remove(name).unwrap();
        self.tree.remove(pid);
    }

    fn behave(&mut self, name: &str, behaviour: Behaviour) {
        let (_, stand_in) = &self.guests[name];
        stand_in.change(|machine| {
            machine.stops_at = if behaviour == Behaviour::StopsPartWay { PART.get() } else { 0 };
        });
        stand_in.behave(match behaviour {
            Behaviour::Good | Behaviour::StopsPartWay => qemu::Behaviour::Honest,
            Behaviour::Refuses => qemu::Behaviour::Refuse,
            Behaviour::Hangs => qemu::Behaviour::SilentAfterGreeting,
            Behaviour::Absurd => qemu::Behaviour::Numbers,
        });
    }
}

fn main() -> ExitCode {
    let trials = CASES.iter().map(|(name, case)| {
        Trial::test(*name, || {
            case(&mut Qemus::new());
            Ok(())
        })
    });
    libtest_mimic::run(&Arguments::from_args(), trials.collect()).exit_code()
}
