//! Clients that wait at a monitor that memtide keeps open.
//!
//! **Problem.** A monitor serves one client at a time, and a discovered monitor is not for memtide alone. But a new connection for
//! each poll costs both sides more than the poll.
//!
//! **Rule.** While memtide manages, it keeps a discovered monitor open until somebody knocks. The kernel lists a client that was not
//! accepted yet as a socket with the listener's path and without an inode (`/proc/PID/net/unix`). memtide then closes the connection,
//! and lets the other client be served first. If the kernel's list cannot be read, the monitor is used briefly.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

use memtide_host::ProcFs;

/// The paths at which clients wait, in the network namespace of the process `pid`, as their listeners bound them; `None` if the
/// list cannot be read. If the process has ended, nobody waits at its paths.
pub(super) fn waiting(proc_fs: &ProcFs, pid: u32) -> Option<BTreeSet<PathBuf>> {
    match proc_fs.unix_sockets(pid) {
        Ok(list) => Some(list.split(|&byte| byte == b'\n').filter_map(waits_at).collect()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Some(BTreeSet::new()),
        Err(_) => None,
    }
}

/// `Num RefCount Protocol Flags Type St Inode Path`: a waiting client is connecting (St 02) and has no inode yet.
fn waits_at(line: &[u8]) -> Option<PathBuf> {
    let mut fields = line.split(u8::is_ascii_whitespace).filter(|field| !field.is_empty());
    let state = fields.nth(5)?;
    let inode = fields.next()?;
    if (state, inode) != (b"02", b"0") {
        return None;
    }
    // A path can contain spaces: it is everything after the inode's column.
    let line = String::from_utf8_lossy(line);
    let path = line.split_once(" 02 ")?.1.trim_start().split_once(' ')?.1;
    Some(Path::new(path).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::{UnixListener, UnixStream};

    #[test]
    fn a_client_that_waits_is_seen_until_it_is_accepted() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a monitor");
        let listener = UnixListener::bind(&path).unwrap();
        let proc_fs = ProcFs::new(Path::new("/proc"));
        let waits = || waiting(&proc_fs, std::process::id()).unwrap().contains(&path);
        let _first = UnixStream::connect(&path).unwrap();
        assert!(waits());
        let _served = listener.accept().unwrap();
        assert!(!waits());
    }
}
