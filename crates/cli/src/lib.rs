//! The command line of memtide: the daemon, and the commands that query it.
//!
//! The commands read the daemon's socket and journals. `doctor` and `audit` look at the host themselves; only
//! `doctor` talks to guests: it queries those that no daemon has queried.
#![forbid(unsafe_code)]

mod audit;
mod cgroup_reclaim;
mod doctor;
mod explain;
mod hold;
mod journal;
mod ksm;
mod libvirt;
mod metrics;
mod overwrite;
mod reclaim;
mod replay;
mod report;
mod simulate;
mod status;
mod style;
mod table;
mod top;
mod web;
mod when;

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::{Args, Parser, Subcommand};
use memtide_api::ClientError;
use memtide_api::reclaim::ReclaimRequest;
use memtide_api::view::Wanted;
use memtide_config::{DEFAULT_PATH, Overrides, Settings};
use memtide_daemon::endpoint::nothing_else_is_at;
use memtide_daemon::{backends, helpers};
use memtide_model::{Budget, Bytes, Mode};
use memtide_vmm::Backend;

const EXIT_CODES: &str = "Exit codes:
  0  done
  1  failed; the message says why
  2  the command line is wrong
  3  replay: a decision differs from the journal
  4  no daemon answers on the socket
  5  no such guest
  6  simulate: a bound is broken, or a known failure no longer fails
 10  doctor: there are warnings, but no problems
 11  doctor: there are problems";

/// Memory manager for the virtual machines of a host: it moves memory from guests that do not need it to guests that do, and
/// gives a reason for every byte.
#[derive(Parser)]
#[command(name = "memtide", version, after_help = EXIT_CODES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run the daemon. Without a configuration it finds the guests of this host and only observes.
    Run(Run),
    /// Show the ledger (who uses the host's memory) and all guests.
    Status {
        #[command(flatten)]
        socket: Socket,
        /// Print everything as JSON, with sizes in bytes.
        #[arg(long)]
        json: bool,
        /// Show the status again after each decision, until Ctrl-C.
        #[arg(long)]
        watch: bool,
    },
    /// Watch memory move: a screen with the host's last ten minutes, the guests and what happens to them.
    Top(top::Top),
    /// Show the same in a browser on this machine, until Ctrl-C.
    Web(web::Web),
    /// Show why a guest has this much memory.
    Explain {
        /// The guest, as `status` shows it.
        guest: String,
        #[command(flatten)]
        socket: Socket,
        /// Print everything as JSON, with sizes in bytes.
        #[arg(long)]
        json: bool,
    },
    /// Leave a guest alone at its present size.
    Hold {
        /// The guest, as `status` shows it.
        guest: String,
        /// How long, as in `90s`, `10m` or `2h` [default: until `memtide resume`]
        #[arg(long = "for", value_name = "TIME", value_parser = hold::parse_time)]
        for_span: Option<Duration>,
        #[command(flatten)]
        socket: Socket,
    },
    /// Give a guest its limit as soon as the host has room, then leave it alone.
    Release {
        /// The guest, as `status` shows it [default: all present guests]
        guest: Option<String>,
        /// How long, as in `90s`, `10m` or `2h` [default: until `memtide resume`]
        #[arg(long = "for", value_name = "TIME", value_parser = hold::parse_time)]
        for_span: Option<Duration>,
        #[command(flatten)]
        socket: Socket,
    },
    /// Manage a guest again that was held or released, or whose balloon somebody else moved.
    Resume {
        /// The guest, as `status` shows it [default: all present guests]
        guest: Option<String>,
        #[command(flatten)]
        socket: Socket,
    },
    /// Reclaim memory: page cache inside the guest, or, with SIZE, memory of its cgroup on the host without swapping.
    #[command(
        after_help = "Without SIZE, the guest's agent drops cold page cache, and its balloon takes free memory in small pieces, for example \
        before the guest is paused, saved or migrated: all that can be had, or as --by or --to says. The command waits until the host has the memory back, and says how much it is."
    )]
    Reclaim {
        /// The guest, as `status` shows it.
        guest: String,
        /// The most to reclaim from its cgroup, as in `256M`; at most 1 GiB at a time.
        #[arg(value_parser = Bytes::with_unit, conflicts_with_all = ["by", "to", "dry_run", "hold"])]
        size: Option<Bytes>,
        /// Take this much page cache and free memory from the guest, as in `500M`.
        #[arg(long, value_name = "SIZE", value_parser = Bytes::with_unit, conflicts_with = "to")]
        by: Option<Bytes>,
        /// Take page cache and free memory from the guest until it costs the host this much.
        #[arg(long, value_name = "SIZE", value_parser = Bytes::with_unit)]
        to: Option<Bytes>,
        /// Only show what can be had.
        #[arg(long)]
        dry_run: bool,
        /// Then leave the guest alone for this long, as in `90s` or `10m`.
        #[arg(long, value_name = "TIME", conflicts_with = "dry_run", value_parser = hold::parse_time)]
        hold: Option<Duration>,
        #[command(flatten)]
        socket: Socket,
    },
    /// Print the metrics of the daemon as Prometheus's text.
    Metrics {
        #[command(flatten)]
        socket: Socket,
        /// Answer one HTTP request on standard input instead, and only for `/metrics`. systemd starts this for Prometheus.
        #[arg(long)]
        answer: bool,
    },
    /// Guests of libvirt: their own terms.
    Libvirt(libvirt::Libvirt),
    /// Run a helper of the daemon. The daemon or systemd starts it.
    #[command(hide = true)]
    Helper {
        /// The helper.
        #[arg(value_parser = [
            helpers::journal::NAME,
            helpers::knocks::NAME,
            helpers::ksm::NAME,
            helpers::reclaim::NAME,
            helpers::split::NAME,
            helpers::tier::NAME,
        ])]
        name: String,
    },
    /// Print a journal as JSON lines.
    Journal {
        /// The journal: a directory, or one file of it.
        file: PathBuf,
        /// Print only the decisions, as text.
        #[arg(long)]
        golden: bool,
        /// Print nothing; write a new journal of the same run with the decisions of this version. Updates traces after a
        /// change of the policy.
        #[arg(long, value_name = "OUT", conflicts_with = "golden")]
        redecide: Option<PathBuf>,
    },
    /// Write one HTML file of a journal: who got what, when and why, how fast stalls were answered, and what was saved.
    Report(report::Report),
    /// Show what this host and its guests lack, what that costs, and how to fix it. Changes nothing and needs no daemon.
    Doctor(doctor::Doctor),
    /// Estimate what KSM would save, before it is switched on. Reads the guests' memory, changes nothing, and needs no daemon.
    Audit(audit::Audit),
    /// Show what the kernel's merging of equal pages (KSM) saves and costs, and what memtide does about it.
    Ksm(ksm::Ksm),
    /// Simulate hours of a host and its guests in seconds, under memtide and other managers. Reads no guest and needs no daemon.
    Simulate(simulate::Simulate),
    /// Decide again from a journal, and fail at the first decision that differs from it.
    Replay {
        /// The journal: a directory, or one file of it.
        file: PathBuf,
    },
}

