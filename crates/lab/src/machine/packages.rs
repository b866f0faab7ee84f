//! The programs that the lab needs, and the installation of missing ones.
//!
//! Rule: existing programs are used. Only missing ones are installed, by apt-get, without a question. Each change to the
//! machine is announced with the command to undo it. On Debian 12, QEMU 10 and the 6.12 kernel come from backports.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use rustix::process::geteuid;

use crate::error::LabError;
use crate::machine::process::{find, run};

/// The oldest QEMU whose balloon reports everything that the lab reads.
pub const LEAST_QEMU: (u32, u32) = (10, 0);
/// QEMU's program.
pub const QEMU: &str = "qemu-system-x86_64";

const BACKPORTS_LIST: &str = "/etc/apt/sources.list.d/memtide-lab-backports.list";
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";
/// libvirt's daemon, its driver for QEMU, and virsh.
const LIBVIRT: [&str; 3] = ["libvirt-daemon", "libvirt-daemon-driver-qemu", "libvirt-clients"];
const TOOLS: [(&str, &str); 4] =
    [("busybox", "busybox-static"), ("modinfo", "kmod"), ("xz", "xz-utils"), ("setpriv", "util-linux")];

/// Attempts at a download. Before the second, apt renews its lists, which can name versions that mirrors no longer have.
const DOWNLOADS: usize = 2;

/// A QEMU.
#[derive(Clone, Debug)]
pub struct Qemu {
    /// Its program.
    pub path: PathBuf,
    /// Its version, as it prints it.
    pub version: String,
}

/// Finds the tools that all guests need, and installs missing ones. Returns a busybox without dynamic libraries.
///
/// # Errors
/// If something is missing and this is not Debian, or apt-get fails.
pub fn ensure_busybox(say: &dyn Fn(&str)) -> Result<PathBuf, LabError> {
    let busybox = || find("busybox").filter(|busybox| is_static(busybox));
    let has =
        |program: &str| if program == "busybox" { busybox().is_some() } else { find(program).is_some() };
    let missing: Vec<&str> =
        TOOLS.iter().filter(|(program, _)| !has(program)).map(|(_, package)| *package).collect();
    if !missing.is_empty() {
        install(&missing, say)?;
    }
    busybox().ok_or_else(|| still_missing("a static busybox"))
}

/// Finds a QEMU of at least [`LEAST_QEMU`], and installs one if it is missing.
///
/// # Errors
/// As [`ensure_busybox`].
pub fn ensure_qemu(say: &dyn Fn(&str)) -> Result<Qemu, LabError> {
    let qemu = || {
        let path = find(QEMU)?;
        let (version, text) = version_of(&path)?;
        (version >= LEAST_QEMU).then_some(Qemu { path, version: text })
    };
    if let Some(found) = qemu() {
        return Ok(found);
    }
    install(&["qemu-system-x86"], say)?;
    qemu().ok_or_else(|| still_missing("QEMU 10"))
}

fn still_missing(what: &str) -> LabError {
    LabError::Missing(format!("{what} is still missing after its installation"))
}

/// Finds one more program that only some tests need, and installs its `package` if it is missing.
///
/// # Errors
/// As [`ensure_busybox`].
pub fn ensure_program(program: &str, package: &str, say: &dyn Fn(&str)) -> Result<(), LabError> {
    if find(program).is_some() { Ok(()) } else { install(&[package], say) }
}

/// Finds libvirt's daemon and virsh, and installs both with the driver for QEMU if one is missing: all of the release's own version, since a driver of another one does not load.
///
/// # Errors
/// As [`ensure_busybox`].
pub fn ensure_libvirt(say: &dyn Fn(&str)) -> Result<(), LabError> {
    /// One installation at a time.
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let is_there = ["libvirtd", "virsh"].iter().all(|program| find(program).is_some());
    if is_there { Ok(()) } else { install_from(&[], &LIBVIRT, say) }
}

/// The arguments that make apt search backports, if this Debian needs them.
///
/// # Errors
/// If backports cannot be added.
pub fn suite(say: &dyn Fn(&str)) -> Result<Vec<String>, LabError> {
    if is_debian_12() {
        add_backports(say)?;
        return Ok(vec!["-t".to_owned(), "bookworm-backports".to_owned()]);
    }
    Ok(Vec::new())
}

