//! Whether a guest runs: `query-status` and `query-migrate`.

use memtide_model::Fence;
use serde::Deserialize;

/// The relevant part of the answer of `query-status`.
#[derive(Debug, Deserialize)]
pub(super) struct Status {
    status: String,
}

/// The relevant part of the answer of `query-migrate`. There is no status if nothing was ever migrated.
#[derive(Debug, Deserialize)]
pub(super) struct Migration {
    status: Option<String>,
}

impl Status {
    /// Why the guest must be left alone, according to its run state.
    pub(super) fn fence(&self) -> Option<Fence> {
        match self.status.as_str() {
            "running" => None,
            "inmigrate" | "postmigrate" | "finish-migrate" | "colo" => Some(Fence::Migrating),
            "save-vm" | "restore-vm" => Some(Fence::Snapshot),
            // paused, prelaunch, suspended, shutdown, io-error, internal-error, watchdog, guest-panicked, debug, and any other state:
            // not running.
            _ => Some(Fence::Paused),
        }
    }
}

impl Migration {
    /// Whether a migration is under way.
    pub(super) fn is_under_way(&self) -> bool {
        let Some(status) = self.status.as_deref() else { return false };
        !matches!(status, "none" | "completed" | "failed" | "cancelled")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_running_guest_has_no_fence() {
        for (status, fence) in [
            ("running", None),
            ("paused", Some(Fence::Paused)),
            ("prelaunch", Some(Fence::Paused)),
            ("inmigrate", Some(Fence::Migrating)),
            ("postmigrate", Some(Fence::Migrating)),
            ("save-vm", Some(Fence::Snapshot)),
            ("restore-vm", Some(Fence::Snapshot)),
            ("a-state-of-the-future", Some(Fence::Paused)),
        ] {
            assert_eq!(Status { status: status.to_owned() }.fence(), fence, "{status}");
        }
    }

    #[test]
    fn a_migration_is_under_way_until_it_ended() {
        for (text, under_way) in [
            ("{}", false),
            (r#"{"status":"none"}"#, false),
            (r#"{"status":"setup"}"#, true),
            (r#"{"status":"active","ram":{}}"#, true),
            (r#"{"status":"device"}"#, true),
            (r#"{"status":"completed"}"#, false),
            (r#"{"status":"failed"}"#, false),
        ] {
            assert_eq!(serde_json::from_str::<Migration>(text).unwrap().is_under_way(), under_way, "{text}");
        }
    }
}
