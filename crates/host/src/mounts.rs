//! Where a file system is mounted: `/proc/PID/mountinfo`.

use std::fs::File;
use std::io::Read;
use std::path::PathBuf;

use memtide_model::{TmpfsId, printable};

use crate::text::unescape;
use crate::{HostError, Root};

/// A user can mount much in a namespace of their own: no more than this is read.
const MOST: u64 = 1 << 20;

/// Where a file system is mounted for a process.
fn mount_point(root: &Root, process: &str, id: TmpfsId) -> Result<Option<PathBuf>, HostError> {
    let path = root.proc(format!("{process}/mountinfo"));
    let mut text = Vec::new();
    let read = File::open(&path).and_then(|file| file.take(MOST).read_to_end(&mut text));
    read.map_err(|source| HostError::read(&path, source))?;
    Ok(find(&String::from_utf8_lossy(&text), id))
}

/// Where the tmpfs of a process's files is, for people: its mount point; below `/proc/PID/root` if this program does not see it there.
#[must_use]
pub fn name_of_tmpfs(root: &Root, pid: u32, id: TmpfsId) -> String {
    match mounted(root, pid, id) {
        Some((here, true)) => printable(&here.to_string_lossy()),
        Some((there, false)) => printable(&format!("/proc/{pid}/root{}", there.display())),
        None => format!("a tmpfs of process {pid}"),
    }
}

/// The shortest mount point of a file system, and whether this program sees it there; else that where a process sees it. `None` if neither
/// is known.
#[must_use]
pub fn mounted(root: &Root, pid: u32, id: TmpfsId) -> Option<(PathBuf, bool)> {
    let of = |process: &str| mount_point(root, process, id).ok().flatten();
    let here = of("self").map(|at| (at, true));
    here.or_else(|| of(&pid.to_string()).map(|at| (at, false)))
}

/// The shortest mount point of the whole file system, or of a part of it if that is mounted alone.
fn find(mountinfo: &str, id: TmpfsId) -> Option<PathBuf> {
    let device = format!("{}:{}", rustix::fs::major(id.0), rustix::fs::minor(id.0));
    let of_it = mountinfo.lines().filter_map(|line| {
        let mut fields = line.split(' ').skip(2);
        let (number, inside, at) = (fields.next()?, fields.next()?, fields.next()?);
        (number == device).then(|| (inside != "/", at.len(), unescape(at)))
    });
    of_it.min().map(|(_, _, at)| PathBuf::from(at))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "\
22 28 0:21 / /proc rw,nosuid - proc proc rw
30 28 0:26 /part /srv/x rw - tmpfs tmpfs rw,size=1024k
31 28 0:26 / /dev/shm/longer rw - tmpfs tmpfs rw
32 28 0:26 / /dev/shm rw - tmpfs tmpfs rw
33 28 0:27 / /my\\040dir rw - tmpfs tmpfs rw
34 28 0:28 /only /a\\ rw - tmpfs tmpfs rw
bad line
";

    #[test]
    fn a_mount_point_is_found_by_the_device() {
        let id = |minor| TmpfsId(rustix::fs::makedev(0, minor));
        assert_eq!(find(MOUNTS, id(26)), Some(PathBuf::from("/dev/shm")));
        assert_eq!(find(MOUNTS, id(27)), Some(PathBuf::from("/my dir")));
        assert_eq!(find(MOUNTS, id(28)), Some(PathBuf::from("/a\\")), "a part of it is mounted");
        assert_eq!(find(MOUNTS, id(29)), None);
    }

    #[test]
    fn a_tmpfs_that_is_mounted_elsewhere_is_named_through_its_process() {
        let tree = tempfile::tempdir().unwrap();
        let write = |process: &str, text: &str| {
            let directory = tree.path().join("proc").join(process);
            std::fs::create_dir_all(&directory).unwrap();
            std::fs::write(directory.join("mountinfo"), text).unwrap();
        };
        write("self", "1 1 0:26 / /dev/shm rw - tmpfs tmpfs rw\n");
        write("7", "1 1 0:26 / /x rw - tmpfs tmpfs rw\n2 1 0:30 / /dev/shm rw - tmpfs tmpfs rw\n");
        let root = Root::at(tree.path());
        let name = |minor| name_of_tmpfs(&root, 7, TmpfsId(rustix::fs::makedev(0, minor)));
        assert_eq!(name(26), "/dev/shm");
        assert_eq!(name(30), "/proc/7/root/dev/shm");
        assert_eq!(name(31), "a tmpfs of process 7");
    }
}
