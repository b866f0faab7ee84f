//! `memtide-load`: obeys the lab from inside a guest. See the library's documentation for the control channel.

#![forbid(unsafe_code)]

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufReader};
use std::os::unix::fs::FileTypeExt;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use memtide_load::block::{self, Shape};
use memtide_load::control::Control;

const USAGE: &str = "\
usage: memtide-load [--control PATH]

Obeys requests, one JSON object a line, from PATH (a virtio-serial port) or from standard input, and answers the same
way. Ends with standard input; a port is served for ever.";

/// How long to wait for the host to open its end of the port.
const REOPEN: Duration = Duration::from_millis(50);

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let result = match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        [] => serve_stdin(),
        ["--control", path] => serve_port(path),
        [block::ARGUMENT, ..] => serve_block(&arguments[1..]),
        ["--help" | "-h"] => {
            println!("{USAGE}");
            Ok(())
        }
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("memtide-load: {e}");
            ExitCode::FAILURE
        }
    }
}

fn serve_stdin() -> io::Result<()> {
    Control::new(std::env::current_exe()?, Box::new(io::stdout())).serve(&mut io::stdin().lock())
}

fn serve_port(path: &str) -> io::Result<()> {
    let with_path = |e: io::Error| io::Error::new(e.kind(), format!("{path}: {e}"));
    let port: File = OpenOptions::new().read(true).write(true).open(path).map_err(with_path)?;
    let for_ever = port.metadata()?.file_type().is_char_device();
    let control = Control::new(std::env::current_exe()?, Box::new(port.try_clone()?));
    loop {
        // A port reads as ended while the host has not opened its end: a new reader drops a torn line.
        control.serve(&mut BufReader::new(&port)).map_err(with_path)?;
        if !for_ever {
            return Ok(());
        }
        thread::sleep(REOPEN);
    }
}

fn serve_block(arguments: &[String]) -> io::Result<()> {
    fs::write("/proc/self/oom_score_adj", "1000")?;
    let shape = Shape::parse(arguments).ok_or_else(|| {
        io::Error::new(io::ErrorKind::InvalidInput, "usage: memtide-load block SEED MIB RATE")
    })?;
    block::serve(shape, io::stdin().lock(), io::stdout())
}
