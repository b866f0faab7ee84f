//! Finds the memory cgroup of a process: joins `/proc/PID/cgroup` with `/proc/self/mountinfo`.
//!
//! A path in `/proc/PID/cgroup` starts at the root of the hierarchy (or of the reader's cgroup namespace). A mount shows the hierarchy from
//! its own root down; in a container, that root is not the top. The directory is the mount point plus the path without the mount's root. A
//! path with `..` lies outside the reader's namespace and has no directory here.

use std::path::{Component, Path, PathBuf};

use super::{Cgroup, CgroupVersion};
use crate::process::gone;
use crate::source::parse_once;
use crate::text::unescape;
use crate::{HostError, Root};

/// The cgroups of a process that can be charged for its memory.
#[derive(Debug, Default, PartialEq, Eq)]
struct Membership {
    /// The path in v1's memory hierarchy.
    v1: Option<PathBuf>,
    /// The path in v2.
    v2: Option<PathBuf>,
}

/// A mounted hierarchy that can have the memory controller.
#[derive(Debug, PartialEq, Eq)]
struct Mount {
    version: CgroupVersion,
    /// The part of the hierarchy that is mounted.
    root: PathBuf,
    /// Its mount point.
    point: PathBuf,
}

pub(super) fn locate(root: &Root, pid: u32) -> Result<Option<Cgroup>, HostError> {
    let membership = parse_once(root.process(pid, "cgroup"), |text| Ok(membership(text)))
        .map_err(|error| gone(pid, error))?;
    let mounts = parse_once(root.proc("self/mountinfo"), |text| Ok(mounts(text)))?;
    Ok(match membership {
        Membership { v1: Some(path), .. } => cgroup(root, CgroupVersion::V1, &path, &mounts),
        Membership { v2: Some(path), .. } => {
            cgroup(root, CgroupVersion::V2, &path, &mounts).map(closest_with_controller)
        }
        _ => None,
    })
}

fn cgroup(root: &Root, version: CgroupVersion, path: &Path, mounts: &[Mount]) -> Option<Cgroup> {
    if path.components().any(|part| part == Component::ParentDir) {
        return None;
    }
    mounts.iter().filter(|mount| mount.version == version).find_map(|mount| {
        let inside = path.strip_prefix(&mount.root).ok()?;
        let top = root.path(&mount.point);
        let dir = if inside.as_os_str().is_empty() { top.clone() } else { top.join(inside) };
        Some(Cgroup { version, dir, top })
    })
}

/// A v2 cgroup without the memory controller charges its closest ancestor that has the controller.
fn closest_with_controller(cgroup: Cgroup) -> Cgroup {
    let lineage = cgroup.lineage();
    lineage.into_iter().find(|ancestor| ancestor.dir.join("memory.current").exists()).unwrap_or(cgroup)
}

/// One line is `ID:CONTROLLERS:PATH`; for v2, `0::PATH`. The path itself may contain colons.
fn membership(text: &str) -> Membership {
    let mut found = Membership::default();
    for line in text.lines() {
        let mut parts = line.splitn(3, ':');
        let (Some(id), Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next()) else {
            continue;
        };
        if !path.starts_with('/') {
            continue;
        }
        if controllers.split(',').any(|name| name == "memory") {
            found.v1 = Some(path.into());
        } else if id == "0" && controllers.is_empty() {
            found.v2 = Some(path.into());
        }
    }
    found
}

/// One line is `ID PARENT DEVICE ROOT POINT OPTIONS [TAGS…] - TYPE SOURCE SUPEROPTIONS`.
fn mounts(text: &str) -> Vec<Mount> {
    text.lines().filter_map(mount).collect()
}

fn mount(line: &str) -> Option<Mount> {
    let (place, kind) = line.split_once(" - ")?;
    let mut place = place.split(' ').skip(3);
    let (root, point) = (unescape(place.next()?), unescape(place.next()?));
    let mut kind = kind.split(' ');
    let version = match (kind.next()?, kind.nth(1)) {
        ("cgroup2", _) => CgroupVersion::V2,
        ("cgroup", Some(options)) if options.split(',').any(|name| name == "memory") => CgroupVersion::V1,
        _ => return None,
    };
    Some(Mount { version, root: root.into(), point: point.into() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const HYBRID: &str = "\
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime shared:14 - cgroup cgroup rw,memory
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
";

    #[test]
    fn a_process_is_in_a_cgroup_of_each_hierarchy() {
        let seen = membership("9:name=systemd:/\n4:cpu,memory:/a:b/c\n0::/user.slice\n");
        assert_eq!(seen, Membership { v1: Some("/a:b/c".into()), v2: Some("/user.slice".into()) });
        assert_eq!(membership("1:memory_x:/a\n0::relative\njunk\n:\n"), Membership::default());
    }

    #[test]
    fn only_mounts_with_memory_count() {
        let seen = mounts(HYBRID);
        assert_eq!(seen.len(), 2);
        assert_eq!(seen[0].point, Path::new("/sys/fs/cgroup/memory"));
        assert_eq!(seen[1].version, CgroupVersion::V2);
        let odd = mounts(r"1 2 0:3 /docker/x\040y /cg\134\012 rw - cgroup2 none rw");
        assert_eq!(
            (odd[0].root.as_path(), odd[0].point.as_path()),
            ("/docker/x y".as_ref(), "/cg\\\n".as_ref())
        );
    }

    #[test]
    fn a_mount_of_a_part_shows_only_that_part() {
        let root = Root::at("/r");
        let mounts = mounts("1 2 0:3 /docker/abc /sys/fs/cgroup rw - cgroup2 none rw");
        let find =
            |path: &str| cgroup(&root, CgroupVersion::V2, Path::new(path), &mounts).map(|cgroup| cgroup.dir);
        assert_eq!(find("/docker/abc/vm"), Some("/r/sys/fs/cgroup/vm".into()));
        assert_eq!(find("/docker/abc"), Some("/r/sys/fs/cgroup".into()));
        assert_eq!(find("/docker/abcd"), None);
        assert_eq!(find("/docker/abc/../other"), None);
        assert_eq!(find("/../outside"), None);
    }

    proptest! {
        #[test]
        fn any_text_is_read(text in "(?s).{0,200}", odd in r"[0-9 /\\:-]{0,60} - cgroup2? x (memory)?") {
            for text in [text, odd] {
                membership(&text);
                mounts(&text);
                unescape(&text);
            }
        }
    }
}
