//! The accelerator that runs the guests' instructions.

use serde::{Deserialize, Serialize};

/// An accelerator of QEMU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Accel {
    /// The CPU runs them.
    Kvm,
    /// QEMU translates them: slower, but possible everywhere.
    #[default]
    Tcg,
}

impl Accel {
    /// The argument of `-accel`. TCG's code buffer is bounded, since it is part of a guest's cost.
    #[must_use]
    pub const fn argument(self) -> &'static str {
        match self {
            Self::Kvm => "kvm",
            Self::Tcg => "tcg,thread=multi,tb-size=32",
        }
    }
}
