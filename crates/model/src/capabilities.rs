//! What a VMM can do for a guest.

use serde::{Deserialize, Serialize};

use crate::{PAGE_4K, PageSize};

/// What memtide can do with a guest through its VMM. Decisions depend on this, never on the VMM's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capabilities {
    /// Whether memtide can set the guest's size. It cannot if somebody else owns the way to it.
    pub can_be_set: bool,
    /// A target must be a multiple of this.
    pub step: PageSize,
    /// When granted memory costs the host something.
    pub commits: Commits,
    /// Whether the VMM can pause the guest.
    pub pauses: bool,
    /// Whether freed pages can return to the host without a request, if the guest's kernel reports them.
    pub reports_freed: bool,
    /// Whether the VMM removes memory and plugs it back, in place of a balloon. Its guest's memory is then a shared file, which KSM does not merge.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub plugs: bool,
}

/// When granted memory costs the host something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Commits {
    /// As soon as it is granted.
    WhenGranted,
    /// When the guest first touches it.
    WhenTouched,
}

impl Capabilities {
    /// A VMM with a balloon of 4 KiB pages, like QEMU's. The journal leaves these out.
    pub const BALLOON: Self = Self {
        can_be_set: true,
        step: PAGE_4K,
        commits: Commits::WhenTouched,
        pauses: true,
        reports_freed: true,
        plugs: false,
    };

    /// Whether these are the abilities of [`Capabilities::BALLOON`].
    #[must_use]
    pub fn are_a_balloons(&self) -> bool {
        *self == Self::BALLOON
    }
}

impl Default for Capabilities {
    fn default() -> Self {
        Self::BALLOON
    }
}
