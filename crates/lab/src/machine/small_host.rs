//! A small host: a memory cgroup whose limit plays the memory of a machine. Guests are *started* in it, so that all memory
//! they touch is charged to it. Its OOM killer plays the machine's.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use memtide_model::Bytes;
use rustix::process::{Pid, Signal, kill_process};

use crate::error::LabError;
use crate::machine::cgroup::{self, Version};
use crate::machine::facts;
use crate::wait::LOOK_EVERY;

/// The longest wait for the last processes to end, before the cgroup is abandoned.
const LAST_PROCESSES: Duration = Duration::from_secs(10);

/// A memory cgroup with a limit. Dropping it removes it, with everything that still runs in it.
#[derive(Debug)]
pub struct SmallHost {
    dir: PathBuf,
    version: Version,
    capacity: Bytes,
}

impl SmallHost {
    /// Creates a small host with `capacity` of memory. It may use `swap` of the machine's swap.
    ///
    /// # Errors
    /// [`LabError::NoSmallHost`] if no such cgroup can be created.
    pub fn create(name: &str, capacity: Bytes, swap: Bytes) -> Result<Self, LabError> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let nth = NEXT.fetch_add(1, Ordering::Relaxed);
        let (version, dir) = cgroup::create(&format!("{name}-{}-{nth}", std::process::id()))?;
        let host = Self { dir, version, capacity };
        host.limit(capacity, swap)?;
        Ok(host)
    }

    fn limit(&self, capacity: Bytes, swap: Bytes) -> Result<(), LabError> {
        let (limit, file, both) = match self.version {
            // The limit for memory and swap together.
            Version::V1 => {
                ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes", capacity.saturating_add(swap))
            }
            Version::V2 => ("memory.max", "memory.swap.max", swap),
        };
        self.write(limit, capacity)?;
        if self.dir.join(file).exists() {
            return self.write(file, both);
        }
        // The file exists only if the kernel accounts swap. Without it, guests would use all swap of the machine.
        match facts::swapped_in() {
            None => Ok(()),
            Some(_) => Err(LabError::NoSmallHost(format!("the machine has swap, and there is no {file}"))),
        }
    }

    /// Changes the limit, and allows no swap from now on.
    ///
    /// # Errors
    /// If more memory is in use, or the cgroup cannot be written.
    pub fn with_capacity(mut self, capacity: Bytes) -> Result<Self, LabError> {
        self.limit(capacity, Bytes::ZERO)?;
        self.capacity = capacity;
        Ok(self)
    }

    /// The limit.
    #[must_use]
    pub const fn capacity(&self) -> Bytes {
        self.capacity
    }

    /// The cgroup's directory.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// A process that writes its id to this file joins this host.
    #[must_use]
    pub fn procs(&self) -> PathBuf {
        self.dir.join("cgroup.procs")
    }

    /// Processes that its OOM killer has killed so far.
    ///
    /// # Errors
    /// If the cgroup cannot be read.
    pub fn oom_kills(&self) -> Result<u64, LabError> {
        match self.version {
            Version::V1 => self.field("memory.oom_control", "oom_kill"),
            Version::V2 => self.field("memory.events", "oom_kill"),
        }
    }

    /// The memory charged to it now.
    ///
    /// # Errors
    /// If the cgroup cannot be read.
    pub fn usage(&self) -> Result<Bytes, LabError> {
        let file = match self.version {
            Version::V1 => "memory.usage_in_bytes",
            Version::V2 => "memory.current",
        };
        self.number(file).map(Bytes::new)
    }

    /// The highest memory charged to it so far.
    ///
    /// # Errors
    /// If the cgroup cannot be read (`memory.peak` exists since Linux 5.19).
    pub fn peak(&self) -> Result<Bytes, LabError> {
        let file = match self.version {
            Version::V1 => "memory.max_usage_in_bytes",
            Version::V2 => "memory.peak",
        };
        self.number(file).map(Bytes::new)
    }

    /// Page faults of its processes so far that had to wait for a disk or for swap.
    ///
    /// # Errors
    /// If the cgroup cannot be read.
    pub fn major_faults(&self) -> Result<u64, LabError> {
        self.field("memory.stat", "pgmajfault")
    }

    /// The page cache charged to it, which can be dropped at once.
    ///
    /// # Errors
    /// If the cgroup cannot be read.
    pub fn cache(&self) -> Result<Bytes, LabError> {
        let (inactive, active) = ("inactive_file", "active_file");
        Ok(Bytes::new(self.field("memory.stat", inactive)? + self.field("memory.stat", active)?))
    }

    fn write(&self, file: &str, bytes: Bytes) -> Result<(), LabError> {
        let path = self.dir.join(file);
        fs::write(&path, bytes.get().to_string()).map_err(LabError::file(&path))
    }

    fn read(&self, file: &str) -> Result<String, LabError> {
        let path = self.dir.join(file);
        fs::read_to_string(&path).map_err(LabError::file(&path))
    }

    fn number(&self, file: &str) -> Result<u64, LabError> {
        self.read(file)?.trim().parse().map_err(|e| LabError::file(&self.dir.join(file))(io::Error::other(e)))
    }

    /// The number after `key` in a file of lines `key value`; zero if the kernel does not have the key.
    fn field(&self, file: &str, key: &str) -> Result<u64, LabError> {
        let text = self.read(file)?;
        let value =
            text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' ')?.trim().parse().ok());
        Ok(value.unwrap_or(0))
    }

    fn kill_all(&self) {
        let Ok(procs) = fs::read_to_string(self.procs()) else { return };
        for pid in procs.lines().filter_map(|line| Pid::from_raw(line.parse().ok()?)) {
            // If this fails, the process has just ended.
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}

impl Drop for SmallHost {
    fn drop(&mut self) {
        let begun = Instant::now();
        while fs::remove_dir(&self.dir).is_err() && self.dir.exists() {
            if begun.elapsed() > LAST_PROCESSES {
                eprintln!("{}: the cgroup cannot be removed", self.dir.display());
                return;
            }
            self.kill_all();
            thread::sleep(LOOK_EVERY);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::{Command, Stdio};

    use super::*;

    /// Runs `script` with `sh` in a small host of 32 MiB; `None` if none can be created here.
    fn in_small_host(script: &str) -> Option<(SmallHost, std::process::ExitStatus)> {
        let host = match SmallHost::create("test", Bytes::from_mib(32), Bytes::ZERO) {
            Err(e) => {
                memtide_testing::skipped(&e.to_string());
                return None;
            }
            Ok(host) => host,
        };
        let status = Command::new("sh")
            .args(["-c", "echo $$ > \"$0\" && eval \"$1\""])
            .arg(host.procs())
            .arg(script)
            .stderr(Stdio::null())
            .status()
            .unwrap();
        Some((host, status))
    }

    #[test]
    fn who_exceeds_the_limit_is_killed_and_counted() {
        // dd's buffer is anonymous memory.
        let Some((host, status)) = in_small_host("exec dd if=/dev/zero of=/dev/null bs=64M count=1") else {
            return;
        };
        assert_eq!(status.signal(), Some(9));
        assert_eq!(host.oom_kills().unwrap(), 1);
        assert!(host.usage().unwrap() <= host.capacity());
        let dir = host.dir().to_owned();
        drop(host);
        assert!(!dir.exists());
    }

    #[test]
    fn what_a_killed_lab_left_behind_is_swept_away() {
        let Some((host, _)) = in_small_host("true") else { return };
        // No process has this id: it is above every limit.
        let left = host.dir().with_file_name(format!("{}test-4194305-0", cgroup::PREFIX));
        fs::create_dir(&left).unwrap();
        drop(SmallHost::create("test", Bytes::from_mib(32), Bytes::ZERO).unwrap());
        assert!(!left.exists());
    }

    #[test]
    fn the_host_takes_its_processes_with_it() {
        let Some((host, _)) = in_small_host("sleep 1000 > /dev/null 2>&1 &") else { return };
        let dir = host.dir().to_owned();
        drop(host);
        assert!(!dir.exists());
    }
}