/// Another Debian than this machine's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Release {
    /// Debian 11's security updates.
    Debian11,
    /// Debian 13.
    Debian13,
    /// Debian 14, also while it is still testing.
    Debian14,
}

impl Release {
    /// Its name in the cache.
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.names()[0]
    }

    /// Its name in the cache, the suite of Debian 12 that lies on the same mirror, and its own.
    const fn names(self) -> [&'static str; 3] {
        match self {
            Self::Debian11 => ["debian-11", "bookworm-security", "bullseye-security"],
            Self::Debian13 => ["debian-13", "bookworm", "trixie"],
            Self::Debian14 => ["debian-14", "bookworm", "forky"],
        }
    }

    /// Where it is if apt knows no mirror.
    const fn usual_mirror(self) -> &'static str {
        match self {
            Self::Debian11 => "https://deb.debian.org/debian-security/",
            Self::Debian13 | Self::Debian14 => "https://deb.debian.org/debian/",
        }
    }
}

/// The arguments that make apt search another Debian instead. Its lists are kept below `cache`; those of this machine are not touched.
///
/// # Errors
/// If there is no mirror of it.
pub fn other_debian(cache: &Path, release: Release, say: &dyn Fn(&str)) -> Result<Vec<String>, LabError> {
    let [name, beside, suite] = release.names();
    let dir = cache.join(name);
    let (list, lists) = (dir.join("sources.list"), dir.join("lists"));
    fs::create_dir_all(&lists).map_err(LabError::file(&lists))?;
    let codename = format!("Codename: {beside}");
    let format = ["--format", "$(REPO_URI)", "Created-By: Packages", &codename];
    let mirrors = run(Command::new("apt-get").arg("indextargets").args(format))?;
    let mirror = mirrors.lines().next().unwrap_or(release.usual_mirror());
    let line = format!("deb [signed-by={KEYRING}] {mirror} {suite} main\n");
    fs::write(&list, line).map_err(LabError::file(&list))?;
    let options = [
        format!("Dir::Etc::SourceList={}", list.display()),
        "Dir::Etc::SourceParts=/dev/null".to_owned(),
        format!("Dir::State::Lists={}", lists.display()),
        "Dir::Cache::pkgcache=".to_owned(),
        "Dir::Cache::srcpkgcache=".to_owned(),
        "Acquire::Check-Valid-Until=false".to_owned(),
        "APT::Sandbox::User=root".to_owned(),
    ];
    let arguments: Vec<String> = options.into_iter().flat_map(|option| ["-o".to_owned(), option]).collect();
    say(&format!("reading the list of {suite}, into the lab's cache"));
    run(Command::new("apt-get").args(["update", "-q"]).args(&arguments))?;
    Ok(arguments)
}

/// Whether this is Debian 12, whose own packages are older than those of its backports.
#[must_use]
pub fn is_debian_12() -> bool {
    let release = fs::read_to_string("/etc/os-release").unwrap_or_default();
    release.lines().any(|line| line == "VERSION_CODENAME=bookworm")
}

/// Downloads packages into `dir`, to be unpacked; installs nothing. `suite` comes from [`suite`].
///
/// # Errors
/// If apt does not find or get them, even with new lists.
pub fn download(suite: &[String], packages: &[&str], dir: &Path, say: &dyn Fn(&str)) -> Result<(), LabError> {
    let list = packages.join(" ");
    say(&format!("downloading {list}: unpacked below the lab's cache, never installed"));
    let mut tries = 0;
    loop {
        tries += 1;
        let mut command = Command::new("apt-get");
        // As root, apt would download as its own user, which may not write here.
        command.args(["-o", "APT::Sandbox::User=root", "download", "-q"]).args(suite).args(packages);
        match run(command.current_dir(dir)) {
            Ok(_) => return Ok(()),
            Err(error) if tries >= DOWNLOADS => return Err(error),
            Err(_) => run(as_root("apt-get").args(["update", "-q"])).map(|_| ())?,
        }
    }
}