#[derive(Args)]
struct Run {
    /// The configuration file [default: /etc/memtide/memtide.toml, if it exists]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Only observe, whatever the configuration says.
    #[arg(long, conflicts_with = "manage")]
    observe: bool,
    /// Manage the guests, whatever the configuration says.
    #[arg(long)]
    manage: bool,
    /// The most that the guests and their VMMs may cost in total, as in `48G`, or `host`; overrides the configuration.
    #[arg(long, value_name = "SIZE")]
    budget: Option<Budget>,
    /// Only check the configuration: print in one line whether it is valid and what the daemon would do.
    #[arg(long)]
    check: bool,
    /// Log more to standard error; give it twice to log everything.
    #[arg(short, long, action = clap::ArgAction::Count)]
    verbose: u8,
}

#[derive(Args)]
struct Socket {
    /// The daemon's socket [default: the one in the configuration file]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// The configuration file that names the socket.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

impl Socket {
    fn path(self) -> Result<PathBuf> {
        if let Some(path) = self.socket {
            return Ok(path);
        }
        let (path, refused) = Settings::load_socket(self.config.as_deref())?;
        if let Some(refused) = refused {
            eprintln!("memtide: {refused}");
            eprintln!(
                "memtide: no daemon starts with this configuration; asking one that may run with an older one"
            );
        }
        Ok(path)
    }
}

/// Runs the command line of this process.
#[must_use]
pub fn run() -> ExitCode {
    run_with(backends::of_this_host)
}

/// Does the same for a memtide that looks for other guests: `backends` makes the backends of its daemon.
#[must_use]
pub fn run_with(backends: impl FnOnce(&Settings) -> Vec<Box<dyn Backend>>) -> ExitCode {
    match Cli::parse().command.execute(backends) {
        Ok(code) => code,
        Err(error) if is_closed_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("memtide: {error:#}");
            ExitCode::from(if error.downcast_ref().is_some_and(ClientError::is_absence) { 4 } else { 1 })
        }
    }
}

/// The command line as `clap` knows it, for man pages and completions.
#[must_use]
pub fn command_line() -> clap::Command {
    <Cli as clap::CommandFactory>::command()
}

/// Whether the reader of the output closed the pipe, as `head` does. This is not a failure.
fn is_closed_pipe(error: &anyhow::Error) -> bool {
    error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<std::io::Error>())
        .any(|cause| cause.kind() == std::io::ErrorKind::BrokenPipe)
}

