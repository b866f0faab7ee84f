//! The helper that makes the kernel split guests' torn huge pages. Its one right is to tell the kernel that memory of a process is cold.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use memtide_engine::with_causes;
use memtide_host::{Root, can_split, split};
use memtide_model::{Absence, Bytes};
use serde::{Deserialize, Serialize};

use super::{Helper, ask, client, find_again, phrase, serve};
use crate::confine::Confinement;

/// The name of the helper on the command line.
pub const NAME: &str = "split";
/// systemd's socket for it.
const SOCKET: &str = "/run/memtide-split.sock";
/// The time that the helper spends on one request. The next request for the same process goes on where it stopped.
const WORKS_FOR: Duration = Duration::from_millis(250);
/// The helper remembers at most this many processes that it has not finished.
const UNFINISHED: usize = 10_000;

const OBSERVES: &str = "memtide only observes";

/// A request.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Ask {
    /// Whether the helper may split.
    Check,
    /// Split the torn huge pages of the process `pid` that started at `start`.
    Split { pid: u32, start: u64 },
}

/// The answer: the memory that was named to the kernel (zero for a check), or why nothing was done. It says nothing about what came back.
type Named = Result<Bytes, String>;

/// The helper as the daemon uses it, or why there is none.
#[derive(Debug)]
pub struct Splitter(Result<Helper, Absence>);

impl Splitter {
    /// Starts the helper. Must be called before the daemon gives its rights up.
    #[must_use]
    pub fn start(manages: bool) -> Self {
        Self(Self::helper(manages).map_err(Absence::Refused))
    }

    /// There is no helper, because this daemon only observes.
    #[must_use]
    pub fn none() -> Self {
        Self(Err(Absence::Refused(OBSERVES.to_owned())))
    }

    fn helper(manages: bool) -> Result<Helper, String> {
        if !manages {
            return Err(OBSERVES.to_owned());
        }
        Helper::start_checked(NAME, Path::new(SOCKET), &Ask::Check)
    }

    /// Whether it can split.
    #[must_use]
    pub const fn works(&self) -> bool {
        self.0.is_ok()
    }

    /// Whether it works, in a phrase for the log and the status; `None` if this daemon only observes.
    #[must_use]
    pub fn phrase(&self) -> Option<String> {
        let observes = matches!(&self.0, Err(Absence::Refused(why)) if why == OBSERVES);
        (!observes).then(|| phrase(&self.0, NAME, "calls memory cold only"))
    }

    /// Makes the kernel split the torn huge pages of a process. Whether memory comes back is seen at the host.
    ///
    /// # Errors
    /// If there is no helper, if it is busy, or if it refuses.
    pub fn split(&mut self, pid: u32, start: u64) -> Result<(), Absence> {
        find_again(&mut self.0, Path::new(SOCKET), &Ask::Check);
        ask::<_, Bytes>(&mut self.0, &Ask::Split { pid, start }).map(drop)
    }
}

/// Runs the helper on its standard input until its client is gone.
///
/// # Errors
/// If the standard input is no socket of a client that speaks its protocol.
pub fn run() -> std::io::Result<()> {
    let stream = client(NAME, || Confinement::On.splitter())?;
    let root = Root::system();
    let mut unfinished: BTreeMap<(u32, u64), u64> = BTreeMap::new();
    serve(stream, |ask| -> Named {
        let done = match ask {
            Ask::Check => can_split().map(|()| Bytes::ZERO),
            Ask::Split { pid, start } => {
                let from = unfinished.remove(&(pid, start)).unwrap_or_default();
                split(&root, pid, start, from, WORKS_FOR).map(|split| {
                    if let Some(next) = split.next.filter(|_| unfinished.len() < UNFINISHED) {
                        unfinished.insert((pid, start), next);
                    }
                    split.named
                })
            }
        };
        done.map_err(|error| with_causes(&error))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;
    use std::thread;

    /// A helper that answers each request with `answer`.
    fn splitter(answer: Named) -> Splitter {
        let (ours, its) = UnixStream::pair().unwrap();
        thread::spawn(move || serve(its, |_: Ask| -> Named { answer.clone() }));
        Splitter(Ok(Helper::new(ours, None)))
    }

    #[test]
    fn what_the_helper_named_is_no_yield() {
        let mut splitter = splitter(Ok(Bytes::from_mib(512)));
        assert!(splitter.works());
        assert_eq!(splitter.split(7, 1), Ok(()));
    }

    #[test]
    fn a_refusal_keeps_the_helper_and_its_end_does_not() {
        let mut refuses = splitter(Err("no right".to_owned()));
        assert_eq!(refuses.split(7, 1), Err(Absence::Refused("no right".to_owned())));
        assert!(refuses.works());
        let (ours, its) = UnixStream::pair().unwrap();
        drop(its);
        let mut ended = Splitter(Ok(Helper::new(ours, None)));
        assert!(ended.split(7, 1).is_err());
        assert!(!ended.works());
        assert_eq!(ended.phrase().unwrap(), "no helper split: the helper has ended: restart memtide");
    }

    #[test]
    fn a_daemon_that_observes_has_no_helper_and_says_nothing_about_it() {
        let mut none = Splitter::start(false);
        assert_eq!((none.works(), none.phrase()), (false, None));
        assert_eq!(none.split(7, 1), Err(Absence::Refused(OBSERVES.to_owned())));
    }
}
