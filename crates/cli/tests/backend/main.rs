//! A backend from outside (examples/folders.rs): in the cases that every backend must pass, and behind the real daemon.
//!
//! This program is also the memtide with that backend: with arguments like those of `memtide`, it acts as it.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../common/mod.rs"]
mod common;
#[path = "../../examples/folders.rs"]
#[allow(dead_code, reason = "its `main` is that of another program")]
mod folders;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use common::{Daemon, memtide, trial};
use folders::Folders;
use libtest_mimic::Arguments;
use memtide_host::{Root, start_time};
use memtide_vmm::Backend;
use memtide_vmm::conformance::{Behaviour, CASES, FULL, NOT_TODAY, PART, Stage};

fn main() -> ExitCode {
    let is_command = |word: &str| ["run", "status", "helper"].contains(&word);
    if std::env::args().nth(1).is_some_and(|word| is_command(&word)) {
        let folders = std::env::var_os("FOLDERS").unwrap_or_default();
        return memtide::run_with(|_settings| vec![Box::new(Folders::new(&folders))]);
    }
    let cases = CASES.iter().map(|(name, case)| trial(name, move || case(&mut Vmm::new())));
    let trials =
        cases.chain([trial("the_daemon_shows_and_sets_its_guests", the_daemon_shows_and_sets_its_guests)]);
    libtest_mimic::run(&Arguments::from_args(), trials.collect()).exit_code()
}

/// The VMM of the guests in `root`.
struct Vmm {
    root: tempfile::TempDir,
    guests: Arc<Mutex<BTreeMap<String, Guest>>>,
    /// The start time of the last process, in clock ticks.
    last_start: u64,
}

struct Guest {
    process: Child,
    behaviour: Behaviour,
}

impl Drop for Guest {
    fn drop(&mut self) {
        let _ended = self.process.kill();
        let _code = self.process.wait();
    }
}

impl Vmm {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        let guests = Arc::new(Mutex::new(BTreeMap::new()));
        let (folders, served) = (root.path().to_owned(), Arc::downgrade(&guests));
        thread::spawn(move || {
            while let Some(guests) = served.upgrade() {
                guests.lock().unwrap().iter().for_each(|(name, guest)| serve(&folders.join(name), guest));
                drop(guests);
                thread::sleep(Duration::from_millis(2));
            }
        });
        Self { root, guests, last_start: 0 }
    }

    /// A process that started in another clock tick than the last one: no guest ends and starts again within 10 ms.
    fn new_process(&mut self) -> Child {
        loop {
            let process = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
            let start = start_time(&Root::system(), process.id()).unwrap();
            if std::mem::replace(&mut self.last_start, start) != start {
                return process;
            }
            drop(Guest { process, behaviour: Behaviour::Good });
        }
    }

    fn folder(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }
}

/// Answers a client that has asked for a size.
fn serve(folder: &Path, guest: &Guest) {
    let Some(target) =
        fs::read_to_string(folder.join("target")).ok().and_then(|text| text.parse::<u64>().ok())
    else {
        return;
    };
    let answer = match guest.behaviour {
        Behaviour::Hangs => return,
        Behaviour::Refuses => NOT_TODAY,
        _ => "ok",
    };
    fs::remove_file(folder.join("target")).unwrap();
    if answer == "ok" {
        let least = if guest.behaviour == Behaviour::StopsPartWay { PART.whole_mib() } else { 0 };
        put(folder, "actual", &target.max(least).to_string());
    }
    put(folder, "answer", answer);
}

/// Writes a file whole: no reader sees a part of it.
fn put(folder: &Path, file: &str, text: &str) {
    let new = folder.join(format!("{file}.new"));
    fs::write(&new, text).unwrap();
    fs::rename(new, folder.join(file)).unwrap();
}

impl Stage for Vmm {
    fn backend(&mut self) -> Box<dyn Backend> {
        Box::new(Folders::new(self.root.path()))
    }

    fn start(&mut self, name: &str) {
        let process = self.new_process();
        let folder = self.folder(name);
        fs::create_dir(&folder).unwrap();
        put(&folder, "full", &FULL.whole_mib().to_string());
        put(&folder, "actual", &FULL.whole_mib().to_string());
        put(&folder, "process", &process.id().to_string());
        self.guests.lock().unwrap().insert(name.to_owned(), Guest { process, behaviour: Behaviour::Good });
    }

    fn end(&mut self, name: &str) {
        self.guests.lock().unwrap().remove(name).unwrap();
        fs::remove_dir_all(self.folder(name)).unwrap();
    }

    fn behave(&mut self, name: &str, behaviour: Behaviour) {
        let folder = self.folder(name);
        let mut guests = self.guests.lock().unwrap();
        guests.get_mut(name).unwrap().behaviour = behaviour;
        match behaviour {
            Behaviour::Hangs => put(&folder, "busy", ""),
            Behaviour::Absurd => put(&folder, "actual", "18446744073709551615"),
            Behaviour::Good | Behaviour::StopsPartWay | Behaviour::Refuses => {
                let _was_not_there = fs::remove_file(folder.join("busy"));
                let text = fs::read_to_string(folder.join("actual")).unwrap();
                if text.parse::<u64>().is_ok_and(|mib| mib > FULL.whole_mib()) {
                    put(&folder, "actual", &FULL.whole_mib().to_string());
                }
            }
        }
    }
}

/// `status` and `explain` show the guests of a VMM that they do not know, and the daemon sets their sizes.
fn the_daemon_shows_and_sets_its_guests() {
    let mut vmm = Vmm::new();
    ["first", "second"].iter().for_each(|name| vmm.start(name));
    let files = tempfile::tempdir().unwrap();
    let program = std::env::current_exe().unwrap();
    let journal = files.path().join("journal");
    // The class allows half of the guests' memory: the daemon takes the rest.
    let configuration = format!(
        "mode = \"manage\"\nconfine = false\njournal = {{ dir = {journal:?} }}\n[class.default]\nlimit = \"256 MiB\""
    );
    let by = ["env", &format!("FOLDERS={}", vmm.root.path().display())];
    let daemon = Daemon::start(&program, files.path(), &configuration, &by);
    daemon.until("both guests keep what their class allows", |status| {
        status.guests.len() == 2 && status.guests.iter().all(|guest| guest.report.actual.whole_mib() <= 256)
    });
    let ask = |arguments: &[&str]| {
        let output =
            Command::new(memtide()).args(arguments).arg("--socket").arg(daemon.socket()).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let status = ask(&["status"]);
    assert!(status.contains("first") && status.contains("second"), "{status}");
    let explained = ask(&["explain", "first"]);
    for part in
        ["runs as         folder", "set its size in steps of 1 MiB", "its class allows at most 256 MiB"]
    {
        assert!(explained.contains(part), "{part}: {explained}");
    }
    assert_eq!(fs::read_to_string(vmm.folder("first").join("actual")).unwrap(), "256");
}
