//! `memtide top`: a terminal screen on which people see memory move.
//!
//! **Design.** The screen is a pure core: [`app::App`] is its state, `update` takes an event over, and `draw` draws it. What comes from outside
//! comes through a [`source::Source`]: a source gives the [`frame::Frame`] of any moment, and what happened between two of them. The live one
//! listens to the daemon's events and keeps the last ten minutes; a journal is the other. Orders and questions go to the daemon on threads of their own, so a slow
//! daemon never stops the screen.
//!
//! - [`frame`], [`source`], [`past`], [`mod@live`], [`journal`], [`events`]: what there is to see, and where it comes from;
//! - [`app`]: the state of the screen; [`layout`], [`text`], [`clock`], [`help`]: what it needs for people;
//! - [`draw`]: pictures of it;
//! - [`terminal`], [`hands`]: the terminal and the daemon.
#![forbid(unsafe_code)]

pub mod app;
pub mod clock;
pub mod draw;
pub mod events;
pub mod frame;
pub mod hands;
pub mod help;
pub mod journal;
pub mod layout;
pub mod live;
pub mod past;
pub mod source;
pub mod terminal;
pub mod text;

#[cfg(test)]
mod sample;
#[cfg(test)]
mod tests;

use std::io::{self, IsTerminal as _};
use std::path::Path;
use std::sync::mpsc::channel;
use std::time::Duration;

use jiff::tz::TimeZone;
use memtide_api::ClientError;
use memtide_engine::journal::JournalError;
use memtide_model::{Moment, WallClock};

use app::{App, Event};
use draw::theme::Theme;
use hands::{Hands, Words};
use journal::Journal;
use live::Live;
use source::Source as _;

/// The screen opens after this time also if the daemon has not answered.
const FIRST: Duration = Duration::from_millis(100);

/// Why the screen did not open, or ended.
#[derive(Debug, thiserror::Error)]
pub enum TopError {
    /// No daemon answers.
    #[error(transparent)]
    Daemon(#[from] ClientError),
    /// The journal cannot be read.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// Standard input or output is a file or a pipe.
    #[error("this needs a terminal; `memtide status --watch` prints the same to anything else")]
    NoTerminal,
    /// The terminal failed.
    #[error("the terminal failed")]
    Terminal(#[from] io::Error),
}

/// Shows the daemon at `socket` until the user quits.
///
/// # Errors
/// If this is no terminal, or if no daemon answers at the start.
pub fn live(socket: &Path, words: Words) -> Result<(), TopError> {
    if !io::stdin().is_terminal() || !io::stdout().is_terminal() {
        return Err(TopError::NoTerminal);
    }
    let (sender, events) = channel();
    let arrived = sender.clone();
    let mut source = Live::listen(socket, move || drop(arrived.send(Event::Arrived)));
    source.first(FIRST)?;
    terminal::watch(&sender)?;
    let hands = Hands::new(socket, words, sender);
    let mut app = App::new(Box::new(source), TimeZone::system(), terminal::size()?);
    terminal::show(&mut app, theme(), &events, |wish| hands.fulfil(wish))?;
    Ok(())
}

/// Shows a journal until the user quits, beginning with the time that `begin` chooses between the first and the last decision.
///
/// # Errors
/// If this is no terminal, or if the journal cannot be read.
pub fn recorded(
    mut source: Journal,
    begin: impl FnOnce((WallClock, WallClock), &TimeZone) -> Option<WallClock>,
) -> Result<(), TopError> {
    if !io::stdin().is_terminal() || !io::stdout().is_terminal() {
        return Err(TopError::NoTerminal);
    }
    let zone = TimeZone::system();
    let at = source.walls().and_then(|walls| begin(walls, &zone));
    source.refresh();
    let (sender, events) = channel();
    terminal::watch(&sender)?;
    let mut app = App::new(Box::new(source), zone, terminal::size()?);
    if let Some(at) = at {
        app.go_to(Moment::from_millis(at.0));
    }
    // A journal takes no orders, and explains by itself.
    terminal::show(&mut app, theme(), &events, drop)?;
    Ok(())
}

fn theme() -> Theme {
    let named = |name| std::env::var(name).ok();
    Theme::of(named("NO_COLOR").as_deref(), named("COLORTERM").as_deref(), named("TERM").as_deref())
}
