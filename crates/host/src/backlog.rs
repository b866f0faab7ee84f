//! The clients that wait at Unix sockets, as the kernel's socket diagnosis tells them (`sock_diag(7)`, `linux/unix_diag.h`).
//!
//! Unlike the text of `/proc/net/unix`, this names sockets by inode, and nobody's path is in it. It tells of the sockets of one network
//! namespace: the one in which it was opened.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink, recv, send, socket_with,
};

/// `SOCK_DIAG_BY_FAMILY`: the type of a request, and of each answer to it.
const BY_FAMILY: u16 = 20;
/// `NLM_F_REQUEST | NLM_F_ROOT | NLM_F_MATCH`: all sockets that the request describes.
const DUMP: u16 = 0x301;
/// `NLMSG_ERROR` and `NLMSG_DONE`.
const ERROR: u16 = 2;
const DONE: u16 = 3;
/// `AF_UNIX`, and the states as bits: only `TCP_LISTEN`.
const UNIX: u8 = 1;
const LISTENING: u32 = 1 << 10;
/// `UDIAG_SHOW_RQLEN`, and `UNIX_DIAG_RQLEN` of the answers.
const SHOW_QUEUE: u32 = 0x10;
const QUEUE: u16 = 4;
/// The length of `struct nlmsghdr`, and of `struct unix_diag_msg` behind it.
const HEADER: usize = 16;
const MESSAGE: usize = 16;
/// The kernel sends its answers in pieces of at most this many bytes (`NLMSG_GOODSIZE`, and more if the reader asks for more).
const PIECE: usize = 32 << 10;
/// The kernel answers at once. A socket that stays silent is broken.
const ANSWERS_WITHIN: Duration = Duration::from_secs(1);

/// The kernel's socket diagnosis in the network namespace of the process that opened it.
#[derive(Debug)]
pub struct SocketDiagnosis {
    socket: OwnedFd,
    last: u32,
}

impl SocketDiagnosis {
    /// Opens it. Needs no right but `AF_NETLINK`.
    ///
    /// # Errors
    /// If the kernel has none, or the process may not use it.
    pub fn open() -> io::Result<Self> {
        let (kind, flags) = (SocketType::RAW, SocketFlags::CLOEXEC);
        let socket = socket_with(AddressFamily::NETLINK, kind, flags, Some(netlink::SOCK_DIAG))?;
        set_socket_timeout(&socket, Timeout::Recv, Some(ANSWERS_WITHIN))?;
        Ok(Self { socket, last: 0 })
    }

    /// The number of clients that wait at each of these listeners, by inode. A socket that does not listen in this namespace is left out.
    ///
    /// # Errors
    /// If the kernel refuses, or answers something else.
    pub fn waiting(&mut self, listeners: &[u64]) -> io::Result<BTreeMap<u64, u32>> {
        let listeners: BTreeSet<u64> = listeners.iter().copied().collect();
        self.last = self.last.wrapping_add(1);
        send(&self.socket, &request(self.last), SendFlags::empty())?;
        let (mut found, mut piece) = (BTreeMap::new(), vec![0; PIECE]);
        loop {
            let (_, length) = recv(&self.socket, piece.as_mut_slice(), RecvFlags::TRUNC)?;
            let piece = piece.get(..length).ok_or(io::ErrorKind::InvalidData)?;
            if read_piece(piece, self.last, &listeners, &mut found)? {
                return Ok(found);
            }
        }
    }
}

/// A request for the queues of all listening Unix sockets.
fn request(number: u32) -> Vec<u8> {
    let mut request = Vec::with_capacity(40);
    request.extend(40_u32.to_ne_bytes());
    request.extend(BY_FAMILY.to_ne_bytes());
    request.extend(DUMP.to_ne_bytes());
    request.extend(number.to_ne_bytes());
    request.extend(0_u32.to_ne_bytes());
    request.extend([UNIX, 0, 0, 0]);
    request.extend(LISTENING.to_ne_bytes());
    request.extend(0_u32.to_ne_bytes());
    request.extend(SHOW_QUEUE.to_ne_bytes());
    request.extend([0; 8]);
    request
}

