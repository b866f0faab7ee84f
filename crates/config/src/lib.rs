//! The configuration file: TOML, every key optional.
//!
//! memtide never guesses. For an unknown key, the message suggests a similar key or lists all keys. For a value of the wrong
//! type or form, it says what was found and what to write. For a relative path, it says why. Each message has file, line and
//! column.
//!
//! - [`Settings`]: all settings of the daemon, and [`Overrides`] of the command line;
//! - [`ConfigError`]: the reasons for a missing configuration;
//! - `read`: the file's bytes; `table`: keys and values of the right type; `keys`: their meaning; `users`: lists of users; `mistake`: mistakes and
//!   their places;
//! - [`read_policy`]: the keys that decisions depend on, in a scenario of the simulator;
//! - [`changes`]: the changes of a new configuration, in a few words.
#![forbid(unsafe_code)]

mod error;
mod keys;
mod load;
mod mistake;
mod read;
mod settings;
mod table;
mod users;
mod words;

pub use error::ConfigError;
pub use keys::{LONGEST_SOCKET_PATH, keys, policy_keys};
pub use load::{MistakeAt, read_policy};
pub use settings::{
    DEFAULT_PATH, DEFAULT_SOCKET, GuestSettings, JournalSettings, LibvirtSettings, Overrides, Settings,
};
pub use words::changes;
