//! The kernel of UML instances: the one that this Debian installs, or a later Debian's, unpacked below the cache and never installed.
//!
//! A later Debian's program needs a newer C library than this one has. It gets that library, unpacked beside it, by its absolute path: it starts
//! itself anew, so that a loader on its command line would be started instead.
//!
//! On a processor with AMX, each program's registers are larger than the room that UML has for them up to Linux 6.12: an instance's first process
//! dies ("ptrace set fp regs failed"). There, the usual kernel is Debian 14's.

use std::fs::{self, File};
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
    /// The kernel of this machine's Debian (on Debian 12, Linux 6.1), or Debian 14's if that cannot boot on this processor.
    #[default]
    Usual,
    /// That of another Debian.
    Of(Release),
}

/// Whether this machine's processor has AMX.
///
/// # Errors
/// If the kernel does not tell.
pub fn has_amx() -> Result<bool, LabError> {
    let path = Path::new("/proc/cpuinfo");
    let text = fs::read_to_string(path).map_err(LabError::file(path))?;
    Ok(text.split_ascii_whitespace().any(|flag| flag == "amx_tile"))
}

/// The program; installed, or downloaded and unpacked, if it is missing.
///
/// # Errors
/// If the package is not available.
pub fn ensure(cache: &Path, which: UmlKernel, say: &dyn Fn(&str)) -> Result<PathBuf, LabError> {
    let release = match which {
        UmlKernel::Of(release) => release,
        UmlKernel::Usual if has_amx()? => Release::Debian14,
        UmlKernel::Usual => {
            packages::ensure_program(UML, PACKAGE, say)?;
            return Ok(PathBuf::from(UML));
        }
    };
    let place = cache.join(format!("uml-{}", release.name()));
    let program = place.join("usr/bin").join(UML);
    // Instances that start together need it together.
    let path = cache.join(format!("uml-{}.lock", release.name()));
    let fetching = File::create(&path).map_err(LabError::file(&path))?;
    fetching.lock().map_err(LabError::file(&path))?;
    if !program.is_file() {
        fetch(cache, release, &place, say)?;
    }
    Ok(program)
}

fn fetch(cache: &Path, release: Release, place: &Path, say: &dyn Fn(&str)) -> Result<(), LabError> {
    packages::ensure_program("patchelf", "patchelf", say)?;
    let download = cache.join(format!("download-uml-{}", std::process::id()));
    fs::create_dir_all(&download).map_err(LabError::file(&download))?;
    let unpacked = download.join("unpacked");
    let fetched = packages::other_debian(cache, release, say)
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
