//! The daemon: backends on the caller's thread, the engine and the API on their own threads, until a signal ends them.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use memtide_config::{ConfigError, Overrides, Settings};
use memtide_engine::{Engine, Wake};
use memtide_model::Mode;
use memtide_vmm::Backend;
use sd_notify::NotifyState;
use tokio::sync::oneshot;
use tracing::{info, warn};

use crate::confine::Confinement;
use crate::endpoint::{self, Endpoint, EndpointError};
use crate::helpers::journal::{Failure, Left};
use crate::journal::Journal;
use crate::live::{LiveError, LiveWorld, Rights, Shared};
use crate::orders::Orders;
use crate::routes;
use crate::signals::Signals;
use crate::sources::Sources;
use crate::watchdog::Watchdog;
use memtide_api::history::History;

/// The most threads that open sockets of guests: each waits for a fifth of a second at most.
const OPENERS: usize = 4;
/// The time between two checks for the other daemon, for a daemon that only observes.
const LOOKS_FOR_OTHER: Duration = Duration::from_secs(2);

/// Why the daemon cannot run.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The configuration.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The socket of the API.
    #[error(transparent)]
    Api(#[from] EndpointError),
    /// The host cannot be observed.
    #[error(transparent)]
    Live(#[from] LiveError),
    /// The system refuses basic resources.
    #[error("the system refuses threads, signals or timers")]
    System(#[from] io::Error),
    /// The daemon that managed the guests has ended.
    #[error("the other memtide has ended: this one only observed; restart it to manage")]
    OtherIsGone,
    /// An internal error ended the engine.
    #[error("the engine was stopped by an internal error; the guests keep their memory")]
    Engine,
}

/// Runs the daemon for the guests of `backends` until SIGTERM or SIGINT. It reads `path` again at SIGHUP; `overrides` take precedence over the file.
///
/// # Errors
/// If it cannot start, or if the engine panics. A journal that cannot be written is only a warning: the daemon still manages
/// the host.
pub fn run(
    mut backends: Vec<Box<dyn Backend>>,
    mut settings: Settings,
    path: Option<PathBuf>,
    overrides: Overrides,
) -> Result<(), RunError> {
    settings.config = overrides.apply(path.as_deref(), settings.config)?;
    // This comes first: until somebody listens to it, a signal ends the process without a word.
    let runtime = runtime()?;
    let guard = runtime.enter();
    let signals = Signals::listen()?;
    // Then the socket: two daemons with one socket or one journal would manage the same guests, so the second one only
    // observes.
    let Endpoint { listener, name, is_beside } = Endpoint::open(&settings.socket)?;
    let (socket, name_is_gone) = (name.path().to_owned(), name.watch());
    let (journal, left): (_, Option<Left>) = (!is_beside).then(|| Journal::open(&settings.journal)).unzip();
    let cannot_manage = why_not(&settings, &socket, journal.as_ref());
    if cannot_manage.is_some() {
        settings.config.mode = Mode::Observe;
    }
    let (wake, woken) = mpsc::channel();
    let (history, orders) = (History::default(), Orders::new(wake.clone()));
    let opened = Rights::open(&settings.config, left.as_ref().and_then(Left::state));
    let of_backends = open(&mut backends, settings.config.mode);
    // Everything that needs more rights is open now, and there is only one thread.
    let confinement = Confinement::from_key(settings.confine);
    let mut confined = [confinement.process(), opened.phrases(), of_backends].concat();
    let world = LiveWorld::new(
        runtime.handle().clone(),
        backends,
        &settings,
        wake.clone(),
        woken,
        opened,
        Shared { history: history.clone(), orders: orders.clone() },
    )?;
    drop(guard);
    let engine = Engine::new(world, settings.config.clone());
    let other = Other { wake: wake.clone(), is_gone: Arc::default() };
    let engine = match cannot_manage.clone() {
        None => with_journal(engine, journal, left.unwrap_or_default())?,
        Some(why) => beside_other(engine, journal, why, other.clone())?,
    };
    info!(mode = %settings.config.mode, socket = %socket.display(), "memtide {}", env!("CARGO_PKG_VERSION"));
    let board = engine.board();
    Watchdog::feed_by(&board);
    let (ended, end) = oneshot::channel();
    let engine = thread::Builder::new().name("engine".to_owned()).spawn(move || {
        // Dropped even if the engine panics; the drop announces the end.
        let _ended: oneshot::Sender<()> = ended;
        engine.run();
        // Dropped here, because the main thread may not change a file system.
        drop(name);
    })?;
    confined.extend(confinement.monitors());
    routes::serve(listener, Sources::new(board, history, orders, confined), move || confinement.api())?;
    runtime.block_on(async {
        if is_beside {
            tokio::spawn(other.clone().answers_at(settings.socket.clone()));
        }
        tokio::spawn(name_is_gone);
        tokio::spawn(signals.pass_on(wake, path, settings.clone(), overrides, cannot_manage));
        say_ready();
        // An error means that the engine is gone, which is what this waits for.
        let _gone = end.await;
    });
    engine.join().map_err(|_| RunError::Engine)?;
    if other.is_gone.load(Ordering::Relaxed) { Err(RunError::OtherIsGone) } else { Ok(()) }
}

/// Tells the service manager that the daemon is ready.
fn say_ready() {
    if let Err(error) = sd_notify::notify(&[NotifyState::Ready]) {
        warn!("cannot notify the service manager: {error}");
    }
}

/// Opens what the backends cannot open later, and tells of their helpers.
fn open(backends: &mut [Box<dyn Backend>], mode: Mode) -> Vec<String> {
    backends.iter_mut().filter_map(|backend| backend.open(mode == Mode::Manage)).collect()
}

/// The runtime of the monitors and of signals, on the caller's thread.
fn runtime() -> io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().max_blocking_threads(OPENERS).build()
}

/// The daemon that manages the guests instead of this one.
#[derive(Clone)]
struct Other {
    wake: mpsc::Sender<Wake>,
    is_gone: Arc<AtomicBool>,
}

impl Other {
    /// Waits until it no longer answers at `socket`.
    async fn answers_at(self, socket: PathBuf) {
        while endpoint::is_answered(&socket) {
            tokio::time::sleep(LOOKS_FOR_OTHER).await;
        }
        self.is_gone();
    }

    /// It is gone: ends this daemon, because only a new one can get the resources to manage.
    fn is_gone(&self) {
        self.is_gone.store(true, Ordering::Relaxed);
        // An engine that is gone needs no message.
        let _gone = self.wake.send(Wake::Stop);
    }
}

/// Why this daemon does not manage, if another one has the journal, or the socket: then it has no journal of its own.
fn why_not(settings: &Settings, socket: &Path, journal: Option<&Journal>) -> Option<String> {
    let where_it_is = match journal.map(Journal::is_open) {
        None => format!("{}; this one answers at {}", settings.socket.display(), socket.display()),
        Some(Err(Failure::InUse(why))) => why.clone(),
        Some(_) => return None,
    };
    Some(format!(
        "this memtide only observes, because another one runs here ({where_it_is}): stop it, or give each daemon its own \
         guests (`discover`), `socket` and `journal`"
    ))
}

/// The engine that only observes, and the reason `why`. If the other daemon has the journal, it is gone once it has given that up.
fn beside_other(
    engine: Engine<LiveWorld>,
    journal: Option<Journal>,
    why: String,
    other: Other,
) -> io::Result<Engine<LiveWorld>> {
    warn!("{why}");
    if let Some(journal) = journal {
        let wait = move || {
            journal.wait_for_other();
            other.is_gone();
        };
        thread::Builder::new().name("journal".to_owned()).spawn(wait)?;
    }
    Ok(engine.with_notice(why))
}

/// The engine with its journal, and with the state of the last run.
fn with_journal(
    engine: Engine<LiveWorld>,
    journal: Option<Journal>,
    left: Left,
) -> io::Result<Engine<LiveWorld>> {
    let Some(journal) = journal else { return Ok(engine) };
    let mut engine = engine.with_journal(journal.into_sink()?);
    let unread = left.unread.iter().map(|error| format!("skipped in the journal, the rest is used: {error}"));
    for text in left.cut.into_iter().chain(unread) {
        warn!("{text}");
        engine.note(&text);
    }
    let Some(memory) = left.memory else { return Ok(engine) };
    let text = format!("continues with {} guests from the journal", memory.0.guests.len());
    info!("{text}");
    engine.note(&text);
    Ok(engine.with_memory(memory))
}
