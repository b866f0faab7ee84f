//! Debian 12's own QEMU 7.2, beside the newer one that guests use by default: unpacked below the cache, never installed.
//!
//! It finds its firmware and modules next to itself, and uses the machine's libraries. On Debian 12, the installed QEMU from
//! backports needs the same libraries.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::error::LabError;
use crate::machine::packages::{self, LEAST_QEMU, QEMU, Qemu};
use crate::machine::process::run;

/// The Debian release with this QEMU.
const RELEASE: &str = "bookworm";
/// Its packages: the program, its modules (TCG is one), and firmware for a PC without a network card.
const PACKAGES: [&str; 4] = ["qemu-system-x86", "qemu-system-common", "qemu-system-data", "seabios"];

/// Debian 12's QEMU; downloads and unpacks it if it is not in the cache.
///
/// # Errors
/// If this is another Debian, the packages are not available, or the program does not run here.
pub fn ensure(cache: &Path, say: &dyn Fn(&str)) -> Result<Qemu, LabError> {
    let place = cache.join("qemu-debian-12");
    let program = place.join("usr/bin").join(QEMU);
    if !program.is_file() {
        fetch(cache, &place, say)?;
    }
    match packages::version_of(&program) {
        Some((number, version)) if number < LEAST_QEMU => Ok(Qemu { path: program, version }),
        Some((_, version)) => {
            Err(LabError::Missing(format!("{}: {version} is not Debian 12's QEMU", program.display())))
        }
        None => {
            Err(LabError::Missing(format!("{} does not run here: {}", program.display(), lacks(&program))))
        }
    }
}

fn fetch(cache: &Path, place: &Path, say: &dyn Fn(&str)) -> Result<(), LabError> {
    if !packages::is_debian_12() {
        return Err(LabError::Missing("Debian 12's own QEMU is to be had on Debian 12 only".to_owned()));
    }
    let download = cache.join(format!("download-qemu-{}", std::process::id()));
    fs::create_dir_all(&download).map_err(LabError::file(&download))?;
    let unpacked = download.join("unpacked");
    // Select by release: by itself, apt would choose the installed version, from backports.
    let of_release = PACKAGES.map(|package| format!("{package}/{RELEASE}"));
    let fetched = packages::download(&[], &of_release.each_ref().map(String::as_str), &download, say)
        .and_then(|()| packages::downloaded(&download))
        .and_then(|debs| debs.iter().try_for_each(|deb| packages::unpack(deb, &unpacked)))
        .and_then(|()| fs::rename(&unpacked, place).map_err(LabError::file(place)));
    let _ = fs::remove_dir_all(&download);
    fetched
}

/// The libraries that a program lacks on this machine, as text.
fn lacks(program: &Path) -> String {
    let libraries = run(Command::new("ldd").arg(program)).unwrap_or_default();
    let missing: Vec<&str> =
        libraries.lines().filter(|line| line.contains("not found")).map(str::trim).collect();
    if missing.is_empty() { "it ends badly".to_owned() } else { missing.join(", ") }
}
