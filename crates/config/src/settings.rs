//! The daemon's settings: from the configuration file, and from the command line, which overrides it.

use std::path::{Path, PathBuf};

use memtide_host::{Meminfo, Root};
use memtide_model::{Amount, Budget, Bytes, Config, Mode};

use crate::error::ConfigError;

/// The default configuration file.
pub const DEFAULT_PATH: &str = "/etc/memtide/memtide.toml";
/// The default socket of the local API.
pub const DEFAULT_SOCKET: &str = "/run/memtide/memtide.sock";
pub(crate) const DEFAULT_JOURNAL: &str = "/var/lib/memtide/journal";
/// The smallest journal. A segment is an eighth of it, and at least 1 MiB.
pub(crate) const LEAST_JOURNAL: Bytes = Bytes::from_mib(8);

/// All settings of the daemon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The configuration of decisions.
    pub config: Config,
    /// The socket of the local API.
    pub socket: PathBuf,
    /// The journal.
    pub journal: JournalSettings,
    /// Whether the daemon gives up unneeded rights after its start.
    pub confine: bool,
    /// Name patterns of this daemon's guests; it ignores all others.
    pub discover: Vec<String>,
    /// Guests with a monitor for memtide alone.
    pub guests: Vec<GuestSettings>,
    /// Daemons of libvirt besides those that memtide finds, and what the operator allows there.
    pub libvirt: Vec<LibvirtSettings>,
}

/// The options of the command line that override the configuration file, at the start and at each reload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Overrides {
    /// `--observe` or `--manage`.
    pub mode: Option<Mode>,
    /// `--budget`.
    pub budget: Option<Budget>,
}

impl Overrides {
    /// The configuration of the file `path` with these overrides, on this host.
    ///
    /// # Errors
    /// If both together leave nothing for guests, or the host's memory cannot be read.
    pub fn apply(self, path: Option<&Path>, mut config: Config) -> Result<Config, ConfigError> {
        config.mode = self.mode.unwrap_or(config.mode);
        config.budget = self.budget.unwrap_or(config.budget);
        let host = Meminfo::read(&Root::system())?.total;
        match nothing_left(&config, host) {
            None => Ok(config),
            Some(why) => {
                Err(ConfigError::NothingLeft { path: path.unwrap_or(Path::new(DEFAULT_PATH)).into(), why })
            }
        }
    }
}

/// Why the reserve leaves nothing for guests on a host with `host` bytes of memory; `None` if it leaves something.
fn nothing_left(config: &Config, host: Bytes) -> Option<String> {
    let Amount::Bytes(reserve) = config.reserve else { return None };
    let (room, what) = match config.budget {
        Budget::Size(budget) if budget <= host => (budget, format!("the budget is {budget}")),
        Budget::Size(_) | Budget::Host => (host, format!("the host has {host}")),
    };
    (reserve >= room).then(|| format!("{reserve} leaves nothing for guests, since {what}"))
}

/// The journal's settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JournalSettings {
    /// The directory of the segments.
    pub dir: PathBuf,
    /// The most that all segments may take.
    pub max: Bytes,
}

/// A guest with a monitor for memtide alone: memtide keeps it open and receives its events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuestSettings {
    /// The name that is shown.
    pub name: String,
    /// The QMP socket.
    pub qmp: PathBuf,
}

/// A daemon of libvirt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LibvirtSettings {
    /// Its socket; `None`: the daemons that memtide finds.
    pub socket: Option<PathBuf>,
    /// Whether memtide may ask QEMU through it, which libvirt notes as a taint of its guests.
    pub monitor_commands: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            config: Config::default(),
            socket: PathBuf::from(DEFAULT_SOCKET),
            journal: JournalSettings { dir: PathBuf::from(DEFAULT_JOURNAL), max: Bytes::from_mib(256) },
            confine: true,
            discover: vec!["*".to_owned()],
            guests: Vec::new(),
            libvirt: Vec::new(),
        }
    }
}

impl Settings {
    /// The keys that differ in `new` and are read only when the daemon starts.
    #[must_use]
    pub fn fixed_keys_changed(&self, new: &Self) -> Vec<&'static str> {
        let differs = [
            ("socket", self.socket != new.socket),
            ("journal", self.journal != new.journal),
            ("confine", self.confine != new.confine),
            ("discover", self.discover != new.discover),
            ("guest", self.guests != new.guests),
            ("libvirt", self.libvirt != new.libvirt),
        ];
        differs.into_iter().filter(|(_, differs)| *differs).map(|(key, _)| key).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reserve_is_less_than_the_budget_and_less_than_the_host_has() {
        let gib = |count: u64| Bytes::from_mib(count * 1024);
        let why = |reserve, budget| {
            let config = Config { reserve: Amount::Bytes(gib(reserve)), budget, ..Config::default() };
            nothing_left(&config, gib(24))
        };
        let of_host = "24 GiB leaves nothing for guests, since the host has 24 GiB";
        assert_eq!(why(24, Budget::Host).unwrap(), of_host);
        assert_eq!(why(24, Budget::Size(gib(48))).unwrap(), of_host);
        let of_budget = "2 GiB leaves nothing for guests, since the budget is 1 GiB";
        assert_eq!(why(2, Budget::Size(gib(1))).unwrap(), of_budget);
        for (reserve, budget) in [(23, Budget::Host), (2, Budget::Size(gib(3))), (23, Budget::Size(gib(48)))]
        {
            assert_eq!(why(reserve, budget), None);
        }
        assert_eq!(nothing_left(&Config::default(), gib(24)), None);
    }
}
