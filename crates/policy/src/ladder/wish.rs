//! A change that would be right, before anybody has looked whether it can be paid for.

use memtide_model::{Bytes, Reason, Takes};

/// A target that a guest should get, if there is memory for it.
#[derive(Clone, Copy, Debug)]
pub struct Wish {
    /// The index of the guest.
    pub index: usize,
    /// The size that it should keep.
    pub target: Bytes,
    /// The reason.
    pub reason: Reason,
    /// It cannot wait.
    pub urgent: bool,
    /// What it takes besides idle memory.
    pub takes: Option<Takes>,
}
