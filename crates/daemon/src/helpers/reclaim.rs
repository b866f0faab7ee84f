//! The helper that makes the kernel reclaim memory from a guest's cgroup. Its one right is to write below the cgroups' mount points.

use std::error::Error as _;
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use memtide_api::view::ReclaimRequest;
use memtide_host::{Cgroup, CgroupVersion, Root, can_reclaim, reclaim};
use memtide_model::{Absence, Bytes};
use serde::{Deserialize, Serialize};

use super::{Helper, serve};
use crate::confine::Confinement;

/// The name of the helper on the command line.
pub const NAME: &str = "reclaim";
/// systemd's socket for it.
const SOCKET: &str = "/run/memtide-reclaim.sock";
const MOST: Bytes = ReclaimRequest::MOST;
/// The longest wait for the kernel. A longer reclaim goes on, and its yield is not told.
const WITHIN: Duration = Duration::from_secs(1);
/// The longest wait for a helper that starts.
const STARTS_WITHIN: Duration = Duration::from_secs(5);

const OBSERVES: &str = "memtide only observed when it started: restart it to reclaim";

/// A request.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Ask {
    /// Whether the helper may reclaim.
    Check,
    /// Reclaim up to `bytes` from the cgroup of the process `pid` that started at `start`.
    Reclaim { pid: u32, start: u64, bytes: Bytes },
}

/// The answer: the fall of the cgroup's charge (zero for a check), or why nothing was reclaimed.
type Reclaimed = Result<Bytes, String>;

/// The helper as the daemon uses it, or why there is none.
#[derive(Debug)]
pub struct Reclaimer(Result<Helper, Absence>);

impl Reclaimer {
    /// Starts the helper, if this host can reclaim. Must be called before the daemon gives its rights up.
    #[must_use]
    pub fn start(manages: bool) -> Self {
        Self(Self::helper(manages).map_err(Absence::Refused))
    }

    fn helper(manages: bool) -> Result<Helper, String> {
        if !manages {
            return Err(OBSERVES.to_owned());
        }
        let own = Cgroup::of(&Root::system(), std::process::id()).map_err(|error| error.to_string())?;
        if own.is_none_or(|cgroup| cgroup.version() != CgroupVersion::V2) {
            return Err("this host has no cgroup v2 with the memory controller".to_owned());
        }
        let cannot = |why: &dyn std::fmt::Display| format!("cannot start the helper: {why}");
        let mut helper = Helper::start(NAME, Path::new(SOCKET)).map_err(|error| cannot(&error))?;
        let may: Reclaimed = helper.ask(&Ask::Check, STARTS_WITHIN).map_err(|why| cannot(&why))?;
        may.map(|_| helper)
    }

    /// Whether it works, in a phrase for the log and the status; `None` if this daemon only observes.
    #[must_use]
    pub fn phrase(&self) -> Option<String> {
        match &self.0 {
            Ok(_) => Some("helper reclaim: writes to cgroups only".to_owned()),
            Err(Absence::Refused(why)) if why == OBSERVES => None,
            Err(why) => Some(format!("no helper reclaim ({why})")),
        }
    }

    /// Reclaims up to `bytes` from the cgroup of a process. Returns the fall of its charge.
    ///
    /// # Errors
    /// If there is no helper, if it is busy, or if it refuses.
    pub fn reclaim(&mut self, pid: u32, start: u64, bytes: Bytes) -> Result<Bytes, Absence> {
        let helper = self.0.as_mut().map_err(|why| why.clone())?;
        let ask = Ask::Reclaim { pid, start, bytes };
        let reclaimed: Reclaimed = match helper.ask(&ask, WITHIN) {
            Err(why @ (Absence::Gone | Absence::Malformed)) => {
                // It cannot be started again: the daemon has given the right to start programs up.
                self.0 = Err(Absence::Refused("the helper has ended: restart memtide".to_owned()));
                return Err(why);
            }
            answer => answer?,
        };
        reclaimed.map_err(Absence::Refused)
    }
}

/// Runs the helper on its standard input until its client is gone.
///
/// # Errors
/// If the standard input is no socket of a client that speaks its protocol.
pub fn run() -> std::io::Result<()> {
    let stream = UnixStream::from(std::io::stdin().as_fd().try_clone_to_owned()?);
    for phrase in Confinement::On.helper().iter().filter(|phrase| phrase.contains(" not ")) {
        eprintln!("memtide: helper reclaim: {phrase}");
    }
    let root = Root::system();
    serve(stream, |ask| -> Reclaimed {
        let done = match ask {
            Ask::Check => can_reclaim(&root).map(|()| Bytes::ZERO),
            Ask::Reclaim { bytes, .. } if bytes > MOST => return Err(format!("more than {MOST} at a time")),
            Ask::Reclaim { pid, start, bytes } => reclaim(&root, pid, start, bytes),
        };
        done.map_err(|error| {
            let cause = error.source().map_or(String::new(), |cause| format!(": {cause}"));
            format!("{error}{cause}")
        })
    })
}
