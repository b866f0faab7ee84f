//! The journal: every decision and all its inputs, in files of bounded size.
//!
//! A directory of *segments* `000001.mtj`, `000002.mtj`, … Each segment is a header and *frames*. Each frame is one
//! [`Record`](memtide_model::Record). The first record of a segment holds everything that the following decisions depend on. So
//! the oldest segments can be deleted whole, and any single segment can be copied as a trace and replayed alone.
//!
//! **Torn tail.** A crash or a full disk can leave part of a frame at the end of the newest segment. An incomplete frame
//! without a whole frame after it is such a tail. Readers end there, and the next writer cuts the tail off. Broken bytes
//! anywhere else are corruption, reported with file and offset.
//!
//! **Loss.** What a [`Sink`] has taken can be lost, tick after tick, while a disk is slow. It then loses all that waits, and a new segment begins
//! with the state: each segment is whole. A note tells how many ticks are missing before it.
//!
//! Nothing is synced to the disk: the journal survives the end of the daemon, but not every power failure.

mod error;
mod folder;
mod frame;
mod index;
mod reader;
mod segment;
mod sink;
mod writer;

pub use error::JournalError;
pub use folder::segments;
pub use frame::{beginning, encode, header};
pub(crate) use index::{Cursor, Index, Mark};
pub use reader::{Reader, TornTail};
pub use sink::{LateWriter, Lost, Sink, TRIES_EVERY, why};
pub use writer::{Cut, Writer, segment_limit};

/// The number of the format that is written and read.
pub const FORMAT: u32 = 3;
/// The longest payload of a frame in bytes.
pub const LONGEST_FRAME: usize = 64 << 20;
