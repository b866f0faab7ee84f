//! The memory of each guest and the reasons for it: a pure function from a snapshot to a plan.
//!
//! **Terms** (GLOSSARY.md): *need* is the memory that a guest needs, *entitlement* its fair share. *Target* is the size
//! that it is asked to keep now, *actual* the size that it keeps. *Reach* is its worst-case cost without asking, *footprint*
//! its cost now.
//!
//! **Rule.** Four stages, one file each, over one ledger:
//!
//! 1. [`need`]: memory in use, the page cache that the guest was seen to need ([`search`]), and growth; a stall raises it at once;
//! 2. [`tiers`]: one water-fill over the tiers of all needs ([`entitlement`]);
//! 3. [`pacing`]: the step towards the fair shares now: who gives ([`ladder`]), who grows, who waits. [`ladder::splits`] comes first: torn huge pages
//!    that the kernel splits are page cache that nobody has to give. [`ladder::clock`] squeezes although nothing is wanted, if the operator says so;
//! 4. [`phases`]: actions that free memory come first, and a grant is backed by memory that is verified as returned.
//!
//! A `tmpfs` that holds guests' memory and has less left than the host is a host of its own for these guests.
//!
//! **Properties** (crates/policy/tests/properties.rs): a plan never raises the sum of reach above the capacity, or above its
//! old value if that was over already. reservation ≤ target ≤ limit. More shares never mean less of the memory that a guest
//! needs. The order of the guests is irrelevant. A fixed point is quiet. A guest without fresh statistics gains nothing, and
//! gives only memory beyond its share. False statistics gain a guest no more than its entitlement. In an elastic commitment
//! they gain it no more than it has, as long as no other guest lacks memory that cannot wait.
//!
//! A decision remembers what was seen. What became of its plan is remembered once the answers are known ([`hears()`]).
//!
//! [`check()`] tests each plan against the promises again. It shares no function with [`decide()`].
#![forbid(unsafe_code)]

pub mod activity;
pub mod check;
pub mod constants;
pub mod decide;
pub mod entitlement;
pub mod envelope;
pub mod evidence;
pub mod gain;
pub mod guest;
pub mod hears;
pub mod hold;
pub mod host_state;
pub mod ksm;
pub mod ladder;
pub mod ledger;
pub mod need;
mod orders;
pub mod pacing;
pub mod phases;
mod purse;
pub mod report;
pub mod scene;
pub mod search;
mod sharing;
pub mod stuck;
pub mod surge;
pub mod tiers;
mod tmpfs;
pub mod wish;

pub use check::{Violation, check, witness};
pub use decide::decide;
pub use hears::hears;
