//! The client side of the local API: its types and its requests. Commands and the lab use it without a daemon.
//!
//! - [`view`]: the API's types, which the daemon writes and clients read, and their wording for people;
//! - [`reclaim`]: memory that a guest can spare;
//! - [`history`]: the last changes of each guest;
//! - [`recent`]: the host's last ten minutes;
//! - [`explain`]: why a guest has its memory, in words; [`orders`]: what the operator's orders do, in words;
//! - [`past`]: a journal in the same types;
//! - [`Client`]: requests to the daemon's socket.
#![forbid(unsafe_code)]

mod client;
mod error;
mod events;
pub mod explain;
pub mod history;
pub mod orders;
pub mod past;
pub mod recent;
pub mod reclaim;
pub mod view;

pub use client::{Answer, Client, QUIET};
pub use error::ClientError;
pub use events::Event;
