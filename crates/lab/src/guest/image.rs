//! The guests' first file system: busybox, a few modules, the helper and an init. Cached by a hash of its content.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use sha2::{Digest, Sha256};

use crate::error::LabError;
use crate::guest::cpio::Archive;
use crate::machine::kernel::{Kernel, hex};
use crate::machine::places;
use crate::machine::process::{find, run};
use crate::wait;

const INIT: &str = include_str!("init.sh");
/// The drivers. Modules that they need are loaded first; modules built into the kernel are left out.
const MODULES: [&str; 5] = ["virtio_pci", "virtio_balloon", "virtio_console", "virtio_mem", "virtio_blk"];
/// How long the programs for guests take to build, on two idle cores.
const BUILDING: Duration = Duration::from_secs(90);
/// The deepest chain of dependencies between modules.
const DEEPEST: usize = 16;

/// The target of programs for guests, if it is installed.
pub const MUSL: &str = "x86_64-unknown-linux-musl";

/// A program of ours for guests: its name there, and its file.
#[derive(Clone, Debug)]
pub struct Program {
    /// Its name in guests.
    pub name: &'static str,
    /// Its file here.
    pub file: PathBuf,
}

/// Builds our programs for guests, static and small: the helper, which is also the exerciser, the agent, and the report of
/// memtide's readers. Uses the musl target if it is installed, otherwise statically linked glibc. A separate target directory keeps
/// other builds undisturbed.
///
/// # Errors
/// If cargo fails.
pub fn build_programs(say: &dyn Fn(&str)) -> Result<Vec<Program>, LabError> {
    const GNU: &str = "x86_64-unknown-linux-gnu";
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let has_musl = run(Command::new(rustc).args(["--print", "target-libdir", "--target", MUSL]))
        .is_ok_and(|dir| Path::new(dir.trim()).is_dir());
    let target = if has_musl { MUSL } else { GNU };
    let dir = places::target().join("guest");
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["build", "--quiet", "--profile", "guest", "--bins", "--target", target]);
    cargo.args(["-p", "memtide-load", "-p", "memtide-agent", "-p", "memtide-host-report"]);
    cargo.arg("--target-dir").arg(&dir).current_dir(places::workspace());
    if !has_musl {
        cargo.env("RUSTFLAGS", "-C target-feature=+crt-static");
    }
    let built = dir.join(target).join("guest");
    let programs = vec![
        Program { name: "memtide-load", file: built.join("memtide-load") },
        Program { name: "memtide-agent", file: built.join("memtide-agent") },
        Program { name: "host-report", file: built.join("host-report") },
    ];
    wait::patiently(say, "building the programs for guests", BUILDING, || run(&mut cargo))?;
    Ok(programs)
}

/// The initrd in the cache; built if this content was never built before.
///
/// # Errors
/// If a part of its content cannot be read.
pub fn ensure(
    cache: &Path,
    kernel: &Kernel,
    busybox: &Path,
    programs: &[Program],
) -> Result<PathBuf, LabError> {
    ensure_for(cache, &kernel.sha256, Some(&kernel.modules(cache)), busybox, programs)
}

/// The same for a kernel that needs no modules.
///
/// # Errors
/// If a part of its content cannot be read.
pub fn ensure_without_modules(
    cache: &Path,
    busybox: &Path,
    programs: &[Program],
) -> Result<PathBuf, LabError> {
    ensure_for(cache, "", None, busybox, programs)
}

