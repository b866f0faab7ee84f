//! Ctrl-C ends a long search with what was found so far; a second one ends the program at once.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::Result;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

/// A flag that is set once the search should end.
pub fn listen() -> Result<Arc<AtomicBool>> {
    let stopped = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        // In this order: the first signal finds the flag unset, and only sets it.
        flag::register_conditional_shutdown(signal, 128 + signal, Arc::clone(&stopped))?;
        flag::register(signal, Arc::clone(&stopped))?;
    }
    Ok(stopped)
}
