//! The host's tier: a block device whose contents the host keeps compressed in its own memory. The guest swaps to it before any other swap.
//!
//! **Rule.** The agent swaps only to a device with the serial number [`TIER`] and a swap signature, which the host has written. Its priority is one above the highest
//! of the guest, at least 100. While the guest swaps to it, the host may have the coldest memory of programs written there, a piece at a time. That ends if
//! refaults show that memory in use is written. The tier is let go only if everything in it fits into the guest's available memory.
//!
//! **A host without room.** Writes to the device then fail, and the kernel tries one page after the other without an end. That shows in its counters: it
//! swaps out more than it was asked for, and no signal ends it. Then the agent leaves the tier, which does end it.
//!
//! **Time.** An answer comes within ten seconds. Reading back can take longer, and nothing can stop the kernel within one program's memory. So the
//! kernel goes on, the answer says how much is left, and the next request waits for the same end.
//!
//! When the connection or the agent ends, the guest keeps its swap.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use memtide_advise::HIGHEST_PRIORITY;
use memtide_host::Root;
use memtide_model::{Bytes, PageSize};

use super::means::{Outcome, cgroups, command, may_write, outcome, reclaim};
use super::{Refused, Tools, done, is_hot};
use crate::swaps::{Swap, serial};
use crate::wire::{Done, TIER};

/// The kernel is asked for this much at a time.
const PIECE: Bytes = Bytes::from_mib(32);
/// Writing takes no longer, and reading back is waited for no longer.
const LONGEST: Duration = Duration::from_secs(10);
/// The end of a tier that the host has no room for is waited for this long: the host waits 15 s for an answer.
const ENDS: Duration = Duration::from_secs(2);
/// A device that was just attached appears within this time.
const APPEARS: Duration = Duration::from_secs(5);
/// The pause between two looks for it.
const LOOKS: Duration = Duration::from_millis(100);
/// The tier's priority, unless the guest has swap of a higher one.
const PRIORITY: u16 = 100;
/// This much available memory must be left when all of the tier is read back.
const SPARE: Bytes = Bytes::from_mib(32);
/// The last bytes of the first page of a swap device.
const SIGNATURE: &[u8] = b"SWAPSPACE2";
/// Makes the kernel reclaim anonymous memory: only (Linux 6.16), or before page cache (Linux 6.9).
const SWAPPINESS: [&str; 2] = ["max", "200"];
/// What the administrator forbids with `tier = false`.
const FORBIDDEN: Refused = Refused::Forbidden("swapping to a tier");

/// The system calls about swap.
pub trait SwapCalls: Debug + Send + Sync {
    /// Swaps to a device.
    ///
    /// # Errors
    /// If the kernel does not.
    fn on(&self, device: &Path, priority: u16) -> io::Result<()>;
    /// Reads everything back, and swaps to it no longer.
    ///
    /// # Errors
    /// If the kernel cannot: then it goes on swapping to it.
    fn off(&self, device: &Path) -> io::Result<()>;
}

/// Those of the running kernel.
#[derive(Debug)]
struct Kernel;

impl SwapCalls for Kernel {
    fn on(&self, device: &Path, priority: u16) -> io::Result<()> {
        memtide_advise::swap_on(device, priority)
    }

    fn off(&self, device: &Path) -> io::Result<()> {
        memtide_advise::swap_off(device)
    }
}

/// The end of reading a tier back, which is still to come.
type Return = Receiver<io::Result<()>>;

/// The guest's use of the host's tier. Copies are the same.
#[derive(Clone, Debug)]
pub struct TierUse {
    calls: Arc<dyn SwapCalls>,
    returning: Arc<Mutex<Option<Return>>>,
}

impl Default for TierUse {
    fn default() -> Self {
        Self::with(Arc::new(Kernel))
    }
}

impl TierUse {
    /// With these system calls.
    #[must_use]
    pub fn with(calls: Arc<dyn SwapCalls>) -> Self {
        Self { calls, returning: Arc::default() }
    }

    /// What is being read back; nothing once that has ended.
    fn returning(&self) -> MutexGuard<'_, Option<Return>> {
        let mut returning = self.returning.lock().unwrap_or_else(PoisonError::into_inner);
        if returning.as_ref().is_some_and(|end| !matches!(end.try_recv(), Err(TryRecvError::Empty))) {
            *returning = None;
        }
        returning
    }
}

