//! The kept capabilities, and their reasons.

use rustix::io::Errno;
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, clear_ambient_capability_set,
    remove_capability_from_bounding_set, set_capabilities, set_no_new_privs,
};

/// `SYS_PTRACE`: `/proc/PID/smaps`, `fd`, `exe` and `root` of other users' guests; their monitors are reached through `root`.
/// `DAC_OVERRIDE`: other users' sockets and the directories above them, because connecting needs the right to write. `SYS_RESOURCE`,
/// for pressure triggers before Linux 6.4, is needed only to open a trigger.
const NEEDED: [(CapabilitySet, &str); 2] =
    [(CapabilitySet::SYS_PTRACE, "CAP_SYS_PTRACE"), (CapabilitySet::DAC_OVERRIDE, "CAP_DAC_OVERRIDE")];

/// `SYS_NICE` and `SYS_PTRACE`: to advise the memory of other users' processes. `DAC_READ_SEARCH`: `/proc/PID/pagemap` and `smaps` belong to
/// them.
const SPLITS: [(CapabilitySet, &str); 3] = [
    (CapabilitySet::SYS_NICE, "CAP_SYS_NICE"),
    (CapabilitySet::SYS_PTRACE, "CAP_SYS_PTRACE"),
    (CapabilitySet::DAC_READ_SEARCH, "CAP_DAC_READ_SEARCH"),
];

/// Keeps the needed capabilities that the process has. No program that it executes can gain more.
pub fn keep_needed() -> String {
    keep_listed(&NEEDED)
}

/// Keeps the capabilities of the helper that splits huge pages.
pub fn keep_for_splits() -> String {
    keep_listed(&SPLITS)
}

fn keep_listed(list: &[(CapabilitySet, &'static str)]) -> String {
    match keep(list.iter().fold(CapabilitySet::empty(), |all, (one, _)| all | *one)) {
        Ok(kept) => format!("capabilities {}", names(list, kept)),
        Err(error) => format!("capabilities not dropped: {error}"),
    }
}

/// Keeps only `DAC_OVERRIDE`: other users own the cgroups of their guests.
pub fn keep_dac_override() -> String {
    keep_listed(&[(CapabilitySet::DAC_OVERRIDE, "CAP_DAC_OVERRIDE")])
}

/// Keeps only `SYS_PTRACE`: to read the memory of other users' processes.
pub fn keep_ptrace() -> String {
    keep_listed(&[(CapabilitySet::SYS_PTRACE, "CAP_SYS_PTRACE")])
}

/// Keeps no capability, in this thread.
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
    // Kernels before 4.3 have no ambient set.
    let _none = clear_ambient_capability_set();
    let kept = before.permitted & wanted;
    set_capabilities(
        None,
        CapabilitySets { effective: kept, permitted: kept, inheritable: CapabilitySet::empty() },
    )?;
    Ok(kept)
}

fn names(list: &[(CapabilitySet, &'static str)], kept: CapabilitySet) -> String {
    let names: Vec<&str> =
        list.iter().filter(|(one, _)| kept.contains(*one)).map(|(_, name)| *name).collect();
    if names.is_empty() { "none".to_owned() } else { names.join(" ") }
}
