//! How soon an agent's event is in a decision, as the daemon's journal has it.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::Value;

use crate::Outcome;

/// A stall of a guest that rests otherwise: its name, and the moment in milliseconds since 1970.
pub struct Stalled {
    name: String,
    at_ms: u64,
}

impl Stalled {
    /// A stall that begins now.
    pub fn now(name: &str) -> Outcome<Self> {
        let since = SystemTime::now().duration_since(UNIX_EPOCH)?;
        Ok(Self { name: name.to_owned(), at_ms: u64::try_from(since.as_millis())? })
    }
}

/// The time from each stall to the first decision that knows that its guest has less available memory, in seconds.
pub fn latencies(journal: &Path, stalls: Vec<Stalled>) -> Outcome<Vec<f64>> {
    let output = Command::new(env!("CARGO_BIN_EXE_memtide")).arg("journal").arg(journal).output()?;
    if !output.status.success() {
        return Err(format!("memtide journal: {}", String::from_utf8_lossy(&output.stderr)).into());
    }
    let mut waiting: Vec<Stalled> = stalls;
    let mut available: BTreeMap<String, u64> = BTreeMap::new();
    let mut latencies = Vec::new();
    for line in String::from_utf8(output.stdout)?.lines() {
        let record: Value = serde_json::from_str(line)?;
        let Some(at_ms) = record["seen"]["wall"].as_u64() else { continue };
        for guest in record["seen"]["guests"].as_array().map_or(&[][..], Vec::as_slice) {
            let name = guest["id"].as_str().and_then(|id| id.split('@').next()).unwrap_or_default();
            let told = &guest["told"]["agent"]["fresh"]["value"]["memory"]["available"];
            let Some(now) = told.as_u64() else { continue };
            let before = available.insert(name.to_owned(), now);
            if before.is_none_or(|before| now >= before) {
                continue;
            }
            let is_this = |stall: &Stalled| stall.name == name && stall.at_ms <= at_ms;
            if let Some(found) = waiting.iter().rposition(is_this) {
                latencies.push((at_ms - waiting.remove(found).at_ms) as f64 / 1000.0);
            }
        }
    }
    Ok(latencies)
}
