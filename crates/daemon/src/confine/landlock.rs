//! Keeps a thread away from all files, networks and processes.

use std::path::Path;

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, LandlockStatus, PathBeneath, PathFd, Ruleset, RulesetAttr,
    RulesetCreatedAttr, RulesetError, RulesetStatus, Scope,
};

/// The newest tested ABI. If the kernel is older, everything that it offers is used.
const NEWEST: ABI = ABI::V6;

/// Denies this thread all files, TCP, abstract sockets of other processes, and signals to them.
pub fn deny_all() -> String {
    phrase("no files", &[] as &[(&str, _)])
}

/// Lets this process read `/proc`, and read and write below the cgroups' mount points. Denies all other files, and networks.
pub fn cgroups_only() -> String {
    let read = AccessFs::ReadFile | AccessFs::ReadDir;
    phrase("writes to cgroups only", &[("/proc", read), ("/sys/fs/cgroup", read | AccessFs::WriteFile)])
}

/// Lets this process read and write the settings of KSM. Denies all other files, and networks.
pub fn ksm_only() -> String {
    let access = AccessFs::ReadFile | AccessFs::ReadDir | AccessFs::WriteFile | AccessFs::Truncate;
    phrase("writes to /sys/kernel/mm/ksm only", &[("/sys/kernel/mm/ksm", access)])
}

/// Lets this process make, set, open and remove zram devices, and note them. It could open other devices, too, if its user may: the unit of the package
/// forbids that.
pub fn tiers_only() -> String {
    let set = AccessFs::ReadFile | AccessFs::ReadDir | AccessFs::WriteFile | AccessFs::Truncate;
    let note = set | AccessFs::MakeReg | AccessFs::RemoveFile;
    let notes = Path::new(memtide_host::zram::NOTES);
    let _there_already = std::fs::create_dir(notes);
    let places = [
        (Path::new("/sys/class/zram-control"), set),
        (Path::new("/sys/devices/virtual/block"), set),
        (Path::new("/sys/block"), AccessFs::ReadDir.into()),
        // An open device keeps the right to its requests: QEMU makes some.
        (Path::new("/dev"), set | AccessFs::IoctlDev),
        (notes, note),
    ];
    phrase("makes zram devices only", &places)
}

/// Lets this process read, write, make and remove files below `dir`, or below the nearest directory above it that is there. Denies all other
/// files, and networks.
pub fn writes_below(dir: &Path) -> String {
    let access = AccessFs::ReadFile
        | AccessFs::ReadDir
        | AccessFs::WriteFile
        | AccessFs::Truncate
        | AccessFs::MakeReg
        | AccessFs::MakeDir
        | AccessFs::RemoveFile;
    let above = dir.ancestors().find(|above| above.is_dir()).unwrap_or(dir);
    phrase("writes the journal only", &[(above, access)])
}

/// Denies everything except `allowed`. Says what was `applied`, or why nothing was.
fn phrase(applied: &str, allowed: &[(impl AsRef<Path>, BitFlags<AccessFs>)]) -> String {
    match restrict(allowed) {
        Ok(Some(abi)) => format!("{applied} (Landlock ABI {abi})"),
        Ok(None) => "Landlock not applied: this kernel lacks it, or it is off (lsm=)".to_owned(),
        Err(error) => format!("Landlock not applied: {error}"),
    }
}

/// Denies everything except `allowed` below these paths.
fn restrict(allowed: &[(impl AsRef<Path>, BitFlags<AccessFs>)]) -> Result<Option<i32>, RulesetError> {
    let mut ruleset = Ruleset::default()
        .handle_access(AccessFs::from_all(NEWEST))?
        .handle_access(AccessNet::from_all(NEWEST))?
        .scope(Scope::from_all(NEWEST))?
        .create()?;
    for (path, access) in allowed {
        // A path that is not there needs no rule.
        if let Ok(path) = PathFd::new(path.as_ref()) {
            ruleset = ruleset.add_rule(PathBeneath::new(path, *access))?;
        }
    }
    let status = ruleset.restrict_self()?;
    match (status.ruleset, status.landlock) {
        (RulesetStatus::NotEnforced, _) => Ok(None),
        (_, LandlockStatus::Available { effective_abi, kernel_abi }) => {
            Ok(Some(kernel_abi.unwrap_or(effective_abi as i32)))
        }
        _ => Ok(None),
    }
}
