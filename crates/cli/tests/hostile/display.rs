//! Everything that an operator can make the daemon show, and the characters that must not reach a display.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use crate::common::Daemon;

/// All output about `daemon`, each with its name.
pub fn all(daemon: &Daemon, journal: &Path, guests: &[String]) -> Vec<(String, String)> {
    let journal = journal.to_str().unwrap();
    let mut all = vec![
        ("status".to_owned(), daemon.ask(&["status"])),
        ("status --json".to_owned(), daemon.ask(&["status", "--json"])),
        ("metrics".to_owned(), metrics(daemon)),
        ("journal".to_owned(), daemon.command(&["journal", journal])),
        ("journal --golden".to_owned(), daemon.command(&["journal", journal, "--golden"])),
    ];
    for guest in guests {
        all.push((format!("explain {guest}"), daemon.ask(&["explain", guest])));
        all.push((format!("explain {guest} --json"), daemon.ask(&["explain", guest, "--json"])));
    }
    all
}

fn metrics(daemon: &Daemon) -> String {
    let mut stream = UnixStream::connect(daemon.socket()).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.0\r\nhost: memtide\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    assert!(head.contains(" 200 "), "{head}");
    body.to_owned()
}

/// Fails if `text` contains anything that a terminal would obey instead of show.
pub fn assert_harmless(what: &str, text: &str) {
    if let Some(at) = text.chars().position(|c| !matches!(c, '\n' | '\t') && obeys(c)) {
        let before: String = text.chars().skip(at.saturating_sub(100)).take(150).collect();
        panic!("{what}: {before:?}");
    }
}

/// Control characters, and characters that change the writing direction.
fn obeys(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200e}' | '\u{200f}' | '\u{61c}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}
