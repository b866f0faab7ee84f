//! `guest-stats`: the balloon driver's statistics of the guest's memory, converted from QEMU's keys to the model's fields.
//!
//! The numbers come from inside the guest: each can be missing, −1 (in some versions 2⁶⁴ − 1) or invented. A missing or
//! impossible number is `None`, never zero.

use memtide_model::{Absence, Bytes, GuestStats};
use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};

use super::wire::MOST_MEMORY;

/// No guest has swapped this much since its boot, in bytes (1 EiB).
const MOST_TRAFFIC: u64 = 1 << 60;

/// The answer of `qom-get guest-stats`.
#[derive(Debug, Deserialize)]
pub(super) struct WireStats {
    #[serde(default)]
    stats: Counters,
    /// Whole seconds since 1970 by the host's clock; 0: never.
    #[serde(rename = "last-update", default, deserialize_with = "counter")]
    last_update: Option<u64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Counters {
    #[serde(rename = "stat-total-memory", deserialize_with = "counter")]
    total: Option<u64>,
    #[serde(rename = "stat-free-memory", deserialize_with = "counter")]
    free: Option<u64>,
    #[serde(rename = "stat-available-memory", deserialize_with = "counter")]
    available: Option<u64>,
    #[serde(rename = "stat-disk-caches", deserialize_with = "counter")]
    disk_caches: Option<u64>,
    #[serde(rename = "stat-swap-in", deserialize_with = "counter")]
    swap_in: Option<u64>,
    #[serde(rename = "stat-swap-out", deserialize_with = "counter")]
    swap_out: Option<u64>,
    #[serde(rename = "stat-major-faults", deserialize_with = "counter")]
    major_faults: Option<u64>,
    #[serde(rename = "stat-minor-faults", deserialize_with = "counter")]
    minor_faults: Option<u64>,
    #[serde(rename = "stat-htlb-pgalloc", deserialize_with = "counter")]
    htlb_pgalloc: Option<u64>,
    #[serde(rename = "stat-htlb-pgfail", deserialize_with = "counter")]
    htlb_pgfail: Option<u64>,
    #[serde(rename = "stat-oom-kills", deserialize_with = "counter")]
    oom_kills: Option<u64>,
    #[serde(rename = "stat-alloc-stalls", deserialize_with = "counter")]
    alloc_stalls: Option<u64>,
    #[serde(rename = "stat-async-scans", deserialize_with = "counter")]
    async_scans: Option<u64>,
    #[serde(rename = "stat-direct-scans", deserialize_with = "counter")]
    direct_scans: Option<u64>,
    #[serde(rename = "stat-async-reclaims", deserialize_with = "counter")]
    async_reclaims: Option<u64>,
    #[serde(rename = "stat-direct-reclaims", deserialize_with = "counter")]
    direct_reclaims: Option<u64>,
}

/// The statistics of a balloon device, asked for through libvirt, which passes QEMU's answers on as texts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GuestStatsAnswer {
    pub(crate) stats: GuestStats,
    /// Seconds since 1970; `None`: the driver has never answered.
    pub(crate) last_update: Option<u64>,
}

impl GuestStatsAnswer {
    /// The command for the device with this name.
    pub(crate) fn command(device: &str) -> String {
        let path = format!("/machine/peripheral/{device}");
        json!({ "execute": "qom-get", "arguments": { "path": path, "property": "guest-stats" } }).to_string()
    }

    /// Reads the answer.
    ///
    /// # Errors
    /// If it is a refusal or no answer to this command.
    pub(crate) fn read(text: &str) -> Result<Self, Absence> {
        #[derive(Deserialize)]
        struct Answer {
            #[serde(rename = "return")]
            returned: WireStats,
        }
        let answer: Answer = serde_json::from_str(text).map_err(|_| Absence::Malformed)?;
        let wire = answer.returned;
        Ok(Self { stats: wire.guest_stats(), last_update: wire.last_update() })
    }
}

/// A whole number from 0 to 2⁶⁴ − 2. Anything else is not a counter.
fn counter<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    Ok(Value::deserialize(deserializer)?.as_u64().filter(|&n| n != u64::MAX))
}

impl WireStats {
    /// The driver's last answer, in seconds since 1970; `None`: never.
    pub(super) fn last_update(&self) -> Option<u64> {
        self.last_update.filter(|&seconds| seconds != 0)
    }

