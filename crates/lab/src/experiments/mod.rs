//! The experiments by their names.

use crate::experiment::Entry;

pub mod demo;
pub mod density;

/// All of them, in the order in which they are listed.
pub const ALL: [Entry; 2] = [Entry::of::<demo::Demo>(), Entry::of::<density::Density>()];

/// The experiment with this name.
#[must_use]
pub fn find(name: &str) -> Option<Entry> {
    ALL.into_iter().find(|entry| entry.name == name)
}
