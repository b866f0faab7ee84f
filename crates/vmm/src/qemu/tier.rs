//! A guest's tier: a block device of the host that QEMU gets as an open file, and plugs as a disk.
//!
//! The file goes with `add-fd`, so QEMU needs no right to open the device. The disk bypasses the host's page cache, passes discards on, and has
//! the serial number by which the guest knows it. It needs a port that takes devices at run time: any PCI slot of the machine `pc`, and an empty
//! `pcie-root-port` of `q35`.

use std::os::fd::{AsFd as _, OwnedFd};
use std::time::Instant;

use memtide_agent::wire::TIER;
use serde::Deserialize;
use serde_json::{Value, json};

use super::qmp::{Command, Qmp, QmpError, Refusal};

/// The number of the file in QEMU's set of open files.
const FDSET: u32 = 0x6d74;
/// The base class of PCI bridges, and the class of bridges to PCI in it.
const BRIDGE: u32 = 0x0604;

/// A device in the answer of `query-pci`.
#[derive(Debug, Deserialize)]
struct PciDevice {
    #[serde(default)]
    qdev_id: String,
    class_info: ClassInfo,
    #[serde(default)]
    pci_bridge: Option<PciBridge>,
}

#[derive(Debug, Deserialize)]
struct ClassInfo {
    class: u32,
}

#[derive(Debug, Deserialize)]
struct PciBridge {
    #[serde(default)]
    devices: Vec<Value>,
}

#[derive(Debug, Deserialize)]
struct PciBus {
    #[serde(default)]
    devices: Vec<PciDevice>,
}

/// The name of a bus that a device can be plugged into; `None`: the machine's first bus is tried.
fn free_port(buses: &[PciBus]) -> Option<&str> {
    let devices = buses.iter().flat_map(|bus| &bus.devices);
    let is_free = |device: &&PciDevice| {
        device.class_info.class == BRIDGE
            && !device.qdev_id.is_empty()
            && device.pci_bridge.as_ref().is_some_and(|bridge| bridge.devices.is_empty())
    };
    devices.filter(is_free).map(|device| device.qdev_id.as_str()).next()
}

/// Plugs `file` as the guest's tier.
///
/// # Errors
/// If QEMU refuses. Nothing is left of it then.
pub(super) async fn attach(qmp: &mut Qmp, file: &OwnedFd, by: Instant) -> Result<(), QmpError> {
    let buses: Vec<PciBus> = qmp.execute(Command::plain("query-pci"), by).await?;
    let add = Command::with("add-fd", &json!({ "fdset-id": FDSET, "opaque": TIER }));
    qmp.execute_with_file::<Value>(add, file.as_fd(), by).await?;
    let block = json!({
        "driver": "host_device", "node-name": TIER, "filename": format!("/dev/fdset/{FDSET}"), "discard": "unmap",
        "cache": { "direct": true }, "aio": "threads",
    });
    let mut device = json!({ "driver": "virtio-blk-pci", "id": TIER, "drive": TIER, "serial": TIER });
    if let Some(port) = free_port(&buses) {
        device["bus"] = port.into();
    }
    let plug = [Command::with("blockdev-add", &block), Command::with("device_add", &device)];
    let replies = qmp.batch(&plug, by).await?;
    match replies.into_iter().find_map(Result::err) {
        Some(refusal) => {
            let _left = qmp.batch(&removal(), by).await?;
            Err(QmpError::Refused(refusal))
        }
        None => Ok(()),
    }
}

/// Unplugs the tier. The guest lets the device go later: the call that comes after that removes the rest.
///
/// # Errors
/// If the guest still has it, or QEMU does not answer.
pub(super) async fn detach(qmp: &mut Qmp, by: Instant) -> Result<(), QmpError> {
    let unplug = Command::with("device_del", &json!({ "id": TIER }));
    let [remove, close] = removal();
    let replies = qmp.batch(&[unplug, remove, close], by).await?;
    let is_gone = |refusal: &Refusal| {
        refusal.desc.contains("Failed to find node") || refusal.desc.contains("not found")
    };
    let refusals = replies.into_iter().skip(1).filter_map(Result::err);
    match refusals.into_iter().find(|refusal| !is_gone(refusal)) {
        Some(refusal) => Err(QmpError::Refused(refusal)),
        None => Ok(()),
    }
}

/// Removes the block device and closes its file.
fn removal() -> [Command; 2] {
    [
        Command::with("blockdev-del", &json!({ "node-name": TIER })),
        Command::with("remove-fd", &json!({ "fdset-id": FDSET })),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_root_port_is_a_port_and_a_full_one_is_not() {
        let port = |id: &str, devices: Value| {
            json!({ "bus": 0, "qdev_id": id, "class_info": { "class": 1540, "desc": "PCI bridge" },
                    "pci_bridge": { "bus": { "number": 0 }, "devices": devices } })
        };
        let disk = json!({ "bus": 0, "qdev_id": "disk", "class_info": { "class": 256 } });
        let bus = |devices: Vec<Value>| {
            serde_json::from_value::<Vec<PciBus>>(json!([{ "bus": 0, "devices": devices }])).unwrap()
        };
        let buses = bus(vec![disk.clone(), port("full", json!([disk.clone()])), port("free", json!([]))]);
        assert_eq!(free_port(&buses), Some("free"));
        assert_eq!(free_port(&bus(vec![disk, port("", json!([]))])), None);
    }
}
