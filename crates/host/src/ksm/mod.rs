//! KSM: what it saves for a process (`pages`), how it is set ([`settings`]), what may be merged of whom (`processes`, on a thread: `looker`), and
//! everything that its governor sees (`sensor`).

mod looker;
pub(crate) mod pages;
mod part;
mod processes;
pub(crate) mod sensor;
pub mod settings;

pub use pages::{KsmPages, KsmReader};
pub use processes::KsmGuest;
pub use sensor::KsmSensor;
