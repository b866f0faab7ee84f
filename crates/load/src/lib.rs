//! The memory exerciser that runs inside guests.
