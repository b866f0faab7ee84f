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
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use common::{Daemon, memtide};
use folders::Folders;
use libtest_mimic::Arguments;
use memtide_api::history::Tried;
use memtide_api::view::{CgroupReclaimAnswer, GuestStatus};
use memtide_host::{Root, start_time};
use memtide_model::{Bytes, Mode, Moment, WallClock};
use memtide_stand_in::conformance::{Behaviour, CASES, FULL, NOT_TODAY, PART, Stage};
use memtide_testing::trial;
use memtide_vmm::Backend;

fn main() -> ExitCode {
    let is_command = |word: &str| ["run", "status", "helper"].contains(&word);
    if std::env::args().nth(1).is_some_and(|word| is_command(&word)) {
        let folders = std::env::var_os("FOLDERS").unwrap_or_default();
        return memtide::run_with(|_settings| vec![Box::new(Folders::new(&folders))]);
    }
    let cases = CASES.iter().map(|(name, case)| trial(name, move || case(&mut Vmm::new())));
    let trials = cases.chain([
        trial("the_daemon_shows_and_sets_its_guests", the_daemon_shows_and_sets_its_guests),
        trial("reclaim_tells_its_result_and_exits_with_it", reclaim_tells_its_result_and_exits_with_it),
    ]);
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

/// Ends the guests before their folders are removed.
impl Drop for Vmm {
    fn drop(&mut self) {
        self.guests.lock().unwrap().clear();
    }
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

/// A daemon that manages the guests of `vmm`, with its files in `directory`. The class allows half of the guests' memory: the daemon takes the
/// rest.
fn manage(vmm: &Vmm, directory: &Path) -> Daemon {
    let program = std::env::current_exe().unwrap();
    let journal = directory.join("journal");
    let configuration = format!(
        "mode = \"manage\"\nconfine = false\njournal = {{ dir = {journal:?} }}\n[class.default]\nlimit = \"256 MiB\""
    );
    let by = ["env", &format!("FOLDERS={}", vmm.root.path().display())];
    Daemon::start(&program, directory, &configuration, &by)
}

/// `status` and `explain` show the guests of a VMM that they do not know, and the daemon sets their sizes.
fn the_daemon_shows_and_sets_its_guests() {
    let mut vmm = Vmm::new();
    ["first", "second"].iter().for_each(|name| vmm.start(name));
    let files = tempfile::tempdir().unwrap();
    let daemon = manage(&vmm, files.path());
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

/// `memtide reclaim`, its exit code, and everything that it says.
fn reclaim(socket: &Path, guest: &str) -> (Option<i32>, String) {
    let output = Command::new(memtide()).args(["reclaim", guest, "64M", "--socket"]).arg(socket).output();
    let Output { status, stdout, stderr } = output.unwrap();
    (status.code(), String::from_utf8([stdout, stderr].concat()).unwrap())
}

fn reclaim_tells_its_result_and_exits_with_it() {
    let mut vmm = Vmm::new();
    vmm.start("first");
    let files = tempfile::tempdir().unwrap();
    let daemon = manage(&vmm, files.path());
    daemon.until("a guest", |status| status.guests.len() == 1);

    // No host lets anybody reclaim from this guest: without cgroup v2 there is no helper, and elsewhere the guest shares this test's cgroup.
    let (code, said) = reclaim(&daemon.socket(), "first");
    assert_eq!(code, Some(1), "{said}");
    assert!(said.starts_with("first: nothing reclaimed: ") && said.contains("cgroup"), "{said}");

    let (code, said) = reclaim(&daemon.socket(), "nobody");
    assert_eq!((code, said.as_str()), (Some(5), "memtide: no guest `nobody`; the guests are first\n"));

    let guest = daemon.status().guests.remove(0);
    let tried = |failed: Option<&str>, bytes: Option<u64>| Tried {
        at: Moment::default(),
        wall: WallClock(0),
        change: String::new(),
        reason: String::new(),
        failed: failed.map(str::to_owned),
        yielded: bytes.map(Bytes::from_mib),
    };
    for (mode, tried, expected, says) in [
        (Mode::Manage, Some(tried(None, Some(48))), 0, "48 MiB of 64 MiB came back"),
        (Mode::Manage, Some(tried(None, Some(0))), 0, "0 of 64 MiB came back"),
        (Mode::Manage, Some(tried(Some("timed out"), None)), 1, "nothing reclaimed: timed out"),
        (Mode::Manage, None, 1, "not reclaimed so far (steady); check `memtide explain first`"),
        (Mode::Observe, None, 1, "nothing reclaimed: this memtide only observes"),
    ] {
        let guest = GuestStatus { state: "steady".to_owned(), ..guest.clone() };
        let answers =
            answering(&files.path().join("answer.sock"), &CgroupReclaimAnswer { mode, tried, guest });
        let (code, said) = reclaim(&files.path().join("answer.sock"), "first");
        assert_eq!((code, said.as_str()), (Some(expected), format!("first: {says}\n").as_str()));
        answers.join().unwrap();
    }
}

/// A daemon that gives one client this answer.
fn answering(socket: &Path, answer: &CgroupReclaimAnswer) -> thread::JoinHandle<()> {
    let _of_before = fs::remove_file(socket);
    let listener = UnixListener::bind(socket).unwrap();
    let body = serde_json::to_string(answer).unwrap();
    thread::spawn(move || {
        let (mut client, _) = listener.accept().unwrap();
        let mut asked = String::new();
        // The request ends with its body.
        while !asked.ends_with('}') {
            let mut piece = [0; 1024];
            let length = client.read(&mut piece).unwrap();
            assert_ne!(length, 0, "the client hung up: {asked}");
            asked.push_str(std::str::from_utf8(&piece[..length]).unwrap());
        }
        assert!(asked.starts_with("POST /v1/cgroup-reclaims "), "{asked}");
        assert!(asked.ends_with(r#"{"guest":"first","bytes":67108864}"#), "{asked}");
        let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close";
        write!(client, "{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len()).unwrap();
    })
}
