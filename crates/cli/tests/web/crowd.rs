//! A thousand guests: a daemon that is made up, because a thousand processes would measure the machine.

use std::io::{BufRead as _, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use memtide_api::view::Status;
use memtide_stand_in::qemu::process::Stage;

use crate::browser::{Browser, DESK};
use crate::server::Server;
use crate::{daemon, guest};

const GUESTS: usize = 1_000;
/// The time between two decisions of the made-up daemon: as often as a real one decides while memory moves.
const DECIDES: Duration = Duration::from_millis(250);

/// Answers as a daemon with the status `first` would. Each decision changes every guest.
fn made_up(socket: &Path, first: Status) {
    let listener = UnixListener::bind(socket).unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let first = first.clone();
            std::thread::spawn(move || answer(stream, first));
        }
    });
}

fn answer(mut stream: UnixStream, mut status: Status) {
    let mut asked = String::new();
    BufReader::new(stream.try_clone().unwrap()).read_line(&mut asked).unwrap();
    if !asked.contains("/v1/events") {
        let json = if asked.contains("/v1/status") {
            serde_json::to_string(&status).unwrap()
        } else {
            "{}".to_owned()
        };
        let head = format!(
            "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            json.len()
        );
        _ = stream.write_all((head + &json).as_bytes());
        return;
    }
    let mut told = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n");
    while told.is_ok() {
        let now = status.decided_at.unwrap_or_default();
        status.decided_at = Some(now.after(DECIDES.into()));
        for (nth, guest) in (0_u64..).zip(&mut status.guests) {
            let parts = guest.parts.as_mut().unwrap();
            let step = memtide_model::Bytes::from_mib((now.as_millis() / 250 + nth) % 7);
            std::mem::swap(&mut parts.size.free, &mut parts.size.cold_cache);
            parts.size.free = parts.size.free.saturating_add(step);
            guest.report.actual = guest.report.actual.saturating_add(step);
        }
        told = write!(stream, "event: tick\ndata: {}\n\n", serde_json::to_string(&status).unwrap());
        std::thread::sleep(DECIDES);
    }
}

/// A status like that of a real daemon, with a thousand guests in it.
fn crowded(directory: &Path) -> Status {
    let prefix = format!("crowd{}", std::process::id());
    let stage = Stage::new(directory).unwrap();
    let _guest = guest(&stage, &format!("{prefix}-1"));
    let daemon = daemon(directory, &prefix);
    daemon
        .until("statistics", |status| status.guests.first().is_some_and(|guest| guest.report.used.is_some()));
    let mut status = daemon.status();
    let one = status.guests[0].clone();
    status.guests = (1..=GUESTS)
        .map(|nth| {
            let mut guest = one.clone();
            guest.name = format!("guest-{nth}");
            guest
        })
        .collect();
    status.sentence = status.in_a_sentence();
    status
}

pub fn a_thousand_guests() {
    let directory = tempfile::tempdir().unwrap();
    let mut browser = Browser::start(directory.path());
    let socket: PathBuf = directory.path().join("crowd.sock");
    made_up(&socket, crowded(directory.path()));
    let server = Server::start(&socket);
    browser.open(&server.url, DESK);
    let rows = "document.querySelectorAll('#rows tr').length";
    browser.until("the first portion", &format!("{rows} === 100"));
    browser.picture("crowd-desk");
    // What it costs, for people: tasks of 50 ms and more.
    let took = browser.value(
        "new Promise(done => { const took = []; const observer = new PerformanceObserver(list => { for (const entry of list.getEntries()) took.push(Math.round(entry.duration)); });
         observer.observe({ type: 'longtask', buffered: false }); setTimeout(() => done(took), 3000); })",
    );
    println!("long tasks within 3 s, in ms: {took}");
    browser.value(
        "document.getElementById('words').focus(); document.execCommand('insertText', false, 'guest-77')",
    );
    browser.until("a filtered list", "document.getElementById('shown').textContent === '11 of 1000 guests'");
    browser.value("document.getElementById('words').value = ''; document.getElementById('words').dispatchEvent(new Event('input'))");
    browser.value("document.getElementById('more').click()");
    browser.until("more rows", &format!("{rows} === 200"));
    assert!(browser.complaints.is_empty(), "{:?}", browser.complaints);
}
