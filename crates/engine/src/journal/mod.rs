//! The journal: every decision, with all that it was made from, in files of bounded size.
//!
//! A directory of *segments* `000001.mtj`, `000002.mtj`, …, each a header and *frames*, each frame one
//! [`Record`](memtide_model::Record). The first record of a segment holds all that the following decisions depend on, so
//! the oldest segments can be deleted whole, and any one of them can be copied away as a trace and replayed by itself.
//!
//! **Torn tail.** A crash or a full disk can leave part of a frame at the end of the newest segment. A frame that is not
//! whole, with no whole frame after it, is such a tail: readers end there, and the next writer cuts it off. Broken bytes
//! anywhere else are corruption, reported with file and offset.
//!
//! Nothing is synced to the disk: the journal survives the end of the daemon, not every loss of power.

mod error;
mod folder;
mod frame;
mod reader;
mod segment;
mod writer;

pub use error::JournalError;
pub use folder::{is_in_use, segments};
pub use frame::{encode, header};
pub use reader::{Reader, TornTail};
pub use writer::{Cut, Writer};

/// The number of the format that is written and read.
pub const FORMAT: u32 = 1;
/// The longest payload of a frame in bytes.
pub const LONGEST_FRAME: usize = 64 << 20;
