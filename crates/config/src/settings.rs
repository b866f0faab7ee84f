//! What the daemon is told: by the configuration file, and by the command line over it.

use std::path::{Path, PathBuf};

use memtide_host::{Meminfo, Root};
use memtide_model::{Amount, Budget, Bytes, Config, Mode};
use toml::de::DeTable;

use crate::error::ConfigError;
use crate::mistake::Mistake;
use crate::{keys, read};

/// Where the configuration is looked for when none is named.
pub const DEFAULT_PATH: &str = "/etc/memtide/memtide.toml";
/// The socket of the local API unless the configuration names another.
pub const DEFAULT_SOCKET: &str = "/run/memtide/memtide.sock";
pub(crate) const DEFAULT_JOURNAL: &str = "/var/lib/memtide/journal";
/// The smallest journal: segments are an eighth of it and no smaller than 1 MiB.
pub(crate) const LEAST_JOURNAL: Bytes = Bytes::from_mib(8);

/// All that the daemon is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// What decisions depend on.
    pub config: Config,
    /// The socket of the local API.
    pub socket: PathBuf,
    /// Where decisions are written down; `None` for nowhere.
    pub journal: JournalSettings,
    /// Whether the daemon gives up what it does not need after its start.
    pub confine: bool,
    /// Patterns of the names of guests that are this daemon's; others are not seen at all.
    pub discover: Vec<String>,
    /// Guests whose monitor is ours alone.
    pub guests: Vec<GuestSettings>,
}

/// What the command line says over the configuration file, at the start and at each reload.
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
    /// Where the two together leave nothing for guests, or the host's memory cannot be read.
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

/// Why the reserve leaves nothing for guests on a host with so much memory; `None` where it leaves something.
fn nothing_left(config: &Config, host: Bytes) -> Option<String> {
    let Amount::Bytes(reserve) = config.reserve else { return None };
    let (room, what) = match config.budget {
        Budget::Size(budget) if budget <= host => (budget, format!("the budget is {budget}")),
        Budget::Size(_) | Budget::Host => (host, format!("the host has {host}")),
    };
    (reserve >= room).then(|| format!("{reserve} leaves nothing for guests, since {what}"))
}

/// Where decisions are written down.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JournalSettings {
    /// The directory of the segments.
    pub dir: PathBuf,
    /// The most that all segments may take.
    pub max: Bytes,
}

/// A guest whose monitor is ours alone: held open, gives events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuestSettings {
    /// The name under which it is shown.
    pub name: String,
    /// The QMP socket.
    pub qmp: PathBuf,
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
        ];
        differs.into_iter().filter(|(_, differs)| *differs).map(|(key, _)| key).collect()
    }

    /// The settings of the file `path`; of the default file where it is `None`, and the defaults where that is absent.
    ///
    /// # Errors
    /// Where the file cannot be read or is not understood.
    pub fn load(path: Option<&Path>) -> Result<Self, ConfigError> {
        let named = path.is_some();
        let path = path.unwrap_or(Path::new(DEFAULT_PATH));
        match read::bytes(path) {
            Ok(bytes) => Self::parse(path, &bytes),
            Err(ConfigError::Read { source, .. })
                if source.kind() == std::io::ErrorKind::NotFound && !named =>
            {
                Ok(Self::default())
            }
            Err(error) => Err(error),
        }
    }

    /// The socket that the file names, and what else in it is refused: a daemon that keeps its old configuration still answers there.
    ///
    /// # Errors
    /// Where the file cannot be read.
    pub fn load_socket(path: Option<&Path>) -> Result<(PathBuf, Option<ConfigError>), ConfigError> {
        let refused = match Self::load(path) {
            Ok(settings) => return Ok((settings.socket, None)),
            Err(error @ ConfigError::Parse { .. }) => error,
            Err(error) => return Err(error),
        };
        let bytes = read::bytes(path.unwrap_or(Path::new(DEFAULT_PATH)))?;
        let text = String::from_utf8_lossy(&bytes);
        let (file, _) = DeTable::parse_recoverable(&text);
        let named = file.get_ref().get("socket").and_then(|value| value.get_ref().as_str());
        Ok((named.unwrap_or(DEFAULT_SOCKET).into(), Some(refused)))
    }

    /// Whether the file `path` sets the key `name` of its top itself. A key that it leaves out has its default.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn is_set(path: &Path, name: &str) -> Result<bool, ConfigError> {
        let bytes = read::bytes(path)?;
        let text = String::from_utf8_lossy(&bytes);
        let (file, _) = DeTable::parse_recoverable(&text);
        Ok(file.get_ref().get(name).is_some())
    }

    /// The settings in `bytes`; `path` is named in errors.
    ///
    /// # Errors
    /// Where the bytes are not understood.
    pub fn parse(path: &Path, bytes: &[u8]) -> Result<Self, ConfigError> {
        let parse_error =
            |(line, column, message)| ConfigError::Parse { path: path.to_owned(), line, column, message };
        let text = read::text(bytes).map_err(parse_error)?;
        let file = DeTable::parse(text).map_err(|error| Mistake::of_toml(text, &error));
        let settings = file.and_then(|file| keys::settings(file.get_ref()));
        settings.map_err(|mistake| parse_error(mistake.explain(text)))
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
