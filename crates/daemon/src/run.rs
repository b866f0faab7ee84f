//! The daemon: backends and API on the caller's thread, the engine on its own, until a signal ends both.

use std::io;
use std::path::PathBuf;
use std::sync::mpsc;
use std::thread;

use memtide_engine::journal::{JournalError, Writer};
use memtide_engine::{Engine, with_causes};
use memtide_model::Mode;
use sd_notify::NotifyState;
use tokio::sync::oneshot;
use tracing::{info, warn};

use crate::api::{self, ApiError, Sources};
use crate::history::History;
use crate::live::{LiveError, LiveWorld};
use crate::signals::Signals;
use crate::{ConfigError, Overrides, Settings};

/// Why the daemon cannot run.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The configuration.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The socket of the API.
    #[error(transparent)]
    Api(#[from] ApiError),
    /// The host cannot be observed.
    #[error(transparent)]
    Live(#[from] LiveError),
    /// The system refuses what every program needs.
    #[error("the system refuses threads, signals or timers")]
    System(#[from] io::Error),
    /// Another daemon writes the journal.
    #[error(
        "another memtide is at work here: stop it, or let each manage guests of its own (`discover`, with its own `journal`)"
    )]
    Journal(#[source] JournalError),
    /// A mistake of ours ended the engine.
    #[error("the engine ended by a mistake of its own; the guests keep what they have")]
    Engine,
}

/// Runs the daemon until SIGTERM or SIGINT. `path` is read again at SIGHUP; `overrides` hold over what it says.
///
/// # Errors
/// Where it cannot begin, or where the engine panics. A journal that cannot be written is a warning: the host is managed
/// all the same.
pub fn run(mut settings: Settings, path: Option<PathBuf>, overrides: Overrides) -> Result<(), RunError> {
    settings.config = overrides.apply(settings.config);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (wake, woken) = mpsc::channel();
    let history = History::default();
    let guard = runtime.enter();
    let signals = Signals::listen()?;
    let listener = api::bind(&settings.socket)?;
    let socket = api::identity(&settings.socket)?;
    let world = LiveWorld::new(runtime.handle().clone(), &settings, wake.clone(), woken, history.clone())?;
    drop(guard);
    let mut engine = Engine::new(world, settings.config.clone());
    let mut another_manages = None;
    engine = match Writer::open(&settings.journal.dir, settings.journal.max) {
        Ok((writer, cut)) => {
            let mut engine = engine.with_journal(writer);
            if let Some(cut) = cut {
                let text = format!("{}: a torn tail of {} bytes was cut off", cut.path.display(), cut.cut);
                warn!("{text}");
                engine.note(&text);
            }
            engine
        }
        // Two daemons that manage the same host would fight over its guests.
        Err(error @ JournalError::InUse { .. }) if settings.config.mode == Mode::Manage => {
            return Err(RunError::Journal(error));
        }
        Err(error) => {
            let why = with_causes(&error);
            warn!("no journal: {why}");
            if matches!(error, JournalError::InUse { .. }) {
                another_manages = Some(with_causes(&RunError::Journal(error)));
            }
            engine.without_journal(why)
        }
    };
    info!(mode = ?settings.config.mode, socket = %settings.socket.display(), "memtide {}", env!("CARGO_PKG_VERSION"));
    let sources = Sources { board: engine.board(), history };
    let (ended, end) = oneshot::channel();
    let engine = thread::Builder::new().name("engine".to_owned()).spawn(move || {
        // Dropped, and so told, also where the engine panics.
        let _ended: oneshot::Sender<()> = ended;
        engine.run();
    })?;
    runtime.block_on(async {
        tokio::spawn(signals.pass_on(wake, path, settings.clone(), overrides, another_manages));
        tokio::spawn(async move {
            if let Err(error) = axum::serve(listener, api::router(sources)).await {
                warn!("the API ended: {error}");
            }
        });
        if let Err(error) = sd_notify::notify(&[NotifyState::Ready]) {
            warn!("the service manager was not told: {error}");
        }
        // An error means that the engine is gone without a word, which is just what is waited for.
        let _gone = end.await;
    });
    let still_ours = api::identity(&settings.socket).is_ok_and(|there| there == socket);
    if still_ours && let Err(error) = std::fs::remove_file(&settings.socket) {
        warn!("{}: not removed: {error}", settings.socket.display());
    }
    engine.join().map_err(|_| RunError::Engine)
}
