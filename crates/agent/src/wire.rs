//! The protocol between memtide and an agent: one JSON object a line in each direction, at most [`MAX_LINE`] bytes.
//!
//! ```text
//! → {"id":7,"do":"hello","version":1}
//! ← {"id":7,"hello":{"version":1,"agent":"0.1.0","kernel":"6.12.48","can":["report","trim"],"cannot":{"pressure":"no PSI"},…}}
//! → {"id":8,"do":"report","every_ms":1000}
//! ← {"id":8,"done":{}}
//! ← {"id":0,"report":{"made_ms":81523,"memory":{…},"counters":{…}}}
//! → {"id":9,"do":"trim","bytes":104857600}
//! ← {"id":9,"done":{"bytes":103809024,"means":"memory_reclaim","took_ms":212}}
//! → {"id":10,"do":"use_tier","on":true}
//! ← {"id":10,"done":{"bytes":536866816,"means":"swapon","took_ms":315}}
//! → {"id":11,"do":"page_out","bytes":33554432}
//! ← {"id":11,"done":{"bytes":33607680,"means":"memory_reclaim","took_ms":208}}
//! ```
//!
//! - The host speaks first. It chooses a new id for each `hello`, so that answers to an earlier connection are told apart. An agent that was
//!   not greeted since its port was opened says nothing.
//! - Each request has exactly one answer with its id: `hello`, `done` or `refused`. Reports and events have the id 0.
//! - Unknown fields are ignored. An unknown request is refused. A line that is too long or no JSON is skipped: the agent answers it with
//!   `refused` and the id 0, the host counts it.
//! - An event is followed by a report as soon as one may be sent.
//! - All quantities of memory are bytes. All times are milliseconds or microseconds, as their names say.
//! - A change of what a field means is a new [`VERSION`]. An agent answers a `hello` of another version with its own.

use std::collections::BTreeMap;

pub use memtide_model::Can;
use memtide_model::{AgentAge, AgentCounters, AgentMemory, AgentStalls, Bytes};
use serde::{Deserialize, Serialize};

/// The version of this protocol.
pub const VERSION: u32 = 1;
/// The name of the virtio-serial port.
pub const PORT: &str = "org.memtide.agent.0";
/// The serial number of the block device that is a tier.
pub const TIER: &str = "memtide-tier";
/// The longest line in bytes, including the line feed.
pub const MAX_LINE: usize = 16 << 10;
/// The shortest interval between two reports, in milliseconds.
pub const SHORTEST_INTERVAL_MS: u64 = 250;
/// The most memory cgroups in a report.
pub const MAX_GROUPS: usize = 5;
/// The most ages in a report.
pub const MAX_AGES: usize = 8;

/// A request of the host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// Chosen by the host, not 0, and echoed in the answer.
    pub id: u64,
    /// The request.
    #[serde(flatten)]
    pub ask: Ask,
}

/// What the host asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case")]
pub enum Ask {
    /// Who are you? Answered with [`Hello`]. It ends everything that an earlier connection asked for.
    Hello {
        /// The version that the host speaks.
        version: u32,
    },
    /// Are you alive? Answered with an empty [`Done`].
    Ping,
    /// Report changes at this interval, in milliseconds; 0: no more.
    Report {
        /// The interval.
        every_ms: u64,
    },
    /// Drop cold, clean, unmapped page cache and reclaimable slab.
    Trim {
        /// The amount.
        bytes: Bytes,
        /// Anonymous memory may be swapped out, too.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        may_swap: bool,
        /// If nothing else works, drop all page cache, hot or cold (`drop_caches`).
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        last_resort: bool,
    },
    /// Compact free memory, so that free page reporting can return it.
    Compact,
    /// Keep unmapped page cache at or below this part of all memory, in ten thousandths; absent: no limit any more.
    CacheLimit {
        /// The part.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        share: Option<u16>,
    },
    /// Make free page reporting return smaller pieces, as far as the administrator allows it; or as the kernel chose.
    ReportPieces {
        /// Smaller pieces.
        on: bool,
    },
    /// Swap to the tier that the host has attached, a block device with the serial number [`TIER`], before any other swap; or read all of it back,
    /// and let the device go.
    UseTier {
        /// Swap to it.
        on: bool,
    },
    /// Write this much of the memory that programs have not used for the longest time to the tier.
    PageOut {
        /// The amount.
        bytes: Bytes,
    },
    /// Send a [`Answer::Pressure`] whenever tasks stalled for memory for this long within a window; 0: no more.
    Pressure {
        /// The time of the stalls, in microseconds.
        stall_us: u64,
        /// The window, in microseconds.
        window_us: u64,
    },
}

/// A message of the agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reply {
    /// The id of the request; 0 for reports, events and lines that were not understood.
    pub id: u64,
    /// The message.
    #[serde(flatten)]
    pub answer: Answer,
}

/// What the agent says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// It introduces itself.
    Hello(Box<Hello>),
    /// It has done what it was asked for.
    Done(Done),
    /// It has not, for this reason.
    Refused(String),
    /// What its kernel tells, unasked.
    Report(Box<Report>),
    /// Tasks stalled, unasked.
    Pressure(PressureEvent),
}

