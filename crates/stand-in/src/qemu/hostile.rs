//! How a stand-in misbehaves.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::answers::refusal;

/// How a stand-in treats its clients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Behaviour {
    /// Like QEMU.
    #[default]
    Honest,
    /// Accepts connections and says nothing, like a monitor that another client holds.
    NoGreeting,
    /// Greets, agrees, and never answers again.
    SilentAfterGreeting,
    /// Answers questions, but never a command that changes something.
    SilentToChanges,
    /// Sends lines that are not JSON.
    Garbage,
    /// Sends one line without an end.
    EndlessLine,
    /// Answers with a line of 256 MiB.
    LongLine,
    /// Is honest, but adds 200 KiB of unrequested data to each answer.
    Verbose,
    /// Sends one byte every half second, from the greeting on.
    Drip,
    /// Greets, agrees, and answers with one byte every half second.
    DripAnswers,
    /// Is honest, but sends events as fast as they are read.
    EventFlood,
    /// Greets, agrees, and closes in the middle of an answer.
    HalfMessage,
    /// Answers with unknown identifiers.
    WrongIds,
    /// Answers with values of another type.
    WrongTypes,
    /// Answers with 2⁶⁴ − 1, −1 and 10³⁰ in turn, in place of every number.
    Numbers,
    /// Its times go back by ten seconds with each answer and event.
    TimeBackwards,
    /// Refuses changes with terminal escapes and other characters that do not stay in their line, with other words each time.
    /// The names of its events contain such characters, too.
    Escapes,
    /// Refuses every command.
    Refuse,
    /// Closes after its greeting.
    DropAfterGreeting,
    /// Greets, agrees, and closes at the first command.
    DropOnCommand,
}

/// The length of a long line, in bytes.
const LONG_LINE: usize = 256 << 20;
/// The length of the data that a verbose monitor adds, in bytes.
const MORE: usize = 200 << 10;
/// The time between two bytes of a dripping monitor.
pub(super) const DRIP: Duration = Duration::from_millis(500);
/// Text that must not reach a display: a cleared screen, a colour, a bell, a title, a C1 control, text from right to left.
pub const ESCAPES: &str =
    "\u{1b}[2J\u{1b}[31mred\u{7}\u{1b}]0;title\u{7}\r\n\u{9b}32m\u{7f}\u{202e}gnp.exe\u{2066}";
/// Numbers on the wire that are not a valid size, count or time.
const NUMBERS: [&str; 3] = ["18446744073709551615", "-1", "1000000000000000000000000000000"];
/// Stands for a number until the message is written.
const NUMBER: &str = "\u{0}number";

impl Behaviour {
    /// All behaviours except the honest one.
    pub const HOSTILE: [Self; 19] = [
        Self::NoGreeting,
        Self::SilentAfterGreeting,
        Self::SilentToChanges,
        Self::Garbage,
        Self::EndlessLine,
        Self::LongLine,
        Self::Verbose,
        Self::Drip,
        Self::DripAnswers,
        Self::EventFlood,
        Self::HalfMessage,
        Self::WrongIds,
        Self::WrongTypes,
        Self::Numbers,
        Self::TimeBackwards,
        Self::Escapes,
        Self::Refuse,
        Self::DropAfterGreeting,
        Self::DropOnCommand,
    ];

    /// The treatment of a client before the greeting; `None`: the client is greeted.
    pub(super) fn instead_of_greeting(self, mut client: &UnixStream) -> Option<io::Result<()>> {
        match self {
            Self::NoGreeting => Some(wait_for_end(client)),
            Self::EndlessLine => Some(repeat(client, usize::MAX)),
            Self::Garbage => client.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").err().map(Err),
            _ => None,
        }
    }

    /// Whether a client is dropped after it sent this command.
    pub(super) fn drops(self, command: &str) -> bool {
        match self {
            Self::DropAfterGreeting => true,
            Self::DropOnCommand => command != "qmp_capabilities",
            _ => false,
        }
    }

    /// Whether this command gets no answer.
    pub(super) fn is_silent_to(self, command: &str) -> bool {
        match self {
            Self::SilentAfterGreeting => command != "qmp_capabilities",
            Self::SilentToChanges => matches!(command, "balloon" | "qom-set"),
            _ => false,
        }
    }

    /// Whether this command is refused.
    pub(super) fn refuses(self, command: &str) -> bool {
        match self {
            Self::Refuse => true,
            Self::Escapes => matches!(command, "balloon" | "qom-set"),
            _ => false,
        }
    }

