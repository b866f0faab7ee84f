//! The helper that makes tiers. Its one right is to make and remove the zram devices that memtide has noted.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use memtide_engine::with_causes;
use memtide_host::{Root, zram};
use memtide_model::{Absence, Bytes};
use serde::{Deserialize, Serialize};

use super::{Helper, ask, ask_within, client, find_again, phrase, serve_files};
use crate::confine::Confinement;

/// The name of the helper on the command line.
pub const NAME: &str = "tier";
/// systemd's socket for it.
const SOCKET: &str = "/run/memtide-tier.sock";

const UNUSED: &str = "no class has `tier`";

/// A request.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Ask {
    /// Whether the helper may make devices. Removes those that nobody uses.
    Check,
    /// Make a device for the process `pid` that started at `start`, and pass it on.
    Make { pid: u32, start: u64, size: Bytes },
    /// Remove all noted devices that nobody uses.
    Sweep,
}

/// The answer: the number of the device, or of the removed ones; or why nothing was done.
type Done = Result<u32, String>;

/// The helper as the daemon uses it, or why there is none.
#[derive(Debug)]
pub struct TierMaker(Result<Helper, Absence>);

impl TierMaker {
    /// Starts the helper, if a class has tiers. Must be called before the daemon gives its rights up.
    #[must_use]
    pub fn start(has_tiers: bool) -> Self {
        let helper = match has_tiers {
            true => Helper::start_checked(NAME, Path::new(SOCKET), &Ask::Check),
            false => Err(UNUSED.to_owned()),
        };
        Self(helper.map_err(Absence::Refused))
    }

    /// Whether it can make tiers.
    #[must_use]
    pub const fn works(&self) -> bool {
        self.0.is_ok()
    }

    /// Whether it works, in a phrase for the log and the status; `None` if nobody needs it.
    #[must_use]
    pub fn phrase(&self) -> Option<String> {
        let is_unused = matches!(&self.0, Err(Absence::Refused(why)) if why == UNUSED);
        (!is_unused).then(|| phrase(&self.0, NAME, "makes swap in compressed memory only"))
    }

    /// Makes a device for a guest's process.
    ///
    /// # Errors
    /// If there is no helper, if it is busy, or if the kernel refuses.
    pub fn make(&mut self, pid: u32, start: u64, size: Bytes) -> Result<(u32, OwnedFd), Absence> {
        find_again(&mut self.0, Path::new(SOCKET), &Ask::Check);
        let device = ask::<_, u32>(&mut self.0, &Ask::Make { pid, start, size })?;
        let passed = self.0.as_mut().ok().and_then(Helper::passed);
        passed.map(|file| (device, file)).ok_or_else(|| Absence::Refused("no device came".to_owned()))
    }

    /// Has all devices removed that nobody uses, and does not wait for it: the kernel empties a device before it removes it.
    ///
    /// # Errors
    /// If there is no helper, or if it is busy.
    pub fn sweep(&mut self) -> Result<(), Absence> {
        find_again(&mut self.0, Path::new(SOCKET), &Ask::Check);
        match ask_within::<_, u32>(&mut self.0, &Ask::Sweep, Duration::from_millis(1)) {
            Ok(_) | Err(Absence::Timeout) => Ok(()),
            Err(why) => Err(why),
        }
    }
}

/// Runs the helper on its standard input until its client is gone. Then it removes what nobody uses.
///
/// # Errors
/// If the standard input is no socket of a client that speaks its protocol.
pub fn run() -> std::io::Result<()> {
    let stream = client(NAME, || Confinement::On.tier_maker())?;
    let root = Root::system();
    let served = serve_files(stream, |ask| answer(&root, ask));
    let _removed = zram::sweep(&root);
    served
}

fn answer(root: &Root, ask: Ask) -> (Done, Option<OwnedFd>) {
    let swept = || u32::try_from(zram::sweep(root)).unwrap_or(u32::MAX);
    let done = match ask {
        Ask::Check => zram::can_make(root).map(|()| (swept(), None)),
        Ask::Make { pid, start, size } => {
            zram::make(root, pid, start, size).map(|(device, file)| (device, Some(file.into())))
        }
        Ask::Sweep => Ok((swept(), None)),
    };
    match done {
        Ok((number, file)) => (Ok(number), file),
        Err(error) => (Err(with_causes(&error)), None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;
    use std::thread;
    use std::time::Instant;

    /// The helper's answers in a thread of this process.
    fn maker() -> TierMaker {
        let (ours, its) = UnixStream::pair().unwrap();
        thread::spawn(move || serve_files(its, |ask| answer(&Root::system(), ask)));
        TierMaker(Ok(Helper::new(ours, None)))
    }

    #[test]
    fn a_device_comes_open_and_goes_once_nobody_has_it() {
        let root = Root::system();
        if zram::can_make(&root).is_err() {
            return memtide_testing::skipped("no zram, or no right to make devices");
        }
        let mut maker = maker();
        let pid = std::process::id();
        let (device, file) = maker.make(pid, 1, Bytes::from_mib(64)).unwrap();
        let is_noted = || zram::noted(&root).iter().any(|noted| noted.device == device);
        let begun = Instant::now();
        let mut swept = || {
            maker.sweep().unwrap();
            // It answers in order.
            while ask::<_, u32>(&mut maker.0, &Ask::Check).is_err() {
                assert!(begun.elapsed() < Duration::from_secs(60), "it is busy");
            }
        };
        swept();
        assert!(is_noted(), "somebody has it");
        drop(file);
        swept();
        assert!(!is_noted());
    }

    #[test]
    fn without_a_class_with_tiers_there_is_no_helper() {
        let none = TierMaker::start(false);
        assert_eq!((none.works(), none.phrase()), (false, None));
    }
}