/// The agent introduces itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// The version of the protocol that it speaks.
    pub version: u32,
    /// Its own version.
    pub agent: String,
    /// The release of its kernel.
    pub kernel: String,
    /// What it can do here.
    pub can: Vec<Can>,
    /// What it cannot, and why.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub cannot: BTreeMap<Can, String>,
    /// The least page cache that its administrator wants to keep.
    #[serde(default)]
    pub least_cache: Bytes,
}

/// The result of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Done {
    /// Trim: page cache and slab that became free. Compact: free memory that is new in blocks that reporting returns. Small pieces: free memory that
    /// reporting returns from now on. Page-out: memory that came into the tier. Tier: its size in use, or what was read back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<Bytes>,
    /// The means that was used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub means: Option<String>,
    /// The time that it took, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub took_ms: Option<u64>,
}

/// What the guest's kernel tells about its memory at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// The moment, in milliseconds of the guest's monotonic clock.
    pub made_ms: u64,
    /// Amounts of memory.
    pub memory: AgentMemory,
    /// Counters since the guest's boot.
    pub counters: AgentCounters,
    /// Stall times since the guest's boot; absent without PSI.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stalls: Option<AgentStalls>,
    /// Memory by the kernel's generations, the youngest first; empty if the kernel does not tell, and in most reports.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ages: Vec<AgentAge>,
    /// The largest memory cgroups, the largest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<Group>,
}

/// A memory cgroup.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Group {
    /// Its path below the cgroup root, cut after 128 bytes.
    pub path: String,
    /// Its memory.
    pub bytes: Bytes,
}

/// Tasks stalled for longer than the host's threshold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PressureEvent {
    /// The moment, in milliseconds of the guest's monotonic clock.
    pub at_ms: u64,
    /// Stall times since boot.
    pub stalls: AgentStalls,
    /// Memory that is available now.
    pub available: Bytes,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_look_as_documented() {
        let line = r#"{"id":9,"do":"trim","bytes":104857600}"#;
        let request: Request = serde_json::from_str(line).unwrap();
        let trim = Ask::Trim { bytes: Bytes::from_mib(100), may_swap: false, last_resort: false };
        assert_eq!(request, Request { id: 9, ask: trim });
        assert_eq!(serde_json::to_string(&request).unwrap(), line);
        for (line, ask) in [
            (r#"{"id":9,"do":"use_tier","on":true}"#, Ask::UseTier { on: true }),
            (r#"{"id":9,"do":"page_out","bytes":33554432}"#, Ask::PageOut { bytes: Bytes::from_mib(32) }),
        ] {
            assert_eq!(serde_json::to_string(&Request { id: 9, ask }).unwrap(), line);
            assert_eq!(serde_json::from_str::<Request>(line).unwrap().ask, ask);
        }
        let done = Reply { id: 8, answer: Answer::Done(Done::default()) };
        assert_eq!(serde_json::to_string(&done).unwrap(), r#"{"id":8,"done":{}}"#);
        let refused = Reply { id: 0, answer: Answer::Refused("no".to_owned()) };
        assert_eq!(serde_json::from_str::<Reply>(r#"{"id":0,"refused":"no"}"#).unwrap(), refused);
    }

    #[test]
    fn unknown_fields_are_ignored_and_unknown_requests_are_errors() {
        let request: Request = serde_json::from_str(r#"{"id":1,"do":"ping","hurry":true}"#).unwrap();
        assert_eq!(request.ask, Ask::Ping);
        assert!(serde_json::from_str::<Request>(r#"{"id":1,"do":"format_disk"}"#).is_err());
    }

    #[test]
    fn abilities_of_newer_agents_are_ignored() {
        let text =
            r#"{"version":1,"agent":"9","kernel":"9","can":["report","fly"],"cannot":{"dive":"no water"}}"#;
        let hello: Hello = serde_json::from_str(text).unwrap();
        assert_eq!(hello.can, [Can::Report, Can::Unknown]);
        assert_eq!(hello.cannot[&Can::Unknown], "no water");
    }

    #[test]
    fn the_largest_report_fits_into_a_line() {
        let most = Bytes::MAX;
        let report = Report {
            made_ms: u64::MAX,
            memory: AgentMemory {
                total: most,
                free: most,
                free_blocks: most,
                pieces: most,
                available: most,
                unmapped_cache: most,
                dirty: most,
                reclaimable_slab: most,
                swap_total: most,
                swap_free: most,
                anon: most,
                tier_total: most,
                tier_free: most,
            },
            counters: AgentCounters {
                refaults_file: most,
                refaults_anon: most,
                activations_file: most,
                activations_anon: most,
                swapped_in: most,
                swapped_out: most,
                oom_kills: u64::MAX,
                alloc_stalls: u64::MAX,
            },
            stalls: Some(AgentStalls {
                memory_some_us: u64::MAX,
                memory_full_us: u64::MAX,
                io_some_us: u64::MAX,
                io_full_us: u64::MAX,
            }),
            ages: vec![AgentAge { since_ms: u64::MAX, file: most, anon: most }; MAX_AGES],
            // The longest escape of a byte is six characters.
            groups: vec![Group { path: "\u{1}".repeat(128), bytes: most }; MAX_GROUPS],
        };
        let reply = Reply { id: 0, answer: Answer::Report(Box::new(report)) };
        assert!(serde_json::to_string(&reply).unwrap().len() < MAX_LINE);
    }
}
