//! Server-sent events as the daemon writes them: lines with a name and with data, and an empty line after each event.

use memtide_model::printable;
use serde::de::DeserializeOwned;

use crate::ClientError;
use crate::history::GuestChange;
use crate::view::Status;

/// One event of `GET /v1/events`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A decision: the status after it, also as the daemon wrote it.
    Tick {
        /// The status.
        status: Box<Status>,
        /// Its JSON.
        json: String,
    },
    /// A change of a guest by the last decision.
    Change(GuestChange),
    /// This client was too slow for this many decisions.
    Missed(u64),
}

/// Reads events from the pieces in which they arrive.
#[derive(Debug, Default)]
pub(crate) struct Parser {
    line: Vec<u8>,
    name: String,
    data: String,
}

impl Parser {
    /// Takes a piece, and returns the events that end in it. Events of unknown names are skipped: another version wrote them.
    pub(crate) fn take(&mut self, piece: &[u8]) -> Result<Vec<Event>, ClientError> {
        let mut events = Vec::new();
        for &byte in piece {
            if byte != b'\n' {
                self.line.push(byte);
                continue;
            }
            let line = String::from_utf8_lossy(&std::mem::take(&mut self.line)).into_owned();
            match line.split_once(':') {
                Some(("event", name)) => name.trim().clone_into(&mut self.name),
                Some(("data", data)) => data.trim().clone_into(&mut self.data),
                None if line.is_empty() => events.extend(self.event()?),
                _ => {}
            }
        }
        Ok(events)
    }

    /// The bytes of an event that has not ended.
    pub(crate) const fn pending(&self) -> usize {
        self.line.len() + self.data.len()
    }

    fn event(&mut self) -> Result<Option<Event>, ClientError> {
        let (name, data) = (std::mem::take(&mut self.name), std::mem::take(&mut self.data));
        Ok(match name.as_str() {
            "tick" => Some(Event::Tick { status: read(&data)?, json: printable(&data) }),
            "change" => Some(Event::Change(read(&data)?)),
            "missed" => Some(Event::Missed(read(&data)?)),
            _ => None,
        })
    }
}

fn read<T: DeserializeOwned>(data: &str) -> Result<T, ClientError> {
    serde_json::from_str(data).map_err(ClientError::OtherVersion)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_read_from_any_pieces() {
        let text =
            b": a comment\n\nevent: missed\ndata: 3\n\nevent: later\ndata: {}\n\nevent:missed\ndata:4\n\n";
        for size in [1, 7, text.len()] {
            let mut parser = Parser::default();
            let pieces = text.chunks(size).map(|piece| parser.take(piece).unwrap());
            assert_eq!(pieces.flatten().collect::<Vec<_>>(), [Event::Missed(3), Event::Missed(4)], "{size}");
            assert_eq!(parser.pending(), 0);
        }
    }

    #[test]
    fn data_of_another_form_is_an_error() {
        let error = Parser::default().take(b"event: missed\ndata: many\n\n").unwrap_err();
        assert!(matches!(error, ClientError::OtherVersion(_)), "{error}");
    }
}
