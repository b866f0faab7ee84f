//! The kernel of UML instances: the one that Debian 12 installs, or Debian 13's, unpacked below the cache and never installed.
//!
//! Debian 13's program needs a newer C library than Debian 12 has. It gets that library, unpacked beside it, by its absolute path: it starts
//! itself anew, so that a loader on its command line would be started instead.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::LabError;
use crate::machine::packages::{self, Release};
use crate::machine::process::run;

/// The program's name.
const UML: &str = "linux.uml";
/// Its package.
const PACKAGE: &str = "user-mode-linux";
/// Where the C library lies in its package.
const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";

/// The choice of a kernel for instances.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UmlKernel {
    /// The kernel of this machine's Debian; on Debian 12, Linux 6.1.
    #[default]
    Installed,
    /// Debian 13's: Linux 6.12.
    OfDebian13,
}

/// Whether its instances can boot on this machine's processor.
///
/// # Errors
/// If the processor has AMX. Each program's registers then are larger than the kernel's room for them (as of Linux 6.12), and its first
/// process dies: "ptrace set fp regs failed".
pub fn boots_here() -> Result<(), LabError> {
    let path = Path::new("/proc/cpuinfo");
    let text = fs::read_to_string(path).map_err(LabError::file(path))?;
    let has_amx = text.split_ascii_whitespace().any(|flag| flag == "amx_tile");
    if has_amx {
        return Err(LabError::Missing(
            "User Mode Linux cannot boot on a processor with AMX: its kernel has no room for the registers"
                .to_owned(),
        ));
    }
    Ok(())
}

/// The program; installed, or downloaded and unpacked, if it is missing.
///
/// # Errors
/// If the package is not available, or its instances cannot boot here.
pub fn ensure(cache: &Path, which: UmlKernel, say: &dyn Fn(&str)) -> Result<PathBuf, LabError> {
    boots_here()?;
    if which == UmlKernel::Installed {
        packages::ensure_program(UML, PACKAGE, say)?;
        return Ok(PathBuf::from(UML));
    }
    let place = cache.join("uml-debian-13");
    let program = place.join("usr/bin").join(UML);
    if !program.is_file() {
        fetch(cache, &place, say)?;
    }
    Ok(program)
}

fn fetch(cache: &Path, place: &Path, say: &dyn Fn(&str)) -> Result<(), LabError> {
    packages::ensure_program("patchelf", "patchelf", say)?;
    let download = cache.join(format!("download-uml-{}", std::process::id()));
    fs::create_dir_all(&download).map_err(LabError::file(&download))?;
    let unpacked = download.join("unpacked");
    let fetched = packages::other_debian(cache, Release::Debian13, say)
        .and_then(|suite| packages::download(&suite, &[PACKAGE, "libc6"], &download, say))
        .and_then(|()| packages::downloaded(&download))
        .and_then(|debs| debs.iter().try_for_each(|deb| packages::unpack(deb, &unpacked)))
        .and_then(|()| use_library(&unpacked, place))
        .and_then(|()| {
            // What an earlier, broken attempt has left.
            let _ = fs::remove_dir_all(place);
            fs::rename(&unpacked, place).map_err(LabError::file(place))
        });
    let _ = fs::remove_dir_all(&download);
    fetched
}

/// Makes the program in `unpacked` use the C library that will lie in `place`.
fn use_library(unpacked: &Path, place: &Path) -> Result<(), LabError> {
    let library = place.join(LIBRARIES);
    let mut command = Command::new("patchelf");
    command
        .arg("--set-interpreter")
        .arg(library.join("ld-linux-x86-64.so.2"))
        .arg("--set-rpath")
        .arg(&library);
    run(command.arg(unpacked.join("usr/bin").join(UML))).map(drop)
}