/// Reads a piece of the answer to request `number`. Returns whether it is the last one.
fn read_piece(
    mut piece: &[u8],
    number: u32,
    listeners: &BTreeSet<u64>,
    found: &mut BTreeMap<u64, u32>,
) -> io::Result<bool> {
    while !piece.is_empty() {
        let broken = || io::Error::from(io::ErrorKind::InvalidData);
        let length = usize::try_from(u32_at(piece, 0).ok_or_else(broken)?).map_err(|_| broken())?;
        let message = piece.get(..length).filter(|message| message.len() >= HEADER).ok_or_else(broken)?;
        piece = piece.get(length.next_multiple_of(4)..).unwrap_or_default();
        // The rest of an answer that was given up.
        if u32_at(message, 8) != Some(number) {
            continue;
        }
        match u16_at(message, 4) {
            Some(DONE) => return Ok(true),
            Some(ERROR) => {
                let code = u32_at(message, HEADER).unwrap_or_default().cast_signed();
                return Err(io::Error::from_raw_os_error(code.saturating_neg()));
            }
            Some(BY_FAMILY) => {
                let inode = u64::from(u32_at(message, HEADER + 4).ok_or_else(broken)?);
                let queue = message.get(HEADER + MESSAGE..).and_then(queue);
                if let Some(queue) = queue.filter(|_| listeners.contains(&inode)) {
                    found.insert(inode, queue);
                }
            }
            _ => {}
        }
    }
    Ok(false)
}

/// The first number of the attribute [`QUEUE`]: the clients that wait.
fn queue(mut attributes: &[u8]) -> Option<u32> {
    loop {
        let length = usize::from(u16_at(attributes, 0)?);
        if u16_at(attributes, 2)? == QUEUE {
            return u32_at(attributes.get(..length)?, 4);
        }
        attributes = attributes.get(length.next_multiple_of(4)..).filter(|_| length > 0)?;
    }
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..at + 2).and_then(|part| part.try_into().ok()).map(u16::from_ne_bytes)
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at + 4).and_then(|part| part.try_into().ok()).map(u32::from_ne_bytes)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::{UnixListener, UnixStream};
    use std::{fs, path::Path};

    use proptest::prelude::*;

    use super::*;

    /// The inode of the process's listener at `path`.
    fn inode(path: &Path) -> u64 {
        let list = fs::read_to_string("/proc/self/net/unix").expect("a list");
        let line =
            list.lines().find(|line| line.ends_with(path.to_str().expect("a path"))).expect("a listener");
        line.split_ascii_whitespace().nth(6).expect("an inode").parse().expect("a number")
    }

    #[test]
    fn the_kernel_tells_who_waits() {
        let Ok(mut kernel) = SocketDiagnosis::open() else {
            return memtide_testing::skipped("this kernel has no socket diagnosis");
        };
        let dir = tempfile::tempdir().unwrap();
        let (path, other) = (dir.path().join("a"), dir.path().join("b"));
        let (listener, _other) = (UnixListener::bind(&path).unwrap(), UnixListener::bind(&other).unwrap());
        let (ours, of_other) = (inode(&path), inode(&other));
        let mut waiting = || match kernel.waiting(&[ours, 1]) {
            // The kernel has a part for other families only.
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            waiting => Some(waiting.unwrap()),
        };
        let Some(found) = waiting() else {
            return memtide_testing::skipped("this kernel has no socket diagnosis for Unix sockets");
        };
        assert_eq!(found, BTreeMap::from([(ours, 0)]), "not {of_other}, and 1 is no listener");
        let clients = [UnixStream::connect(&path).unwrap(), UnixStream::connect(&path).unwrap()];
        assert_eq!(waiting().unwrap()[&ours], 2);
        let _served = listener.accept().unwrap();
        assert_eq!(waiting().unwrap()[&ours], 1);
        drop((clients, listener));
        assert_eq!(waiting().unwrap(), BTreeMap::new());
    }

    #[test]
    fn a_refusal_is_an_error_and_an_older_answer_is_none() {
        let message = |number: u32, kind: u16, rest: &[u8]| {
            let mut message = u32::try_from(HEADER + rest.len()).unwrap().to_ne_bytes().to_vec();
            message.extend(kind.to_ne_bytes());
            message.extend([0; 2]);
            message.extend(number.to_ne_bytes());
            message.extend([0; 4]);
            message.extend(rest);
            message
        };
        let (mut found, nobody) = (BTreeMap::new(), BTreeSet::new());
        let refused = message(7, ERROR, &(-13_i32).to_ne_bytes());
        let error = read_piece(&refused, 7, &nobody, &mut found).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
        assert!(!read_piece(&refused, 8, &nobody, &mut found).unwrap());
        assert!(!read_piece(&message(6, DONE, &[]), 7, &nobody, &mut found).unwrap());
        assert!(read_piece(&message(7, DONE, &[]), 7, &nobody, &mut found).unwrap());
    }

    proptest! {
        #[test]
        fn any_answer_is_read(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _read = read_piece(&bytes, 1, &BTreeSet::from([1]), &mut BTreeMap::new());
            let _queue = queue(&bytes);
        }
    }
}
