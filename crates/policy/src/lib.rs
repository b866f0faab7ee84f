//! The memory of each guest and the reasons for it: a pure function from a snapshot to a plan.
//!
//! **Terms** (GLOSSARY.md): *need* is the memory that a guest needs, *entitlement* its fair share. *Target* is the size
//! that it is asked to keep now, *actual* the size that it keeps. *Reach* is its worst-case cost without asking, *footprint*
//! its cost now.
//!
//! **Rule.** A decision has three stages, a folder each, over one ledger:
//!
//! 1. [`belief`]: what is known of each guest and of the host. A guest's need is its memory in use, the page cache that it was seen to need, and room
//!    for its growth; a stall raises it at once;
//! 2. [`share`]: one water-fill over the tiers of all needs;
//! 3. [`ladder`]: the step towards the fair shares now: who gives, who grows, who waits. Actions that free memory come first, and a grant is backed
//!    by memory that is verified as returned.
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

pub mod belief;
pub mod check;
pub mod constants;
pub mod decide;
pub mod hears;
pub mod ksm;
pub mod ladder;
pub mod report;
pub mod share;

pub use check::{Violation, check, check_promises, witness};
pub use decide::{decide, decide_by, offers};
pub use hears::hears;
pub use share::Sharing;