/// Swaps to the tier that the host has attached.
///
/// # Errors
/// If the administrator does not allow it, if there is no tier, or if the kernel does not accept it.
pub fn use_tier(tools: &mut Tools<'_>, tier: &TierUse) -> Result<Done, Refused> {
    if !tools.bounds.tier {
        return Err(FORBIDDEN);
    }
    let begun = Instant::now();
    if tier.returning().is_some() {
        return Err(Refused::NotNow("the tier is being read back".to_owned()));
    }
    if let Some(used) = tools.facts.tier()? {
        return Ok(done(used.total, "swapon", begun));
    }
    let name = appears(tools.root, APPEARS)
        .ok_or_else(|| Refused::NotNow(format!("no tier has appeared within {} s", APPEARS.as_secs())))?;
    let device = tools.root.path(&Path::new("/dev").join(&name));
    judge(&device, tools.facts.page())?;
    // It has no seek times: its clusters are then discarded as soon as they are empty. A kernel that does not let this be set only discards later.
    let _ = fs::write(tools.root.sys("block").join(&name).join("queue/rotational"), "0");
    let result = tier.calls.on(&device, priority(&tools.facts.swaps()?));
    // Somebody else may have been faster: a rule of udev.
    match (tools.facts.tier()?, result) {
        (Some(used), _) => Ok(done(used.total, "swapon", begun)),
        (None, Ok(())) => Err(Refused::NotNow("the kernel does not list the tier in /proc/swaps".to_owned())),
        (None, Err(error)) => Err(Refused::NotNow(format!("cannot swap to {}: {error}", device.display()))),
    }
}

/// Reads everything back from the tier, and swaps to it no longer.
///
/// # Errors
/// If there is no room for it in the guest, if the kernel cannot, or if it needs longer: then it goes on.
pub fn leave_tier(tools: &mut Tools<'_>, tier: &TierUse) -> Result<Done, Refused> {
    leave(tools, tier, LONGEST)
}

/// The same; its end is waited for no longer than this.
fn leave(tools: &mut Tools<'_>, tier: &TierUse, within: Duration) -> Result<Done, Refused> {
    let begun = Instant::now();
    let Some(before) = tools.facts.tier()? else { return Ok(done(Bytes::ZERO, "swapoff", begun)) };
    let mut returning = tier.returning();
    let end = match returning.take() {
        Some(end) => end,
        None => {
            let needs = only_in(tools, &before)?.saturating_add(SPARE);
            let has = tools.facts.memory()?.available;
            if has < needs {
                let why = format!("reading the tier back needs {needs} of available memory; there are {has}");
                return Err(Refused::NotNow(why));
            }
            let device = before.disk().map(|name| tools.root.path(&Path::new("/dev").join(name)));
            let device = device.ok_or_else(|| Refused::NotNow(format!("{} is no disk", before.path)))?;
            read_back(tier, device)?
        }
    };
    let result = end.recv_timeout(within.saturating_sub(begun.elapsed()));
    let left = tools.facts.tier()?;
    match (left, result) {
        (None, _) => Ok(done(before.used, "swapoff", begun)),
        (Some(left), Err(RecvTimeoutError::Timeout)) => {
            *returning = Some(end);
            let seconds = within.as_secs();
            Err(Refused::NotNow(format!(
                "{} of the tier are not read back after {seconds} s; it goes on",
                left.used
            )))
        }
        (Some(left), Ok(Err(error))) => {
            Err(Refused::NotNow(format!("cannot read {} of the tier back: {error}", left.used)))
        }
        (Some(left), _) => Err(Refused::NotNow(format!("the tier still holds {}", left.used))),
    }
}

/// Reads a device back on a thread of its own: nothing can stop that.
fn read_back(tier: &TierUse, device: PathBuf) -> Result<Return, Refused> {
    let (ends, end) = channel();
    let calls = Arc::clone(&tier.calls);
    thread::Builder::new().spawn(move || {
        // Nobody may wait for it any more.
        let _ = ends.send(calls.off(&device));
    })?;
    Ok(end)
}

