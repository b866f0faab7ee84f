//! Whether the host gains what a guest gives.

use serde::{Deserialize, Serialize};

use crate::{Bytes, Moment};

/// What is known of the host's gain from a guest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gain {
    /// The guest's full size that this is known for: memory that was plugged may lie elsewhere.
    pub full: Bytes,
    /// The most of its memory that was resident since.
    #[serde(skip_serializing_if = "Bytes::is_nothing", default)]
    pub most: Bytes,
    /// What is proved.
    #[serde(skip_serializing_if = "Proof::is_none", default)]
    pub proof: Proof,
    /// The step that is being watched.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub step: Option<GivenStep>,
}

/// What is proved of the host's gain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Proof {
    /// Nothing yet.
    #[default]
    None,
    /// Memory of the guest has come back to the host: what it gave, or what it freed by itself.
    Gained,
    /// The host has not got it.
    Vain {
        /// The size that the guest had been asked to keep, and kept.
        size: Bytes,
        /// The guest's memory that was resident then.
        resident: Bytes,
    },
}

impl Proof {
    const fn is_none(&self) -> bool {
        matches!(self, Self::None)
    }
}

/// A step down that a guest was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GivenStep {
    /// What it kept before, or what of it was resident, if that was less: taking the rest frees nothing.
    pub from: Bytes,
    /// What it is to keep.
    pub to: Bytes,
    /// When it was first seen to keep no more than `to`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub arrived_at: Option<Moment>,
}
