//! The nouns of memtide: observations, state, decisions and their reasons.
//!
//! This crate defines everything that crosses a crate's border, so the policy, the engine, the backends and the journal use
//! the same types. Nothing in this crate reads a clock, a file or the network.
//!
//! - [`Bytes`], [`Pages`], [`Share`], [`Moment`], [`Span`]: quantities with their unit in the type;
//! - [`Fact`]: what is known of a guest, and from where;
//! - [`GuestId`]: the identity of a guest, unique even if its name is used again; [`Names`]: its name for people;
//! - [`Reading`]: a measurement that is fresh, stale or absent, and says so;
//! - [`Hold`], [`Order`]: guests that memtide leaves alone, and the operator's orders;
//! - [`Request`], [`Deed`], [`Subject`], [`UnderWay`]: what memtide asks of a mechanism, and what becomes of it;
//! - [`Users`]: whose guests count as guests; [`Outsiders`]: the guests of others;
//! - [`Tmpfs`]: a file system in memory that bounds the guests whose memory it holds;
//! - [`Config`], [`Snapshot`], [`State`]: the three inputs of a decision; [`Witness`]: the check's own record;
//! - [`Decision`], [`Plan`], [`Action`], [`Reason`], [`Report`]: the result of a decision;
//! - [`Record`]: an entry of the journal.
#![forbid(unsafe_code)]

mod agent;
mod back_off;
mod capabilities;
mod claims;
mod config;
mod cost;
mod decision;
mod fact;
mod gain;
mod guest_id;
mod hold;
mod host_state;
mod ksm;
mod names;
mod offer;
mod owner;
mod palette;
mod parts;
mod plan;
mod reading;
mod record;
mod report;
mod request;
mod scanned;
mod self_deflation;
mod snapshot;
mod state;
mod stats;
mod terms;
mod text;
mod time;
mod tmpfs;
mod told;
mod units;
mod users;
mod withheld;
mod witness;

pub use agent::{Agent, AgentAge, AgentCounters, AgentMemory, AgentStalls, Can};
pub use back_off::BackOff;
pub use capabilities::{Capabilities, Commits};
pub use config::{
    Amount, Bounds, BoundsError, Budget, Class, Commitment, Config, Limit, Mode, OnExit, ParseBudgetError,
    StateLines, StateLinesError, name_matches,
};
pub use cost::Cost;
pub use decision::Decision;
pub use fact::{About, Fact, FactSource};
pub use gain::{Gain, GivenStep, Proof};
pub use guest_id::{GuestId, GuestIdError, MAX_NAME, name_given, pattern_given};
pub use hold::{Hold, Keeps, Order, Ordered};
pub use host_state::HostState;
pub use ksm::{
    KsmBurst, KsmConfig, KsmLeast, KsmMark, KsmMode, KsmOrder, KsmParts, KsmProcess, KsmReason, KsmReport,
    KsmRun, KsmSeen, KsmSettings, KsmSparse, KsmState, KsmVerdict,
};
pub use names::Names;
pub use offer::{NotBought, Offered, Offers, Pays, Spared, Way};
pub use owner::Owner;
pub use palette::{Colour, CostPart, HostPart, SizePart};
pub use parts::{CostParts, Parts, SizeParts};
pub use plan::{Action, Plan, Reason, Taken, Takes};
pub use reading::{Absence, Reading};
pub use record::{Answer, OWN_POLICY, Record, Refusal, Tick};
pub use report::{GuestReport, HostReport, Moves, Report, Savings, SelfDeflations, Verdict};
pub use request::{Deed, Mechanism, Request, Subject, UnderWay, Yield};
pub use scanned::Scanned;
pub use self_deflation::{ParseWithinError, SelfDeflationWithin};
pub use snapshot::{Backend, GuestSeen, HostSeen, Missed, Pressure, Snapshot, SwapCounters};
pub use state::{
    Activity, AgentAsked, AgentState, Asked, BalloonCounters, GuestState, Search, Splits, State, Stuck,
    Surge, Trial, TrialKind,
};
pub use stats::GuestStats;
pub use terms::{TermError, Terms};
pub use text::{counted, printable, stays_in_line};
pub use time::{Moment, Span, WallClock};
pub use tmpfs::{Space, Tmpfs, TmpfsId, TmpfsReport};
pub use told::{Balloon, DiskReads, Fence, Hotplug, Polling, Told, largest_guest};
pub use units::{
    Bytes, MIB, PAGE_4K, PageSize, Pages, ParseBytesError, ParseShareError, Share, ShareAboveAll,
};
pub use users::{Outsider, Outsiders, Users};
pub use withheld::Withheld;
pub use witness::{Witness, Witnessed};
