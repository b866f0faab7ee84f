//! What the agent costs its guest: the real program on this machine's kernel, asked for reports each second and for events of pressure.
//!
//! ```text
//! cargo bench -p memtide-agent [-- PROGRAM]
//! ```
//!
//! PROGRAM is the agent to measure (default: that of this build; `make deb-agent` makes the smaller one that guests get). Nothing is trimmed.

use std::error::Error;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use memtide_agent::wire::{Ask, Request, VERSION};
use memtide_host::{ProcFs, Root, RunTime, statm};
use memtide_model::Bytes;

/// The time that is measured.
const LASTS: Duration = Duration::from_secs(120);

fn main() -> Result<(), Box<dyn Error>> {
    // Cargo adds an option of its own.
    let program = std::env::args().skip(1).find(|argument| !argument.starts_with('-'));
    let program = program.unwrap_or_else(|| env!("CARGO_BIN_EXE_memtide-agent").to_owned());
    let dir = tempfile::tempdir()?;
    let port = dir.path().join("port");
    let listener = UnixListener::bind(&port)?;
    let mut agent = Command::new(&program)
        .arg("--port")
        .arg(&port)
        .arg("--status-file")
        .arg(dir.path().join("status.json"))
        .stderr(Stdio::null())
        .spawn()?;
    let measured = measure(&listener, agent.id());
    agent.kill()?;
    agent.wait()?;
    let Measured { reports, cpu, resident } = measured?;
    let size = Bytes::new(std::fs::metadata(&program)?.len());
    println!(
        "{reports} reports in {LASTS:?}: {:.3} s of CPU time a minute; {resident} resident; the program has {size}",
        cpu.as_secs_f64() * 60.0 / LASTS.as_secs_f64(),
    );
    Ok(())
}

struct Measured {
    reports: u32,
    cpu: Duration,
    resident: Bytes,
}

fn measure(listener: &UnixListener, pid: u32) -> Result<Measured, Box<dyn Error>> {
    let (mut stream, _) = listener.accept()?;
    let asks = [
        Ask::Hello { version: VERSION },
        Ask::Report { every_ms: 1_000 },
        Ask::Pressure { stall_us: 70_000, window_us: 1_000_000 },
    ];
    for (id, ask) in (1..).zip(asks) {
        writeln!(stream, "{}", serde_json::to_string(&Request { id, ask })?)?;
    }
    let mut lines = BufReader::new(stream);
    let mut line = String::new();
    // The answer to the greeting: what comes before is not what is measured.
    lines.read_line(&mut line)?;
    // Its one thread makes all reports; deeds have threads of their own.
    let run_time = RunTime::open(&ProcFs::new(Path::new("/proc")), pid)
        .ok_or("the kernel does not count its run time")?;
    let (begun, before) = (Instant::now(), run_time.read()?);
    let mut reports = 0;
    while begun.elapsed() < LASTS {
        line.clear();
        if lines.read_line(&mut line)? == 0 {
            return Err("the agent has hung up".into());
        }
        reports += u32::from(line.contains("\"report\""));
    }
    let resident = statm(&Root::system(), pid)?.resident;
    Ok(Measured { reports, cpu: run_time.read()?.saturating_sub(before), resident })
}
