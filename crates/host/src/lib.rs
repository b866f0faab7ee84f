//! Readers of the host's own memory; each takes a root path.
