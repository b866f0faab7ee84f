//! The memory cgroup of this process, in either version of the hierarchy.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::geteuid;

use crate::error::LabError;
use crate::machine::process::run;

/// The prefix of the names of all cgroups of the lab.
pub const PREFIX: &str = "memtide-lab-";

/// The version of the hierarchy that holds the memory controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// A separate hierarchy for the memory controller.
    V1,
    /// The unified hierarchy.
    V2,
}

/// The hierarchy, and this process's place in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hierarchy {
    /// The version.
    pub version: Version,
    /// The mount point of the hierarchy.
    pub mount: PathBuf,
    /// This process's own cgroup in it.
    pub own: PathBuf,
}

/// Finds the hierarchy with the memory controller from the texts of /proc/self/cgroup and /proc/self/mountinfo.
#[must_use]
pub fn locate(cgroup: &str, mountinfo: &str) -> Option<Hierarchy> {
    let v1 = cgroup.lines().find_map(|line| {
        let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
        controllers.split(',').any(|controller| controller == "memory").then_some(path)
    });
    let (version, path) = match v1 {
        Some(path) => (Version::V1, path),
        None => (Version::V2, cgroup.lines().find_map(|line| line.strip_prefix("0::"))?),
    };
    mountinfo.lines().find_map(|line| {
        let (before, after) = line.split_once(" - ")?;
        let mut before = before.split(' ').skip(3);
        let (root, mount) = (before.next()?, PathBuf::from(before.next()?));
        let mut after = after.split(' ');
        let (kind, options) = (after.next()?, after.nth(1).unwrap_or(""));
        let fits = match version {
            Version::V1 => kind == "cgroup" && options.split(',').any(|option| option == "memory"),
            Version::V2 => kind == "cgroup2",
        };
        // In a container, the mount can show only a part of the hierarchy.
        let below = Path::new(path).strip_prefix(root).unwrap_or(Path::new(""));
        fits.then(|| Hierarchy { version, own: mount.join(below), mount })
    })
}

/// Creates a new cgroup with the memory controller, named [`PREFIX`] plus `name` (`WHAT-PID-N`). Its parent is this process's
/// cgroup or, if the unified hierarchy forbids that, the nearest ancestor that may have such children. An ordinary user who may use sudo
/// gets a parent of their own.
///
/// # Errors
/// If none of these is allowed here.
pub fn create(name: &str) -> Result<(Version, PathBuf), LabError> {
    let read = |path: &str| fs::read_to_string(path).map_err(LabError::file(Path::new(path)));
    let hierarchy = locate(&read("/proc/self/cgroup")?, &read("/proc/self/mountinfo")?).ok_or_else(|| {
        LabError::NoSmallHost("no hierarchy with the memory controller is mounted".to_owned())
    })?;
    let mut why = String::new();
    for parent in hierarchy.own.ancestors().take_while(|dir| dir.starts_with(&hierarchy.mount)) {
        match create_below(hierarchy.version, parent, name) {
            Ok(dir) => return Ok((hierarchy.version, dir)),
            Err(e) => why = format!("{}: {e}", parent.display()),
        }
    }
    if !geteuid().is_root()
        && let Ok(parent) = delegated(&hierarchy)
        && let Ok(dir) = create_below(hierarchy.version, &parent, name)
    {
        return Ok((hierarchy.version, dir));
    }
    Err(LabError::NoSmallHost(format!(
        "{why} (root, sudo without a password, or a delegated cgroup is needed)"
    )))
}

/// A cgroup that belongs to this user. sudo creates it. In the unified hierarchy, this process must be below it, so sudo moves it there.
///
/// # Errors
/// If there is no sudo, or it wants a password.
fn delegated(hierarchy: &Hierarchy) -> Result<PathBuf, LabError> {
    const V1: &str = "mkdir -p \"$0\" && chown -R \"$1\" \"$0\"";
    const V2: &str = "echo +memory >\"${0%/*}/cgroup.subtree_control\"; mkdir -p \"$0/lab\" && echo \"$2\" >\"$0/lab/cgroup.procs\" && chown -R \"$1\" \"$0\"";
    let user = geteuid().as_raw().to_string();
    let dir = hierarchy.mount.join(format!("{PREFIX}of-{user}"));
    let script = match hierarchy.version {
        Version::V1 => V1,
        Version::V2 => V2,
    };
    let mut sudo = Command::new("sudo");
    sudo.args(["-n", "sh", "-c", script]).arg(&dir).args([&user, &std::process::id().to_string()]);
    let is_new = !dir.exists();
    run(&mut sudo)?;
    if is_new {
        let dir = dir.display();
        eprintln!("sudo made the cgroup {dir} for this user; undo: sudo find {dir} -depth -type d -delete");
    }
    Ok(dir)
}

fn create_below(version: Version, parent: &Path, name: &str) -> std::io::Result<PathBuf> {
    if version == Version::V2 {
        let control = parent.join("cgroup.subtree_control");
        let has_memory = |text: &str| text.split_whitespace().any(|word| word == "memory");
        if !has_memory(&fs::read_to_string(&control)?) {
            fs::write(&control, "+memory")?;
        }
    }
    sweep(parent);
    let dir = parent.join(format!("{PREFIX}{name}"));
    fs::create_dir(&dir)?;
    Ok(dir)
}

/// Removes cgroups left behind by killed labs: the name contains the id of a process that is gone. A cgroup with a running
/// process cannot be removed, and stays.
fn sweep(parent: &Path) {
    let Ok(entries) = fs::read_dir(parent) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let owner =
            name.to_str().and_then(|name| name.strip_prefix(PREFIX)?.rsplit('-').nth(1)?.parse::<u32>().ok());
        if owner.is_some_and(|pid| !Path::new("/proc").join(pid.to_string()).exists()) {
            let _ = fs::remove_dir(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_version_is_found_where_it_has_the_controller() {
        let cgroup = "9:name=systemd:/\n4:memory:/user/one\n0::/\n";
        let mountinfo = "30 25 0:26 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n\
            31 30 0:27 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
            35 30 0:31 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory\n\
            36 30 0:32 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
        let hierarchy = locate(cgroup, mountinfo).unwrap();
        assert_eq!(hierarchy.version, Version::V1);
        assert_eq!(hierarchy.own, Path::new("/sys/fs/cgroup/memory/user/one"));
    }

    #[test]
    fn the_second_version_is_found_also_in_a_container() {
        let mountinfo = "29 23 0:26 /docker/abc /sys/fs/cgroup ro - cgroup2 cgroup rw,nsdelegate\n";
        let hierarchy = locate("0::/docker/abc/job\n", mountinfo).unwrap();
        assert_eq!(
            (hierarchy.version, hierarchy.own.as_path()),
            (Version::V2, Path::new("/sys/fs/cgroup/job"))
        );
        let namespaced = locate("0::/\n", mountinfo).unwrap();
        assert_eq!(namespaced.own, Path::new("/sys/fs/cgroup"));
    }

    #[test]
    fn nonsense_is_no_place() {
        assert_eq!(locate("", ""), None);
        assert_eq!(locate("4:memory", "x - y"), None);
        assert_eq!(locate("0::/", "1 2 3 - cgroup2"), None);
    }
}
