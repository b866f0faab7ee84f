//! KSM: what it saves for a process (`pages`), how it is set ([`settings`]), and everything that its governor sees (`sensor`).

pub(crate) mod pages;
pub(crate) mod sensor;
pub mod settings;

pub use pages::{KsmPages, KsmReader};
pub use sensor::KsmSensor;
