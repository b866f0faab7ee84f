//! Memory of a process that the kernel must keep: `VmLck` and `VmPin` of /proc/PID/status.

use memtide_model::{Bytes, Withheld};

use crate::process::gone;
use crate::text::kib;
use crate::{HostError, Root};

/// Memory of a process that the kernel must keep.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Locked {
    /// `VmLck`: locked, or pinned for VFIO, which counts its pages here.
    pub locked: Bytes,
    /// `VmPin`: pinned, for example for vDPA.
    pub pinned: Bytes,
}

impl Locked {
    /// Reads it. One small file.
    ///
    /// # Errors
    /// [`HostError::Gone`] if there is no such process; another error if the file cannot be read.
    pub fn read(root: &Root, pid: u32) -> Result<Self, HostError> {
        let path = root.process(pid, "status");
        let text =
            std::fs::read_to_string(&path).map_err(|source| gone(pid, HostError::read(&path, source)))?;
        let size = |key: &'static str| {
            let found = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
            found.and_then(|rest| kib(key, rest).ok()).unwrap_or_default()
        };
        Ok(Self { locked: size("VmLck"), pinned: size("VmPin") })
    }

    /// Why memory that a guest of this size gives is not the host's, as far as this tells. A process locks some pages for io_uring and the like:
    /// more than half of the guest is the guest's own memory.
    #[must_use]
    pub fn withheld(self, full: Bytes) -> Option<Withheld> {
        let is_mostly = |bytes: Bytes| bytes > full.mul_div(1, 2);
        if is_mostly(self.pinned) {
            return Some(Withheld::Pinned(format!("{} of its process", self.pinned)));
        }
        is_mostly(self.locked).then_some(Withheld::Locked)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_than_half_of_a_guest_is_the_guests_own_memory() {
        let of = |locked, pinned| Locked { locked: Bytes::from_mib(locked), pinned: Bytes::from_mib(pinned) };
        let full = Bytes::from_mib(512);
        assert_eq!(of(256, 8).withheld(full), None);
        assert_eq!(of(257, 8).withheld(full), Some(Withheld::Locked));
        assert!(matches!(of(600, 512).withheld(full), Some(Withheld::Pinned(_))));
    }

    #[test]
    fn this_process_is_read_and_one_that_is_gone_is_said_to_be() {
        let root = Root::system();
        Locked::read(&root, std::process::id()).unwrap();
        assert!(matches!(Locked::read(&root, u32::MAX), Err(HostError::Gone { .. })));
    }

    #[test]
    fn lines_that_are_missing_or_strange_are_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let of = |text: &str| {
            let process = directory.path().join("proc/7");
            std::fs::create_dir_all(&process).unwrap();
            std::fs::write(process.join("status"), text).unwrap();
            Locked::read(&Root::at(directory.path()), 7).unwrap()
        };
        let seen = of("Name:\tq\nVmLck:\t    2048 kB\nVmPin:\t       4 kB\n");
        assert_eq!((seen.locked, seen.pinned), (Bytes::from_mib(2), Bytes::from_kib(4)));
        assert_eq!(of("VmLck: many\nVmPin:"), Locked::default());
    }
}
