//! The runs of a setup, each manager's on its own thread, with their progress on a terminal.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use memtide_sim::{Manager, Options, Outcome, Setup, run};

/// The outcomes in the order of `managers`.
pub fn all(setup: &Setup, managers: &[Manager], options: &Options) -> Vec<Outcome> {
    let next = AtomicUsize::new(0);
    let outcomes: Mutex<Vec<Option<Outcome>>> = Mutex::new(managers.iter().map(|_| None).collect());
    let bars = MultiProgress::with_draw_target(ProgressDrawTarget::stderr_with_hz(5));
    let threads = thread::available_parallelism().map_or(1, usize::from).min(managers.len());
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some(&manager) = managers.get(index) else { break };
                    let bar = bars.add(bar(setup, manager));
                    let outcome =
                        run(setup, manager, options, &mut |at| bar.set_position(at.as_millis() / 60_000));
                    bar.finish_and_clear();
                    outcomes.lock().unwrap_or_else(PoisonError::into_inner)[index] = Some(outcome);
                }
            });
        }
    });
    outcomes.into_inner().unwrap_or_else(PoisonError::into_inner).into_iter().flatten().collect()
}

fn bar(setup: &Setup, manager: Manager) -> ProgressBar {
    let bar = ProgressBar::new(setup.lasts.as_millis() / 60_000);
    if let Ok(style) =
        ProgressStyle::with_template("{prefix:>9} {bar:40} {pos} of {len} simulated min, {elapsed}")
    {
        bar.set_style(style);
    }
    bar.with_prefix(manager.to_string())
}
