//! The loop that observes, decides, checks and applies, and the journal.
//!
//! ```text
//! World ──observe──▶ Snapshot ──decide──▶ Plan ──check──▶ World::apply
//!                       │                  │                  │
//!                       └───────────── journal ───────────────┘
//! ```
//!
//! - [`World`]: the host and its guests, or a simulation of them. Nothing else changes a host.
//! - [`Engine`]: one tick after the other, on the thread of whoever calls [`Engine::run`].
//! - [`Policy`]: what decides and what checks. memtide has one of its own.
//! - [`Step`]: one decision, the same in a live run, a simulation, a replay and a golden text.
//! - [`Asking`]: which guests are asked at a tick, and for what.
//! - [`settle`]: what is remembered once it is known which actions were carried out.
//! - [`Board`]: where everybody else reads what the engine did last.
//! - [`journal`]: every decision on disk, bounded in size, readable after a crash.
//! - [`resume`](fn@resume): what a run takes over from the journal of the one before;
//! - [`Replay`]: decides again from a journal and fails at the first difference.
//! - [`redecide`](fn@redecide): a recorded run with the decisions of now;
//! - [`golden`](fn@golden): the decisions of a journal as text that a person can review.
//!
//! **Rule.** A decision is a function of what is in the journal: the configuration, the state before, and what was seen.
//! Nothing that the engine does between two decisions may depend on anything else, or a replay could not repeat it.
#![forbid(unsafe_code)]

mod apply;
mod asking;
mod board;
mod engine;
mod golden;
pub mod journal;
mod log;
mod pace;
mod policy;
mod recorder;
mod redecide;
mod replay;
mod resume;
mod settle;
mod step;
mod text;
mod world;

pub use asking::{Ask, Asking};
pub use board::{Board, Counters, LastTick, Published};
pub use engine::Engine;
pub use golden::{describe, golden, golden_with};
pub use policy::{Policy, own_policy};
pub use redecide::redecide;
pub use replay::{Difference, Mismatch, Replay, ReplayError, ReplaySummary, replay, replay_journal};
pub use resume::{Before, resume};
pub use settle::{settle, state_crc};
pub use step::Step;
pub use text::with_causes;
pub use world::{ApplyError, Wake, World, host_clock};
