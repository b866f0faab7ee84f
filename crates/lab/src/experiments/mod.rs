//! The experiments by their names.

use crate::experiment::Entry;

pub mod demo;
pub mod density;
pub mod react;
pub mod steady;

/// All of them, in the order in which they are listed.
pub const ALL: [Entry; 4] = [
    Entry::of::<demo::Demo>(),
    Entry::of::<density::Density>(),
    Entry::of::<steady::Steady>(),
    Entry::of::<react::React>(),
];

/// The experiment with this name.
#[must_use]
pub fn find(name: &str) -> Option<Entry> {
    ALL.into_iter().find(|entry| entry.name == name)
}
