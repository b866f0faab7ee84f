//! The guests' kernel: Debian's cloud kernel, unpacked from its package and never installed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::error::LabError;
use crate::process::run;
use crate::{packages, places};

/// The package that names the newest cloud kernel.
pub const META_PACKAGE: &str = "linux-image-cloud-amd64";
/// The oldest kernel that counts what the lab looks at.
pub const LEAST: (u32, u32) = (6, 12);

/// An unpacked kernel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kernel {
    /// The package it came from.
    pub package: String,
    /// The package's version.
    pub version: String,
    /// SHA-256 of the package as it was seen.
    pub sha256: String,
    /// The kernel's release, as `uname -r` says it in the guest.
    pub release: String,
    /// Where it was unpacked, below the cache.
    dir: PathBuf,
}

impl Kernel {
    /// The bootable image, below the cache at `cache`.
    #[must_use]
    pub fn vmlinuz(&self, cache: &Path) -> PathBuf {
        cache.join(&self.dir).join("boot").join(format!("vmlinuz-{}", self.release))
    }

    /// The modules, below the cache at `cache`.
    #[must_use]
    pub fn modules(&self, cache: &Path) -> PathBuf {
        let dir = cache.join(&self.dir);
        let merged = dir.join("usr/lib/modules").join(&self.release);
        if merged.is_dir() { merged } else { dir.join("lib/modules").join(&self.release) }
    }
}

/// The kernel of the cache, or else the newest one, downloaded and unpacked. What was seen is kept in `artifacts.json`.
///
/// # Errors
/// Where there is no such package, or it cannot be downloaded or unpacked.
pub fn ensure(cache: &Path, say: &dyn Fn(&str)) -> Result<Kernel, LabError> {
    let seen = cache.join("artifacts.json");
    let cached = fs::read(&seen).ok().and_then(|text| serde_json::from_slice::<Kernel>(&text).ok());
    if let Some(kernel) = cached
        && kernel.vmlinuz(cache).is_file()
        && kernel.modules(cache).is_dir()
    {
        return Ok(kernel);
    }
    let kernel = fetch(cache, say)?;
    let text = serde_json::to_vec_pretty(&kernel).map_err(|e| LabError::file(&seen)(e.into()))?;
    places::write_whole(&seen, &text)?;
    Ok(kernel)
}

fn fetch(cache: &Path, say: &dyn Fn(&str)) -> Result<Kernel, LabError> {
    let suite = packages::suite(say)?;
    let package = find_package(&suite)?;
    let download = cache.join(format!("download-{}", std::process::id()));
    fs::create_dir_all(&download).map_err(LabError::file(&download))?;
    say(&format!("downloading {package}: unpacked below the lab's cache, never installed"));
    let mut command = Command::new("apt-get");
    // As root, apt would download as its own user, who may not write here.
    command.args(["-o", "APT::Sandbox::User=root", "download", "-q"]).args(&suite).arg(&package);
    let fetched = run(command.current_dir(&download)).and_then(|_| unpack(cache, &download, &package));
    let _ = fs::remove_dir_all(&download);
    fetched
}

fn find_package(suite: &[String]) -> Result<String, LabError> {
    let depends = run(Command::new("apt-cache").arg("depends").args(suite).arg(META_PACKAGE))?;
    let package = depends
        .lines()
        .find_map(|line| line.trim().strip_prefix("Depends: "))
        .filter(|package| package.starts_with("linux-image-"))
        .ok_or_else(|| LabError::Missing(format!("apt knows no {META_PACKAGE}")))?;
    let version = package.trim_start_matches("linux-image-");
    match packages::parse_version(version) {
        Some(found) if found >= LEAST => Ok(package.to_owned()),
        _ => Err(LabError::Missing(format!("{package} is older than {}.{}", LEAST.0, LEAST.1))),
    }
}

fn unpack(cache: &Path, download: &Path, package: &str) -> Result<Kernel, LabError> {
    let deb = only_file(download)?;
    let version = run(Command::new("dpkg-deb").arg("--field").arg(&deb).arg("Version"))?.trim().to_owned();
    let bytes = fs::read(&deb).map_err(LabError::file(&deb))?;
    let sha256 = hex(&Sha256::digest(&bytes));
    let unpacked = download.join("unpacked");
    run(Command::new("dpkg-deb").arg("-x").arg(&deb).arg(&unpacked))?;
    let boot = unpacked.join("boot");
    let names = fs::read_dir(&boot).map_err(LabError::file(&boot))?;
    let release = names
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.strip_prefix("vmlinuz-").map(str::to_owned))
        .next()
        .ok_or_else(|| LabError::Missing(format!("{package} holds no vmlinuz")))?;
    let dir = PathBuf::from(format!("kernel-{version}"));
    let place = cache.join(&dir);
    if !place.exists() {
        fs::rename(&unpacked, &place).map_err(LabError::file(&place))?;
    }
    Ok(Kernel { package: package.to_owned(), version, sha256, release, dir })
}

fn only_file(dir: &Path) -> Result<PathBuf, LabError> {
    let entries = fs::read_dir(dir).map_err(LabError::file(dir))?;
    entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| path.extension().is_some_and(|ext| ext == "deb"))
        .ok_or_else(|| LabError::Missing(format!("{}: no package was downloaded", dir.display())))
}

/// Bytes in hexadecimal digits.
#[must_use]
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
