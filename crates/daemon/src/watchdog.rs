//! The service manager's watchdog, which the engine itself feeds: a daemon that no longer decides is ended and started again
//! (`WatchdogSec=` of the unit).
//!
//! **Rule.** Nothing that feeds it may wait: the service manager's socket is connected once, and a message that it has no room for is dropped.

use std::env;
use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use memtide_engine::Board;

/// `WATCHDOG=1` of `sd_notify(3)`.
const FOOD: &[u8] = b"WATCHDOG=1";

/// The connection to the watchdog.
#[derive(Debug)]
pub(crate) struct Watchdog {
    socket: UnixDatagram,
    /// The time between two messages.
    every: Duration,
    fed_at: Option<Instant>,
}

impl Watchdog {
    /// Lets the engine that writes on `board` feed the watchdog of this service, if there is one.
    pub(crate) fn feed_by(board: &Board) {
        let Some(watchdog) = Self::of_service() else { return };
        let watchdog = Mutex::new(watchdog);
        // On the engine's thread: no other one may say that it decides.
        board.on_publish(move |_| watchdog.lock().unwrap_or_else(PoisonError::into_inner).feed());
    }

    /// The watchdog of this service; `None` if there is none, or if its socket cannot be reached.
    fn of_service() -> Option<Self> {
        let longest = sd_notify::watchdog_enabled()?;
        let name = env::var_os("NOTIFY_SOCKET")?;
        Self::at(name.as_bytes(), longest).ok()
    }

    /// The watchdog at the socket `name` (abstract, if it begins with `@`), which waits for a message at most for `longest`.
    fn at(name: &[u8], longest: Duration) -> io::Result<Self> {
        let address = match name.strip_prefix(b"@") {
            Some(name) => SocketAddr::from_abstract_name(name)?,
            None => SocketAddr::from_pathname(std::ffi::OsStr::from_bytes(name))?,
        };
        let socket = UnixDatagram::unbound()?;
        socket.set_nonblocking(true)?;
        socket.connect_addr(&address)?;
        Ok(Self { socket, every: longest / 4, fed_at: None })
    }

    /// Says that the engine has decided, unless that was said lately. Never waits.
    fn feed(&mut self) {
        if self.fed_at.is_none_or(|at| at.elapsed() >= self.every) {
            let sent = self.socket.send(FOOD);
            self.fed_at = sent.is_ok().then(Instant::now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_fed_once_in_a_while_and_never_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let manager = UnixDatagram::bind(&path).unwrap();
        manager.set_nonblocking(true).unwrap();
        let name = path.as_os_str().as_bytes();
        let mut rare = Watchdog::at(name, Duration::from_secs(3600)).unwrap();
        rare.feed();
        rare.feed();
        let mut text = [0; 64];
        assert_eq!(manager.recv(&mut text).map(|length| text[..length].to_vec()).unwrap(), FOOD);
        assert!(manager.recv(&mut text).is_err(), "it was fed just now");
        // A manager that reads nothing: its socket has no more room soon.
        let mut often = Watchdog::at(name, Duration::ZERO).unwrap();
        for _ in 0..10_000 {
            often.feed();
        }
        assert_eq!(often.fed_at, None);
        drop(manager);
        rare.fed_at = None;
        rare.feed();
        assert_eq!(rare.fed_at, None, "nobody is there");
    }
}
