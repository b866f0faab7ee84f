//! A live daemon as a source: its stream of events, on a thread of its own.
//!
//! **Rule.** The thread waits for room in the queue if the screen is slow. The daemon then skips decisions for this client, and never
//! waits. If the daemon is lost, the thread asks again each second.

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use memtide_api::recent::LastMinutes;
use memtide_api::view::Status;
use memtide_api::{Client, ClientError, Event};
use memtide_model::{Moment, WallClock, printable};

use crate::events;
use crate::frame::{Frame, Host};
use crate::past::Past;
use crate::source::{Direction, Entry, Kind, Link, Source};

/// News that wait for the screen.
const WAITING: usize = 64;
/// The time between two attempts to reach a daemon.
const AGAIN: Duration = Duration::from_secs(1);

/// What the thread tells.
enum News {
    Frame(Box<Status>, WallClock),
    Entry(Entry),
    Before(LastMinutes),
    Lost(ClientError),
}

/// A live daemon.
pub struct Live {
    news: Receiver<News>,
    past: Past,
    link: Link,
    /// The first failure, if nothing has come before it.
    failed: Option<ClientError>,
}

impl Live {
    /// Listens to the daemon at `socket`, and calls `arrived` after each piece of news.
    #[must_use]
    pub fn listen(socket: &Path, arrived: impl Fn() + Send + 'static) -> Self {
        let (sender, news) = sync_channel(WAITING);
        let client = Client::at(socket);
        // It ends with the program, or when nobody listens to it any more.
        std::thread::spawn(move || hear(&client, &sender, &arrived));
        Self { news, past: Past::default(), link: Link::Awaited, failed: None }
    }

    /// Waits for the first news. The screen opens unless this is that no daemon answers.
    ///
    /// # Errors
    /// If no daemon answers.
    pub fn first(&mut self, longest: Duration) -> Result<(), ClientError> {
        if let Ok(news) = self.news.recv_timeout(longest) {
            self.take(news);
        }
        self.failed.take().map_or(Ok(()), Err)
    }

    /// A daemon that told all of this, and tells nothing more.
    #[cfg(test)]
    pub(crate) fn made(past: Past, link: Link) -> Self {
        Self { news: sync_channel(0).1, past, link, failed: None }
    }

    fn take(&mut self, news: News) {
        match news {
            News::Frame(status, wall) => {
                self.link = Link::Live;
                if status.decided_at.is_some() {
                    self.past.push(Frame::of(&status, wall, self.past.newest().map(AsRef::as_ref)));
                }
            }
            News::Entry(entry) => self.past.log_entry(entry),
            News::Before(minutes) => self.past.begin(&minutes),
            News::Lost(why) => {
                self.link = Link::Lost(printable(&why.to_string()));
                if self.past.newest().is_none() {
                    self.failed = Some(why);
                }
            }
        }
    }
}

/// Hears a daemon until the screen ends.
fn hear(client: &Client, sender: &SyncSender<News>, arrived: &impl Fn()) {
    let tell = |news| {
        let is_heard = sender.send(news).is_ok();
        arrived();
        is_heard
    };
    loop {
        let mut is_heard = true;
        // Shown after the first frame.
        let mut before = client.history().ok().flatten();
        let ended = client.events(|event| {
            is_heard = match event {
                Event::Tick { status, json: _ } => {
                    let is_heard = tell(News::Frame(status, wall_clock()));
                    before.take().map_or(is_heard, |minutes| tell(News::Before(minutes)))
                }
                Event::Change(change) => tell(News::Entry(events::of_change(&change))),
                Event::Missed(_) => true,
            };
            is_heard
        });
        let lost = ended.err().unwrap_or_else(|| ClientError::Connection("the daemon has ended".into()));
        if !is_heard || !tell(News::Lost(lost)) {
            return;
        }
        std::thread::sleep(AGAIN);
    }
}

fn wall_clock() -> WallClock {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    WallClock(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

impl Source for Live {
    fn refresh(&mut self) {
        while let Ok(news) = self.news.try_recv() {
            self.take(news);
        }
    }

    fn link(&self) -> Link {
        self.link.clone()
    }

    fn moments(&self) -> Option<(Moment, Moment)> {
        self.past.moments()
    }

    fn at(&mut self, moment: Moment) -> Option<Arc<Frame>> {
        self.past.at(moment)
    }

    fn beside(&mut self, moment: Moment, direction: Direction) -> Option<Moment> {
        self.past.beside(moment, direction)
    }

    fn event(&mut self, moment: Moment, direction: Direction, kind: Option<Kind>) -> Option<Entry> {
        self.past.event(moment, direction, kind)
    }

    fn log(&mut self, until: Moment, most: usize) -> Vec<Arc<Entry>> {
        self.past.log(until, most)
    }

    fn later(&mut self, after: Moment, most: usize) -> Vec<Arc<Entry>> {
        self.past.later(after, most)
    }

    fn course(&mut self, from: Moment, until: Moment, most: usize) -> Vec<Host> {
        self.past.course(from, until, most)
    }
}
