//! User Mode Linux: instances of this host, through their management consoles.
//!
//! A UML instance is a process whose "physical" memory is a shared file on tmpfs. Its console (*mconsole*) is a datagram socket in its own
//! directory, `uml_dir/umid/mconsole`.
//!
//! - [`wire`]: requests and replies of mconsole; [`Mconsole`]: a client of one console, with deadlines;
//! - [`ReplySockets`]: the sockets that consoles answer to, and the terminals of agents;
//! - [`Discovery`]: the instances among the processes of this host;
//! - [`Kernel`]: what an instance's kernel tells of its memory;
//! - [`Plug`]: unplugs and plugs memory step by step, in place of a balloon;
//! - [`Uml`]: the backend.

mod backend;
mod control;
mod discovery;
mod kernel;
mod mconsole;
mod plug;
mod replies;
pub mod wire;

pub use backend::Uml;
pub use discovery::{Discovery, Disk, Instance};
pub use kernel::Kernel;
pub use mconsole::{Mconsole, MconsoleError};
pub use plug::{Plug, Step};
pub use replies::{ReplySockets, Slot, Terminal};
