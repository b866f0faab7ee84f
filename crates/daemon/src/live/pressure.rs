//! Wakes the engine when the host's tasks stall for memory.

use std::sync::mpsc::Sender;
use std::thread;
use std::time::Duration;

use memtide_engine::Wake;
use memtide_host::{Root, Trigger};
use tracing::{debug, warn};

/// Stalls of this length within [`Trigger::WINDOW`] wake the engine.
const STALL: Duration = Duration::from_millis(100);

/// A trigger that fires when the host's tasks stall for memory. Opening it may need rights that the daemon gives up later. If the kernel
/// has no triggers, the engine sees the pressure at its next tick.
#[must_use]
pub fn trigger() -> Option<Trigger> {
    let path = Root::system().proc("pressure/memory");
    Trigger::open(&path, STALL, Trigger::WINDOW)
        .inspect_err(|error| debug!("no pressure trigger: {error}"))
        .ok()
}

/// Wakes the engine when the trigger fires, on a thread of its own.
pub(super) fn watch(trigger: Trigger, wake: Sender<Wake>) {
    let watch = move || {
        loop {
            match trigger.wait(Duration::from_secs(1)) {
                Ok(true) => nudge(&wake),
                Ok(false) => {}
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => {
                    warn!("the pressure trigger ended: {error}");
                    return;
                }
            }
        }
    };
    if let Err(error) = thread::Builder::new().name("pressure".to_owned()).spawn(watch) {
        warn!("no thread for the pressure trigger: {error}");
    }
}

/// Wakes the engine, if it still runs.
pub(super) fn nudge(wake: &Sender<Wake>) {
    let _gone = wake.send(Wake::Event);
}
