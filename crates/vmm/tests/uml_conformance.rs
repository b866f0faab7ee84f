//! UML's backend in the cases that every backend must pass. Its instances are stand-ins that speak real mconsole.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::process::ExitCode;

use common::Tree;
use libtest_mimic::{Arguments, Trial};
use memtide_model::Bytes;
use memtide_stand_in::conformance::{Behaviour, CASES, FULL, NOT_TODAY, PART, Stage};
use memtide_stand_in::uml::{Manners, StandIn};
use memtide_vmm::Backend;
use memtide_vmm::uml::Uml;

struct Instances {
    /// Dropped before the directory of their consoles.
    instances: BTreeMap<String, (u32, StandIn)>,
    tree: Tree,
    directory: tempfile::TempDir,
    last_pid: u32,
    backends: u32,
}

impl Instances {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        Self { tree: Tree::new(), directory, instances: BTreeMap::new(), last_pid: 100, backends: 0 }
    }
}

impl Stage for Instances {
    fn backend(&mut self) -> Box<dyn Backend> {
        self.backends += 1;
        // Two memtides on one host have directories of their own.
        let replies = self.directory.path().join(format!("replies-{}", self.backends));
        Box::new(Uml::new(self.tree.root(), replies).played_here())
    }

    fn start(&mut self, name: &str) {
        self.last_pid += 1;
        let home = self.directory.path().join(name);
        fs::create_dir_all(&home).unwrap();
        fs::write(home.join("pid"), self.last_pid.to_string()).unwrap();
        let stand_in = StandIn::start(&home.join("mconsole"), FULL).unwrap();
        self.tree.add_uml(self.last_pid, name, self.directory.path(), FULL.whole_mib());
        self.instances.insert(name.to_owned(), (self.last_pid, stand_in));
    }

    fn end(&mut self, name: &str) {
        let (pid, stand_in) = self.instances.remove(name).unwrap();
        drop(stand_in);
        self.tree.remove(pid);
        fs::remove_dir_all(self.directory.path().join(name)).unwrap();
    }

    /// Smaller differences may be the kernel's own memory (`DRIFT` in `uml/plug.rs`).
    fn misses_of_others(&self) -> Bytes {
        Bytes::from_mib(4)
    }

    fn behave(&mut self, name: &str, behaviour: Behaviour) {
        let (_, stand_in) = &self.instances[name];
        let mut machine = stand_in.machine();
        machine.stops_at = if behaviour == Behaviour::StopsPartWay { PART } else { Bytes::ZERO };
        machine.manners = match behaviour {
            Behaviour::Good | Behaviour::StopsPartWay => Manners::Honest,
            Behaviour::Refuses => Manners::Refuses(NOT_TODAY),
            Behaviour::Hangs => Manners::Silent,
            Behaviour::Absurd => Manners::Absurd,
        };
    }
}

fn main() -> ExitCode {
    let trials = CASES.iter().map(|(name, case)| {
        Trial::test(*name, || {
            case(&mut Instances::new());
            Ok(())
        })
    });
    libtest_mimic::run(&Arguments::from_args(), trials.collect()).exit_code()
}
