//! A monitor: whatever it sends, a guest is polled and changed, or an error says why not, in time and in bounded memory.
//!
//! An input is everything that a monitor sends; it then closes the connection. It sends the same to each client, at once,
//! through a real socket. With a first line `@refresh`, statistics are also requested out of turn, which waits some
//! milliseconds.

use std::cell::Cell;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::time::Duration;

use memtide_model::{Absence, Bytes, GuestId, Span, Told};
use memtide_vmm::Wish;
use memtide_vmm::qemu::{Monitor, MonitorConfig, MonitorError, QmpError, Use};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::runtime::{Builder, Runtime};

use crate::scratch;
use crate::texts::{are_for_people, is_for_people, survives_json};

/// Far longer than the wait for a monitor that has closed its connection.
const DEADLINE: Duration = Duration::from_secs(30);
/// The largest memory that a guest may be believed to have (1 PiB).
const MOST_MEMORY: Bytes = Bytes::new(1 << 50);

thread_local! {
    static DIRECTORY: TempDir = scratch::directory();
    static NEXT: Cell<u64> = const { Cell::new(0) };
    static RUNTIME: Runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
}

/// Polls and changes the guest of a monitor that sends `bytes`.
///
/// # Panics
/// If a property does not hold.
pub fn run(bytes: &[u8]) {
    let (refresh_stats, said) = match bytes.strip_prefix(b"@refresh\n") {
        Some(rest) => (true, rest),
        None => (false, bytes),
    };
    let path = DIRECTORY.with(|directory| {
        NEXT.with(|next| {
            next.set(next.get() + 1);
            directory.path().join(format!("{}.qmp", next.get()))
        })
    });
    RUNTIME.with(|runtime| {
        for use_as in [Use::Brief, Use::Dedicated] {
            runtime.block_on(speak(
                &path,
                said,
                use_as,
                Wish { refresh_stats, sizes: false, keep_open: refresh_stats },
            ));
        }
    });
}

async fn speak(path: &Path, said: &[u8], use_as: Use, wish: Wish) {
    let listener = UnixListener::bind(path).expect("a socket of our own");
    let monitor = tokio::spawn(serve(listener, said.to_vec()));
    drive(path.to_owned(), use_as, wish).await;
    monitor.abort();
    std::fs::remove_file(path).expect("the socket is ours");
}

/// Sends the same to each client, and reads until the client closes.
async fn serve(listener: UnixListener, said: Vec<u8>) {
    while let Ok((stream, _)) = listener.accept().await {
        tokio::spawn(say(stream, said.clone()));
    }
}

async fn say(stream: UnixStream, said: Vec<u8>) {
    let (mut hears, mut says) = stream.into_split();
    // A client that has enough may be gone.
    let _ = says.write_all(&said).await;
    let _ = says.shutdown().await;
    let mut heard = [0; 4096];
    while hears.read(&mut heard).await.is_ok_and(|bytes| bytes > 0) {}
}

async fn drive(path: PathBuf, use_as: Use, wish: Wish) {
    let mut monitor = Monitor::new(MonitorConfig {
        guest: GuestId::new("fuzzed", 1, "boot"),
        paths: vec![path],
        peer: None,
        use_as,
        memory: Some(Bytes::from_mib(512)),
    });
    is_bounded(&monitor.poll(Wish::default(), DEADLINE).await);
    told(monitor.set_polling(Span::from_secs(1), DEADLINE).await);
    is_bounded(&monitor.poll(wish, DEADLINE).await);
    told(monitor.set_target(Bytes::from_mib(256), DEADLINE).await);
    // An event that has arrived is returned. If there is none, nobody waits.
    let event = async { Some(monitor.next_event().await) };
    tokio::select! { biased; _ = event => {}, () = std::future::ready(()) => {} }
    is_bounded(&monitor.poll(Wish::default(), DEADLINE).await);
}

/// Either the change was made, or the error is fit for people.
fn told(change: Result<(), MonitorError>) {
    let Err(error) = change else { return };
    are_for_people(&error);
    let timed_out = error.source().and_then(|source| source.downcast_ref());
    assert!(!matches!(timed_out, Some(QmpError::Timeout)), "a monitor that is gone was waited for");
}

/// Readings are within bounds and can be written down. The reasons for missing ones are fit for people.
fn is_bounded(told: &Told) {
    let missing = [told.balloon.why_not(), told.hotplug.why_not(), told.stats.why_not()];
    for why in missing.into_iter().flatten() {
        assert_ne!(*why, Absence::Timeout, "a monitor that is gone was waited for");
        is_for_people(&why.to_string());
    }
    if let Some(stats) = told.stats.latest() {
        let total = stats.total.unwrap_or(MOST_MEMORY);
        assert!(total <= MOST_MEMORY, "{stats:?}");
        for part in [stats.free, stats.available, stats.disk_caches].into_iter().flatten() {
            assert!(part <= total, "{stats:?}");
        }
    }
    survives_json(&told.balloon);
    survives_json(&told.hotplug);
    survives_json(&told.stats);
    survives_json(&told.polling);
    survives_json(&told.fence);
}
