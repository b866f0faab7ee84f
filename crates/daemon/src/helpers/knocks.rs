//! The helper that counts the clients that wait at monitors. Its one right is to ask the kernel about sockets.

use std::collections::BTreeMap;
use std::path::Path;

use memtide_host::SocketDiagnosis;
use memtide_model::Absence;
use memtide_vmm::qemu::Backlogs;
use serde::{Deserialize, Serialize};

use super::{Helper, ask, client_stream, find_again, phrase, report, serve};
use crate::confine::Confinement;

/// The name of the helper on the command line.
pub const NAME: &str = "knocks";
/// systemd's socket for it.
const SOCKET: &str = "/run/memtide-knocks.sock";
/// The most listeners in one request: a line is bounded.
const MOST: usize = 200;

/// A request.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Ask {
    /// Whether the helper may ask the kernel.
    Check,
    /// The clients that wait at the listeners with these inodes.
    Waiting(Vec<u64>),
}

/// The answer: the clients that wait at each listener, without those that the kernel does not know here; or why nothing is known.
type Waiting = Result<Vec<(u64, u32)>, String>;

/// The helper as the daemon uses it, or why there is none.
#[derive(Debug)]
pub struct Listener(Result<Helper, Absence>);

impl Default for Listener {
    fn default() -> Self {
        Self(Err(Absence::NotYet))
    }
}

impl Backlogs for Listener {
    fn waiting(&mut self, listeners: &[u64]) -> Result<BTreeMap<u64, u32>, Absence> {
        find_again(&mut self.0, Path::new(SOCKET), &Ask::Check);
        let mut all = BTreeMap::new();
        for some in listeners.chunks(MOST) {
            let waiting: Vec<(u64, u32)> = ask(&mut self.0, &Ask::Waiting(some.to_vec()))?;
            all.extend(waiting);
        }
        Ok(all)
    }

    fn open(&mut self) -> String {
        self.0 = Helper::start_checked(NAME, Path::new(SOCKET), &Ask::Check).map_err(Absence::Refused);
        phrase(&self.0, NAME, "asks the kernel about sockets only")
    }
}

/// Runs the helper on its standard input until its client is gone.
///
/// # Errors
/// If the standard input is no socket of a client that speaks its protocol.
pub fn run() -> std::io::Result<()> {
    let stream = client_stream()?;
    let mut kernel = SocketDiagnosis::open();
    report(NAME, &Confinement::On.listener());
    serve(stream, |ask| -> Waiting {
        let refused = |error: &std::io::Error| format!("the kernel tells nothing about sockets: {error}");
        let kernel = kernel.as_mut().map_err(|error| refused(error))?;
        let listeners = match ask {
            Ask::Check => Vec::new(),
            Ask::Waiting(listeners) => listeners,
        };
        let waiting = kernel.waiting(&listeners).map_err(|error| refused(&error))?;
        Ok(waiting.into_iter().collect())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;
    use std::thread;

    #[test]
    fn many_listeners_are_asked_about_in_bounded_lines() {
        let (ours, its) = UnixStream::pair().unwrap();
        thread::spawn(move || {
            serve(its, |ask| -> Waiting {
                let Ask::Waiting(listeners) = ask else { return Ok(Vec::new()) };
                Ok(listeners.into_iter().filter(|inode| inode % 2 == 0).map(|inode| (inode, 1)).collect())
            })
        });
        let mut listener = Listener(Ok(Helper::new(ours, None)));
        let last = u64::from(u32::MAX);
        let listeners: Vec<u64> = (last - 2000..last).collect();
        let waiting = listener.waiting(&listeners).unwrap();
        assert_eq!(waiting.len(), 1000);
        assert!(waiting.keys().all(|inode| inode % 2 == 0));
    }

    #[test]
    fn without_the_helper_nothing_is_known() {
        assert_eq!(Listener::default().waiting(&[1]), Err(Absence::NotYet));
        let (ours, its) = UnixStream::pair().unwrap();
        thread::spawn(move || serve(its, |_: Ask| -> Waiting { Err("no right".to_owned()) }));
        let mut refused = Listener(Ok(Helper::new(ours, None)));
        assert_eq!(refused.waiting(&[1]), Err(Absence::Refused("no right".to_owned())));
    }
}
