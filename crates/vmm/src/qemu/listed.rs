//! The kernel's list of Unix sockets: who listens, who is connected, who waits.
//!
//! **Problem.** A path on a command line proves nothing about the process with that command line. `/proc/PID/net/unix` lists the sockets of a
//! network namespace, each with the path at which it was bound. But it does not escape line breaks in paths, so any user can add a line with
//! any content to it.
//!
//! **Rule.** A line counts for a process only if its inode is among the process's descriptors, which nobody else can forge. Even then its
//! path is only a place to try: the kernel names the process that listens there when memtide connects. A client that was not accepted yet
//! has no descriptor in the process, so a line about it may be forged. Where [`super::backlogs`] cannot tell, memtide then only closes the monitor
//! once a minute for a moment.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use memtide_host::ProcFs;

/// The mark of a socket that listens, in the column of the flags.
const LISTENS: &[u8] = b"00010000";

/// What a listed socket does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Does {
    /// It accepts connections.
    Listen,
    /// It is the accepted end of a connection.
    Serve,
    /// It is a client that was not accepted yet.
    Wait,
}

/// A line of the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Listed<'a> {
    pub(super) does: Does,
    /// Its inode; 0 for a client that waits.
    pub(super) inode: u64,
    /// The path at which its listener was bound.
    pub(super) path: &'a Path,
}

/// The lines about sockets with a path that listen, serve or wait.
pub(super) fn entries(list: &[u8]) -> impl Iterator<Item = Listed<'_>> {
    list.split(|&byte| byte == b'\n').filter_map(entry)
}

/// `Num: RefCount Protocol Flags Type St Inode Path`. All columns but the inode have a fixed width.
fn entry(line: &[u8]) -> Option<Listed<'_>> {
    let mut columns = line.splitn(7, |&byte| byte == b' ');
    let number = columns.next()?.strip_suffix(b":")?;
    let mut column = |width| columns.next().filter(|column| is_hex(column, width));
    (matches!(number.len(), 8 | 16) && is_hex(number, number.len())).then_some(())?;
    let (_count, _protocol, flags, _kind, state) =
        (column(8)?, column(8)?, column(8)?, column(4)?, column(2)?);
    let rest = columns.next()?.trim_ascii_start();
    let (inode, path) = rest.split_at(rest.iter().position(|&byte| byte == b' ')?);
    let inode = str::from_utf8(inode).ok()?.parse().ok()?;
    let does = match (state, flags) {
        (b"01", LISTENS) => Does::Listen,
        (b"02", _) if inode == 0 => Does::Wait,
        (b"03", _) if inode != 0 => Does::Serve,
        _ => return None,
    };
    // An abstract name begins with `@`. It is no path.
    let path = path.strip_prefix(b" ").filter(|path| !path.is_empty() && !path.starts_with(b"@"))?;
    Some(Listed { does, inode, path: Path::new(OsStr::from_bytes(path)) })
}

fn is_hex(column: &[u8], width: usize) -> bool {
    column.len() == width && column.iter().all(u8::is_ascii_hexdigit)
}

/// The sockets among these descriptors, by inode.
pub(super) fn sockets_among(descriptors: &[PathBuf]) -> BTreeSet<u64> {
    descriptors.iter().filter_map(|target| inode_of(target)).collect()
}

/// The inode of a descriptor's destination `socket:[INODE]`.
pub(super) fn inode_of(target: &Path) -> Option<u64> {
    target.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
}

/// Whether the process listens at a socket that was bound at one of these paths. `None` if its descriptors or the list cannot be read.
pub(super) fn listens(proc_fs: &ProcFs, pid: u32, paths: &[PathBuf]) -> Option<bool> {
    let sockets = sockets_among(&proc_fs.descriptors(pid)?);
    let list = proc_fs.unix_sockets(pid).ok()?;
    let is_it = |listed: &Listed<'_>| {
        let is_named = paths.iter().any(|path| path == listed.path);
        listed.does == Does::Listen && is_named && sockets.contains(&listed.inode)
    };
    Some(entries(&list).any(|listed| is_it(&listed)))
}

