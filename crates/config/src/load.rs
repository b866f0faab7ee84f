//! From a file, or its bytes, to settings.

use std::path::{Path, PathBuf};

use toml::de::DeTable;

use crate::mistake::Mistake;
use crate::{ConfigError, DEFAULT_PATH, DEFAULT_SOCKET, Settings, keys, read};

impl Settings {
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

    /// Whether the file `path` itself sets the top key `name`. A key that it leaves out has its default.
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
