//! A host with more memory than this machine has, by its /proc/meminfo.

use std::fs;
use std::os::unix::process::CommandExt;
use std::process::Command;

use crate::Outcome;

/// Set in the namespace.
const MARK: &str = "MEMTIDE_BENCH_HOST";
/// What the host has for each guest beyond what this machine has, in MiB.
pub const MIB_A_GUEST: u64 = 500;
/// What the strict commitment keeps free besides, in MiB: one guest's self-deflation and the reserve of 5 %.
pub const MIB_KEPT: u64 = 1024;

/// Whether this process lives in the host.
pub fn is_ours() -> bool {
    std::env::var_os(MARK).is_some()
}

/// What the daemon may give to `guests`, in MiB.
pub const fn budget_mib(guests: u64) -> u64 {
    (guests * MIB_A_GUEST + MIB_KEPT) * 100 / 95
}

/// Goes on as this program in a mount namespace of its own whose /proc/meminfo has memory for `guests`.
pub fn enter(guests: u64) -> Outcome<()> {
    let directory = tempfile::tempdir()?;
    let file = directory.path().join("meminfo");
    fs::write(&file, grown(&fs::read_to_string("/proc/meminfo")?, budget_mib(guests) * 1024)?)?;
    let script = "mount --bind \"$0\" /proc/meminfo && exec \"$@\"";
    let root = fs::read_to_string("/proc/self/status")?.lines().any(|line| line == "Uid:\t0\t0\t0\t0");
    let flags: &[&str] = if root { &["--mount"] } else { &["--user", "--map-root-user", "--mount"] };
    let status = Command::new("unshare")
        .args(flags)
        .args(["--propagation", "private", "--", "sh", "-c", script])
        .arg(&file)
        .arg(std::env::current_exe()?)
        .args(std::env::args_os().skip(1))
        .env(MARK, "1")
        .process_group(0)
        .status()?;
    match status.success() {
        true => Ok(()),
        false => {
            Err("the bench failed in its mount namespace: it needs root, or user namespaces for everybody"
                .into())
        }
    }
}

/// The text of a meminfo with `kib` more memory.
fn grown(meminfo: &str, kib: u64) -> Outcome<String> {
    let mut text = String::new();
    for line in meminfo.lines() {
        let mut words = line.split_ascii_whitespace();
        match (words.next(), words.next()) {
            (Some(key @ ("MemTotal:" | "MemFree:" | "MemAvailable:")), Some(size)) => {
                text.push_str(&format!("{key} {} kB\n", size.parse::<u64>()? + kib));
            }
            _ => text.push_str(&format!("{line}\n")),
        }
    }
    Ok(text)
}
