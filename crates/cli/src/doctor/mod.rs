//! `memtide doctor`: the things that this host and its guests lack, their cost, and the lines that fix them.
//!
//! It needs no daemon. If one runs, doctor uses its knowledge. It changes nothing: see [`memtide_doctor`].

mod render;

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Result;
use memtide_api::{Client, ClientError};
use memtide_config::{ConfigError, DEFAULT_PATH, Settings};
use memtide_doctor::facts::{Configuration, Daemon, Trouble};
use memtide_doctor::{Question, Severity};
use memtide_engine::with_causes;
use memtide_host::Root;
use memtide_vmm::qemu::ConfiguredGuest;

use crate::style::Style;

/// The exit code if the worst findings are warnings. It differs from the codes of failures: a script can tell "found something"
/// from "could not look". To react only to problems, compare with the higher code.
const WARNINGS: u8 = 10;
/// The exit code if there are problems.
const PROBLEMS: u8 = 11;

/// The options of `memtide doctor`.
#[derive(clap::Args)]
pub struct Doctor {
    /// The daemon's socket [default: the one in the configuration file]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// The configuration file [default: /etc/memtide/memtide.toml, if it exists]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Print everything as JSON.
    #[arg(long)]
    json: bool,
    /// Look at a tree with `proc` and `sys` instead of at this system: for tests.
    #[arg(long, value_name = "DIR", hide = true)]
    root: Option<PathBuf>,
}

impl Doctor {
    /// Looks at the host, and prints the findings.
    pub fn execute(self) -> Result<ExitCode> {
        let (settings, trouble) = settings(self.config.as_deref())?;
        let configuration = Configuration {
            is_named: self.config.is_some(),
            path: self.config.unwrap_or_else(|| DEFAULT_PATH.into()),
        };
        let libvirt = memtide_daemon::backends::libvirt_daemons(&settings);
        let socket = self.socket.unwrap_or(settings.socket);
        let configured = settings.guests.into_iter();
        let question = Question {
            root: self.root.map_or_else(Root::system, Root::at),
            config: settings.config,
            discover: settings.discover,
            libvirt,
            configured: configured
                .map(|guest| ConfiguredGuest { name: guest.name, qmp: guest.qmp })
                .collect(),
            journal: settings.journal.dir,
            journal_max: settings.journal.max,
            daemon: ask_daemon(&socket),
            configuration,
            trouble,
            user: rustix::process::geteuid().as_raw(),
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let facts = runtime.block_on(memtide_doctor::gather(question));
        let findings = memtide_doctor::diagnose(&facts);
        let mut out = std::io::stdout().lock();
        if self.json {
            let told = serde_json::to_string_pretty(&render::json(&facts, &findings))?;
            writeln!(out, "{told}")?;
        } else {
            out.write_all(render::text(&facts, &findings, Style::detect()).as_bytes())?;
        }
        Ok(match findings.iter().map(|finding| finding.severity).max() {
            None | Some(Severity::Hint) => ExitCode::SUCCESS,
            Some(Severity::Warning) => ExitCode::from(WARNINGS),
            Some(Severity::Problem) => ExitCode::from(PROBLEMS),
        })
    }
}

/// The settings. The defaults apply if the file is wrong, or if it cannot be read and was not named.
fn settings(file: Option<&Path>) -> Result<(Settings, Option<Trouble>)> {
    let error = match Settings::load(file) {
        Ok(settings) => return Ok((settings, None)),
        Err(error) => error,
    };
    let trouble = match &error {
        ConfigError::Read { .. } if file.is_some() => return Err(error.into()),
        ConfigError::Read { source, .. } => Trouble::Unreadable(format!("{error}: {source}")),
        ConfigError::Host(source) => Trouble::Unreadable(format!("{error}: {source}")),
        ConfigError::Parse { .. } | ConfigError::Unfit { .. } | ConfigError::NothingLeft { .. } => {
            Trouble::Refused(error.to_string())
        }
    };
    Ok((Settings::of_this_host(), Some(trouble)))
}

/// The knowledge of the daemon at `socket`, if one answers.
fn ask_daemon(socket: &Path) -> Daemon {
    let error = match daemon_guests(socket) {
        Ok(daemon) => return daemon,
        Err(error) => error,
    };
    let socket = socket.to_owned();
    match error {
        ClientError::Nobody(_) => Daemon::None { socket },
        ClientError::Silent { .. } => Daemon::Silent { socket },
        ClientError::Forbidden { .. } => Daemon::Forbidden { socket },
        error => Daemon::Strange { socket, why: with_causes(&error) },
    }
}

fn daemon_guests(socket: &Path) -> Result<Daemon, ClientError> {
    let client = Client::at(socket);
    let status = client.status()?;
    let mut guests = BTreeMap::new();
    for guest in &status.guests {
        // A guest that ended meanwhile is left out.
        if let Some(detail) = client.guest(&guest.name)? {
            guests.insert(detail.seen.pid, detail.seen);
        }
    }
    Ok(Daemon::Runs { version: status.version, mode: status.mode, guests })
}