/// Writes the coldest memory of programs to the tier.
///
/// # Errors
/// If the administrator does not allow it, if the guest does not swap to a tier, or if the kernel offers no way.
pub fn page_out(tools: &mut Tools<'_>, tier: &TierUse, bytes: Bytes) -> Result<Done, Refused> {
    if !tools.bounds.tier {
        return Err(FORBIDDEN);
    }
    let begun = Instant::now();
    let is_returning = tier.returning().is_some();
    let used = tools.facts.tier()?.filter(|_| !is_returning);
    let used = used.ok_or_else(|| Refused::NotNow("the guest swaps to no tier".to_owned()))?;
    let (files, swappiness) = anonymous(tools.root)?;
    let most = bytes.min(used.total.saturating_sub(used.used));
    if most.is_zero() {
        return Err(Refused::NotNow("the tier is full".to_owned()));
    }
    let (before, stored) = (tools.facts.report()?.counters, only_in(tools, &used)?);
    let mut written = Bytes::ZERO;
    for file in &files.paths {
        while written < most && begun.elapsed() < LONGEST {
            let piece = most.saturating_sub(written).min(PIECE);
            let line = format!("{} swappiness={swappiness}", piece.get());
            let outcome = reclaim_piece(tools, tier, file, &line, piece)?;
            let Some(now) = tools.facts.tier()? else { break };
            let so_far = only_in(tools, &now)?.saturating_sub(stored);
            let step = so_far.saturating_sub(written);
            written = so_far;
            let counters = tools.facts.report()?.counters;
            let refaults = counters.refaults_anon.saturating_sub(before.refaults_anon);
            match next(Written { piece, step, so_far, refaults, outcome }) {
                Next::Piece => {}
                Next::File => break,
                Next::End => return Ok(done(written, files.means, begun)),
            }
        }
    }
    Ok(done(written, files.means, begun))
}

/// Makes the kernel reclaim a piece.
///
/// # Errors
/// If the kernel tried in vain: then the tier is left, if the guest has room for what lies in it. If its numbers cannot be read.
fn reclaim_piece(
    tools: &mut Tools<'_>,
    tier: &TierUse,
    file: &Path,
    line: &str,
    piece: Bytes,
) -> Result<Outcome, Refused> {
    let before = tools.facts.report()?.counters.swapped_out;
    let (ends, end) = channel();
    let (file, line) = (file.to_owned(), line.to_owned());
    thread::Builder::new().spawn(move || {
        // Nobody may wait for it any more.
        let _ = ends.send(command(&file, &line));
    })?;
    loop {
        match end.recv_timeout(LOOKS) {
            Ok(result) => return Ok(outcome(&result)),
            Err(RecvTimeoutError::Disconnected) => return Ok(Outcome::Impossible),
            Err(RecvTimeoutError::Timeout) => {}
        }
        let swapped = tools.facts.report()?.counters.swapped_out.saturating_sub(before);
        if swapped > piece.saturating_add(PIECE) {
            let left = match leave(tools, tier, ENDS) {
                Ok(_) => "the tier is left".to_owned(),
                Err(why) => why.to_string(),
            };
            return Err(Refused::NotNow(format!("the host takes no more into the tier: {left}")));
        }
    }
}

/// What lies in the tier alone. What was read back and not changed since, or could not be written, is in memory as well: that of other swap is counted
/// against the tier.
fn only_in(tools: &mut Tools<'_>, tier: &Swap) -> Result<Bytes, Refused> {
    let swaps = tools.facts.swaps()?;
    let others = Bytes::sum(swaps.iter().filter(|swap| swap.path != tier.path).map(|swap| swap.used));
    let in_memory = tools.facts.swap_cached()?.saturating_sub(others);
    Ok(tier.used.saturating_sub(in_memory))
}

/// What became of a piece.
#[derive(Clone, Copy, Debug)]
struct Written {
    piece: Bytes,
    /// What came into the tier meanwhile, and since the beginning.
    step: Bytes,
    so_far: Bytes,
    /// What was read back since the beginning.
    refaults: Bytes,
    outcome: Outcome,
}

/// What follows a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    /// The next one.
    Piece,
    /// The next cgroup: this one has no more.
    File,
    /// Nothing: memory in use is written.
    End,
}