impl Command {
    fn execute(self, backends: impl FnOnce(&Settings) -> Vec<Box<dyn Backend>>) -> Result<ExitCode> {
        match self {
            Self::Run(run) => run.execute(backends),
            Self::Status { socket, json, watch: false } => status::command(&socket.path()?, json),
            Self::Status { socket, json, watch: true } => status::watch(&socket.path()?, json),
            Self::Top(top) => top.execute(),
            Self::Web(web) => web.execute(),
            Self::Explain { guest, socket, json } => explain::command(&socket.path()?, &guest, json),
            Self::Hold { guest, for_span, socket } => {
                hold::command(&socket.path()?, Some(guest), Wanted::Hold, for_span)
            }
            Self::Release { guest, for_span, socket } => {
                hold::command(&socket.path()?, guest, Wanted::Release, for_span)
            }
            Self::Resume { guest, socket } => hold::command(&socket.path()?, guest, Wanted::Resume, None),
            Self::Reclaim { guest, size: Some(size), socket, .. } => {
                cgroup_reclaim::command(&socket.path()?, guest, size)
            }
            Self::Reclaim { guest, size: None, by, to, dry_run, hold, socket } => {
                let hold = hold.map(Into::into);
                reclaim::command(&socket.path()?, &ReclaimRequest { guest, by, to, dry_run, hold })
            }
            Self::Metrics { socket, answer: false } => metrics::command(&socket.path()?),
            Self::Metrics { socket, answer: true } => metrics::answer(&socket.path()?),
            Self::Libvirt(libvirt) => libvirt.execute(),
            Self::Helper { name } => {
                match name.as_str() {
                    helpers::journal::NAME => helpers::journal::run(),
                    helpers::knocks::NAME => helpers::knocks::run(),
                    helpers::ksm::NAME => helpers::ksm::run(),
                    helpers::split::NAME => helpers::split::run(),
                    helpers::tier::NAME => helpers::tier::run(),
                    _ => helpers::reclaim::run(),
                }?;
                Ok(ExitCode::SUCCESS)
            }
            Self::Journal { file, golden: _, redecide: Some(out) } => journal::redecide(&file, &out),
            Self::Journal { file, golden, redecide: None } => journal::command(&file, golden),
            Self::Report(report) => report.execute(),
            Self::Doctor(doctor) => doctor.execute(),
            Self::Audit(audit) => audit.execute(),
            Self::Ksm(ksm) => ksm.execute(),
            Self::Simulate(simulate) => simulate.execute(),
            Self::Replay { file } => replay::command(&file),
        }
    }
}

impl Run {
    fn execute(self, backends: impl FnOnce(&Settings) -> Vec<Box<dyn Backend>>) -> Result<ExitCode> {
        if self.check {
            return self.check();
        }
        let level = match self.verbose {
            0 => tracing_subscriber::filter::LevelFilter::INFO,
            1 => tracing_subscriber::filter::LevelFilter::DEBUG,
            _ => tracing_subscriber::filter::LevelFilter::TRACE,
        };
        let colour = std::io::IsTerminal::is_terminal(&std::io::stderr());
        let log = tracing_subscriber::fmt()
            .with_max_level(level)
            .with_writer(std::io::stderr)
            .with_ansi(colour)
            .with_target(false)
            // Internal errors would go to the same standard error, and a failed write would end the daemon.
            .log_internal_errors(false);
        // systemd's journal adds the time to each line itself.
        match std::env::var_os("JOURNAL_STREAM") {
            Some(_) => log.without_time().init(),
            None => log.init(),
        }
        let settings = Settings::load(self.config.as_deref())?;
        let overrides = self.overrides();
        memtide_daemon::run(backends(&settings), settings, self.config, overrides)?;
        Ok(ExitCode::SUCCESS)
    }

    /// The settings of the command line, which override the configuration.
    fn overrides(&self) -> Overrides {
        let mode = match (self.observe, self.manage) {
            (true, _) => Some(Mode::Observe),
            (_, true) => Some(Mode::Manage),
            _ => None,
        };
        Overrides { mode, budget: self.budget }
    }

    /// Reads the configuration as the daemon would, and says what the daemon would do.
    fn check(self) -> Result<ExitCode> {
        let mut settings = Settings::load(self.config.as_deref())?;
        let file = self.config.as_deref().unwrap_or(Path::new(DEFAULT_PATH));
        let state = match (file.exists(), settings == Settings::of_this_host()) {
            (false, _) => "does not exist, the defaults apply",
            (true, true) => "valid, sets only defaults",
            (true, false) => "valid",
        };
        nothing_else_is_at(&settings.socket)?;
        settings.config = self.overrides().apply(self.config.as_deref(), settings.config)?;
        writeln!(std::io::stdout(), "{}: {state}: {}", file.display(), settings.summary())?;
        Ok(ExitCode::SUCCESS)
    }
}
