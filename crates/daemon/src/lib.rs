//! Assembles host and VMMs into the live world, reads the configuration, and serves the local API.
//!
//! - [`config_file`]: TOML to [`Settings`], every key optional, unknown keys refused with the nearest known one;
//! - [`live`]: the real host and its QEMU guests as a [`World`](memtide_engine::World);
//! - [`history`]: the last changes of each guest, for `explain`;
//! - [`view`]: what the API tells, as types that the commands read again;
//! - [`api`]: JSON over HTTP on a Unix socket, and Prometheus metrics;
//! - [`run`](fn@run): all of it together, until a signal ends it.
#![forbid(unsafe_code)]

pub mod api;
pub mod config_file;
pub mod history;
pub mod live;
mod metrics;
mod run;
mod signals;
pub mod view;

pub use config_file::{ConfigError, JournalSettings, Overrides, Settings};
pub use run::{RunError, run};