fn next(written: Written) -> Next {
    let Written { piece, step, so_far, refaults, outcome } = written;
    if is_hot(refaults, so_far.max(PIECE)) {
        return Next::End;
    }
    // With a swappiness of 200, the kernel may drop page cache in its place.
    match outcome == Outcome::Whole && step >= piece.mul_div(1, 2) {
        true => Next::Piece,
        false => Next::File,
    }
}

/// Why the guest cannot swap to a tier.
pub(super) fn problem(tools: &Tools<'_>) -> Option<String> {
    let problem = || {
        if !tools.bounds.tier {
            return Err(FORBIDDEN);
        }
        if !tools.root.proc("swaps").exists() {
            return Err(Refused::Unsupported("it is built without swap".to_owned()));
        }
        let zswap = fs::read_to_string(tools.root.sys("module/zswap/parameters/enabled"));
        if zswap.is_ok_and(|enabled| enabled.trim() == "Y") {
            return Err(Refused::Unsupported("zswap keeps swapped memory in the guest".to_owned()));
        }
        anonymous(tools.root)
    };
    problem().err().map(|why| why.to_string())
}

/// The files that make the kernel reclaim.
struct Files {
    paths: Vec<PathBuf>,
    means: &'static str,
}

/// The files that reclaim anonymous memory, and the swappiness that they know.
fn anonymous(root: &Root) -> Result<(Files, &'static str), Refused> {
    let whole = reclaim(root);
    let files = match may_write(&whole) {
        true => Files { paths: vec![whole], means: "memory_reclaim" },
        false => Files { paths: cgroups(root), means: "cgroup_reclaim" },
    };
    let unsupported = |why: &str| Refused::Unsupported(why.to_owned());
    let first = files.paths.first().ok_or_else(|| unsupported("memory.reclaim needs cgroup v2"))?;
    // Nothing is reclaimed: the kernel reads the line first, and zero bytes are there at once.
    let knows = |swappiness: &&&str| command(first, &format!("0 swappiness={swappiness}")).is_ok();
    let known = SWAPPINESS.iter().find(knows);
    let swappiness =
        *known.ok_or_else(|| unsupported("memory.reclaim takes no swappiness before Linux 6.9"))?;
    Ok((files, swappiness))
}

/// The name of the tier's block device, once there is one.
fn appears(root: &Root, within: Duration) -> Option<String> {
    let begun = Instant::now();
    let mut others = BTreeSet::new();
    loop {
        for entry in fs::read_dir(root.sys("block")).into_iter().flatten().flatten() {
            let Ok(name) = entry.file_name().into_string() else { continue };
            if others.contains(&name) {
                continue;
            }
            match serial(root, &name) {
                Ok(Some(serial)) if serial == TIER => return Some(name),
                // A disk that fails tells an empty one.
                Ok(serial) if serial.as_ref().is_none_or(|serial| !serial.is_empty()) => {
                    others.insert(name);
                }
                Ok(_) | Err(_) => {}
            }
        }
        if begun.elapsed() >= within {
            return None;
        }
        thread::sleep(LOOKS);
    }
}

/// Whether the host has made this device for swap.
fn judge(device: &Path, page: PageSize) -> Result<(), Refused> {
    let unread = |error| Refused::NotNow(format!("cannot read {}: {error}", device.display()));
    let length = usize::try_from(page.bytes().get()).unwrap_or(usize::MAX);
    let mut first = vec![0_u8; length];
    File::open(device).and_then(|mut file| file.read_exact(&mut first)).map_err(unread)?;
    match first.ends_with(SIGNATURE) {
        true => Ok(()),
        false => Err(Refused::NotNow(format!("{} carries no swap signature", device.display()))),
    }
}

