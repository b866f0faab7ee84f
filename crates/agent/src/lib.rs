//! The agent: a small program inside a guest that knows what its kernel knows.
//!
//! **Problem.** Most of a virtualised host's memory is its guests' page cache. From outside, hot and cold cache look the same, and no counter of
//! the balloon shows refaults. A balloon takes the pages that the guest's kernel happens to find.
//!
//! **Terms.** *Refault*: a page is read again shortly after it was dropped. *Unmapped cache*: file pages that no program has mapped. *Cold*: not
//! used for some time, as far as the kernel can tell. To *trim* is to drop cold unmapped cache and reclaimable slab.
//!
//! **Rule.** The host asks and the agent answers; the agent says nothing before it was greeted ([`wire`]). What it may do is bounded by the
//! guest's administrator ([`Bounds`]). It never drops dirty data, and swaps only if both the host and the administrator say so.
//!
//! - [`wire`] and [`Lines`]: the protocol, for both ends;
//! - [`Facts`]: what the guest's kernel tells;
//! - [`deeds`]: what the agent does;
//! - [`Agent`]: the loop that joins them.
#![forbid(unsafe_code)]

mod ages;
mod blocks;
mod bounds;
pub mod deeds;
pub mod facts;
mod groups;
mod lines;
mod log;
mod percpu;
mod port;
mod serve;
mod silence;
mod swaps;
pub mod wire;

pub use ages::{Generations, parse_ages};
pub use blocks::free_in_blocks;
pub use bounds::PATH as BOUNDS;
pub use bounds::{Bounds, BoundsError};
pub use facts::{Facts, monotonic_ms};
pub use groups::largest_groups;
pub use lines::{Line, Lines};
pub use log::{Log, STATUS, Status};
pub use port::Port;
pub use serve::Agent;
pub use swaps::{Swap, parse_swaps};
