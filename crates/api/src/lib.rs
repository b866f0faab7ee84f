//! The local API as its clients have it: what it tells, and how to ask for it. Commands and the lab use it without a daemon.
//!
//! - [`view`]: what the API tells, as types that the daemon writes and its clients read, and their wording for people;
//! - [`history`]: the last changes of each guest;
//! - [`Client`]: requests to the daemon's socket.
#![forbid(unsafe_code)]

mod client;
pub mod history;
pub mod view;

pub use client::{Answer, Client, ClientError};
