//! The directory of `/proc` and `/sys`.

use std::path::{Path, PathBuf};

use memtide_model::{PAGE_4K, PageSize};

/// The directory that contains `/proc` and `/sys`: `/`, or a captured tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Root(PathBuf);

impl Root {
    /// The running system.
    #[must_use]
    pub fn system() -> Self {
        Self(PathBuf::from("/"))
    }

    /// The tree below `directory`.
    #[must_use]
    pub fn at(directory: impl Into<PathBuf>) -> Self {
        Self(directory.into())
    }

    /// `/proc/NAME` in this tree.
    #[must_use]
    pub fn proc(&self, name: impl AsRef<Path>) -> PathBuf {
        self.0.join("proc").join(name)
    }

    /// `/proc/PID/NAME` in this tree.
    #[must_use]
    pub fn process(&self, pid: u32, name: &str) -> PathBuf {
        self.proc(format!("{pid}/{name}"))
    }

    /// `/sys/NAME` in this tree.
    #[must_use]
    pub fn sys(&self, name: impl AsRef<Path>) -> PathBuf {
        self.0.join("sys").join(name)
    }

    /// An absolute path of the system, in this tree.
    #[must_use]
    pub fn path(&self, absolute: &Path) -> PathBuf {
        self.0.join(absolute.strip_prefix("/").unwrap_or(absolute))
    }
}

/// The page size of the running kernel, the unit of `statm` and `vmstat`.
#[must_use]
pub fn page_size() -> PageSize {
    u64::try_from(rustix::param::page_size()).ok().and_then(PageSize::new).unwrap_or(PAGE_4K)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absolute_paths_stay_inside_the_tree() {
        let root = Root::at("/captured");
        assert_eq!(root.proc("meminfo"), Path::new("/captured/proc/meminfo"));
        assert_eq!(root.process(7, "statm"), Path::new("/captured/proc/7/statm"));
        assert_eq!(root.sys("kernel/mm"), Path::new("/captured/sys/kernel/mm"));
        assert_eq!(root.path(Path::new("/dev/shm/ram")), Path::new("/captured/dev/shm/ram"));
        assert_eq!(Root::system().proc("meminfo"), Path::new("/proc/meminfo"));
    }
}
