//! The guests' kernel: one of Debian's cloud kernels, unpacked from its package and never installed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::error::LabError;
use crate::machine::packages::{self, Release};
use crate::machine::places;
use crate::machine::process::run;

/// The package that names the newest cloud kernel.
pub const META_PACKAGE: &str = "linux-image-cloud-amd64";
/// The oldest kernel with all counters that the lab reads.
pub const LEAST: (u32, u32) = (6, 12);

/// The choice of a kernel for guests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// The newest kernel that this Debian offers, including backports: at least [`LEAST`].
    Newest,
    /// Debian 12's own kernel, older than [`LEAST`]: its balloon driver counts less.
    OfDebian12,
    /// Debian 11's kernel, 5.10: it has neither `memory.reclaim` nor MGLRU.
    OfDebian11,
}

/// An unpacked kernel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kernel {
    /// The package it came from.
    pub package: String,
    /// The package's version.
    pub version: String,
    /// SHA-256 of the downloaded package.
    pub sha256: String,
    /// The kernel's release, as `uname -r` prints it in the guest.
    pub release: String,
    /// The directory of the unpacked kernel, below the cache.
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

impl Which {
    /// The file in the cache that describes this kernel.
    const fn artifacts(self) -> &'static str {
        match self {
            Self::Newest => "artifacts.json",
            Self::OfDebian12 => "artifacts-debian-12.json",
            Self::OfDebian11 => "artifacts-debian-11.json",
        }
    }

    /// Arguments for apt to find it.
    fn suite(self, cache: &Path, say: &dyn Fn(&str)) -> Result<Vec<String>, LabError> {
        match self {
            Self::Newest => packages::suite(say),
            // This is apt's own choice, with security updates: it prefers backports least.
            Self::OfDebian12 => Ok(Vec::new()),
            Self::OfDebian11 => packages::other_debian(cache, Release::Debian11, say),
        }
    }

    /// The wanted kernel, for people.
    const fn wanted(self) -> &'static str {
        match self {
            Self::Newest => "Linux 6.12 or newer",
            Self::OfDebian12 => "older than Linux 6.12",
            Self::OfDebian11 => "Linux 5.10",
        }
    }

    fn fits(self, version: (u32, u32)) -> bool {
        match self {
            Self::Newest => version >= LEAST,
            Self::OfDebian12 => version < LEAST,
            Self::OfDebian11 => version == (5, 10),
        }
    }
}

/// The kernel from the cache; downloaded and unpacked if it is missing. `artifacts*.json` describes it.
///
/// # Errors
/// If there is no such package, or it cannot be downloaded or unpacked.
pub fn ensure(cache: &Path, which: Which, say: &dyn Fn(&str)) -> Result<Kernel, LabError> {
    let seen = cache.join(which.artifacts());
    let cached = fs::read(&seen).ok().and_then(|text| serde_json::from_slice::<Kernel>(&text).ok());
    if let Some(kernel) = cached
        && kernel.vmlinuz(cache).is_file()
        && kernel.modules(cache).is_dir()
    {
        return Ok(kernel);
    }
    let kernel = fetch(cache, which, say)?;
    let text = serde_json::to_vec_pretty(&kernel).map_err(|e| LabError::file(&seen)(e.into()))?;
    places::write_whole(&seen, &text)?;
    Ok(kernel)
}

fn fetch(cache: &Path, which: Which, say: &dyn Fn(&str)) -> Result<Kernel, LabError> {
    let suite = which.suite(cache, say)?;
    let package = find_package(which, &suite)?;
    let download = cache.join(format!("download-{}", std::process::id()));
    fs::create_dir_all(&download).map_err(LabError::file(&download))?;
    let fetched = packages::download(&suite, &[&package], &download, say)
        .and_then(|()| unpack(cache, &download, &package));
    let _ = fs::remove_dir_all(&download);
    fetched
}

fn find_package(which: Which, suite: &[String]) -> Result<String, LabError> {
    let depends = run(Command::new("apt-cache").arg("depends").args(suite).arg(META_PACKAGE))?;
    let package = depends
        .lines()
        .find_map(|line| line.trim().strip_prefix("Depends: "))
        .filter(|package| package.starts_with("linux-image-"))
        .ok_or_else(|| LabError::Missing(format!("apt knows no {META_PACKAGE}; run: apt-get update")))?;
    let version = package.trim_start_matches("linux-image-");
    match packages::parse_version(version) {
        Some(found) if which.fits(found) => Ok(package.to_owned()),
        _ => Err(LabError::Missing(format!("{package} is not {}", which.wanted()))),
    }
}

fn unpack(cache: &Path, download: &Path, package: &str) -> Result<Kernel, LabError> {
    let debs = packages::downloaded(download)?;
    let [deb] = debs.as_slice() else {
        return Err(LabError::Missing(format!("{}: not one package was downloaded", download.display())));
    };
    let version = run(Command::new("dpkg-deb").arg("--field").arg(deb).arg("Version"))?.trim().to_owned();
    let bytes = fs::read(deb).map_err(LabError::file(deb))?;
    let sha256 = hex(&Sha256::digest(&bytes));
    let unpacked = download.join("unpacked");
    packages::unpack(deb, &unpacked)?;
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

/// Bytes in hexadecimal digits.
#[must_use]
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
