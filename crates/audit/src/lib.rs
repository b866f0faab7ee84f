//! What KSM would save on this host, estimated before it is switched on.
//!
//! **Problem.** KSM merges equal pages of different processes. What it would save is not known before it has scanned everything twice, which
//! costs a core for minutes, and merges memory that somebody may not want merged.
//!
//! **Terms.** A *group* is a set of processes whose saving is told together: as a rule, a guest. A *class* is a set of equal pages. A class of
//! m pages needs ⌈m / `max_page_sharing`⌉ copies once it is merged, and saves the rest. The *sample* is a set of whole classes.
//!
//! **Rule.**
//! - All present pages of private anonymous memory are read once, in order (`pages`, `memory`). Absent pages are left out: nothing is faulted in.
//! - A page belongs to the sample if its hash is small enough (`select`). Equal pages are in the sample together or not at all,
//!   so that a class is seen whole, and the estimate has no bias.
//! - A class that holds a large part of the memory would make a sample worthless in which it happens to be missing. Such classes are found while
//!   all pages pass by, and counted one by one (`frequent`).
//! - Pages full of zeros are counted apart: the kernel has a page for them.
//! - After a while, the pages of the sample are read again. Those that have changed are *volatile*: KSM does not merge them.
//! - The estimate and its interval follow from the classes (`estimate`).
//!
//! **Property.** The resident memory of the processes is the same before and after.
#![forbid(unsafe_code)]

mod audit;
mod estimate;
mod frequent;
mod memory;
mod merging;
mod pages;
mod select;

pub use audit::{Audit, AuditError, Group, Options, Unread, run, run_with};
pub use estimate::{Estimate, GroupEstimate, Interval, PairEstimate};
pub use merging::Merging;