fn ensure_for(
    cache: &Path,
    kernel: &str,
    modules: Option<&Path>,
    busybox: &Path,
    programs: &[Program],
) -> Result<PathBuf, LabError> {
    let read = |file: &Path| fs::read(file).map_err(LabError::file(file));
    let mut files = vec![("bin/busybox".to_owned(), read(busybox)?)];
    for program in programs {
        files.push((format!("bin/{}", program.name), read(&program.file)?));
    }
    let mut hash = Sha256::new();
    let fixed = [kernel.as_bytes(), INIT.as_bytes(), MODULES.join(",").as_bytes()].map(<[u8]>::to_vec);
    for part in fixed.iter().chain(files.iter().map(|(_, content)| content)) {
        hash.update(part.len().to_le_bytes());
        hash.update(part);
    }
    let initrd = cache.join(format!("initrd-{}.cpio", &hex(&hash.finalize())[..16]));
    if !initrd.is_file() {
        places::write_whole(&initrd, &build(modules, &files)?)?;
    }
    Ok(initrd)
}

fn build(modules: Option<&Path>, files: &[(String, Vec<u8>)]) -> Result<Vec<u8>, LabError> {
    let mut archive = Archive::default();
    for dir in ["bin", "dev", "proc", "sys", "tmp", "cg", "mod"] {
        archive.directory(dir);
    }
    let too_large = |e: crate::guest::cpio::TooLarge| LabError::Missing(e.to_string());
    archive.file("init", INIT.as_bytes()).map_err(too_large)?;
    for (name, content) in files {
        archive.file(name, content).map_err(too_large)?;
    }
    let mut order = Vec::new();
    if let Some(modules) = modules {
        for module in MODULES {
            add_in_load_order(modules, module, &mut order, DEEPEST)?;
        }
    }
    let mut names = String::new();
    for (name, file) in &order {
        archive.file(&format!("mod/{name}.ko"), &unpacked(file)?).map_err(too_large)?;
        names.push_str(name);
        names.push('\n');
    }
    archive.file("mod/order", names.as_bytes()).map_err(too_large)?;
    Ok(archive.finish())
}

fn add_in_load_order(
    modules: &Path,
    name: &str,
    order: &mut Vec<(String, PathBuf)>,
    depth: usize,
) -> Result<(), LabError> {
    if depth == 0 || order.iter().any(|(known, _)| known == name) {
        return Ok(());
    }
    let Some(file) = find_module(modules, name)? else {
        return Ok(()); // built into the kernel
    };
    let modinfo = find("modinfo").ok_or_else(|| LabError::Missing("modinfo".to_owned()))?;
    let depends = run(Command::new(modinfo).args(["-F", "depends"]).arg(&file))?;
    for needed in depends.trim().split(',').filter(|needed| !needed.is_empty()) {
        add_in_load_order(modules, needed, order, depth - 1)?;
    }
    order.push((name.to_owned(), file));
    Ok(())
}

/// The file of a module below `dir`. The name may have `-` instead of `_`.
fn find_module(dir: &Path, name: &str) -> Result<Option<PathBuf>, LabError> {
    for entry in fs::read_dir(dir).map_err(LabError::file(dir))? {
        let entry = entry.map_err(LabError::file(dir))?;
        let path = entry.path();
        if entry.file_type().map_err(LabError::file(&path))?.is_dir() {
            if let Some(found) = find_module(&path, name)? {
                return Ok(Some(found));
            }
        } else if let Some((stem, _)) = entry.file_name().to_string_lossy().split_once(".ko")
            && stem.replace('-', "_") == name.replace('-', "_")
        {
            return Ok(Some(path));
        }
    }
    Ok(None)
}

fn unpacked(file: &Path) -> Result<Vec<u8>, LabError> {
    let mut command = match file.extension().and_then(|ext| ext.to_str()) {
        Some("xz") => Command::new("xz"),
        Some("zst") => Command::new("zstd"),
        Some("gz") => Command::new("gzip"),
        _ => return fs::read(file).map_err(LabError::file(file)),
    };
    let output = command.arg("-dc").arg(file).output().map_err(LabError::start(&command))?;
    if output.status.success() {
        Ok(output.stdout)
    } else {
        Err(LabError::Failed {
            command: crate::error::shown(&command),
            output: String::from_utf8_lossy(&output.stderr).into_owned(),
        })
    }
}
