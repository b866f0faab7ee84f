//! The page: a daemon in a browser.
//!
//! **Problem.** Not everybody who looks after guests works in a terminal. A browser must not become a way for web sites, or for other users of the
//! machine, to read or order anything.
//!
//! **Design.** The page is plain HTML, CSS and JavaScript in `page/`, without a build step. It is served in two ways. `memtide web` answers on the
//! loopback interface and forwards a few requests to the daemon's socket. Cockpit serves the same files, and passes the page's requests to the
//! socket as the user who has logged in.
//!
//! - [`files`]: the files of the page, and [`look`]: the names and colours that they take from the palette;
//! - [`gate`]: who may ask; [`token`]: the secret in the address;
//! - [`routes`]: what may be asked of the daemon; [`forward`]: asking it;
//! - [`server`]: the connections.
//!
//! **Invariant.** Nothing reaches the daemon's socket unless the [`gate`] has let it pass and [`routes`] has the path.
#![forbid(unsafe_code)]

pub mod files;
pub mod forward;
pub mod gate;
pub mod look;
pub mod routes;
pub mod server;
pub mod token;

pub use server::{Web, WebError};