/// Whether the process serves a client at each of its monitors, which it bound at these paths. False if that cannot be read. For programs that
/// look once: the client may be a memtide.
#[must_use]
pub fn is_held(proc_fs: &ProcFs, pid: u32, bound: &[PathBuf]) -> bool {
    let Some(descriptors) = proc_fs.descriptors(pid) else { return false };
    let sockets = sockets_among(&descriptors);
    let mut seen = OfMonitors::default();
    let paths = bound.iter().map(PathBuf::as_path).collect();
    let is_read = seen.add(proc_fs, pid, &paths).is_ok();
    let serves = |path: &PathBuf| seen.has_client(std::slice::from_ref(path), &sockets);
    is_read && !bound.is_empty() && bound.iter().all(serves)
}

/// Whether the process `pid` holds the listener at `path`, although the kernel names another process of `user`, which began to listen. Two
/// sockets can have the same path in different mount namespaces, so this is believed of processes of one user only.
pub(super) fn was_passed(proc_fs: &ProcFs, pid: u32, path: &Path, user: u32) -> bool {
    proc_fs.user(pid) == Some(user) && listens(proc_fs, pid, &[path.to_owned()]) == Some(true)
}

/// The listed sockets with the paths of monitors, in all network namespaces of guests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct OfMonitors {
    /// The paths at which clients wait, and how many.
    pub(super) waiting: BTreeMap<PathBuf, usize>,
    /// The clients that wait at the monitors of a process, where the kernel was asked: these count instead of the lines.
    pub(super) told: BTreeMap<u32, usize>,
    listening: BTreeSet<(PathBuf, u64)>,
    serving: BTreeSet<(PathBuf, u64)>,
}

impl OfMonitors {
    /// Adds the sockets with one of these paths in the network namespace of the process `pid`. If the process has ended, it has none.
    ///
    /// # Errors
    /// If the list cannot be read.
    pub(super) fn add(&mut self, proc_fs: &ProcFs, pid: u32, paths: &BTreeSet<&Path>) -> io::Result<()> {
        let list = match proc_fs.unix_sockets(pid) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            list => list?,
        };
        for Listed { does, inode, path } in entries(&list).filter(|listed| paths.contains(listed.path)) {
            match does {
                Does::Wait => *self.waiting.entry(path.to_owned()).or_default() += 1,
                Does::Listen => _ = self.listening.insert((path.to_owned(), inode)),
                Does::Serve => _ = self.serving.insert((path.to_owned(), inode)),
            }
        }
        Ok(())
    }

    /// The listeners at these paths, by path and inode.
    pub(super) fn listeners_at(&self, paths: &[PathBuf]) -> BTreeSet<(PathBuf, u64)> {
        let at = |path: &PathBuf| (path.clone(), 0)..=(path.clone(), u64::MAX);
        paths.iter().flat_map(|path| self.listening.range(at(path))).cloned().collect()
    }

    /// Whether anybody seems to wait.
    pub(super) fn someone_waits(&self) -> bool {
        !self.waiting.is_empty() || self.told.values().any(|clients| *clients > 0)
    }

    /// The clients that seem to wait at these monitors of the process `pid`.
    pub(super) fn waiting_at(&self, pid: u32, paths: &[PathBuf]) -> usize {
        let lines = || paths.iter().filter_map(|path| self.waiting.get(path)).sum();
        self.told.get(&pid).copied().unwrap_or_else(lines)
    }

    /// Whether a process with these sockets listens at one of the paths.
    pub(super) fn has_listener(&self, paths: &[PathBuf], sockets: &BTreeSet<u64>) -> bool {
        has(&self.listening, paths, sockets)
    }

    /// Whether a process with these sockets serves a client at one of the paths. A listener serves nobody: such a line is forged.
    pub(super) fn has_client(&self, paths: &[PathBuf], sockets: &BTreeSet<u64>) -> bool {
        let listens = |socket: &u64| self.listening.iter().any(|(_, inode)| inode == socket);
        let serving = sockets.iter().copied().filter(|socket| !listens(socket)).collect();
        has(&self.serving, paths, &serving)
    }
}