    /// The message in place of the `answer` to `command`, the `nth` answer.
    pub(super) fn answer(self, command: &str, arguments: &Value, mut answer: Value, nth: u64) -> Value {
        match self {
            _ if command == "qmp_capabilities" => answer,
            Self::WrongTypes => json!({"return": [[{"actual": "a lot", "status": 5}]]}),
            Self::Refuse => refusal("GenericError", "not\u{7} today"),
            Self::Escapes if self.refuses(command) => refusal(ESCAPES, &format!("{nth} {ESCAPES}")),
            Self::Verbose => {
                let more = "x".repeat(MORE);
                match &mut answer["return"] {
                    Value::Object(fields) => drop(fields.insert("more".to_owned(), json!(more))),
                    Value::Array(values) => values.push(json!({"name": more, "type": more})),
                    _ => {}
                }
                answer
            }
            Self::Numbers => {
                mark_numbers(&mut answer);
                answer
            }
            Self::TimeBackwards if arguments["property"] == "guest-stats" => {
                let update = &mut answer["return"]["last-update"];
                *update = json!(update.as_u64().unwrap_or(0).saturating_sub(nth * 10));
                answer
            }
            _ => answer,
        }
    }

    /// An event as it is sent, the `nth` message.
    pub(super) fn event(self, mut event: Value, nth: u64) -> Value {
        match self {
            Self::Escapes => event["event"] = json!(ESCAPES),
            Self::Numbers => mark_numbers(&mut event),
            Self::TimeBackwards => {
                let seconds = &mut event["timestamp"]["seconds"];
                *seconds = json!(seconds.as_u64().unwrap_or(0).saturating_sub(nth * 10));
            }
            _ => {}
        }
        event
    }

    /// The identifier that an answer to `id` carries.
    pub(super) fn id(self, id: &Value) -> Value {
        match self {
            Self::WrongIds => json!("nobody's"),
            _ => id.clone(),
        }
    }

    /// A message as text for the wire, the `nth` message.
    pub(super) fn text(self, message: &Value, nth: u64) -> String {
        let number = NUMBERS[usize::try_from(nth % NUMBERS.len() as u64).unwrap_or_default()];
        // The mark appears as JSON writes it.
        let text = message.to_string().replace(&json!(NUMBER).to_string(), number);
        format!("{text}\r\n")
    }

    /// Writes an answer in this behaviour's own way; `None`: it is written as it is. `Err`: the client is dropped.
    pub(super) fn write(self, mut client: &UnixStream, text: &str) -> Option<io::Result<()>> {
        match self {
            Self::HalfMessage => {
                let half = client.write_all(&text.as_bytes()[..text.len() / 2]);
                Some(half.and(Err(io::ErrorKind::ConnectionAborted.into())))
            }
            Self::LongLine => {
                let mut write = || {
                    client.write_all(b"{\"return\": \"")?;
                    repeat(client, LONG_LINE)?;
                    client.write_all(b"\"}\r\n")
                };
                Some(write())
            }
            Self::Drip | Self::DripAnswers => Some(drip(client, text)),
            _ => None,
        }
    }
}

fn mark_numbers(value: &mut Value) {
    match value {
        Value::Number(_) => *value = json!(NUMBER),
        Value::Array(values) => values.iter_mut().for_each(mark_numbers),
        Value::Object(fields) => fields.values_mut().for_each(mark_numbers),
        Value::Null | Value::Bool(_) | Value::String(_) => {}
    }
}

pub(super) fn repeat(mut client: &UnixStream, times: usize) -> io::Result<()> {
    let chunk = [b'x'; 64 << 10];
    let mut left = times;
    while left > 0 {
        let now = left.min(chunk.len());
        client.write_all(&chunk[..now])?;
        left -= now;
    }
    Ok(())
}

/// Writes one byte after the other while the client is connected.
fn drip(mut client: &UnixStream, text: &str) -> io::Result<()> {
    let mut heard = [0; 64];
    client.set_read_timeout(Some(DRIP))?;
    for byte in text.bytes() {
        client.write_all(&[byte])?;
        match client.read(&mut heard) {
            Ok(0) => return Err(io::ErrorKind::ConnectionAborted.into()),
            Ok(_) => {}
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {}
            Err(error) => return Err(error),
        }
    }
    client.set_read_timeout(None)
}

fn wait_for_end(mut client: &UnixStream) -> io::Result<()> {
    io::copy(&mut client, &mut io::sink()).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_are_none_stand_wherever_there_is_a_number() {
        let answer = json!({"return": {"actual": 5, "list": [1, {"n": 2}], "on": true}, "id": "x"});
        let marked = Behaviour::Numbers.answer("query", &json!({}), answer, 0);
        let text = Behaviour::Numbers.text(&marked, 2);
        let ten30 = "1000000000000000000000000000000";
        assert_eq!(
            text,
            format!(
                "{{\"id\":\"x\",\"return\":{{\"actual\":{ten30},\"list\":[{ten30},{{\"n\":{ten30}}}],\"on\":true}}}}\r\n"
            )
        );
        assert!(Behaviour::Numbers.text(&marked, 1).contains("\"actual\":-1"));
    }
}