    /// The counters in the model's types.
    pub(super) fn guest_stats(&self) -> GuestStats {
        let wire = &self.stats;
        let total = wire.total.filter(|&bytes| bytes <= MOST_MEMORY);
        let part = |bytes: Option<u64>| bytes.filter(|&b| b <= total.unwrap_or(MOST_MEMORY)).map(Bytes::new);
        let traffic = |bytes: Option<u64>| bytes.filter(|&b| b <= MOST_TRAFFIC).map(Bytes::new);
        GuestStats {
            total: total.map(Bytes::new),
            free: part(wire.free),
            available: part(wire.available),
            disk_caches: part(wire.disk_caches),
            swapped_in: traffic(wire.swap_in),
            swapped_out: traffic(wire.swap_out),
            major_faults: wire.major_faults,
            minor_faults: wire.minor_faults,
            htlb_pgalloc: wire.htlb_pgalloc,
            htlb_pgfail: wire.htlb_pgfail,
            oom_kills: wire.oom_kills,
            alloc_stalls: wire.alloc_stalls,
            async_scans: wire.async_scans,
            direct_scans: wire.direct_scans,
            async_reclaims: wire.async_reclaims,
            direct_reclaims: wire.direct_reclaims,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> WireStats {
        serde_json::from_str(text).unwrap()
    }

    /// The answer of QEMU 10.0.2 for a guest with Linux 6.12.
    const CAPTURED: &str = r#"{"stats": {"stat-htlb-pgalloc": 0, "stat-swap-out": 4096, "stat-alloc-stalls": 3,
        "stat-available-memory": 450973696, "stat-direct-reclaims": 5, "stat-direct-scans": 4, "stat-htlb-pgfail": 2,
        "stat-free-memory": 456667136, "stat-minor-faults": 551, "stat-major-faults": 7, "stat-total-memory": 486428672,
        "stat-oom-kills": 1, "stat-async-reclaims": 9, "stat-swap-in": 8192, "stat-async-scans": 6,
        "stat-disk-caches": 2924544}, "last-update": 1795257758}"#;

    #[test]
    fn every_counter_of_a_current_qemu_is_read() {
        let wire = read(CAPTURED);
        assert_eq!(wire.last_update(), Some(1_795_257_758));
        assert_eq!(
            wire.guest_stats(),
            GuestStats {
                total: Some(Bytes::new(486_428_672)),
                free: Some(Bytes::new(456_667_136)),
                available: Some(Bytes::new(450_973_696)),
                disk_caches: Some(Bytes::new(2_924_544)),
                swapped_in: Some(Bytes::new(8192)),
                swapped_out: Some(Bytes::new(4096)),
                major_faults: Some(7),
                minor_faults: Some(551),
                htlb_pgalloc: Some(0),
                htlb_pgfail: Some(2),
                oom_kills: Some(1),
                alloc_stalls: Some(3),
                async_scans: Some(6),
                direct_scans: Some(4),
                async_reclaims: Some(9),
                direct_reclaims: Some(5),
            }
        );
    }

    #[test]
    fn what_is_not_offered_is_none() {
        for text in [
            r#"{"stats": {}, "last-update": 0}"#,
            r#"{"stats": {"stat-total-memory": -1, "stat-free-memory": -1, "stat-oom-kills": -1}, "last-update": 0}"#,
            r#"{"stats": {"stat-total-memory": 18446744073709551615, "stat-swap-in": 18446744073709551615}}"#,
            r#"{"stats": {"stat-total-memory": "many", "stat-free-memory": 1.5, "stat-swap-in": [1], "stat-new": {}}}"#,
            r#"{"stats": {"stat-total-memory": null, "stat-major-faults": 1e300}, "last-update": "never"}"#,
        ] {
            let wire = read(text);
            assert_eq!((wire.guest_stats(), wire.last_update()), (GuestStats::default(), None), "{text}");
        }
    }

    #[test]
    fn what_cannot_be_true_is_none() {
        let lie = read(
            r#"{"stats": {"stat-total-memory": 1000, "stat-free-memory": 1001, "stat-available-memory": 1000,
                "stat-disk-caches": 5000}, "last-update": 5}"#,
        );
        let expected = GuestStats {
            total: Some(Bytes::new(1000)),
            available: Some(Bytes::new(1000)),
            ..GuestStats::default()
        };
        assert_eq!(lie.guest_stats(), expected);
        let huge = read(
            r#"{"stats": {"stat-total-memory": 1125899906842625, "stat-free-memory": 1125899906842625}}"#,
        );
        assert_eq!(huge.guest_stats(), GuestStats::default());
    }
}