/// A priority above all others.
fn priority(swaps: &[Swap]) -> u16 {
    let above = swaps.iter().map(|swap| swap.priority.saturating_add(1)).max().unwrap_or(0);
    let within = above.clamp(PRIORITY.into(), HIGHEST_PRIORITY.into());
    u16::try_from(within).unwrap_or(PRIORITY)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;
    use std::sync::mpsc::{Sender, channel};

    use rustix::fs::{CWD, FileType, Mode, mknodat};
    use tempfile::TempDir;

    use crate::facts::Reported;
    use crate::{Bounds, Facts};

    const HEADER: &str = "Filename Type Size Used Priority\n";
    const DISK: &str = "/dev/vdb2 partition 1048572 0 300\n";

    /// A kernel in a captured tree.
    #[derive(Debug)]
    struct Tree {
        dir: TempDir,
        /// Reading back ends when something is said; at once if there is no other end.
        waits: Mutex<Option<Receiver<()>>>,
        /// Reading back fails with this error.
        fails: Option<i32>,
    }

    impl SwapCalls for Tree {
        fn on(&self, device: &Path, priority: u16) -> io::Result<()> {
            assert_eq!(device, self.dir.path().join("dev/vda"));
            self.write("proc/swaps", &format!("{HEADER}{DISK}/dev/vda partition 524284 0 {priority}\n"));
            Ok(())
        }

        fn off(&self, device: &Path) -> io::Result<()> {
            assert_eq!(device, self.dir.path().join("dev/vda"));
            if let Some(waits) = self.waits.lock().unwrap().take() {
                let _ = waits.recv();
            }
            if let Some(error) = self.fails {
                return Err(io::Error::from_raw_os_error(error));
            }
            self.write("proc/swaps", HEADER);
            Ok(())
        }
    }

    impl Tree {
        fn new() -> Self {
            let tree = Self { dir: tempfile::tempdir().unwrap(), waits: Mutex::default(), fails: None };
            tree.write(
                "proc/meminfo",
                "MemTotal: 1024000 kB\nMemAvailable: 200000 kB\nAnonPages: 700000 kB\n",
            );
            tree.write("proc/vmstat", "pswpout 0\nworkingset_refault_anon 0\n");
            tree.write("proc/swaps", &format!("{HEADER}{DISK}"));
            tree.write("sys/fs/cgroup/memory.reclaim", "");
            tree.write("sys/block/sr0/size", "0");
            tree.write("sys/block/vda/serial", TIER);
            tree.write("sys/block/vda/queue/rotational", "1");
            let mut page = vec![0; 4096];
            page[4086..].copy_from_slice(SIGNATURE);
            fs::write(tree.path("dev/vda"), page).unwrap();
            tree
        }

        /// One whose guest swaps to the tier.
        fn in_use(used_kib: u64) -> Self {
            let tree = Self::new();
            tree.write("proc/swaps", &format!("{HEADER}/dev/vda partition 524284 {used_kib} 100\n"));
            tree
        }

        fn path(&self, path: &str) -> PathBuf {
            let path = self.dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            path
        }

        fn write(&self, path: &str, text: &str) {
            fs::write(self.path(path), text).unwrap();
        }

        fn read(&self, path: &str) -> String {
            fs::read_to_string(self.path(path)).unwrap()
        }

        fn root(&self) -> Root {
            Root::at(self.dir.path())
        }
    }

    /// Lets a deed work on the tree.
    fn with<T>(tree: &Tree, bounds: &Bounds, deed: impl FnOnce(&mut Tools<'_>) -> T) -> T {
        let root = tree.root();
        let mut facts = Facts::open(&root, Reported::default()).unwrap();
        deed(&mut Tools { root: &root, facts: &mut facts, bounds })
    }

    fn work(
        tree: Tree,
        deed: impl FnOnce(&mut Tools<'_>, &TierUse) -> Result<Done, Refused>,
    ) -> (Arc<Tree>, Result<Done, String>) {
        let tree = Arc::new(tree);
        let tier = TierUse::with(Arc::clone(&tree) as _);
        let result = with(&tree, &Bounds::default(), |tools| deed(tools, &tier));
        (tree, result.map_err(|why| why.to_string()))
    }

    #[test]
    fn a_tier_is_swapped_to_before_all_other_swap() {
        let (tree, done) = work(Tree::new(), use_tier);
        assert_eq!(done.unwrap().bytes, Some(Bytes::from_kib(524_284)));
        assert!(tree.read("proc/swaps").contains("/dev/vda partition 524284 0 301"));
        assert_eq!(tree.read("sys/block/vda/queue/rotational"), "0");
        let priorities = |existing: &[i32]| {
            let swap =
                |priority| Swap { path: String::new(), total: Bytes::ZERO, used: Bytes::ZERO, priority };
            priority(&existing.iter().map(|priority| swap(*priority)).collect::<Vec<_>>())
        };
        assert_eq!((priorities(&[]), priorities(&[-2, -3]), priorities(&[100, 5])), (100, 100, 101));
        assert_eq!((priorities(&[32_767]), priorities(&[i32::MAX])), (32_767, 32_767));
    }

    #[test]
    fn only_what_the_host_has_made_for_swap_is_swapped_to() {
        let tree = Tree::new();
        fs::write(tree.path("dev/vda"), [1_u8; 8192]).unwrap();
        let (tree, result) = work(tree, use_tier);
        assert!(result.unwrap_err().contains("no swap signature"));
        assert_eq!(tree.read("proc/swaps"), format!("{HEADER}{DISK}"));
        let tree = Tree::new();
        fs::write(tree.path("dev/vda"), [1_u8; 100]).unwrap();
        assert!(work(tree, use_tier).1.unwrap_err().contains("cannot read"));
    }

    #[test]
    fn a_tier_may_come_late() {
        let tree = Tree::new();
        tree.write("sys/block/vda/serial", "");
        let serial = tree.path("sys/block/vda/serial");
        let comes = thread::spawn(move || {
            thread::sleep(2 * LOOKS);
            fs::write(serial, TIER).unwrap();
        });
        assert!(work(tree, use_tier).1.is_ok());
        comes.join().unwrap();
        let tree = Tree::new();
        tree.write("sys/block/vda/serial", "another-disk");
        assert_eq!(appears(&tree.root(), LOOKS), None);
    }

    #[test]
    fn a_tier_in_use_stays_as_it_is() {
        let (tree, done) = work(Tree::in_use(4), use_tier);
        assert_eq!(done.unwrap().bytes, Some(Bytes::from_kib(524_284)));
        assert!(tree.read("proc/swaps").ends_with(" 100\n"));
        let (_, done) = work(Tree::new(), leave_tier);
        assert_eq!(done.unwrap().bytes, Some(Bytes::ZERO), "what is not in use is left already");
    }

    #[test]
    fn a_tier_is_left_if_the_guest_has_room_for_what_it_holds() {
        let (tree, done) = work(Tree::in_use(99_328), leave_tier);
        assert_eq!(done.unwrap().bytes, Some(Bytes::from_kib(99_328)));
        assert_eq!(tree.read("proc/swaps"), HEADER);
        // 200,000 KiB are available, and 32 MiB of them must be left.
        let (tree, refused) = work(Tree::in_use(180_000), leave_tier);
        assert!(refused.unwrap_err().contains("available memory"));
        assert!(tree.read("proc/swaps").contains("vda"));
        // What is in memory already needs none.
        let tree = Tree::in_use(180_000);
        let meminfo = tree.read("proc/meminfo");
        tree.write("proc/meminfo", &format!("{meminfo}SwapCached: 20000 kB\n"));
        assert!(work(tree, leave_tier).1.is_ok());
        let (_, refused) = work(Tree { fails: Some(12), ..Tree::in_use(5) }, leave_tier);
        assert!(refused.unwrap_err().contains("cannot read 5 KiB of the tier back"));
    }

    #[test]
    fn what_takes_longer_goes_on_and_ends_with_the_next_request() {
        let (ends, waits): (Sender<()>, _) = channel();
        let tree = Arc::new(Tree { waits: Mutex::new(Some(waits)), ..Tree::in_use(500) });
        let tier = TierUse::with(Arc::clone(&tree) as _);
        let work = |deed: &dyn Fn(&mut Tools<'_>, &TierUse) -> Result<Done, Refused>| {
            with(&tree, &Bounds::default(), |tools| deed(tools, &tier)).map_err(|why| why.to_string())
        };
        // As if ten seconds had passed.
        *tier.returning() = Some(read_back(&tier, tree.path("dev/vda")).unwrap());
        assert!(work(&use_tier).unwrap_err().contains("being read back"));
        assert!(work(&|tools, tier| page_out(tools, tier, PIECE)).unwrap_err().contains("no tier"));
        let end = thread::spawn(move || {
            thread::sleep(LOOKS);
            ends.send(()).unwrap();
        });
        assert_eq!(work(&leave_tier).unwrap().bytes, Some(Bytes::from_kib(500)));
        end.join().unwrap();
        assert!(tier.returning().is_none());
        tree.write("proc/swaps", &format!("{HEADER}{DISK}"));
        assert!(work(&use_tier).is_ok(), "it can be used again");
    }

    #[test]
    fn the_kernel_is_asked_for_anonymous_memory_up_to_the_room_in_the_tier() {
        let (tree, done) = work(Tree::in_use(0), |tools, tier| page_out(tools, tier, Bytes::from_mib(100)));
        let done = done.unwrap();
        // No counter has changed: it is not asked again.
        assert_eq!((done.bytes, done.means.as_deref()), (Some(Bytes::ZERO), Some("memory_reclaim")));
        assert_eq!(tree.read("sys/fs/cgroup/memory.reclaim"), "33554432 swappiness=max");
        let (tree, done) =
            work(Tree::in_use(524_280), |tools, tier| page_out(tools, tier, Bytes::from_mib(9)));
        assert!(done.is_ok() && tree.read("sys/fs/cgroup/memory.reclaim").starts_with("4096 "));
        let page_out = |used| work(Tree::in_use(used), |tools, tier| page_out(tools, tier, PIECE)).1;
        assert!(page_out(524_284).unwrap_err().contains("full"));
        let (_, refused) = work(Tree::new(), |tools, tier| super::page_out(tools, tier, PIECE));
        assert!(refused.unwrap_err().contains("no tier"));
    }

    #[test]
    fn a_tier_without_room_on_the_host_is_left() {
        let tree = Arc::new(Tree::in_use(4));
        let tier = TierUse::with(Arc::clone(&tree) as _);
        // Nobody reads what is written here: the kernel does not end.
        let endless = tree.path("endless");
        mknodat(CWD, &endless, FileType::Fifo, Mode::RWXU, 0).unwrap();
        let writes_fail = Arc::clone(&tree);
        let (stops, stop) = channel::<()>();
        let writes = thread::spawn(move || {
            for pages in (0_u64..).step_by(10_000) {
                writes_fail.write("proc/vmstat", &format!("pswpout {pages}\n"));
                if stop.recv_timeout(LOOKS / 4) != Err(RecvTimeoutError::Timeout) {
                    return;
                }
            }
        });
        let result =
            with(&tree, &Bounds::default(), |tools| reclaim_piece(tools, &tier, &endless, "1", PIECE));
        drop(stops);
        writes.join().unwrap();
        assert!(result.unwrap_err().to_string().contains("no more into the tier: the tier is left"));
        assert_eq!(tree.read("proc/swaps"), HEADER);
    }

    #[test]
    fn memory_in_use_and_page_cache_end_it() {
        let mib = Bytes::from_mib;
        let well = Written {
            piece: PIECE,
            step: mib(30),
            so_far: mib(64),
            refaults: mib(4),
            outcome: Outcome::Whole,
        };
        assert_eq!(next(well), Next::Piece);
        assert_eq!(next(Written { refaults: mib(5), ..well }), Next::End);
        assert_eq!(next(Written { step: mib(15), ..well }), Next::File);
        assert_eq!(next(Written { outcome: Outcome::Some, ..well }), Next::File);
    }

    #[test]
    fn a_guest_says_why_it_cannot() {
        let tree = Tree::new();
        let why = |bounds: &Bounds| with(&tree, bounds, |tools| problem(tools)).unwrap_or_default();
        let may = Bounds::default();
        assert_eq!(
            (why(&may), tree.read("sys/fs/cgroup/memory.reclaim").as_str()),
            (String::new(), "0 swappiness=max")
        );
        let forbids = Bounds { tier: false, ..may };
        assert!(why(&forbids).contains("administrator"));
        for deed in [use_tier, |tools: &mut Tools<'_>, tier: &TierUse| page_out(tools, tier, PIECE)] {
            let refused = with(&tree, &forbids, |tools| deed(tools, &TierUse::default()));
            assert!(matches!(refused, Err(Refused::Forbidden(_))));
        }
        tree.write("sys/module/zswap/parameters/enabled", "Y\n");
        assert!(why(&may).contains("zswap"));
        tree.write("sys/module/zswap/parameters/enabled", "N\n");
        fs::remove_file(tree.path("sys/fs/cgroup/memory.reclaim")).unwrap();
        assert!(why(&may).contains("cgroup v2"));
        fs::remove_file(tree.path("proc/swaps")).unwrap();
        assert!(why(&may).contains("without swap"));
    }
}
