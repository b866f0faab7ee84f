//! Who waits at monitors, asked of the kernel by the listeners' inodes.
//!
//! **Problem.** The kernel's list of sockets ([`super::listed`]) names clients that wait by a path, and any user can add a line with any path.
//!
//! **Rule.** A listener's inode is among its process's descriptors, which nobody else can forge. A program that may ask the kernel about
//! sockets tells how many clients wait there, and this replaces the lines. The lines count where the kernel does not know the listener: in another
//! network namespace than that of the one who asks.

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

/// A guest's listeners: the path at which each was bound, and its inode.
#[derive(Clone, Debug, Default)]
pub(super) struct Listeners(BTreeMap<PathBuf, u64>);

impl Listeners {
    /// Takes over the listeners of the process `pid` at the paths `bound`.
    pub(super) fn follow(&mut self, proc_fs: &ProcFs, pid: u32, bound: &[PathBuf], seen: &OfMonitors) {
        self.0.retain(|path, inode| bound.contains(path) && seen.is_listener(path, *inode));
        let mut sockets = None;
        for path in bound.iter().filter(|path| seen.is_listened_at(path)) {
            if self.0.contains_key(path) {
                continue;
            }
            let sockets = sockets
                .get_or_insert_with(|| listed::sockets_among(&proc_fs.descriptors(pid).unwrap_or_default()));
            if let Some(inode) = sockets.iter().find(|inode| seen.is_listener(path, **inode)) {
                self.0.insert(path.clone(), *inode);
            }
        }
    }
}

/// Replaces the lines about waiting clients by what the kernel tells of `guests`: the paths of their monitors, and their listeners.
pub(super) fn count<'a>(
    backlogs: &mut dyn Backlogs,
    guests: impl Iterator<Item = (&'a [PathBuf], &'a Listeners)> + Clone,
    seen: &mut OfMonitors,
) {
    let inodes: Vec<u64> = guests.clone().flat_map(|(_, listeners)| listeners.0.values().copied()).collect();
    let Ok(told) = backlogs.waiting(&inodes) else { return };
    let (mut waiting, mut untold) = (BTreeMap::<&Path, usize>::new(), BTreeSet::<&Path>::new());
    for (bound, listeners) in guests {
        for path in bound {
            match listeners.0.get(path).and_then(|inode| told.get(inode)) {
                Some(clients) => {
                    let clients = usize::try_from(*clients).unwrap_or(usize::MAX);
                    let all = waiting.entry(path).or_default();
                    *all = all.saturating_add(clients);
                }
                None => _ = untold.insert(path),
            }
        }
    }
    for (path, clients) in waiting.into_iter().filter(|(path, _)| !untold.contains(path)) {
        match clients {
            0 => _ = seen.waiting.remove(path),
            _ => _ = seen.waiting.insert(path.to_owned(), clients),
        }
    }
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
            let inode = listeners.0.get(&path).copied();
            let mut kernel = Kernel(inode.zip(clients).into_iter().collect());
            count(&mut kernel, [(bound.as_slice(), &listeners)].into_iter(), &mut seen);
            (inode.is_some(), seen.waiting.get(&path).copied())
        };
        assert_eq!(look(Some(0)), (false, Some(3)), "nobody listens: the lines are all that there is");
        let first = UnixListener::bind(&path).unwrap();
        assert_eq!(look(Some(0)), (true, None));
        assert_eq!(look(Some(1)), (true, Some(1)));
        assert_eq!(look(None), (true, Some(3)), "the kernel does not know it here");
        drop(first);
        std::fs::remove_file(&path).unwrap();
        let _another = UnixListener::bind(&path).unwrap();
        assert_eq!(look(Some(0)), (true, None));
    }

    #[test]
    fn two_guests_at_one_path_are_told_apart_from_the_lines_only_together() {
        let path = PathBuf::from("/run/qmp");
        let bound = [path.clone()];
        let listeners = |inode| Listeners(BTreeMap::from([(path.clone(), inode)]));
        let (here, elsewhere) = (listeners(1), listeners(2));
        let waiting = |known: &[(u64, u32)]| {
            let mut seen = OfMonitors::default();
            seen.waiting.insert(path.clone(), 9);
            let mut kernel = Kernel(known.iter().copied().collect());
            count(&mut kernel, [(&bound[..], &here), (&bound[..], &elsewhere)].into_iter(), &mut seen);
            seen.waiting.get(&path).copied()
        };
        assert_eq!(waiting(&[(1, 1), (2, 1)]), Some(2));
        assert_eq!(waiting(&[(1, 0), (2, 0)]), None);
        assert_eq!(waiting(&[(1, 0)]), Some(9));
    }
}
