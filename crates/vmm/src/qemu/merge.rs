//! Whether KSM may merge a guest's memory: the property `merge` of each part of it.
//!
//! QEMU calls `madvise(MADV_MERGEABLE)` or `MADV_UNMERGEABLE` at once when the property changes. The latter copies all that is merged, while
//! the guest's devices wait.

use serde::Deserialize;
use serde_json::json;

use super::qmp::Command;

/// A part of the guest's memory in the answer of `query-memdev`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub(super) struct MemoryPart {
    id: Option<String>,
    merge: bool,
    #[serde(default)]
    share: bool,
}

impl MemoryPart {
    /// Sets the property.
    pub(super) fn set_merge(&self, merge: bool) -> Option<Command> {
        let path = format!("/objects/{}", self.id.as_ref()?);
        Some(Command::with("qom-set", &json!({ "path": path, "property": "merge", "value": merge })))
    }
}

/// The parts whose property can be set and matters. KSM merges no shared memory.
pub(super) fn settable(parts: Vec<MemoryPart>) -> Vec<MemoryPart> {
    parts.into_iter().filter(|part| part.id.is_some() && !part.share).collect()
}

/// Whether KSM may merge any of these.
pub(super) fn may(parts: &[MemoryPart]) -> bool {
    parts.iter().any(|part| part.merge)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_private_memory_that_can_be_set_counts() {
        let parts = |text: &str| settable(serde_json::from_str::<Vec<MemoryPart>>(text).unwrap());
        let answer = parts(
            r#"[{"id": "pc.ram", "size": 402653184, "merge": true, "dump": true, "prealloc": false, "share": false,
                 "reserve": true, "host-nodes": [], "policy": "default"}]"#,
        );
        assert!(may(&answer));
        assert!(!may(&parts(r#"[{"id": "m", "merge": false}]"#)));
        assert_eq!(parts(r#"[{"id": "m", "merge": true, "share": true}, {"merge": true}]"#), []);
    }
}
