//! Assembles host and VMMs into the live world, and serves the local API.
//!
//! - [`backends`]: the kinds of VMMs that the daemon looks for;
//! - [`helpers`]: processes with one right each, for mechanisms that need a right that the daemon gives up;
//! - [`live`]: the real host and its guests as a [`World`](memtide_engine::World);
//! - `guest_locks`: which memtide manages a guest, if several run;
//! - [`journal`]: the queue between the engine and the helper that writes the journal;
//! - [`confine`]: the rights that the daemon gives up after its start;
//! - [`orders`]: the operator's orders, on their way to the next decision;
//! - `operator`: the orders themselves, and their answers; `reclaim`: the longest of them;
//! - [`sources`]: what the API's handlers read;
//! - [`routes`]: the API, JSON over HTTP, and Prometheus metrics; `bounded`: nobody can keep all its connections;
//! - `events`: the API's stream of ticks and changes;
//! - [`endpoint`]: the Unix socket of the API;
//! - [`run`](fn@run): all parts together, until a signal ends them.
#![forbid(unsafe_code)]

pub mod backends;
mod bounded;
pub mod confine;
pub mod endpoint;
mod events;
mod guest_locks;
pub mod helpers;
pub mod journal;
pub mod live;
mod operator;
pub mod orders;
mod places;
mod reclaim;
pub mod routes;
mod run;
mod signals;
pub mod sources;
mod watchdog;

pub use run::{RunError, run};
