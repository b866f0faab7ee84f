//! `memtide metrics`: the daemon's metrics, on standard output or as the answer to one HTTP request.
//!
//! **Problem.** Prometheus reads no Unix sockets, and the daemon's socket takes orders: a proxy in front of it would pass them on.
//!
//! **Rule.** `--answer` reads one request from standard input, a socket of systemd, and writes one answer to it. It knows one path, passes nothing of the
//! request on, and reads at most [`LONGEST`] bytes of it. systemd ends a client that sends nothing.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;
use memtide_api::Client;

/// No request of Prometheus is longer.
const LONGEST: u64 = 16 << 10;

/// Prints the metrics.
pub fn command(socket: &Path) -> Result<ExitCode> {
    io::stdout().write_all(&Client::at(socket).metrics()?)?;
    Ok(ExitCode::SUCCESS)
}

/// Answers the request on standard input.
pub fn answer(socket: &Path) -> Result<ExitCode> {
    let metrics =
        || Client::at(socket).metrics().map_err(|error| format!("{:#}", anyhow::Error::from(error)));
    answer_to(io::stdin().lock(), io::stdout().lock(), metrics)?;
    Ok(ExitCode::SUCCESS)
}

/// Reads one request, and writes the answer with what `metrics` tells.
fn answer_to(
    asks: impl Read,
    mut answers: impl Write,
    metrics: impl FnOnce() -> Result<Vec<u8>, String>,
) -> io::Result<()> {
    let mut lines = BufReader::new(asks.take(LONGEST)).split(b'\n');
    let first = lines.next().transpose()?.unwrap_or_default();
    // A socket that is closed with unread data can lose the answer: read to the empty line.
    for line in lines {
        if line?.trim_ascii().is_empty() {
            break;
        }
    }
    let first = String::from_utf8_lossy(&first).into_owned();
    let (status, body) = match first.split_ascii_whitespace().collect::<Vec<_>>()[..] {
        ["GET", "/metrics", _] => match metrics() {
            Ok(text) => ("200 OK", text),
            Err(why) => ("503 Service Unavailable", format!("{why}\n").into_bytes()),
        },
        ["GET", ..] => ("404 Not Found", b"only /metrics is here\n".to_vec()),
        _ => ("405 Method Not Allowed", b"only GET /metrics is possible here\n".to_vec()),
    };
    let kind = memtide_metrics::CONTENT_TYPE;
    let length = body.len();
    write!(
        answers,
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
    )?;
    answers.write_all(&body)?;
    answers.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_metrics_are_answered() {
        for (request, metrics, status) in [
            ("GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n", Ok("memtide_managing 1\n"), "200"),
            ("GET /metrics HTTP/1.1\n\n", Err("no daemon answers"), "503"),
            ("GET /v1/status HTTP/1.1\r\n\r\n", Ok(""), "404"),
            ("POST /v1/holds HTTP/1.1\r\nContent-Length: 17\r\n\r\n{\"hold\":\"release\"}", Ok(""), "405"),
            ("POST /metrics HTTP/1.1\r\n\r\n", Ok(""), "405"),
            ("", Ok(""), "405"),
            ("\u{0}", Ok(""), "405"),
        ] {
            let mut answer = Vec::new();
            let metrics = metrics.map(|text| text.as_bytes().to_vec()).map_err(str::to_owned);
            answer_to(request.as_bytes(), &mut answer, || metrics).unwrap();
            let answer = String::from_utf8(answer).unwrap();
            let (head, body) = answer.split_once("\r\n\r\n").unwrap();
            assert!(head.starts_with(&format!("HTTP/1.1 {status} ")), "{request:?}: {answer}");
            assert!(head.contains(&format!("Content-Length: {}\r\n", body.len())), "{head}");
            assert_eq!(body.contains("memtide_"), status == "200");
        }
    }

    #[test]
    fn a_request_without_an_end_is_not_read_to_its_end() {
        let mut answer = Vec::new();
        answer_to(io::repeat(b'a'), &mut answer, || Ok(Vec::new())).unwrap();
        assert!(answer.starts_with(b"HTTP/1.1 405"));
    }
}
