//! The machine on which an experiment ran, for readers of its figures.

use std::fs;

use memtide_model::Bytes;
use serde::Serialize;

use crate::machine::accel::Accel;
use crate::machine::lab::Lab;

/// Everything that influences the figures.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Machine {
    /// The CPU's name.
    pub cpu: String,
    /// CPUs that the lab may use.
    pub cores: usize,
    /// The host's memory in bytes.
    pub memory_bytes: Bytes,
    /// The host's kernel.
    pub kernel: String,
    /// What QEMU's guests had; `None` without QEMU.
    #[serde(flatten)]
    pub qemu: Option<QemuFacts>,
    /// Whether the host has swap.
    pub swap: bool,
}

/// What QEMU's guests had.
#[derive(Clone, Debug, Default, Serialize)]
pub struct QemuFacts {
    /// QEMU's version.
    pub qemu: String,
    /// The accelerator of the guests: `kvm` or `tcg`.
    pub accelerator: Accel,
    /// The guests' kernel.
    pub guest_kernel: String,
}

impl Machine {
    /// Describes this machine.
    #[must_use]
    pub fn describe(lab: &Lab) -> Self {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        Self {
            cpu: value(&read("/proc/cpuinfo"), "model name").unwrap_or_else(|| "unknown".to_owned()),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            memory_bytes: Bytes::from_kib(first_number(&value(&read("/proc/meminfo"), "MemTotal"))),
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            qemu: lab.qemu().ok().map(|parts| QemuFacts {
                qemu: parts.program.version.clone(),
                accelerator: parts.accel,
                guest_kernel: parts.kernel.release.clone(),
            }),
            swap: swapped_in().is_some(),
        }
    }
}

/// Bytes that the host has read back from swap since boot; `None` if it has no swap.
#[must_use]
pub fn swapped_in() -> Option<Bytes> {
    let swaps = fs::read_to_string("/proc/swaps").unwrap_or_default();
    if swaps.lines().count() < 2 {
        return None;
    }
    let vmstat = fs::read_to_string("/proc/vmstat").ok()?;
    let pages: u64 = vmstat.lines().find_map(|line| line.strip_prefix("pswpin ")?.parse().ok())?;
    Some(Bytes::new(pages.saturating_mul(rustix::param::page_size() as u64)))
}

/// Bytes read back since the reading `before`; `None` if the host has, or had, no swap.
#[must_use]
pub fn swapped_in_since(before: Option<Bytes>) -> Option<Bytes> {
    Some(swapped_in()?.saturating_sub(before?))
}

fn value(text: &str, key: &str) -> Option<String> {
    text.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        (name.trim() == key).then(|| value.trim().to_owned())
    })
}

fn first_number(text: &Option<String>) -> u64 {
    text.as_deref().and_then(|text| text.split(' ').next()?.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_found_by_their_key() {
        let text = "processor\t: 0\nmodel name\t: A CPU @ 2 GHz: fast\n";
        assert_eq!(value(text, "model name").as_deref(), Some("A CPU @ 2 GHz: fast"));
        assert_eq!(first_number(&value("MemTotal:  24683592 kB\n", "MemTotal")), 24_683_592);
        assert_eq!(value(text, "nothing"), None);
    }
}
