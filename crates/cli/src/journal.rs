//! `memtide journal FILE`: a journal as JSON lines, its decisions as text, or the same run decided again.

use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use memtide_engine::journal::{Reader, encode, header};

/// Opens the journal at `path`, and fails if there is none.
pub fn open(path: &Path) -> Result<Reader> {
    let reader = Reader::open(path)?;
    if reader.is_empty() {
        bail!(
            "{}: there is no journal here: a daemon writes its decisions to `journal.dir` of its configuration",
            path.display()
        );
    }
    Ok(reader)
}

/// Prints the journal at `path`, one record per line. A torn tail is reported on standard error and is not a failure.
pub fn command(path: &Path, golden: bool) -> Result<ExitCode> {
    let mut reader = open(path)?;
    let mut out = BufWriter::new(std::io::stdout().lock());
    if golden {
        let records = reader.by_ref().collect::<Result<Vec<_>, _>>()?;
        out.write_all(memtide_engine::golden(records).as_bytes())?;
    } else {
        for record in reader.by_ref() {
            writeln!(out, "{}", serde_json::to_string(&record?)?)?;
        }
    }
    out.flush()?;
    if let Some(torn) = reader.torn() {
        eprintln!("memtide: {}: skipped a torn tail from byte {}", torn.path.display(), torn.offset);
    }
    Ok(ExitCode::SUCCESS)
}

/// Writes the run at `path` with this version's decisions into the new segment `out`.
pub fn redecide(path: &Path, out: &Path) -> Result<ExitCode> {
    let records = open(path)?.collect::<Result<Vec<_>, _>>()?;
    let mut bytes = header().to_vec();
    for record in memtide_engine::redecide(records) {
        encode(&record, &mut bytes)?;
    }
    let failed = || format!("cannot write {}: name a file that does not exist yet", out.display());
    File::create_new(out).and_then(|mut file| file.write_all(&bytes)).with_context(failed)?;
    Ok(ExitCode::SUCCESS)
}
