//! Memory plugged after the start: DIMMs and virtio-mem.
//!
//! `query-balloon` counts DIMMs but not virtio-mem, and so does the `balloon` command. If the guest should keep `target` bytes in
//! all, memtide writes `target` minus the memory that virtio-mem has plugged.

use memtide_model::{Bytes, Hotplug};
use serde::Deserialize;

use super::wire::size;

/// The answer of `query-memory-size-summary`: memory at start, and DIMMs and virtio-mem together.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) struct Summary {
    #[serde(deserialize_with = "size")]
    base_memory: u64,
    #[serde(default, deserialize_with = "size")]
    plugged_memory: u64,
}

/// One device in the answer of `query-memory-devices`.
#[derive(Debug, Deserialize)]
pub(super) struct MemoryDevice {
    #[serde(rename = "type")]
    kind: String,
    data: Data,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Data {
    #[serde(default, deserialize_with = "size")]
    size: u64,
    #[serde(default, deserialize_with = "size")]
    requested_size: u64,
    #[serde(default, deserialize_with = "size")]
    max_size: u64,
}

impl Summary {
    /// Memory at start, and all that is plugged, also what is no RAM of the guest.
    pub(super) fn all(&self) -> Bytes {
        Bytes::new(self.base_memory).saturating_add(Bytes::new(self.plugged_memory))
    }
}

/// Plugged memory that is no RAM, although QEMU's summary counts it as plugged.
pub(super) fn no_ram(devices: &[MemoryDevice]) -> Bytes {
    let found =
        devices.iter().filter(|device| matches!(device.kind.as_str(), "nvdimm" | "virtio-pmem" | "sgx-epc"));
    Bytes::sum(found.map(|device| Bytes::new(device.data.size)))
}

/// All virtio-mem devices together; `None` if there is none.
pub(super) fn virtio_mem(devices: &[MemoryDevice]) -> Option<Hotplug> {
    let mut found = devices.iter().filter(|device| device.kind == "virtio-mem").peekable();
    found.peek()?;
    let none = Hotplug { requested: Bytes::ZERO, plugged: Bytes::ZERO, most: Bytes::ZERO };
    Some(found.fold(none, |sum, MemoryDevice { data, .. }| Hotplug {
        requested: sum.requested.saturating_add(Bytes::new(data.requested_size)),
        plugged: sum.plugged.saturating_add(Bytes::new(data.size)),
        most: sum.most.saturating_add(Bytes::new(data.max_size)),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn virtio_mem_devices_are_summed_and_others_left_out() {
        let devices: Vec<MemoryDevice> = serde_json::from_str(
            r#"[{"type": "virtio-mem", "data": {"memdev": "/objects/vm0", "memaddr": 4294967296, "block-size": 2097152,
                 "size": 268435456, "node": 0, "max-size": 536870912, "requested-size": 402653184, "id": "vmem0"}},
                {"type": "virtio-mem", "data": {"size": 2097152, "requested-size": 0}},
                {"type": "dimm", "data": {"size": 1073741824, "slot": 0, "hotplugged": true}}]"#,
        )
        .unwrap();
        let mib = Bytes::from_mib;
        let expected = Hotplug { requested: mib(384), plugged: mib(258), most: mib(512) };
        assert_eq!(virtio_mem(&devices), Some(expected));
        assert_eq!(virtio_mem(&devices[2..]), None);
    }

    #[test]
    fn the_full_size_counts_all_that_was_plugged() {
        let summary: Summary =
            serde_json::from_str(r#"{"base-memory": 268435456, "plugged-memory": 402653184}"#).unwrap();
        assert_eq!(summary.all(), Bytes::from_mib(640));
        assert_eq!(serde_json::from_str::<Summary>(r#"{"base-memory": 5}"#).unwrap().all(), Bytes::new(5));
        let devices: Vec<MemoryDevice> = serde_json::from_str(
            r#"[{"type": "nvdimm", "data": {"size": 67108864}}, {"type": "virtio-pmem", "data": {"size": 67108864}}, {"type": "dimm", "data": {"size": 268435456}}]"#,
        )
        .unwrap();
        assert_eq!(no_ram(&devices), Bytes::from_mib(128));
    }
}
