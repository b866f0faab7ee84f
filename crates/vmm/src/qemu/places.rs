//! The places where the monitors of a QEMU may be reached from here.
//!
//! **Problem.** A path on a command line is a name at the start of the process. QEMU binds its sockets and may then change its root
//! (`-run-with chroot=`) or leave the directory that it was started in (`-daemonize`). It may also be given a descriptor in place of a path.
//!
//! **Rule.** Each path becomes a short list of places, the most likely first. None of them is believed: the kernel must name the process
//! as the one that listens there.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use memtide_host::ProcFs;

use super::command_line::CommandLine;
use super::listed::{self, Does};
use crate::processes::Processes;

/// The most monitors of a process that are tried.
const MOST_MONITORS: usize = 8;
/// The most places of all monitors of a process.
const MOST_PLACES: usize = 16;
/// The most directories in which a process may have been started.
const MOST_DIRECTORIES: usize = 6;

/// The paths at which the process may have bound its monitors: those on its command line, and those of descriptors that were passed to it.
pub(super) fn bound(proc_fs: &ProcFs, pid: u32, line: &CommandLine) -> Vec<PathBuf> {
    let given = line.monitors.iter().take(MOST_MONITORS).cloned();
    let passed = line.passed_monitors.iter().take(MOST_MONITORS).copied();
    let sockets: BTreeSet<u64> = passed
        .filter_map(|number| listed::inode_of(&proc_fs.link(&pid.to_string(), &format!("fd/{number}"))?))
        .collect();
    given.chain(listening(proc_fs, pid, &sockets)).take(MOST_MONITORS).collect()
}

/// The absolute paths at which these sockets listen. Who made a socket before it was passed on may have another network namespace: memtide's.
fn listening(proc_fs: &ProcFs, pid: u32, sockets: &BTreeSet<u64>) -> Vec<PathBuf> {
    if sockets.is_empty() {
        return Vec::new();
    }
    let lists = [pid, std::process::id()].map(|pid| proc_fs.unix_sockets(pid).unwrap_or_default());
    let paths = lists.iter().flat_map(|list| listed::entries(list)).filter(|listed| {
        listed.does == Does::Listen && sockets.contains(&listed.inode) && listed.path.is_absolute()
    });
    let paths: BTreeSet<&Path> = paths.map(|listed| listed.path).collect();
    paths.into_iter().map(Path::to_owned).collect()
}

/// The places of sockets that were bound at `bound`.
pub(super) fn of_all(processes: &Processes, pid: u32, bound: &[PathBuf]) -> Vec<PathBuf> {
    let mut places = Vec::new();
    for place in bound.iter().flat_map(|path| of(processes, pid, path)) {
        if !places.contains(&place) {
            places.push(place);
        }
    }
    places.truncate(MOST_PLACES);
    places
}

/// The place of a socket that is named here without a proof: the first one where there is a socket, else the most likely one.
pub(super) fn likely(processes: &Processes, pid: u32, path: &Path) -> Option<PathBuf> {
    let places = of(processes, pid, path);
    let there = places.iter().position(|place| places.len() > 1 && processes.proc_fs().is_there(pid, place));
    places.into_iter().nth(there.unwrap_or_default())
}

/// The places of a socket that the process bound at `path`, as paths that work in this process.
fn of(processes: &Processes, pid: u32, path: &Path) -> Vec<PathBuf> {
    let reachable = processes.reachable(pid, path);
    let link = |name| processes.proc_fs().link(&pid.to_string(), name);
    let (root, cwd) = (link("root"), link("cwd"));
    if path.is_absolute() {
        let has_other_root = root.is_some_and(|root| root != Path::new("/"));
        // Its root may have been ours when it bound the socket.
        let given = (has_other_root && processes.has_our_mounts(pid)).then(|| path.to_owned());
        return std::iter::once(reachable).chain(given).collect();
    }
    // A process in its root directory has probably left the directory of its start.
    let has_left = cwd.is_some() && cwd == root;
    let directories = if has_left { start_directories(processes, pid) } else { Vec::new() };
    let guessed = directories.into_iter().map(|directory| directory.join(path));
    std::iter::once(reachable).chain(guessed).collect()
}

/// Directories in which the process may have been started, as paths that work in this process: the one that its environment names, and
/// those of its open files (disks, logs, its pidfile).
fn start_directories(processes: &Processes, pid: u32) -> Vec<PathBuf> {
    let proc_fs = processes.proc_fs();
    let mut directories: Vec<PathBuf> = proc_fs.variable(pid, "PWD").into_iter().collect();
    for file in proc_fs.descriptors(pid).unwrap_or_default() {
        let is_ordinary = !["/dev", "/proc", "/sys"].iter().any(|tree| file.starts_with(tree));
        let Some(directory) = file.parent().filter(|_| is_ordinary) else { continue };
        if directory.is_absolute() && !directories.iter().any(|known| known == directory) {
            directories.push(directory.to_owned());
        }
    }
    directories.retain(|directory| directory.is_absolute());
    directories.truncate(MOST_DIRECTORIES);
    if processes.has_our_mounts(pid) {
        return directories;
    }
    let root = proc_fs.file(pid, "root");
    directories.iter().filter_map(|directory| Some(root.join(directory.strip_prefix("/").ok()?))).collect()
}
