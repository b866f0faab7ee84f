//! The loop that observes, decides, checks and applies, and the journal.
