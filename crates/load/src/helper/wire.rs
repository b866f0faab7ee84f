//! The control channel: one JSON object a line in each direction, at most [`MAX_LINE`] bytes.
//!
//! ```text
//! → {"id":1,"do":"load","options":["--size","600M","--grow","150M","--passes","0","--hold","--seed","7"]}
//! ← {"id":1,"progress":{"bytes":157286400}}
//! ← {"id":1,"done":{"size_bytes":629145600,"touched_bytes":0,…}}
//! → {"id":2,"do":"order","load":1,"line":"check"}
//! ← {"id":2,"done":{"bytes":629145600,"checksum":…,"mismatches":0,"described":[]}}
//! ```
//!
//! Every request gets exactly one final answer with its id, `done` or `error`. Before it, long jobs report `progress` each
//! second. Answers of different jobs may come in any order. If a load is killed after its `done`, while it holds its memory,
//! the helper reports it as `lost` with the id of the job that started it.

use std::io::{self, BufRead, Read};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::exerciser::report::Second;

/// The longest line in bytes, including the line feed.
pub const MAX_LINE: u64 = 256 << 10;
/// The name of the virtio-serial port between the lab and its guests.
pub const PORT: &str = "org.memtide.lab.0";

/// A request from the host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// Chosen by the host and echoed in each answer. It must not be the id of a running job.
    pub id: u64,
    /// The job.
    #[serde(flatten)]
    pub ask: Ask,
}

/// A job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case")]
pub enum Ask {
    /// Answers with [`Hello`].
    Hello,
    /// Starts the exerciser in its own process. Answers with [`crate::exerciser::report::Summary`] when all touches are done.
    /// With `--hold`, the load then keeps its memory until it is cancelled or ordered to stop.
    Load {
        /// The arguments of `memtide-load`; the helper adds `--lines --control -`.
        options: Vec<String>,
    },
    /// Gives a command to a load; see [`crate::exerciser::command`] for the commands and their answers.
    Order {
        /// The id of the job that started the load.
        load: u64,
        /// The command.
        line: String,
    },
    /// Answers with [`super::meminfo::Meminfo`].
    Meminfo,
    /// Reserves huge pages: memory that the guest takes and does not use. Answers with [`Hugepages`].
    Hugepages {
        /// Size in MiB; zero releases all.
        mib: u64,
    },
    /// Runs a command with `/bin/sh`. Answers with [`Output`].
    Sh {
        /// The command.
        cmd: String,
    },
    /// Ends a load or a command, and answers with null once it has ended. A job without an answer so far ends with an error.
    Cancel {
        /// The id of the job to end.
        job: u64,
    },
}

/// A message from the guest.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Reply {
    /// The request's id; 0 if the request was not understood.
    pub id: u64,
    /// The answer.
    #[serde(flatten)]
    pub answer: Answer,
}

/// An answer to a request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// The job continues.
    Progress {
        /// Bytes done so far.
        bytes: u64,
        /// The load's touches in the last second, once its memory is filled.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        second: Option<Box<Second>>,
    },
    /// The job succeeded. The content depends on the job; see [`Ask`].
    Done(Value),
    /// The job failed.
    Error(String),
    /// The load that this job started has ended although nobody ended it.
    Lost(String),
}

/// The helper introduces itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// Version of this program.
    pub version: String,
    /// Release of the guest's kernel.
    pub kernel: String,
    /// Whether the helper could protect itself from the OOM killer.
    pub protected: bool,
}

/// The pages that the kernel reserved.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hugepages {
    /// The number of huge pages reserved now: fewer than requested if memory was short.
    pub pages: u64,
    /// The size of each in KiB.
    pub page_kib: u64,
}

/// The result of a command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Output {
    /// Exit code; `None` if a signal ended the command.
    pub code: Option<i32>,
    /// Standard output and standard error in the order of writing, cut after [`super::shell::MAX_OUTPUT`] bytes.
    pub text: String,
    /// Whether the text was cut.
    pub cut: bool,
}

/// Reads one line without its line feed; `None` at the end of the channel.
///
/// # Errors
/// If reading fails or the line is longer than [`MAX_LINE`] (`InvalidData`; the rest of the line follows).
pub fn read_line(from: &mut impl BufRead) -> io::Result<Option<Vec<u8>>> {
    let mut line = Vec::new();
    from.take(MAX_LINE).read_until(b'\n', &mut line)?;
    if line.last() == Some(&b'\n') {
        line.pop();
        Ok(Some(line))
    } else if line.len() as u64 >= MAX_LINE {
        Err(io::Error::new(io::ErrorKind::InvalidData, "the line is too long"))
    } else {
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_and_answers_look_as_documented() {
        let line = r#"{"id":1,"do":"load","options":["--size","1G"]}"#;
        let request: Request = serde_json::from_str(line).unwrap();
        assert_eq!(request.ask, Ask::Load { options: vec!["--size".to_owned(), "1G".to_owned()] });
        let reply = Reply { id: 1, answer: Answer::Progress { bytes: 5, second: None } };
        assert_eq!(serde_json::to_string(&reply).unwrap(), r#"{"id":1,"progress":{"bytes":5}}"#);
        let error = Reply { id: 2, answer: Answer::Error("no".to_owned()) };
        assert_eq!(serde_json::to_string(&error).unwrap(), r#"{"id":2,"error":"no"}"#);
        assert_eq!(serde_json::from_str::<Reply>(r#"{"id":2,"error":"no"}"#).unwrap(), error);
    }

    #[test]
    fn lines_are_bounded_and_a_torn_one_does_not_count() {
        let mut text: &[u8] = b"one\n\ntwo";
        assert_eq!(read_line(&mut text).unwrap(), Some(b"one".to_vec()));
        assert_eq!(read_line(&mut text).unwrap(), Some(Vec::new()));
        assert_eq!(read_line(&mut text).unwrap(), None);
        let long = vec![b'x'; usize::try_from(MAX_LINE).unwrap() + 1];
        assert_eq!(read_line(&mut long.as_slice()).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }
}
