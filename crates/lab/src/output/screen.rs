//! The display while an experiment runs: a line for each guest on a terminal, otherwise a line for each change, and for work that goes on for long.

use std::cell::RefCell;
use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::output::sample::Sample;
use crate::wait::SAY_EVERY;

/// The display.
pub struct Screen {
    bars: Option<MultiProgress>,
    guests: RefCell<Vec<Line>>,
}

struct Line {
    name: String,
    bar: ProgressBar,
    /// Its work when a line was last printed, without the numbers that change all the time.
    printed: String,
    /// The time of the sample then.
    printed_at: Duration,
}

impl Default for Screen {
    fn default() -> Self {
        Self::new()
    }
}

impl Screen {
    /// A display on standard error.
    #[must_use]
    pub fn new() -> Self {
        let terminal = std::io::stderr().is_terminal();
        let bars = terminal.then(|| MultiProgress::with_draw_target(ProgressDrawTarget::stderr_with_hz(10)));
        Self { bars, guests: RefCell::default() }
    }

    /// Prints a line that stays.
    pub fn say(&self, text: &str) {
        match &self.bars {
            // If the terminal is gone, nobody can be told.
            Some(bars) => drop(bars.println(text)),
            None => eprintln!("{text}"),
        }
    }

    /// Adds a guest to the display.
    pub fn guest(&self, name: &str, memory_mib: u64) {
        let style = ProgressStyle::with_template("  {prefix:10} {bar:24.cyan/black.dim} {pos:>5} MiB  {msg}");
        let bar = match &self.bars {
            Some(bars) => bars.add(ProgressBar::new(memory_mib)),
            None => ProgressBar::hidden(),
        };
        if let Ok(style) = style {
            bar.set_style(style);
        }
        bar.set_prefix(name.to_owned());
        self.guests.borrow_mut().push(Line {
            name: name.to_owned(),
            bar,
            printed: String::new(),
            printed_at: Duration::ZERO,
        });
    }

    /// Shows a new sample.
    pub fn show(&self, sample: &Sample) {
        for (line, guest) in self.guests.borrow_mut().iter_mut().zip(&sample.guests) {
            line.bar.set_position(guest.footprint.whole_mib());
            line.bar.set_message(guest.doing.clone());
            if self.bars.is_none() {
                line.print(sample.at, &guest.doing, guest.footprint.whole_mib());
            }
        }
    }

    /// Removes the guests' lines.
    pub fn clear(&self) {
        for line in self.guests.borrow_mut().drain(..) {
            line.bar.finish_and_clear();
        }
    }
}

impl Line {
    fn print(&mut self, at: Duration, doing: &str, mib: u64) {
        let stage = doing.split(',').next().unwrap_or_default();
        // A stage with numbers is work under way.
        let goes_on = stage != doing && at.saturating_sub(self.printed_at) >= SAY_EVERY;
        if self.printed != stage || goes_on {
            let told = if goes_on { doing } else { stage };
            eprintln!("  {:6.1} s  {:10} {mib:5} MiB  {told}", at.as_secs_f64(), self.name);
            stage.clone_into(&mut self.printed);
            self.printed_at = at;
        }
    }
}
