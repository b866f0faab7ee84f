//! A daemon of libvirt: whatever it sends, its guest is observed and changed, or an error says why not, in time and in bounded memory.
//!
//! An input is what the daemon sends, a line for each call of each connection, in hexadecimal digits; spaces do not matter, and what follows `#` is a remark. A line that is
//! no such number is sent as it is. After the last line the daemon closes the connection.

use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use memtide_model::{Bytes, Request, Span};
use memtide_vmm::Wish;
use memtide_vmm::libvirt::{ConfiguredDaemon, Daemons, OfLibvirt};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::runtime::{Builder, Runtime};

use crate::scratch;
use crate::texts::{is_for_people, survives_json};

/// The deadline of each observation and request.
const DEADLINE: Duration = Duration::from_millis(200);
/// Far longer than all of them together.
const PLENTY: Duration = Duration::from_secs(20);
/// A client that makes no call is sent the next line after this time.
const NO_CALL: Duration = Duration::from_millis(5);
/// The process of the guest, and its domain's identity.
const PID: u32 = 4_000_001;
const UUID: &str = "070707070707070707070707003d0901";
const FULL: Bytes = Bytes::from_mib(512);
/// The largest memory that a guest may be believed to have (1 PiB).
const MOST_MEMORY: Bytes = Bytes::new(1 << 50);

thread_local! {
    static DIRECTORY: TempDir = scratch::directory();
    static NEXT: Cell<u64> = const { Cell::new(0) };
    static RUNTIME: Runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
}

/// Observes and changes the guest of a daemon that sends `bytes`.
///
/// # Panics
/// If a property does not hold.
pub fn run(bytes: &[u8]) {
    let dir = DIRECTORY.with(|directory| {
        NEXT.with(|next| {
            next.set(next.get() + 1);
            directory.path().join(next.get().to_string())
        })
    });
    for state in ["qemu", "qemu/run"] {
        let state = dir.join(state);
        std::fs::create_dir_all(&state).expect("a directory of our own");
        std::fs::write(state.join("a.pid"), PID.to_string()).expect("a file of our own");
    }
    let lines: Vec<Vec<u8>> =
        bytes.split(|&byte| byte == b'\n').map(line).filter(|line| !line.is_empty()).collect();
    RUNTIME.with(|runtime| runtime.block_on(speak(&dir, lines)));
    std::fs::remove_dir_all(&dir).expect("the directory is ours");
}

/// What a line of the input stands for.
fn line(line: &[u8]) -> Vec<u8> {
    let text = line.split(|&byte| byte == b'#').next().unwrap_or_default();
    let digits: Option<Vec<u8>> = text
        .iter()
        .filter(|byte| !byte.is_ascii_whitespace())
        .map(|&byte| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok()))
        .collect();
    match digits {
        Some(digits) => digits.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect(),
        None => line.to_vec(),
    }
}

async fn speak(dir: &Path, lines: Vec<Vec<u8>>) {
    let socket = dir.join("libvirt-sock");
    let listener = UnixListener::bind(&socket).expect("a socket of our own");
    let daemon = tokio::spawn(listen(listener, lines));
    drive(socket).await;
    daemon.abort();
}

async fn listen(listener: UnixListener, lines: Vec<Vec<u8>>) {
    while let Ok((client, _)) = listener.accept().await {
        tokio::spawn(serve(client, lines.clone()));
    }
}

async fn serve(mut client: UnixStream, lines: Vec<Vec<u8>>) {
    let mut call = [0; 4096];
    for line in lines {
        let _none = tokio::time::timeout(NO_CALL, client.read(&mut call)).await;
        if client.write_all(&line).await.is_err() {
            return;
        }
    }
}

async fn drive(socket: PathBuf) {
    let begun = Instant::now();
    let named = ConfiguredDaemon { socket: Some(socket), monitor_commands: true };
    let process = OfLibvirt { pid: PID, user: Some(0), uuid: Some(UUID.to_owned()), full: FULL, owner: None };
    let mut control = Daemons::new(vec![named]).control_of(process);
    let wish = Wish { refresh_stats: true, sizes: true, keep_open: false };
    for request in [Request::PollStats(Span::from_secs(1)), Request::SetTarget(Bytes::from_mib(256))] {
        let told = control.observe(wish, DEADLINE).await;
        assert!(told.full <= MOST_MEMORY, "{told:?}");
        if let Some(balloon) = told.balloon.latest() {
            assert!(balloon.actual <= told.full, "{told:?}");
        }
        if let Some(why) = told.balloon.why_not() {
            is_for_people(&why.to_string());
        }
        survives_json(&told);
        if let Err(why) = control.apply(request, DEADLINE).await {
            is_for_people(&why.to_string());
        }
    }
    assert!(begun.elapsed() < PLENTY, "{:?}", begun.elapsed());
}
