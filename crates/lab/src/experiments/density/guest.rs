//! A guest of this experiment.

use super::Scale;
use crate::guest::{Guest, GuestBuilder};

/// The prefix of the guests' names.
pub const NAMES: &str = "density-";

/// A guest of the sizes of `scale`.
pub fn guest(name: &str, scale: Scale, free_page_reporting: bool) -> GuestBuilder {
    Guest::builder(name)
        .memory(scale.guest_memory)
        .deflate_on_oom(true)
        .free_page_reporting(free_page_reporting)
}