fn has(listed: &BTreeSet<(PathBuf, u64)>, paths: &[PathBuf], sockets: &BTreeSet<u64>) -> bool {
    listed.iter().any(|(path, inode)| paths.contains(path) && sockets.contains(inode))
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::{UnixListener, UnixStream};

    use proptest::prelude::*;

    use super::*;

    const LIST: &str = "Num       RefCount Protocol Flags    Type St Inode Path
000000006b943e35: 00000002 00000000 00010000 0001 01 777547 /run/vm/a b.qmp
0000000087d3b57e: 00000003 00000000 00000000 0001 03 777600 /run/vm/a b.qmp
00000000f82df78d: 00000002 00000000 00000000 0001 02     0 /run/vm/a b.qmp
000000003a835a5b: 00000002 00000000 00010000 0001 01     7 daemon.qmp
0000000093689491: 00000002 00000000 00010000 0001 01 777549 @/run/abstract
00000000d5e6a4c8: 00000002 00000000 00000000 0002 01 777551 /run/log
0000000048550df2: 00000003 00000000 00000000 0001 03 777702
";

    #[test]
    fn the_list_names_who_listens_serves_and_waits() {
        let found: Vec<_> =
            entries(LIST.as_bytes()).map(|of| (of.does, of.inode, of.path.to_str().unwrap())).collect();
        assert_eq!(
            found,
            [
                (Does::Listen, 777_547, "/run/vm/a b.qmp"),
                (Does::Serve, 777_600, "/run/vm/a b.qmp"),
                (Does::Wait, 0, "/run/vm/a b.qmp"),
                (Does::Listen, 7, "daemon.qmp"),
            ]
        );
    }

    #[test]
    fn sockets_are_told_by_the_kernels_own_words() {
        let targets = ["socket:[12]", "/tmp/socket:[13]", "anon_inode:kvm-vm", "socket:[x]", "pipe:[14]"];
        assert_eq!(sockets_among(&targets.map(PathBuf::from)), BTreeSet::from([12]));
    }

    #[test]
    fn only_the_process_with_the_descriptor_listens() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a monitor");
        let proc_fs = ProcFs::new(Path::new("/proc"));
        let listens = || listens(&proc_fs, std::process::id(), std::slice::from_ref(&path)).unwrap();
        assert!(!listens());
        // A line of this list that somebody made up, with the inode of nobody.
        let forged = format!("\n0000000000000000: 00000002 00000000 00010000 0001 01 1 {}\n", path.display());
        if forged.len() < 107 {
            use std::os::linux::net::SocketAddrExt;
            let name = std::os::unix::net::SocketAddr::from_abstract_name(forged).unwrap();
            let _forger = std::os::unix::net::UnixDatagram::bind_addr(&name).unwrap();
            assert!(!listens());
        }
        let _listener = UnixListener::bind(&path).unwrap();
        assert!(listens());
        let user = proc_fs.user(std::process::id()).unwrap();
        assert!(was_passed(&proc_fs, std::process::id(), &path, user));
        assert!(!was_passed(&proc_fs, std::process::id(), &path, user + 1));
    }

    #[test]
    fn a_client_waits_until_it_is_accepted() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a monitor");
        let listener = UnixListener::bind(&path).unwrap();
        let (proc_fs, pid) = (ProcFs::new(Path::new("/proc")), std::process::id());
        let names = [path.clone()];
        let seen = || {
            let mut seen = OfMonitors::default();
            seen.add(&proc_fs, pid, &BTreeSet::from([path.as_path()])).unwrap();
            let sockets = sockets_among(&proc_fs.descriptors(pid).unwrap());
            assert!(seen.has_listener(&names, &sockets));
            (seen.waiting.contains_key(&path), seen.has_client(&names, &sockets))
        };
        let _first = UnixStream::connect(&path).unwrap();
        assert_eq!(seen(), (true, false));
        let _served = listener.accept().unwrap();
        assert_eq!(seen(), (false, true));
    }

    proptest! {
        #[test]
        fn any_list_is_read(bytes in proptest::collection::vec(any::<u8>(), 0..200), text in "[0-9a-f: @/\n]{0,200}") {
            prop_assert!(entries(&bytes).chain(entries(text.as_bytes())).all(|of| of.path != Path::new("")));
        }
    }
}
