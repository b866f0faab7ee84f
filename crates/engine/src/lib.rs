//! The loop that observes, decides, checks and applies, and the journal.
//!
//! ```text
//! World ──observe──▶ Snapshot ──decide──▶ Plan ──check──▶ World::apply
//!                       │                  │                  │
//!                       └───────────── journal ───────────────┘
//! ```
//!
//! - [`World`]: the host and its guests, or a simulation of them. Nothing else changes a host.
//! - [`Engine`]: one tick after the other, on the thread that calls [`Engine::run`].
//! - [`Policy`]: decides, and checks plans. memtide has its own policy.
//! - [`Step`]: one decision, the same in a live run, a simulation, a replay and a golden text.
//! - [`Asking`]: chooses the guests to ask at a tick, and the questions.
//! - [`settle`]: the memory of KSM's governor after the answer to its order.
//! - [`Board`]: the place from which everybody else reads the engine's last results.
//! - [`journal`]: every decision on disk, bounded in size, readable after a crash.
//! - [`resume`](fn@resume): the state that a run takes over from the journal of the former run.
//! - [`Recorded`]: what was published at any moment of a journal.
//! - [`Replay`]: decides again from a journal and fails at the first difference.
//! - [`redecide`](fn@redecide): a recorded run with the decisions of the current policy.
//! - [`golden`](fn@golden): the decisions of a journal as text that a person can review.
//!
//! **Rule.** A decision depends only on data in the journal: the configuration, the state before, and the observation. Between two
//! decisions, the engine must not depend on anything else, or a replay could not repeat the run.
#![forbid(unsafe_code)]

mod again;
mod apply;
mod asking;
mod board;
mod engine;
mod golden;
pub mod journal;
mod log;
mod pace;
mod policy;
mod recorded;
mod recorder;
mod redecide;
mod replay;
mod requests;
mod resume;
mod settle;
mod step;
mod text;
mod world;

pub use asking::{Ask, Asking};
pub use board::{Board, Counters, LastTick, Published};
pub use engine::Engine;
pub use golden::{describe, golden, golden_with};
pub use memtide_policy::offers;
pub use policy::{Policy, own_policy};
pub use recorded::{Differs, Done, Event, EventKind, Past, Recorded};
pub use redecide::redecide;
pub use replay::{Difference, Mismatch, Replay, ReplayError, ReplaySummary, replay, replay_journal};
pub use resume::{Before, resume};
pub use settle::{settle, state_crc, witness_crc};
pub use step::Step;
pub use text::with_causes;
pub use world::{Applied, ApplyError, Killed, Wake, World, host_clock};
