//! Signals: SIGTERM and SIGINT end the daemon, SIGHUP reads the configuration again.

use std::path::{Path, PathBuf};
use std::sync::mpsc::Sender;

use memtide_engine::{Wake, with_causes};
use memtide_model::Mode;
use sd_notify::NotifyState;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing::{error, info, warn};

use memtide_config::{ConfigError, Overrides, Settings, changes};

/// The signals that the daemon handles.
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
}

/// The settings of the file, overridden by the command line, and whether the file sets anything.
fn load(path: Option<&Path>, overrides: Overrides) -> Result<(Settings, bool), ConfigError> {
    let settings = Settings::load(path)?;
    let is_empty = settings == Settings::default();
    Ok((Settings { config: overrides.apply(path, settings.config)?, ..settings }, is_empty))
}

/// Says what a new configuration changes: a warning if memtide does less from now on, perhaps against the operator's will.
fn tell(changes: Option<&str>, (old, new): (Mode, Mode), is_empty: bool, fixed: &[&str]) {
    match changes {
        Some(changes) if old == Mode::Manage && new == Mode::Observe => {
            warn!("new configuration: {changes}; guests are no longer managed");
        }
        Some(changes) if is_empty => {
            warn!("new configuration: {changes}; the file sets nothing: the defaults apply");
        }
        Some(changes) => info!("new configuration: {changes}"),
        None if fixed.is_empty() => info!("configuration read again: nothing changed"),
        None => info!("configuration read again: nothing else changed"),
    }
}

/// Reports a refused configuration, in the log and in the status.
fn refuse(wake: &Sender<Wake>, why: &str) {
    let text = format!("the new configuration was refused, the old one stays: {why}");
    error!("{text}");
    // The engine has ended only if the daemon is ending.
    let _gone = wake.send(Wake::Refused(text));
}

impl Signals {
    /// Begins to listen.
    pub fn listen() -> std::io::Result<Self> {
        // SIGXFSZ would end the daemon if the journal reaches a file size limit. If it is handled, only the write fails.
        let _heard = signal(SignalKind::from_raw(rustix::process::Signal::XFSZ.as_raw()))?;
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    /// Passes signals on to the engine until one ends it. `begun` is the configuration at the start; `cannot_manage` is the reason
    /// for refusing a configuration that manages.
    pub async fn pass_on(
        mut self,
        wake: Sender<Wake>,
        path: Option<PathBuf>,
        begun: Settings,
        overrides: Overrides,
        cannot_manage: Option<String>,
    ) {
        let mut current = begun.config.clone();
        loop {
            tokio::select! {
                _ = self.terminate.recv() => break,
                _ = self.interrupt.recv() => break,
                _ = self.hangup.recv() => match load(path.as_deref(), overrides) {
                    Ok((settings, is_empty)) => {
                        let fixed = begun.fixed_keys_changed(&settings);
                        for key in &fixed {
                            warn!("`{key}` is read only when the daemon starts: restart it for the new value");
                        }
                        let config = settings.config;
                        if let Some(why) = cannot_manage.as_ref().filter(|_| config.mode == Mode::Manage) {
                            refuse(&wake, why);
                            continue;
                        }
                        let modes = (current.mode, config.mode);
                        tell(changes(&current, &config).as_deref(), modes, is_empty, &fixed);
                        current = config.clone();
                        // The engine has ended only if the daemon is ending.
                        if wake.send(Wake::Reload(Box::new(config))).is_err() {
                            return;
                        }
                    }
                    Err(error) => refuse(&wake, &with_causes(&error)),
                },
            }
        }
        info!("ending");
        if let Err(error) = sd_notify::notify(&[NotifyState::Stopping]) {
            warn!("cannot notify the service manager: {error}");
        }
        // As above: if the engine has ended, it needs no message.
        let _gone = wake.send(Wake::Stop);
    }
}
