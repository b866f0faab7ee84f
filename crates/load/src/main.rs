//! `memtide-load`: the memory exerciser, and the lab's helper inside a guest.

#![forbid(unsafe_code)]

use std::error::Error;
use std::fs::{File, OpenOptions};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, BufReader, Write};
use std::os::unix::fs::FileTypeExt;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::Duration;

use memtide_load::exerciser::options::{Asked, Chosen, HELP, Options};
use memtide_load::exerciser::run::run;
use memtide_load::helper::Helper;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;

const HELPER: &str = "\
usage: memtide-load lab-helper [--control PATH]

Obeys requests, one JSON object a line, from PATH (a virtio-serial port) or from standard input, and answers the same
way. Ends with standard input; a port is served forever.";

/// The wait until the host opens its end of the port.
const REOPEN: Duration = Duration::from_millis(50);

/// The exit codes, as `--help` explains them.
mod code {
    pub const FAILED: u8 = 1;
    pub const USAGE: u8 = 2;
    pub const DAMAGED: u8 = 3;
    pub const REFUSED: u8 = 4;
    pub const MISSED: u8 = 5;
}

fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1).peekable();
    if arguments.next_if(|first| first == "lab-helper").is_some() {
        return helper(&arguments.map(|text| text.to_string_lossy().into_owned()).collect::<Vec<_>>());
    }
    match Options::parse(arguments, chosen()) {
        Ok(Asked::Help) => print(HELP),
        Ok(Asked::Version) => print(concat!("memtide-load ", env!("CARGO_PKG_VERSION"))),
        Ok(Asked::Run(options)) => exercise(&options),
        Err(error) => {
            eprintln!("memtide-load: {error}\nmemtide-load --help lists what can be asked for");
            ExitCode::from(code::USAGE)
        }
    }
}

fn print(text: &str) -> ExitCode {
    match writeln!(io::stdout(), "{text}") {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::from(code::FAILED),
    }
}

/// Numbers that differ in each run, and are small enough for every JSON parser.
fn chosen() -> Chosen {
    let draw = || RandomState::new().build_hasher().finish() >> 11;
    Chosen { seed: draw(), instance: draw() }
}

fn exercise(options: &Options) -> ExitCode {
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in [SIGHUP, SIGINT, SIGTERM] {
        // A second signal ends the program at once.
        let twice = flag::register_conditional_shutdown(signal, 128 + signal, Arc::clone(&interrupted));
        if let Err(error) = twice.and_then(|_| flag::register(signal, Arc::clone(&interrupted))) {
            eprintln!("memtide-load: signals cannot be caught: {error}");
        }
    }
    match run(options, io::stdout(), &interrupted) {
        Ok(summary) if summary.errors > 0 => ExitCode::from(code::DAMAGED),
        Ok(summary) if !summary.reached() => ExitCode::from(code::MISSED),
        Ok(_) => ExitCode::SUCCESS,
        Err(error) => {
            let mut text = format!("memtide-load: {error}");
            let mut source = error.source();
            while let Some(cause) = source {
                text.push_str(&format!(": {cause}"));
                source = cause.source();
            }
            eprintln!("{text}");
            ExitCode::from(if error.is_refusal() { code::REFUSED } else { code::FAILED })
        }
    }
}

fn helper(arguments: &[String]) -> ExitCode {
    let result = match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        [] => serve_stdin(),
        ["--control", path] => serve_port(path),
        ["--help" | "-h"] => return print(HELPER),
        _ => {
            eprintln!("{HELPER}");
            return ExitCode::from(code::USAGE);
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("memtide-load: {e}");
            ExitCode::from(code::FAILED)
        }
    }
}

fn serve_stdin() -> io::Result<()> {
    Helper::new(std::env::current_exe()?, Box::new(io::stdout())).serve(&mut io::stdin().lock())
}

fn serve_port(path: &str) -> io::Result<()> {
    let with_path = |e: io::Error| io::Error::new(e.kind(), format!("{path}: {e}"));
    let port: File = OpenOptions::new().read(true).write(true).open(path).map_err(with_path)?;
    let for_ever = port.metadata()?.file_type().is_char_device();
    let helper = Helper::new(std::env::current_exe()?, Box::new(port.try_clone()?));
    loop {
        // While the host has not opened its end, the port reads as ended. A new reader drops a torn line.
        helper.serve(&mut BufReader::new(&port)).map_err(with_path)?;
        if !for_ever {
            return Ok(());
        }
        thread::sleep(REOPEN);
    }
}
