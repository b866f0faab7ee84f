//! The balloon device: its place in QEMU's object model, its abilities, and whether a driver works in the guest.

use serde::{Deserialize, Serialize};
use serde_json::json;

use super::qmp::Command;
use super::wire::size;

/// The places of devices with an `id=`, and of devices without one.
const CONTAINERS: [&str; 2] = ["/machine/peripheral", "/machine/peripheral-anon"];
/// The longest name of a device, in bytes. QEMU has no longer names.
const LONGEST_NAME: usize = 256;
/// Whole seconds between two polls of the statistics by QEMU.
pub(super) const INTERVAL: &str = "guest-stats-polling-interval";
/// The statistics.
pub(super) const STATS: &str = "guest-stats";
/// Whether the guest may deflate its own balloon.
pub(super) const DEFLATE_ON_OOM: &str = "deflate-on-oom";
/// Whether the guest reports free pages.
pub(super) const FREE_PAGE_REPORTING: &str = "free-page-reporting";

/// A balloon device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Device {
    /// Its path in the object model.
    pub(super) path: String,
    /// The path of the virtio device behind its PCI or CCW proxy.
    pub(super) backend: String,
    pub(super) deflate_on_oom: bool,
    pub(super) free_page_reporting: bool,
}

/// One property in the answer of `qom-list`.
#[derive(Debug, Deserialize)]
pub(super) struct Property {
    name: String,
    #[serde(rename = "type")]
    pub(super) kind: String,
}

/// The answer of `query-balloon`: memory that the guest keeps, without virtio-mem.
#[derive(Debug, Deserialize)]
pub(super) struct Info {
    #[serde(deserialize_with = "size")]
    pub(super) actual: u64,
}

/// The relevant part of the answer of `x-query-virtio-status`.
#[derive(Debug, Deserialize)]
pub(super) struct VirtioStatus {
    #[serde(default)]
    status: Statuses,
    #[serde(rename = "guest-features", default)]
    guest_features: Features,
}

/// What the driver in the guest can do, as it negotiated with the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Abilities {
    pub(super) reports_free_pages: bool,
    /// FreeBSD's driver does not.
    pub(super) sends_statistics: bool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Statuses {
    statuses: Vec<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
struct Features {
    dev_features: Vec<String>,
}

/// A property of an object, and its new value.
#[derive(Serialize)]
struct Of<'a> {
    path: &'a str,
    property: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<u64>,
}

/// The commands that look for the device, one for each container.
pub(super) fn search() -> [Command; 2] {
    CONTAINERS.map(|path| Command::with("qom-list", &json!({ "path": path })))
}

/// The device in the containers' contents, in the order of [`search`]. Its properties are not known yet.
pub(super) fn find(containers: [&[Property]; 2]) -> Option<Device> {
    CONTAINERS.iter().zip(containers).find_map(|(container, properties)| {
        let (name, kind) = properties.iter().find_map(|property| {
            let kind = property
                .kind
                .strip_prefix("child<")?
                .strip_suffix('>')
                .filter(|kind| kind.len() <= LONGEST_NAME)?;
            // Both are kept, and sent with each question.
            if property.name.len() > LONGEST_NAME {
                return None;
            }
            kind.contains("virtio-balloon").then_some((&property.name, kind))
        })?;
        let path = format!("{container}/{name}");
        // virtio-mmio has no proxy: the device is the virtio device.
        let backend = if kind.ends_with("-device") { path.clone() } else { format!("{path}/virtio-backend") };
        Some(Device { path, backend, deflate_on_oom: false, free_page_reporting: false })
    })
}

impl Device {
    /// Reads a property of the device.
    pub(super) fn get(&self, property: &str) -> Command {
        Command::with("qom-get", &Of { path: &self.path, property, value: None })
    }

    /// Sets the polling interval in seconds. 0 stops polling; starting to poll also polls at once.
    pub(super) fn set_interval(&self, seconds: u64) -> Command {
        Command::with("qom-set", &Of { path: &self.path, property: INTERVAL, value: Some(seconds) })
    }

    /// Asks for the virtio status: whether a driver works, and which features it negotiated.
    pub(super) fn virtio_status(&self) -> Command {
        Command::with("x-query-virtio-status", &json!({ "path": self.backend }))
    }
}

impl VirtioStatus {
    /// Whether a driver works.
    pub(super) fn has_driver(&self) -> bool {
        self.status.statuses.iter().any(|status| status.starts_with("VIRTIO_CONFIG_S_DRIVER_OK"))
    }

    /// What that driver can do.
    pub(super) fn abilities(&self) -> Abilities {
        let has =
            |name: &str| self.guest_features.dev_features.iter().any(|feature| feature.starts_with(name));
        Abilities {
            reports_free_pages: has("VIRTIO_BALLOON_F_REPORTING"),
            sends_statistics: has("VIRTIO_BALLOON_F_STATS_VQ"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn properties(text: &str) -> Vec<Property> {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn the_device_is_found_with_and_without_an_id() {
        let none = properties(r#"[{"name": "type", "type": "string"}]"#);
        let named = properties(
            r#"[{"name": "type", "type": "string"}, {"name": "virtio-balloon", "type": "child<virtio-net-pci>"},
                {"name": "b0", "type": "child<virtio-balloon-pci>"}]"#,
        );
        let anonymous = properties(r#"[{"name": "device[3]", "type": "child<virtio-balloon-device>"}]"#);
        assert_eq!(find([&none, &none]), None);
        let pci = find([&named, &none]).unwrap();
        assert_eq!(
            (pci.path.as_str(), pci.backend.as_str()),
            ("/machine/peripheral/b0", "/machine/peripheral/b0/virtio-backend")
        );
        let mmio = find([&none, &anonymous]).unwrap();
        assert_eq!(mmio.backend, "/machine/peripheral-anon/device[3]");
    }

    #[test]
    fn a_name_that_is_no_name_is_not_kept() {
        let long = "x".repeat(LONGEST_NAME + 1);
        let properties =
            properties(&format!(r#"[{{"name": "{long}", "type": "child<virtio-balloon-pci>"}}]"#));
        assert_eq!(find([&properties, &[]]), None);
    }

    #[test]
    fn a_driver_is_at_work_when_it_says_so() {
        let read = |text: &str| serde_json::from_str::<VirtioStatus>(text).unwrap();
        let up = read(
            r#"{"started": true, "status": {"statuses": ["VIRTIO_CONFIG_S_DRIVER: Guest OS compatible with device",
                "VIRTIO_CONFIG_S_DRIVER_OK: Driver setup and ready"]}, "guest-features": {"transports": [],
                "dev-features": ["VIRTIO_BALLOON_F_REPORTING: Page reporting VQ enabled"]}}"#,
        );
        assert!(up.has_driver() && up.abilities().reports_free_pages);
        for text in
            ["{}", r#"{"status": {"statuses": ["VIRTIO_CONFIG_S_DRIVER: Guest"], "unknown-statuses": 3}}"#]
        {
            assert!(!read(text).has_driver() && !read(text).abilities().reports_free_pages, "{text}");
        }
    }
}
