//! The daemon: backends on the caller's thread, the engine and the API on their own threads, until a signal ends them.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use memtide_config::{ConfigError, JournalSettings, Overrides, Settings};
use memtide_engine::journal::{Cut, JournalError, Writer, is_in_use};
use memtide_engine::{Before, Engine, Wake, host_clock, resume, with_causes};
use memtide_model::{Mode, State};
use memtide_vmm::Backend;
use sd_notify::NotifyState;
use tokio::sync::oneshot;
use tracing::{info, warn};

use crate::confine::Confinement;
use crate::endpoint::{self, Endpoint, EndpointError};
use crate::live::{LiveError, LiveWorld, Rights};
use crate::orders::Orders;
use crate::routes;
use crate::signals::Signals;
use crate::sources::Sources;
use crate::watchdog::Watchdog;
use memtide_api::history::History;

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
    backends: Vec<Box<dyn Backend>>,
    mut settings: Settings,
    path: Option<PathBuf>,
    overrides: Overrides,
) -> Result<(), RunError> {
    settings.config = overrides.apply(path.as_deref(), settings.config)?;
    // This comes first: until somebody listens to it, a signal ends the process without a word.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let guard = runtime.enter();
    let signals = Signals::listen()?;
    // Then the socket: two daemons with one socket or one journal would manage the same guests, so the second one only
    // observes.
    let Endpoint { listener, name, is_beside } = Endpoint::open(&settings.socket)?;
    let (socket, name_is_gone) = (name.path().to_owned(), name.watch());
    let journal = if is_beside { in_use(&settings.socket, &socket) } else { open_journal(&settings) };
    if matches!(journal, Opened::InUse(_)) {
        settings.config.mode = Mode::Observe;
    }
    let (wake, woken) = mpsc::channel();
    let (history, orders) = (History::default(), Orders::new(wake.clone()));
    let opened = Rights::open(&settings.config, journal.state());
    // Everything that needs more rights is open now, and there is only one thread.
    let confinement = Confinement::from_key(settings.confine);
    let mut confined = [confinement.process(), opened.phrases()].concat();
    let world = LiveWorld::new(
        runtime.handle().clone(),
        backends,
        &settings,
        wake.clone(),
        woken,
        opened,
        (history.clone(), orders.clone()),
    )?;
    drop(guard);
    let (engine, cannot_manage) =
        with_journal(Engine::new(world, settings.config.clone()), &settings.journal, journal);
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
    let other_is_gone = Arc::new(AtomicBool::new(false));
    runtime.block_on(async {
        if cannot_manage.is_some() {
            let other = Other {
                socket: is_beside.then(|| settings.socket.clone()),
                journal: settings.journal.dir.clone(),
            };
            tokio::spawn(other.watch(wake.clone(), Arc::clone(&other_is_gone)));
        }
        tokio::spawn(name_is_gone);
        tokio::spawn(signals.pass_on(wake, path, settings.clone(), overrides, cannot_manage));
        if let Err(error) = sd_notify::notify(&[NotifyState::Ready]) {
            warn!("cannot notify the service manager: {error}");
        }
        // An error means that the engine is gone, which is what this waits for.
        let _gone = end.await;
    });
    engine.join().map_err(|_| RunError::Engine)?;
    if other_is_gone.load(Ordering::Relaxed) { Err(RunError::OtherIsGone) } else { Ok(()) }
}

/// The daemon that manages the guests instead of this one.
struct Other {
    /// Its socket, if it was found there.
    socket: Option<PathBuf>,
    journal: PathBuf,
}

impl Other {
    /// Waits for its end, then ends this daemon: only a new daemon can get the resources to manage.
    async fn watch(self, wake: mpsc::Sender<Wake>, is_gone: Arc<AtomicBool>) {
        let is_there = || match &self.socket {
            Some(socket) => endpoint::is_answered(socket),
            None => is_in_use(&self.journal),
        };
        while is_there() {
            tokio::time::sleep(LOOKS_FOR_OTHER).await;
        }
        is_gone.store(true, Ordering::Relaxed);
        // An engine that is gone needs no message.
        let _gone = wake.send(Wake::Stop);
    }
}

/// The result of opening the journal.
enum Opened {
    Written {
        writer: Box<Writer>,
        cut: Option<Cut>,
        before: Before,
    },
    /// Another daemon writes it: the reason why this daemon does not manage.
    InUse(String),
    /// It cannot be written at the moment.
    Not {
        error: JournalError,
        before: Before,
    },
}

impl Opened {
    /// The state at the end of the last run; `None` if there was none, or if the journal is another daemon's.
    fn state(&self) -> Option<&State> {
        let (Self::Written { before, .. } | Self::Not { before, .. }) = self else { return None };
        before.memory.as_ref().map(|(state, _)| state)
    }
}

fn open_journal(settings: &Settings) -> Opened {
    let dir = &settings.journal.dir;
    match Writer::open(dir, settings.journal.max) {
        Ok((writer, cut)) => Opened::Written { writer: Box::new(writer), cut, before: before(dir) },
        Err(error @ JournalError::InUse { .. }) => Opened::InUse(observes(&with_causes(&error))),
        Err(error) => Opened::Not { error, before: before(dir) },
    }
}

/// The reason why a second daemon only observes.
/// Another daemon answers at `others`; this one answers at `socket`.
fn in_use(others: &Path, socket: &Path) -> Opened {
    Opened::InUse(observes(&format!("{}; this one answers at {}", others.display(), socket.display())))
}

fn observes(where_the_other_is: &str) -> String {
    format!(
        "this memtide only observes, because another one runs here ({where_the_other_is}): stop it, or give each daemon its own \
         guests (`discover`), `socket` and `journal`"
    )
}

/// The state in the journal in `dir`. A directory that cannot be listed has no state, and cannot be written to either, which
/// is reported.
fn before(dir: &Path) -> Before {
    resume(dir, host_clock()).unwrap_or_default()
}

/// The engine with its journal and the state of the last run, and the reason why it must not manage.
fn with_journal(
    engine: Engine<LiveWorld>,
    settings: &JournalSettings,
    opened: Opened,
) -> (Engine<LiveWorld>, Option<String>) {
    match opened {
        Opened::Written { writer, cut, before } => {
            let mut engine = engine.with_journal(*writer);
            if let Some(cut) = cut {
                warn!("{cut}");
                engine.note(&cut.to_string());
            }
            (going_on(engine, before), None)
        }
        Opened::InUse(why) => {
            warn!("{why}");
            (engine.with_notice(why.clone()), Some(why))
        }
        Opened::Not { error, before } => {
            warn!("no journal: {} ({}); trying again", with_causes(&error), error.fix());
            let JournalSettings { dir, max } = settings;
            (going_on(engine.with_journal_later(dir.clone(), *max, &error), before), None)
        }
    }
}

/// The engine with the state from the journal. It reports the parts that it could not read.
fn going_on(mut engine: Engine<LiveWorld>, before: Before) -> Engine<LiveWorld> {
    for error in &before.unread {
        let text = format!("skipped in the journal, the rest is used: {}", with_causes(error));
        warn!("{text}");
        engine.note(&text);
    }
    let Some((state, witness)) = before.memory else { return engine };
    let text = format!("continues with {} guests from the journal", state.guests.len());
    info!("{text}");
    engine.note(&text);
    engine.with_memory((state, witness))
}