/// The packages that were downloaded into `dir`.
///
/// # Errors
/// If the directory cannot be read.
pub fn downloaded(dir: &Path) -> Result<Vec<PathBuf>, LabError> {
    let entries = fs::read_dir(dir).map_err(LabError::file(dir))?;
    let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
    Ok(paths.filter(|path| path.extension().is_some_and(|ext| ext == "deb")).collect())
}

/// Unpacks a package below `into`, without running its scripts.
///
/// # Errors
/// If the package is broken, or the directory cannot be written.
pub fn unpack(package: &Path, into: &Path) -> Result<(), LabError> {
    run(Command::new("dpkg-deb").arg("-x").arg(package).arg(into)).map(|_| ())
}

fn install(packages: &[&str], say: &dyn Fn(&str)) -> Result<(), LabError> {
    if find("apt-get").is_none() {
        return Err(LabError::Missing(format!(
            "this is no Debian: please install what Debian calls {} (QEMU must be 10 or newer)",
            packages.join(", ")
        )));
    }
    install_from(&suite(say)?, packages, say)
}

/// Installs packages; `suite`: the arguments of apt-get that say from where.
fn install_from(suite: &[String], packages: &[&str], say: &dyn Fn(&str)) -> Result<(), LabError> {
    if find("apt-get").is_none() {
        return Err(LabError::Missing(format!("this is no Debian: please install {}", packages.join(", "))));
    }
    let list = packages.join(" ");
    say(&format!("installing {list}; undo: apt-get remove {list}"));
    run(as_root("apt-get").args(["update", "-q"]))?;
    let mut command = as_root("env");
    command.args(["DEBIAN_FRONTEND=noninteractive", "apt-get", "install", "-qy", "--no-install-recommends"]);
    run(command.args(suite).args(packages)).map(|_| ())
}

fn as_root(program: &str) -> Command {
    if geteuid().is_root() {
        return Command::new(program);
    }
    let mut command = Command::new("sudo");
    command.arg("-n").arg(program);
    command
}

fn add_backports(say: &dyn Fn(&str)) -> Result<(), LabError> {
    if apt_knows_backports() {
        return Ok(());
    }
    let format = ["--format", "$(REPO_URI)", "Created-By: Packages", "Codename: bookworm"];
    let mirrors = run(Command::new("apt-get").arg("indextargets").args(format))?;
    let mirror = mirrors.lines().next().unwrap_or("https://deb.debian.org/debian/");
    let line = format!("deb [signed-by={KEYRING}] {mirror} bookworm-backports main");
    say(&format!("adding bookworm-backports to apt's sources; undo: rm {BACKPORTS_LIST}"));
    let script = "printf '%s\\n' \"$1\" > \"$2\"";
    run(as_root("sh").args(["-c", script, "sh", &line, BACKPORTS_LIST]))?;
    run(as_root("apt-get").args(["update", "-q"])).map(|_| ())
}

fn apt_knows_backports() -> bool {
    let targets = ["indextargets", "--format", "$(SUITE) $(CODENAME)", "Created-By: Packages"];
    run(Command::new("apt-get").args(targets)).is_ok_and(|known| known.contains("bookworm-backports"))
}

/// The version of the QEMU at `program`: its first two numbers, and the version as it prints it. `None` if it does not run.
#[must_use]
pub fn version_of(program: &Path) -> Option<((u32, u32), String)> {
    let text = run(Command::new(program).arg("--version")).ok()?;
    let version = text.split_whitespace().skip_while(|word| *word != "version").nth(1)?;
    Some((parse_version(version)?, version.to_owned()))
}

/// The first two numbers of a version.
#[must_use]
pub fn parse_version(text: &str) -> Option<(u32, u32)> {
    let mut numbers = text.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

/// Whether a program needs no dynamic loader: an ELF file that contains no path of one.
fn is_static(program: &Path) -> bool {
    fs::read(program).is_ok_and(|bytes| bytes.starts_with(b"\x7fELF") && !contains(&bytes, b"/ld-linux"))
}

fn contains(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_by_number() {
        assert_eq!(parse_version("10.0.2"), Some((10, 0)));
        assert_eq!(parse_version("6.12.95-1~bpo12+1"), Some((6, 12)));
        assert!(parse_version("9.2.0").unwrap() < LEAST_QEMU);
        assert_eq!(parse_version("unknown"), None);
    }
}
