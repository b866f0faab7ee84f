//! Waits for conditions, never for time.

use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;

use crate::error::LabError;

/// The interval between looks at a condition.
pub const LOOK_EVERY: Duration = Duration::from_millis(20);

/// The longest time without a word of what goes on.
pub const SAY_EVERY: Duration = Duration::from_secs(30);

/// Does `work`, and says every half minute that it is going on. `takes` is its usual time on two idle cores.
pub fn patiently<T: Send>(
    say: &dyn Fn(&str),
    what: &str,
    takes: Duration,
    work: impl FnOnce() -> T + Send,
) -> T {
    let begun = Instant::now();
    thread::scope(|scope| {
        let (done, watched) = mpsc::channel::<()>();
        let worker = scope.spawn(move || {
            let _done = done;
            work()
        });
        // Nothing is ever sent: the channel closes when the work is done, also by a panic.
        while watched.recv_timeout(SAY_EVERY) == Err(RecvTimeoutError::Timeout) {
            say(&format!("{what}: {} s so far, of about {}", begun.elapsed().as_secs(), takes.as_secs()));
        }
        worker.join().unwrap_or_else(|panicked| std::panic::resume_unwind(panicked))
    })
}

fn interrupt() -> &'static Arc<AtomicBool> {
    static INTERRUPT: OnceLock<Arc<AtomicBool>> = OnceLock::new();
    INTERRUPT.get_or_init(Arc::default)
}

/// From now on, the first Ctrl-C, SIGTERM or SIGHUP (a terminal that went away) ends every wait with
/// [`LabError::Interrupted`], so that everything is torn down in order. The second one ends the process at once (and its
/// children with it, see [`crate::machine::process`]).
///
/// # Errors
/// If the kernel refuses the handlers.
pub fn catch_interrupts() -> std::io::Result<()> {
    for signal in [SIGHUP, SIGINT, SIGTERM] {
        flag::register_conditional_shutdown(signal, 128 + signal, Arc::clone(interrupt()))?;
        flag::register(signal, Arc::clone(interrupt()))?;
    }
    Ok(())
}

/// Fails if the lab was interrupted.
///
/// # Errors
/// [`LabError::Interrupted`].
pub fn check_interrupt() -> Result<(), LabError> {
    if interrupt().load(Ordering::Relaxed) { Err(LabError::Interrupted) } else { Ok(()) }
}

/// Waits until `look` returns a value, and returns it.
///
/// # Errors
/// Errors of `look`; [`LabError::Deadline`] after `deadline`; [`LabError::Interrupted`].
pub fn until<T>(
    what: &str,
    deadline: Duration,
    mut look: impl FnMut() -> Result<Option<T>, LabError>,
) -> Result<T, LabError> {
    let begun = Instant::now();
    loop {
        check_interrupt()?;
        if let Some(seen) = look()? {
            return Ok(seen);
        }
        if begun.elapsed() >= deadline {
            return Err(LabError::Deadline { what: what.to_owned(), seconds: deadline.as_secs() });
        }
        thread::sleep(LOOK_EVERY);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_ends_with_what_was_seen_or_with_its_deadline() {
        let mut looks = 0;
        let seen = until("three looks", Duration::from_secs(10), || {
            looks += 1;
            Ok((looks == 3).then_some(looks))
        });
        assert_eq!(seen.unwrap(), 3);
        let never = until::<()>("the impossible", Duration::from_millis(1), || Ok(None)).unwrap_err();
        assert!(never.to_string().contains("the impossible did not happen"), "{never}");
    }
}
