//! The accelerator that runs the guests' instructions.
//!
//! Rule: KVM is used only if a guest has booted under it within [`DEADLINE`]: on some machines /dev/kvm runs no stock kernel.
//! The cache keeps the result for this QEMU, host kernel and guest kernel.

use std::fs::{self, OpenOptions};
use std::path::Path;
use std::time::Duration;

use memtide_model::Bytes;
use serde::{Deserialize, Serialize};

use crate::error::LabError;
use crate::guest::Guest;
use crate::machine::lab::{Lab, Run};
use crate::machine::places;

/// The longest boot of the probe.
pub const DEADLINE: Duration = Duration::from_secs(20);

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

#[derive(Serialize, Deserialize)]
struct Seen {
    /// The combination that was probed.
    about: String,
    accel: Accel,
}

/// Chooses an accelerator for `lab`, from the cache or by booting a guest under KVM.
///
/// # Errors
/// If the result cannot be saved, or the lab is interrupted. A failed probe is a result: TCG.
pub fn choose(lab: &Lab, say: &dyn Fn(&str)) -> Result<Accel, LabError> {
    if OpenOptions::new().read(true).write(true).open("/dev/kvm").is_err() {
        return Ok(Accel::Tcg);
    }
    let host = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let about =
        format!("QEMU {}, host {}, guest {}", lab.tools().qemu_version, host.trim(), lab.kernel().release);
    let file = lab.cache().join("accel.json");
    if let Some(seen) = read(&file)
        && seen.about == about
    {
        return Ok(seen.accel);
    }
    say(&format!("trying whether a guest boots under KVM (at most {} s)", DEADLINE.as_secs()));
    let accel = match boots_under_kvm(lab) {
        Ok(()) => Accel::Kvm,
        Err(LabError::Interrupted) => return Err(LabError::Interrupted),
        Err(e) => {
            say(&format!("KVM is not usable here ({e}): guests run under TCG"));
            Accel::Tcg
        }
    };
    let text =
        serde_json::to_vec_pretty(&Seen { about, accel }).map_err(|e| LabError::file(&file)(e.into()))?;
    places::write_whole(&file, &text)?;
    Ok(accel)
}

fn read(file: &Path) -> Option<Seen> {
    serde_json::from_slice(&fs::read(file).ok()?).ok()
}

fn boots_under_kvm(lab: &Lab) -> Result<(), LabError> {
    let run = Run::create(lab, "probe-kvm")?;
    let guest = Guest::builder("probe").memory(Bytes::from_mib(512)).accel(Accel::Kvm).start(&run, None)?;
    guest.wait_up(DEADLINE).map(|_| ())
}
