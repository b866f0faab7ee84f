//! Who waits at monitors, asked of the kernel by the listeners' inodes.
//!
//! **Problem.** The kernel's list of sockets ([`super::listed`]) names clients that wait by a path, and any user can add a line with any path.
//!
//! **Rule.** A listener's inode is among its process's descriptors, which nobody else can forge. A program that may ask the kernel about
//! sockets tells how many clients wait there, and this replaces the lines. The lines count if nobody can ask, or if the
//! listener is in another network namespace than that of the one who asks.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use memtide_host::ProcFs;
use memtide_model::Absence;

use super::listed::{self, OfMonitors};

/// Asks the kernel who waits.
pub trait Backlogs: Send {
    /// The number of clients that wait at each of these listeners, by inode, without the listeners that the kernel does not know here.
    ///
    /// # Errors
    /// If nobody can tell.
    fn waiting(&mut self, listeners: &[u64]) -> Result<BTreeMap<u64, u32>, Absence>;

    /// Opens what it needs. Called once, before the daemon gives its rights up. Returns who asks, or why nobody does, in a phrase for the log
    /// and the status.
    fn open(&mut self) -> String;
}

/// The sockets of a guest's process that may be the listeners of its monitors.
#[derive(Clone, Debug, Default)]
pub(super) struct Listeners {
    /// The lines about listeners at the paths of its monitors, when its descriptors were read. Anybody can have added some.
    lines: BTreeSet<(PathBuf, u64)>,
    /// Those that are about sockets of the process. A forged line can only add another socket of the same process.
    own: BTreeSet<(PathBuf, u64)>,
}

impl Listeners {
    /// Takes over the listeners of the process `pid` at the paths `bound`. Reads its descriptors if the list has changed.
    pub(super) fn follow(&mut self, proc_fs: &ProcFs, pid: u32, bound: &[PathBuf], seen: &OfMonitors) {
        let lines = seen.listeners_at(bound);
        if lines == self.lines {
            return;
        }
        let sockets = listed::sockets_among(&proc_fs.descriptors(pid).unwrap_or_default());
        self.own = lines.iter().filter(|(_, inode)| sockets.contains(inode)).cloned().collect();
        self.lines = lines;
    }

    /// The clients that wait at the guest's monitors, if the kernel knows a listener at each path that has any.
    fn waiting(&self, told: &BTreeMap<u64, u32>) -> Option<usize> {
        let mut known: BTreeMap<&Path, Option<usize>> = BTreeMap::new();
        for (path, inode) in &self.own {
            let clients = told.get(inode).map(|clients| usize::try_from(*clients).unwrap_or(usize::MAX));
            let all = known.entry(path).or_default();
            *all = match (*all, clients) {
                (Some(all), Some(more)) => Some(all.saturating_add(more)),
                (all, more) => all.or(more),
            };
        }
        let mut each = known.into_values();
        let first = each.next()?;
        each.try_fold(first?, |sum, clients| Some(sum.saturating_add(clients?)))
    }
}

/// Notes what the kernel tells of each of the `guests`: its process, and its listeners.
pub(super) fn count<'a>(
    backlogs: &mut dyn Backlogs,
    guests: impl Iterator<Item = (u32, &'a Listeners)> + Clone,
    seen: &mut OfMonitors,
) {
    let own = guests.clone().flat_map(|(_, listeners)| listeners.own.iter().map(|(_, inode)| *inode));
    let inodes: Vec<u64> = own.collect::<BTreeSet<u64>>().into_iter().collect();
    let Ok(told) = backlogs.waiting(&inodes) else { return };
    seen.told = guests.filter_map(|(pid, listeners)| Some((pid, listeners.waiting(&told)?))).collect();
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    /// Knows these listeners.
    struct Kernel(BTreeMap<u64, u32>);

    impl Backlogs for Kernel {
        fn waiting(&mut self, listeners: &[u64]) -> Result<BTreeMap<u64, u32>, Absence> {
            let known = |inode: &u64| self.0.get(inode).map(|clients| (*inode, *clients));
            Ok(listeners.iter().filter_map(known).collect())
        }

        fn open(&mut self) -> String {
            "a stand-in".to_owned()
        }
    }

    const PID: u32 = 7;

    /// What is told of a guest with these sockets at its paths, by a kernel that knows some of them.
    fn told(own: &[(&str, u64)], known: &[(u64, u32)]) -> Option<usize> {
        let own = own.iter().map(|(path, inode)| (PathBuf::from(path), *inode)).collect();
        let (listeners, mut seen) = (Listeners { own, ..Listeners::default() }, OfMonitors::default());
        count(&mut Kernel(known.iter().copied().collect()), [(PID, &listeners)].into_iter(), &mut seen);
        seen.told.get(&PID).copied()
    }

    #[test]
    fn a_forged_line_about_a_listener_hides_nobody() {
        // 5 is the listener. Somebody has made up lines about a socket of the process that does not listen, and one that does.
        assert_eq!(told(&[("a", 5)], &[(5, 1)]), Some(1));
        assert_eq!(told(&[("a", 2), ("a", 5)], &[(5, 1)]), Some(1));
        assert_eq!(told(&[("a", 3), ("a", 5)], &[(3, 0), (5, 1)]), Some(1));
    }

    #[test]
    fn a_guest_is_told_of_if_each_of_its_monitors_is_known() {
        assert_eq!(told(&[("a", 5), ("b", 6)], &[(5, 1), (6, 2)]), Some(3));
        assert_eq!(told(&[("a", 5), ("b", 6)], &[(5, 1)]), None);
        assert_eq!(told(&[("a", 5), ("b", 6)], &[(6, 1)]), None);
        assert_eq!(told(&[], &[(6, 1)]), None);
    }

    #[test]
    fn a_forged_line_about_a_client_is_not_believed_where_the_kernel_tells() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("qmp");
        let (proc_fs, pid, bound) = (ProcFs::new(Path::new("/proc")), std::process::id(), vec![path.clone()]);
        let mut listeners = Listeners::default();
        let mut look = |clients: Option<u32>| {
            let mut seen = OfMonitors::default();
            seen.add(&proc_fs, pid, &BTreeSet::from([path.as_path()])).unwrap();
            // A line that somebody made up.
            seen.waiting.insert(path.clone(), 3);
            listeners.follow(&proc_fs, pid, &bound, &seen);
            let inode = listeners.own.first().map(|(_, inode)| *inode);
            let mut kernel = Kernel(inode.zip(clients).into_iter().collect());
            count(&mut kernel, [(pid, &listeners)].into_iter(), &mut seen);
            (inode.is_some(), seen.waiting_at(pid, &bound))
        };
        assert_eq!(look(Some(0)), (false, 3), "nobody listens: the lines are all that there is");
        let first = UnixListener::bind(&path).unwrap();
        assert_eq!(look(Some(0)), (true, 0));
        assert_eq!(look(Some(1)), (true, 1));
        assert_eq!(look(None), (true, 3), "the kernel does not know it here");
        drop(first);
        std::fs::remove_file(&path).unwrap();
        let _another = UnixListener::bind(&path).unwrap();
        assert_eq!(look(Some(0)), (true, 0));
    }
}
