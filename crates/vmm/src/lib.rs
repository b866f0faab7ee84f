//! Virtual machine monitors: the wire's units and signs end here.
//!
//! Each backend finds its guests, asks them about their memory in its own protocol, and answers in the types of
//! `memtide-model`: memory that the *guest keeps*, in bytes, or a reason if a number is missing. A backend never decides
//! anything.
//!
//! - [`Backend`] and [`Control`]: the border to a kind of VMM and to one guest; [`Fleet`] asks all guests of all backends;
//! - [`qemu`]: QEMU processes of this host, through their QMP monitors;
//! - [`libvirt`]: the guests of libvirt, over its daemons;
//! - [`uml`]: UML instances of this host, through their management consoles.
#![forbid(unsafe_code)]

mod actor;
mod admitted;
mod agent;
mod back_off;
mod backend;
mod exit;
mod fleet;
pub mod libvirt;
mod looks;
mod processes;
pub mod qemu;
mod reset;
mod round;
mod stats_clock;
pub mod uml;

pub use actor::WakeReason;
pub use admitted::Admitted;
pub use agent::AgentLink;
pub use backend::{Backend, Control, DiscoverError, Found, Later, Process, TierDevice, Wish};
pub use fleet::{Fleet, Seen};
pub use round::Patience;
