//! A helper of a running daemon.

use std::fs;
use std::path::Path;

/// The process that is the helper `name` of the daemon with this process ID; `None` if there is none.
#[must_use]
pub fn helper_of(daemon: u32, name: &str) -> Option<u32> {
    let ending = format!("\0helper\0{name}\0");
    let parent = format!("PPid:\t{daemon}");
    let pids = fs::read_dir("/proc").ok()?.flatten();
    pids.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).find(|pid: &u32| {
        let of =
            |file: &str| fs::read(Path::new("/proc").join(pid.to_string()).join(file)).unwrap_or_default();
        of("cmdline").ends_with(ending.as_bytes())
            && String::from_utf8_lossy(&of("status")).lines().any(|line| line == parent)
    })
}
