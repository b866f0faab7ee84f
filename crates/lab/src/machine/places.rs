//! The directories of the lab.
//!
//! - The *cache*: `$XDG_CACHE_HOME/memtide-lab`, or `target/lab/cache`. Kernels, images, results of probes. May be deleted.
//! - The *runs*: `target/lab/runs/NAME-DATE-PID-N`, one directory each, with sockets, consoles, logs and reports.

use std::fs;
use std::io::Write;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::error::LabError;
use crate::machine::process;

/// The workspace that this program was built from. The exerciser is built from it, too.
#[must_use]
pub fn workspace() -> &'static Path {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent();
    crates.and_then(Path::parent).unwrap_or(Path::new("."))
}

/// Cargo's target directory: the one with this program, if it can be found.
#[must_use]
pub fn target() -> PathBuf {
    let built_into = std::env::current_exe()
        .ok()
        .and_then(|exe| exe.ancestors().find(|dir| dir.join("CACHEDIR.TAG").is_file()).map(Path::to_owned));
    built_into.unwrap_or_else(|| workspace().join("target"))
}

/// The cache, created if it is missing.
///
/// # Errors
/// If it cannot be created.
pub fn cache() -> Result<PathBuf, LabError> {
    let dir = match std::env::var_os("XDG_CACHE_HOME").filter(|dir| !dir.is_empty()) {
        Some(dir) => PathBuf::from(dir).join("memtide-lab"),
        None => target().join("lab/cache"),
    };
    fs::create_dir_all(&dir).map_err(LabError::file(&dir))?;
    Ok(dir)
}

/// Writes a file so that others see it whole or not at all.
///
/// # Errors
/// If the file cannot be written.
pub fn write_whole(path: &Path, bytes: &[u8]) -> Result<(), LabError> {
    write_whole_with(path, |file| file.write_all(bytes))
}

/// The same for what `write` writes.
///
/// # Errors
/// As [`write_whole`].
pub fn write_whole_with(
    path: &Path,
    write: impl FnOnce(&mut fs::File) -> std::io::Result<()>,
) -> Result<(), LabError> {
    // Two threads can write the same file.
    let thread = format!("{:?}", std::thread::current().id());
    let beside = path.with_added_extension(format!("{}.{thread}.new", std::process::id()));
    let written = fs::File::create(&beside)
        .and_then(|mut file| write(&mut file))
        .and_then(|()| fs::rename(&beside, path));
    written.map_err(LabError::file(path))
}

/// The directory of one run. It is removed at the end unless it is kept or the thread panics, so failures can be examined.
#[derive(Debug)]
pub struct RunDir {
    path: PathBuf,
    kept: AtomicBool,
}

impl RunDir {
    /// Creates a new directory for the run `name`.
    ///
    /// # Errors
    /// If it cannot be created.
    pub fn create(name: &str) -> Result<Self, LabError> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let date = process::run(Command::new("date").arg("+%Y%m%d-%H%M%S"))?;
        let (pid, nth) = (std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = target().join(format!("lab/runs/{name}-{}-{pid}-{nth}", date.trim()));
        fs::create_dir_all(&path).map_err(LabError::file(&path))?;
        Ok(Self { path, kept: AtomicBool::new(false) })
    }

    /// Keeps the directory.
    pub fn keep(&self) {
        self.kept.store(true, Ordering::Relaxed);
    }

    /// The path of the directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for RunDir {
    fn drop(&mut self) {
        if !self.kept.load(Ordering::Relaxed) && !std::thread::panicking() {
            // If it cannot be removed, it stays under target/, and `cargo clean` removes it.
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

/// The longest path of a Unix socket, in bytes.
const LONGEST_SOCKET: usize = 107;

/// The directory of sockets: a run's directory, or a short separate one if the run's path is too long for their names.
#[derive(Debug)]
pub struct SocketDir {
    path: PathBuf,
    short: bool,
}

impl SocketDir {
    /// For sockets with names up to the length of `longest`, in `dir` if possible.
    ///
    /// # Errors
    /// If the short directory cannot be created.
    pub fn within(dir: &Path, longest: &str) -> Result<Self, LabError> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        if dir.as_os_str().len() + 1 + longest.len() <= LONGEST_SOCKET {
            return Ok(Self { path: dir.to_owned(), short: false });
        }
        let nth = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("memtide-lab-{}-{nth}", std::process::id()));
        // It must be new, so that it belongs to nobody else.
        fs::DirBuilder::new().mode(0o700).create(&path).map_err(LabError::file(&path))?;
        Ok(Self { path, short: true })
    }

    /// The path of the socket `name`.
    #[must_use]
    pub fn join(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }
}

impl Drop for SocketDir {
    fn drop(&mut self) {
        if self.short {
            // If it cannot be removed, it stays in the directory for temporary files.
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_lie_where_their_paths_are_short_enough() {
        let here = Path::new("/run/one");
        assert_eq!(SocketDir::within(here, "g.qmp").unwrap().join("g.qmp"), here.join("g.qmp"));
        let deep = here.join("d".repeat(LONGEST_SOCKET));
        let short = SocketDir::within(&deep, "g.qmp").unwrap();
        let (socket, dir) = (short.join("g.qmp"), short.path.clone());
        assert!(socket.as_os_str().len() <= LONGEST_SOCKET && dir.is_dir());
        drop(short);
        assert!(!dir.exists());
    }

    #[test]
    fn a_run_leaves_nothing_unless_it_is_kept() {
        let run = RunDir::create("test-places").unwrap();
        let path = run.path().to_owned();
        write_whole(&path.join("file"), b"text").unwrap();
        assert_eq!(fs::read(path.join("file")).unwrap(), b"text");
        assert_eq!(fs::read_dir(&path).unwrap().count(), 1);
        drop(run);
        assert!(!path.exists());
        let run = RunDir::create("test-places").unwrap();
        let path = run.path().to_owned();
        run.keep();
        drop(run);
        fs::remove_dir(&path).unwrap();
    }
}
