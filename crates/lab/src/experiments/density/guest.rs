//! A guest of this experiment.

use super::Scale;
use crate::guest::{Guest, GuestBuilder};
use crate::work::turn::Load;

/// A guest of the sizes of `scale`, with the disk that `load` reads.
pub fn guest(name: &str, scale: Scale, load: &Load, free_page_reporting: bool) -> GuestBuilder {
    let guest = Guest::builder(&format!("{}{name}", scale.names))
        .vmm(scale.vmm)
        .agent(scale.agents)
        .memory(scale.guest_memory)
        .deflate_on_oom(true)
        .free_page_reporting(free_page_reporting);
    match &load.cache {
        Some((disk, _)) => guest.disk(disk),
        None => guest,
    }
}
