//! From a file, or its bytes, to settings.

use std::path::{Path, PathBuf};

use memtide_host::{Accounts, Root};
use memtide_model::Config;
use toml::de::DeTable;

use crate::mistake::Mistake;
use crate::{ConfigError, DEFAULT_PATH, DEFAULT_SOCKET, Settings, keys, read, users};

impl Settings {
    /// The settings of the file `path`. `None` means the default file, or the defaults if that file does not exist.
    ///
    /// # Errors
    /// If the file cannot be read or has a mistake.
    pub fn load(path: Option<&Path>) -> Result<Self, ConfigError> {
        let named = path.is_some();
        let path = path.unwrap_or(Path::new(DEFAULT_PATH));
        match read::bytes(path) {
            Ok(bytes) => Self::parse_with(path, &bytes, &Accounts::read(&Root::system())),
            Err(ConfigError::Read { source, .. })
                if source.kind() == std::io::ErrorKind::NotFound && !named =>
            {
                Ok(Self::of_this_host())
            }
            Err(error) => Err(error),
        }
    }

    /// The socket that the file names, and the file's first mistake: a daemon that keeps its old configuration still answers there.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn load_socket(path: Option<&Path>) -> Result<(PathBuf, Option<ConfigError>), ConfigError> {
        let refused = match Self::load(path) {
            Ok(settings) => return Ok((settings.socket, None)),
            Err(error @ ConfigError::Parse { .. }) => error,
            Err(error) => return Err(error),
        };
        let socket = in_spite_of_mistakes(path.unwrap_or(Path::new(DEFAULT_PATH)), |file| {
            let named = file.get("socket").and_then(|value| value.get_ref().as_str());
            named.unwrap_or(DEFAULT_SOCKET).into()
        })?;
        Ok((socket, Some(refused)))
    }

    /// Whether the file `path` itself sets the top key `name`. A key that it leaves out has its default.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn is_set(path: &Path, name: &str) -> Result<bool, ConfigError> {
        in_spite_of_mistakes(path, |file| file.get(name).is_some())
    }

    /// The defaults on this host: its accounts tell who the word `system` means.
    #[must_use]
    pub fn of_this_host() -> Self {
        let mut settings = Self::default();
        settings.config.users = users::system(&Accounts::read(&Root::system()));
        settings
    }

    /// The settings in `bytes`, on a host without accounts; errors name `path`.
    ///
    /// # Errors
    /// If the bytes have a mistake.
    pub fn parse(path: &Path, bytes: &[u8]) -> Result<Self, ConfigError> {
        Self::parse_with(path, bytes, &Accounts::default())
    }

    /// The settings in `bytes`, on a host with these accounts; errors name `path`.
    ///
    /// # Errors
    /// If the bytes have a mistake.
    pub fn parse_with(path: &Path, bytes: &[u8], accounts: &Accounts) -> Result<Self, ConfigError> {
        let parse_error =
            |(line, column, message)| ConfigError::Parse { path: path.to_owned(), line, column, message };
        let text = read::text(bytes).map_err(parse_error)?;
        let file = DeTable::parse(text).map_err(|error| Mistake::of_toml(text, &error));
        let settings = file.and_then(|file| keys::settings(file.get_ref(), accounts));
        settings.map_err(|mistake| parse_error(mistake.explain(text)))
    }
}

/// What `look` finds among the keys of the file `path` that can be read, whatever is wrong with the others.
fn in_spite_of_mistakes<T>(path: &Path, look: impl FnOnce(&DeTable<'_>) -> T) -> Result<T, ConfigError> {
    let bytes = read::bytes(path)?;
    let text = String::from_utf8_lossy(&bytes);
    let (file, _) = DeTable::parse_recoverable(&text);
    Ok(look(file.get_ref()))
}

/// A mistake in a file, and its place, counted from 1.
#[derive(Debug)]
pub struct MistakeAt {
    /// The line.
    pub line: usize,
    /// The column.
    pub column: usize,
    /// The mistake and its correction, in one line.
    pub message: String,
}

/// Reads the table `name` of the TOML file `text`, a scenario: the keys of memtide.toml that affect decisions. Keys that the table leaves out keep their
/// value in `config`. Returns whether the table sets `commitment`. Without this table, nothing changes.
///
/// # Errors
/// If the text is not TOML, `name` is not a table, a key is unknown, or a value is not allowed.
pub fn read_policy(text: &str, name: &str, config: &mut Config) -> Result<bool, MistakeAt> {
    let mut read = || {
        let file = DeTable::parse(text).map_err(|error| Mistake::of_toml(text, &error))?;
        let Some((key, table)) = file.get_ref().get_key_value(name) else { return Ok(false) };
        let at = key.span().start;
        let Some(entries) = table.get_ref().as_table() else {
            return Err(Mistake::new(at, format!("{name}: write a table: [{name}] and its keys below it")));
        };
        keys::policy_of(entries, name, at, config)?;
        Ok(entries.contains_key("commitment"))
    };
    read().map_err(|mistake: Mistake| {
        let (line, column, message) = mistake.explain(text);
        MistakeAt { line, column, message }
    })
}
