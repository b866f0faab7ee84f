//! Assembles host and VMMs into the live world, and serves the local API.
//!
//! - [`live`]: the real host and its QEMU guests as a [`World`](memtide_engine::World);
//! - `claims`: which memtide manages a guest, where several run;
//! - [`confine`]: what the daemon gives up after its start;
//! - [`orders`]: what the operator asks for, on its way to the next decision;
//! - [`routes`]: the API, JSON over HTTP, and Prometheus metrics; `bounded`: nobody keeps all of its connections;
//! - [`endpoint`]: the Unix socket where it answers;
//! - [`run`](fn@run): all of it together, until a signal ends it.
#![forbid(unsafe_code)]

mod bounded;
mod claims;
pub mod confine;
pub mod endpoint;
pub mod live;
mod metrics;
pub mod orders;
pub mod routes;
mod run;
mod signals;

pub use run::{RunError, run};
