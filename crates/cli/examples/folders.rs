//! A memtide for another kind of VMM, in one file: docs/backend.md explains it step by step.
//!
//! Each guest of this VMM is a folder in `$FOLDERS` with small text files. `process` is the number of its process; `full` and `actual` are
//! sizes in MiB. To ask for a size, a client removes `answer`, writes `target`, and waits for `answer`: `ok`, or why not. While `busy` is
//! there, the VMM answers nothing.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};
use std::{env, fs};

use memtide_host::{ProcFs, RamBlock, Root, start_time};
use memtide_model::{
    Absence, Backend as Vmm, Balloon, Bytes, Capabilities, GuestId, MIB, PageSize, Reading, Request, Span,
    Told,
};
use memtide_vmm::{Backend, Control, DiscoverError, Found, Later, Process, Wish};

const VMM: Vmm = Vmm::new("folder");
/// This VMM sets sizes in whole MiB, and cannot pause a guest.
const ABILITIES: Capabilities = Capabilities {
    step: PageSize::new(1 << 20).expect("a power of two"),
    pauses: false,
    reports_freed: false,
    ..Capabilities::BALLOON
};

fn main() -> ExitCode {
    memtide::run_with(|_settings| vec![Box::new(Folders::new(env::var_os("FOLDERS").unwrap_or_default()))])
}

/// All guests in a folder of folders.
pub struct Folders {
    root: PathBuf,
    boot: String,
}

impl Folders {
    /// The guests in the folder `root`.
    pub fn new(root: impl AsRef<Path>) -> Self {
        let boot = ProcFs::new(Path::new("/proc")).boot_id().unwrap_or_default();
        Self { root: root.as_ref().to_owned(), boot }
    }

    /// The guest in `folder`, if its process lives.
    fn guest(&self, folder: &Path) -> Option<Found> {
        let pid = text(folder, "process").ok()?.parse().ok()?;
        let start = start_time(&Root::system(), pid).ok()?;
        let full = size(folder, "full").ok()?;
        // Without it, memtide leaves the guest out.
        let user = ProcFs::new(Path::new("/proc")).user(pid);
        Some(Found {
            // The start time tells a guest from the next one with its name.
            id: GuestId::new(folder.file_name()?.to_str()?, start, &self.boot),
            vmm: VMM,
            capabilities: ABILITIES,
            full,
            withheld: None,
            process: Process { pid, user, ram: vec![RamBlock::Size(full)], ..Process::default() },
            facts: Vec::new(),
            is_configured: false,
        })
    }
}

impl Backend for Folders {
    fn discover(&mut self, _ended: bool) -> Result<Option<Vec<Found>>, DiscoverError> {
        let folders =
            fs::read_dir(&self.root).map_err(|error| DiscoverError { vmm: VMM, source: Box::new(error) })?;
        Ok(Some(folders.flatten().filter_map(|folder| self.guest(&folder.path())).collect()))
    }

    fn control(&mut self, guest: &GuestId) -> Result<Box<dyn Control>, Absence> {
        let folder = self.root.join(guest.name());
        let full = size(&folder, "full")?;
        Ok(Box::new(Folder { folder, told: Told::nothing(full, Absence::NotYet), told_at: Instant::now() }))
    }
}

/// The way to one guest, with its last answers.
struct Folder {
    folder: PathBuf,
    told: Told,
    told_at: Instant,
}

impl Folder {
    async fn ask(&mut self, deadline: Duration) -> Told {
        if self.wait_for(|folder| !folder.join("busy").exists(), deadline).await.is_err() {
            return self.told.clone().aged(Span::from(self.told_at.elapsed()), &Absence::Timeout);
        }
        let full = self.told.full;
        let balloon = |actual| Balloon { actual, deflate_on_oom: false, free_page_reporting: false };
        self.told = Told {
            // Never believe a number: no guest keeps more than it has.
            balloon: match size(&self.folder, "actual") {
                Ok(actual) if actual <= full => Reading::now(balloon(actual)),
                Ok(_) => Reading::absent(Absence::Malformed),
                Err(why) => Reading::absent(why),
            },
            ..Told::nothing(full, Absence::Unsupported)
        };
        self.told_at = Instant::now();
        self.told.clone()
    }

    async fn set(&mut self, target: Bytes, deadline: Duration) -> Result<(), Absence> {
        let _none_yet = fs::remove_file(self.folder.join("answer"));
        fs::write(self.folder.join("target"), target.whole_mib().to_string())
            .map_err(|_| Absence::Disconnected)?;
        self.wait_for(|folder| folder.join("answer").exists(), deadline).await?;
        match text(&self.folder, "answer")?.as_str() {
            "ok" => Ok(()),
            why => Err(Absence::Refused(why.to_owned())),
        }
    }

    async fn wait_for(&self, is_so: impl Fn(&Path) -> bool, deadline: Duration) -> Result<(), Absence> {
        let begun = Instant::now();
        while !is_so(&self.folder) {
            if begun.elapsed() >= deadline {
                return Err(Absence::Timeout);
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Ok(())
    }
}

impl Control for Folder {
    fn observe(&mut self, _wish: Wish, deadline: Duration) -> Later<'_, Told> {
        Box::pin(self.ask(deadline))
    }

    fn apply(&mut self, request: Request, deadline: Duration) -> Later<'_, Result<(), Absence>> {
        match request {
            Request::SetTarget(target) => Box::pin(self.set(target, deadline)),
            Request::PollStats(_)
            | Request::Reclaim(_)
            | Request::Split
            | Request::Agent(_)
            | Request::Merge(_)
            | Request::Share(_)
            | Request::Tier(_) => Box::pin(async { Err(Absence::Unsupported) }),
        }
    }
}

fn text(folder: &Path, file: &str) -> Result<String, Absence> {
    let mut text = String::new();
    let open = fs::File::open(folder.join(file)).map_err(|_| Absence::Disconnected)?;
    open.take(80).read_to_string(&mut text).map_err(|_| Absence::Malformed)?;
    Ok(text.trim().to_owned())
}

fn size(folder: &Path, file: &str) -> Result<Bytes, Absence> {
    let mib: Option<u64> = text(folder, file)?.parse().ok();
    mib.and_then(|mib| mib.checked_mul(MIB)).map(Bytes::new).ok_or(Absence::Malformed)
}
