//! What the screen asks of the daemon besides its events, each on a thread of its own: the screen never waits.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;

use memtide_api::reclaim::{ReclaimAnswer, ReclaimRequest};
use memtide_api::view::{GuestDetail, HoldAnswer, HoldRequest, Wanted};
use memtide_api::{Client, ClientError};

use crate::app::Event;
use crate::app::orders::{Answer, Order, What, Wish};

/// The texts that the commands print for the same answers.
#[derive(Clone, Copy)]
pub struct Words {
    /// Why a guest has its memory.
    pub explain: fn(&GuestDetail) -> String,
    /// What became of an order to hold, release or resume.
    pub held: fn(&HoldAnswer, Wanted) -> String,
    /// What a reclaim would bring.
    pub offer: fn(&ReclaimAnswer, &GuestDetail) -> String,
    /// What a reclaim brought.
    pub reclaimed: fn(&ReclaimRequest, &ReclaimAnswer) -> String,
}

/// Asks the daemon.
pub struct Hands {
    socket: PathBuf,
    words: Words,
    answers: Sender<Event>,
    explains: Arc<AtomicBool>,
}

impl Hands {
    /// Asks the daemon at `socket`, and sends its answers to `answers`.
    #[must_use]
    pub fn new(socket: &Path, words: Words, answers: Sender<Event>) -> Self {
        Self { socket: socket.to_owned(), words, answers, explains: Arc::default() }
    }

    /// Does what the screen wishes.
    pub fn fulfil(&self, wish: Wish) {
        // A slow daemon is asked for one explanation at a time.
        let explains = matches!(wish, Wish::Explain(_)).then(|| Arc::clone(&self.explains));
        if explains.as_ref().is_some_and(|busy| busy.swap(true, Ordering::Relaxed)) {
            return;
        }
        let (client, words, answers) = (Client::at(&self.socket), self.words, self.answers.clone());
        std::thread::spawn(move || {
            let answer = match wish {
                Wish::Quit | Wish::Redraw => None,
                Wish::Order(order) => Some(give(&client, words, order)),
                Wish::Preview(guest) => Some(preview(&client, words, guest)),
                Wish::Explain(guest) => Some(explain(&client, words, guest)),
            };
            if let Some(busy) = explains {
                busy.store(false, Ordering::Relaxed);
            }
            // Without a screen, nobody needs the answer.
            let _nobody = answer.map(|answer| answers.send(Event::Answered(answer)));
        });
    }
}

fn give(client: &Client, words: Words, order: Order) -> Answer {
    let guest = order.guest.to_string();
    let text = match order.what {
        What::Hold(hold) => {
            let request = HoldRequest { guest: Some(guest), hold, for_span: None };
            told(client.hold(&request), |answer| (words.held)(&answer, hold))
        }
        What::Reclaim => {
            let request = ReclaimRequest { guest, ..ReclaimRequest::default() };
            told(client.reclaim(&request), |answer| (words.reclaimed)(&request, &answer))
        }
    };
    Answer::Done { order, text }
}

fn preview(client: &Client, words: Words, guest: Arc<str>) -> Answer {
    let request = ReclaimRequest { guest: guest.to_string(), dry_run: true, ..ReclaimRequest::default() };
    let both = client.reclaim(&request).and_then(|answer| Ok(answer.zip(client.guest(&guest)?)));
    let text = told(both, |(answer, detail)| (words.offer)(&answer, &detail));
    Answer::Previewed { guest, text }
}

fn explain(client: &Client, words: Words, guest: Arc<str>) -> Answer {
    let text = told(client.guest(&guest), |detail| (words.explain)(&detail));
    Answer::Explained { guest, text }
}

/// The answer in words, or why there is none.
fn told<T>(
    answer: Result<Option<T>, ClientError>,
    in_words: impl FnOnce(T) -> String,
) -> Result<String, String> {
    match answer {
        Ok(Some(answer)) => Ok(in_words(answer).trim_end().to_owned()),
        Ok(None) => Err("this guest is gone".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}
