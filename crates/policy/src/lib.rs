//! What each guest should have, and why: a pure function from what is seen to what is to be changed.
//!
//! **Terms** (GLOSSARY.md): *demand* is what a guest needs, *entitlement* its fair share, *target* what it is asked to
//! keep now, *actual* what it keeps, *reach* what it can come to cost without asking, *footprint* what it costs.
//!
//! **Rule.** Four stages, one file each, over one ledger:
//!
//! 1. [`demand`]: used memory, the page cache it has shown it needs, headroom for its growth; a stall raises it at once;
//! 2. [`entitlement`]: a weighted water-fill between reservation and limit, in which idle memory is taxed;
//! 3. [`pacing`]: how far towards the entitlement now: who gives, who waits, who is stuck;
//! 4. [`phases`]: what frees memory goes first, and a grant is backed by memory that is verified as returned.
//!
//! **Properties** (crates/policy/tests/properties.rs): a plan never raises the sum of reach above the capacity, or
//! above what it was where it was over; reservation ≤ target ≤ limit; more shares never mean less of what a guest needs; the
//! order of the guests is irrelevant; a fixed point is quiet; a guest without fresh statistics gains nothing, and gives only
//! what is beyond its share; false statistics gain a guest no more than its entitlement, and in an elastic commitment what it has
//! already, as long as no other's lack cannot wait.
//!
//! [`check()`] tests each plan against the promises again. It shares no function with [`decide()`].
#![forbid(unsafe_code)]

pub mod check;
pub mod claims;
pub mod decide;
pub mod demand;
pub mod entitlement;
pub mod guest;
pub mod help;
pub mod hold;
pub mod host_state;
pub mod ledger;
pub mod pacing;
pub mod phases;
pub mod report;
pub mod scene;
pub mod squeeze;
pub mod stuck;
pub mod surge;
pub mod tide;
pub mod touched;

pub use check::{Violation, check};
pub use decide::decide;
