//! The terminal: taken over at the start, and given back however the program ends.
//!
//! **Rule.** One frame for each piece of news and each key at most: everything that has come meanwhile is taken over first. The terminal
//! is given back by a normal end, a panic, SIGTERM, SIGHUP, SIGINT and SIGQUIT. If it takes no more output, a signal ends the program after
//! a while all the same.

use std::io::{self, Stdout, Write as _};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::cursor::Show;
use ratatui::crossterm::event::{self, DisableMouseCapture, EnableMouseCapture};
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{
    EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};
use ratatui::layout::{Position, Rect, Size};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::app::orders::Wish;
use crate::app::{App, Event};
use crate::draw::draw;
use crate::draw::theme::Theme;

/// The time between two frames of a journal that is played.
const BEAT: Duration = Duration::from_millis(100);
/// A program that has not ended this long after a signal ends at once.
const PATIENCE: Duration = Duration::from_secs(2);

/// The terminal while the program has it.
struct Taken {
    terminal: Terminal<CrosstermBackend<Stdout>>,
}

impl Taken {
    fn take() -> io::Result<Self> {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            give_back();
            before(panic);
        }));
        enable_raw_mode()?;
        execute!(io::stdout(), EnterAlternateScreen, EnableMouseCapture)?;
        Ok(Self { terminal: Terminal::new(CrosstermBackend::new(io::stdout()))? })
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        give_back();
    }
}

/// Gives the terminal back, as far as it still takes orders.
fn give_back() {
    let _gone = execute!(io::stdout(), DisableMouseCapture, LeaveAlternateScreen, Show);
    let _gone = disable_raw_mode();
    let _gone = io::stdout().flush();
}

/// Sends keys, the mouse and signals to the screen.
///
/// # Errors
/// If the kernel takes no handlers of signals.
pub fn watch(events: &Sender<Event>) -> io::Result<()> {
    let mut signals = Signals::new([SIGTERM, SIGHUP, SIGINT, SIGQUIT])?;
    let sender = events.clone();
    std::thread::spawn(move || {
        let Some(signal) = signals.forever().next() else { return };
        let _ended = sender.send(Event::End);
        std::thread::sleep(PATIENCE);
        give_back();
        std::process::exit(128 + signal);
    });
    let sender = events.clone();
    std::thread::spawn(move || {
        loop {
            let event = match event::read() {
                Ok(event::Event::Key(key)) => Event::Key(key),
                Ok(event::Event::Mouse(mouse)) => Event::Mouse(mouse),
                Ok(event::Event::Resize(width, height)) => Event::Resized(Size { width, height }),
                Ok(_) => continue,
                // The terminal is gone.
                Err(_) => Event::End,
            };
            let ends = matches!(event, Event::End);
            if sender.send(event).is_err() || ends {
                return;
            }
        }
    });
    Ok(())
}

/// The size of the terminal.
///
/// # Errors
/// If there is none.
pub fn size() -> io::Result<Size> {
    ratatui::crossterm::terminal::size().map(|(width, height)| Size { width, height })
}

/// Shows the screen until it ends; `fulfil` does what it wishes.
///
/// # Errors
/// If the terminal takes no output.
pub fn show(app: &mut App, theme: Theme, events: &Receiver<Event>, fulfil: impl Fn(Wish)) -> io::Result<()> {
    let mut taken = Taken::take()?;
    let mut beaten = Instant::now();
    loop {
        taken.terminal.draw(|frame| {
            // The terminal may have another size already, and its event comes later.
            let size = frame.area().as_size();
            if size != app.size {
                let _nothing = app.update(Event::Resized(size));
            }
            draw(app, theme, frame.buffer_mut());
        })?;
        let mut next = match app.has_beats() {
            true => match events.recv_timeout(BEAT) {
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
                first => first.ok(),
            },
            false => Some(match events.recv() {
                Ok(first) => first,
                Err(_) => return Ok(()),
            }),
        };
        if app.has_beats() {
            let _nothing = app.update(Event::Beat(beaten.elapsed().into()));
        }
        beaten = Instant::now();
        while let Some(event) = next {
            for wish in app.update(event) {
                match wish {
                    Wish::Quit => return Ok(()),
                    Wish::Redraw => taken.terminal.resize(Rect::from((Position::ORIGIN, app.size)))?,
                    wish => fulfil(wish),
                }
            }
            next = events.try_recv().ok();
        }
    }
}
