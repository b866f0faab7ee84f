//! Whether guests boot under KVM here.
//!
//! Rule: KVM is used only if a guest was really seen to boot under it within [`DEADLINE`]. There are machines whose /dev/kvm runs no
//! stock kernel. The result is kept in the cache for this QEMU, host kernel and guest kernel.

use std::fs::{self, OpenOptions};
use std::path::Path;
use std::time::Duration;

use memtide_model::Bytes;
use serde::{Deserialize, Serialize};

use crate::error::LabError;
use crate::guest::Guest;
use crate::machine::accel::Accel;
use crate::machine::lab::{Lab, Run};
use crate::machine::places;

/// The longest boot of the probe.
pub const DEADLINE: Duration = Duration::from_secs(20);

#[derive(Serialize, Deserialize)]
struct Seen {
    /// The combination that was probed.
    about: String,
    accel: Accel,
}

/// A lab that has everything, with the accelerator under which a guest boots here.
///
/// # Errors
/// If something is not available, or the lab is interrupted.
pub fn prepare(say: &dyn Fn(&str)) -> Result<Lab, LabError> {
    let lab = Lab::gather(say)?;
    let accel = choose(&lab, say)?;
    lab.with_accel(accel)
}

/// The accelerator for `lab`, by the cache or by booting a guest under KVM. A probe that fails is a result: TCG.
fn choose(lab: &Lab, say: &dyn Fn(&str)) -> Result<Accel, LabError> {
    if OpenOptions::new().read(true).write(true).open("/dev/kvm").is_err() {
        return Ok(Accel::Tcg);
    }
    let host = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let qemu = lab.qemu()?;
    let (version, kernel) = (&qemu.program.version, &qemu.kernel.release);
    let about = format!("QEMU {version}, host {}, guest {kernel}", host.trim());
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
