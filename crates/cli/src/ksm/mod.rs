//! `memtide ksm`: what the kernel's merging of equal pages saves and costs, and why it scans or rests.

mod render;

use std::ffi::OsString;
use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result, bail};
use memtide_api::Client;
use memtide_config::Settings;
use memtide_daemon::endpoint::is_answered;
use memtide_daemon::helpers::ksm::left_behind;
use memtide_engine::{host_clock, resume};
use memtide_host::Root;
use memtide_host::ksm::settings;

use crate::Socket;
use crate::style::Style;

/// `memtide ksm`.
#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Ksm {
    #[command(subcommand)]
    command: Option<Subcommand>,
    #[command(flatten)]
    socket: Socket,
    /// Print everything as JSON, with sizes in bytes.
    #[arg(long)]
    json: bool,
}

/// The commands of `memtide ksm`.
#[derive(clap::Subcommand)]
enum Subcommand {
    /// Start a program whose private anonymous memory KSM may merge, and that of the programs that it starts.
    #[command(
        after_help = "For VMMs that do not mark their guest's memory themselves (`MADV_MERGEABLE`). KSM must be on to merge anything. The kernel \
        must be Linux 6.10 or newer: older ones forget it when a program starts, or do not scan it. Merged memory lets a program find out which pages others have: see docs/ksm.md."
    )]
    Run {
        /// The program and its arguments.
        #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
        command: Vec<OsString>,
    },
    /// Put back the settings of KSM that a memtide has found, which was killed together with its helper.
    #[command(
        after_help = "The next start of the daemon does the same. As long as a memtide runs, there is nothing to put back."
    )]
    Restore {
        /// The configuration file that names the journal.
        #[arg(long, value_name = "FILE")]
        config: Option<PathBuf>,
    },
}

impl Ksm {
    /// Carries the command out.
    pub fn execute(self) -> Result<ExitCode> {
        match self.command {
            None => status(&self.socket.path()?, self.json),
            Some(Subcommand::Run { command }) => run(command),
            Some(Subcommand::Restore { config }) => restore(config.as_deref()),
        }
    }
}

fn status(socket: &Path, json: bool) -> Result<ExitCode> {
    let answer = Client::at(socket).ksm()?;
    let mut out = std::io::stdout().lock();
    if json {
        out.write_all(answer.json())?;
        writeln!(out)?;
    } else {
        out.write_all(render::status(&answer.read()?, Style::detect()).as_bytes())?;
    }
    Ok(ExitCode::SUCCESS)
}

/// A program that starts takes the place of this one.
fn run(command: Vec<OsString>) -> Result<ExitCode> {
    memtide_advise::merge_all().context("this kernel cannot mark a whole process for KSM")?;
    let mut words = command.into_iter();
    let program = words.next().unwrap_or_default();
    let error = Command::new(&program).args(words).exec();
    Err(error).with_context(|| format!("cannot start {}", program.display()))
}

fn restore(config: Option<&Path>) -> Result<ExitCode> {
    let daemon = Settings::load(config)?;
    if is_answered(&daemon.socket) {
        bail!("memtide runs here, and puts KSM back when it ends ({})", daemon.socket.display());
    }
    let dir = &daemon.journal.dir;
    let before =
        resume(dir, host_clock()).with_context(|| format!("cannot read the journal in {}", dir.display()))?;
    let ksm = before.memory.map(|(state, _)| *state.ksm).unwrap_or_default();
    let root = Root::system();
    let Some(found) = left_behind(&root, &ksm) else {
        println!(
            "nothing to put back: the present settings of KSM are not those of a memtide that was killed"
        );
        return Ok(ExitCode::SUCCESS);
    };
    settings::write(&root, found).context("only root may set KSM: sudo memtide ksm restore")?;
    println!("KSM is as it was found: {found}");
    Ok(ExitCode::SUCCESS)
}
