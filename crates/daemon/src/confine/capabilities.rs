//! The capabilities that are kept, and why.

use rustix::io::Errno;
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, clear_ambient_capability_set,
    remove_capability_from_bounding_set, set_capabilities, set_no_new_privs,
};

/// `SYS_PTRACE`: `/proc/PID/smaps`, `fd`, `exe` and `root` of other users' guests; `root` leads to their monitors.
/// `DAC_OVERRIDE`: other users' sockets and the directories on the way, because connecting is writing. `SYS_RESOURCE` is
/// needed only to open a pressure trigger before Linux 6.4.
const NEEDED: [(CapabilitySet, &str); 2] =
    [(CapabilitySet::SYS_PTRACE, "CAP_SYS_PTRACE"), (CapabilitySet::DAC_OVERRIDE, "CAP_DAC_OVERRIDE")];

/// Keeps the needed capabilities of the present ones, and gains no more from any program.
pub fn keep_needed() -> String {
    match keep(NEEDED.iter().fold(CapabilitySet::empty(), |all, (one, _)| all | *one)) {
        Ok(kept) => format!("capabilities {}", names(kept)),
        Err(error) => format!("capabilities not dropped: {error}"),
    }
}

/// Keeps none, in this thread.
pub fn keep_none() -> String {
    match keep(CapabilitySet::empty()) {
        Ok(_) => "no capabilities".to_owned(),
        Err(error) => format!("capabilities not dropped: {error}"),
    }
}

fn keep(wanted: CapabilitySet) -> Result<CapabilitySet, Errno> {
    set_no_new_privs(true)?;
    let before = capabilities(None)?;
    if before.effective.contains(CapabilitySet::SETPCAP) {
        // Only capabilities that this kernel knows can be dropped. Without SETPCAP, no_new_privs has the same effect.
        for other in CapabilitySet::all().difference(wanted).iter() {
            let _unknown = remove_capability_from_bounding_set(other);
        }
    }
    // Kernels before 4.3 have none.
    let _none = clear_ambient_capability_set();
    let kept = before.permitted & wanted;
    set_capabilities(
        None,
        CapabilitySets { effective: kept, permitted: kept, inheritable: CapabilitySet::empty() },
    )?;
    Ok(kept)
}

fn names(kept: CapabilitySet) -> String {
    let names: Vec<&str> =
        NEEDED.iter().filter(|(one, _)| kept.contains(*one)).map(|(_, name)| *name).collect();
    if names.is_empty() { "none".to_owned() } else { names.join(" ") }
}
