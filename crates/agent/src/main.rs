//! `memtide-agent`: the program inside a guest.

#![forbid(unsafe_code)]

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use lexopt::prelude::*;
use memtide_agent::deeds::Reporting;
use memtide_agent::{Agent, BOUNDS, Bounds, Log, STATUS, Status, monotonic_ms, wire};
use memtide_host::{Root, page_size};
use rustix::process::{Resource, Rlimit, setrlimit};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

const HELP: &str = "\
usage: memtide-agent [--port PATH] [--config FILE] [--status-file FILE]
       memtide-agent status [--status-file FILE]
       memtide-agent check [--config FILE]

Tells memtide on the host what this guest's kernel knows about its memory, and drops cold page cache if memtide asks for it.
What memtide may ask for stands in /etc/memtide-agent.toml.

  --port PATH         the virtio-serial port, terminal or Unix socket to the host
                      (default: the one that memtide_agent= on the kernel's command line names,
                      or /dev/virtio-ports/org.memtide.agent.0)
  --config FILE       another file in place of /etc/memtide-agent.toml
  --status-file FILE  where status is kept (default: /run/memtide-agent/status.json)

status shows what memtide asked for, and what became of it. check reads the configuration and says what is wrong with it.";

/// The agent's own data stays below this size in bytes.
const MOST_MEMORY: u64 = 64 << 20;

enum Command {
    Serve,
    Status,
    Check,
    Help,
    Version,
}

struct Options {
    command: Command,
    port: PathBuf,
    config: PathBuf,
    status: PathBuf,
}

fn main() -> ExitCode {
    let options = match options() {
        Ok(options) => options,
        Err(error) => {
            eprintln!("memtide-agent: {error}\nmemtide-agent --help lists the options");
            return ExitCode::from(2);
        }
    };
    match options.command {
        Command::Help => print(HELP),
        Command::Version => print(concat!("memtide-agent ", env!("CARGO_PKG_VERSION"))),
        Command::Status => status(&options.status),
        Command::Check => match Bounds::read(&options.config) {
            Ok(bounds) => print(&format!("{}: {bounds}", options.config.display())),
            Err(error) => failed(&error.to_string()),
        },
        Command::Serve => serve(&options),
    }
}

fn options() -> Result<Options, lexopt::Error> {
    let mut options = Options {
        command: Command::Serve,
        port: terminal().unwrap_or_else(|| Path::new("/dev/virtio-ports").join(wire::PORT)),
        config: PathBuf::from(BOUNDS),
        status: PathBuf::from(STATUS),
    };
    let mut parser = lexopt::Parser::from_env();
    while let Some(argument) = parser.next()? {
        match argument {
            Long("port") => options.port = parser.value()?.into(),
            Long("config") => options.config = parser.value()?.into(),
            Long("status-file") => options.status = parser.value()?.into(),
            Short('h') | Long("help") => options.command = Command::Help,
            Short('V') | Long("version") => options.command = Command::Version,
            Value(word) if word == "status" => options.command = Command::Status,
            Value(word) if word == "check" => options.command = Command::Check,
            other => return Err(other.unexpected()),
        }
    }
    Ok(options)
}

/// The terminal that the kernel's command line names (`memtide_agent=/dev/ttyS1`), as in an instance of User Mode Linux.
fn terminal() -> Option<PathBuf> {
    let line = std::fs::read_to_string("/proc/cmdline").ok()?;
    line.split_ascii_whitespace().find_map(|word| word.strip_prefix("memtide_agent=")).map(PathBuf::from)
}

fn serve(options: &Options) -> ExitCode {
    // What an agent that was killed has left is put back, whatever the configuration says.
    drop(Reporting::open(&Root::system(), options.status.parent(), page_size()));
    let bounds = match Bounds::read(&options.config) {
        Ok(bounds) => bounds,
        Err(error) => return failed(&error.to_string()),
    };
    // A limit that cannot be set leaves the service's own limits.
    let limit = Rlimit { current: Some(MOST_MEMORY), maximum: Some(MOST_MEMORY) };
    let _ = setrlimit(Resource::Data, limit);
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        if let Err(error) = flag::register(signal, Arc::clone(&stop)) {
            eprintln!("memtide-agent: signals cannot be caught: {error}");
        }
    }
    match Agent::new(Root::system(), bounds, Log::new(Some(options.status.clone()))) {
        Ok(mut agent) => {
            agent.serve(&options.port, &stop);
            ExitCode::SUCCESS
        }
        Err(error) => failed(&error.to_string()),
    }
}

fn status(path: &Path) -> ExitCode {
    let read = std::fs::read(path).map_err(|error| error.to_string());
    let status =
        read.and_then(|bytes| serde_json::from_slice::<Status>(&bytes).map_err(|error| error.to_string()));
    match status {
        Ok(status) => print(status.in_words(monotonic_ms()).trim_end()),
        Err(error) => failed(&format!("{}: {error}; is the agent running?", path.display())),
    }
}

fn print(text: &str) -> ExitCode {
    match writeln!(io::stdout(), "{text}") {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

fn failed(why: &str) -> ExitCode {
    eprintln!("memtide-agent: {why}");
    ExitCode::FAILURE
}
