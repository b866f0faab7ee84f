//! The configuration file: TOML, every key optional.
//!
//! Nothing is guessed. An unknown key is refused together with a near one, or with all that there are. A value of the wrong type or form
//! is refused with what was found and what to write, and a relative path with the reason; each with file, line and column.
//!
//! - [`Settings`]: all that the daemon is told, and [`Overrides`] of the command line;
//! - [`ConfigError`]: why there is no configuration;
//! - `read`: the file's bytes; `table`: keys and values of the right type; `keys`: what they mean; `mistake`: what is wrong, and where;
//! - [`changes`]: what a new configuration changes, in a few words.
#![forbid(unsafe_code)]

mod error;
mod keys;
mod load;
mod mistake;
mod read;
mod settings;
mod table;
mod words;

pub use error::ConfigError;
pub use keys::{LONGEST_SOCKET_PATH, keys};
pub use settings::{DEFAULT_PATH, DEFAULT_SOCKET, GuestSettings, JournalSettings, Overrides, Settings};
pub use words::changes;
