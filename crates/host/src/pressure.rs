//! Pressure stall information: `/proc/pressure/memory`, and `memory.pressure` of a cgroup v2.
//!
//! The averages in these files are rounded and lag; the `total=` fields are exact microseconds. Only they are read, and
//! whoever wants a rate takes the difference of two of them.

use std::io;

use memtide_model::{Pressure, Reading};
use rustix::io::Errno;

use crate::source::parse_once;
use crate::text::number;
use crate::{HostError, ParseError, Root, Scratch, Source};

/// The stall times in a pressure file.
///
/// # Errors
/// Where the `some` or the `full` line or its `total=` is missing or is no number.
pub fn parse(text: &str) -> Result<Pressure, ParseError> {
    Ok(Pressure { some_us: total("some", text)?, full_us: total("full", text)? })
}

fn total(kind: &'static str, text: &str) -> Result<u64, ParseError> {
    text.lines()
        .find_map(|line| line.strip_prefix(kind)?.strip_prefix(' '))
        .and_then(|fields| fields.split_ascii_whitespace().find_map(|field| field.strip_prefix("total=")))
        .ok_or(ParseError::Missing(kind))
        .and_then(|total| number(kind, total))
}

/// Reads the pressure of the whole host.
///
/// # Errors
/// [`HostError::NoPressure`] where the kernel has none; else where the file cannot be read or is malformed.
pub fn read(root: &Root) -> Result<Pressure, HostError> {
    parse_once(root.proc("pressure/memory"), parse).map_err(missing)
}

/// Says plainly that a kernel has no pressure stall information. Without `CONFIG_PSI` there is no file; with `psi=0` or
/// `cgroup.pressure` 0, opening or reading it answers `EOPNOTSUPP`.
pub(crate) fn missing(error: HostError) -> HostError {
    match error {
        HostError::Read { path, source }
            if source.kind() == io::ErrorKind::NotFound
                || Errno::from_io_error(&source) == Some(Errno::OPNOTSUPP) =>
        {
            HostError::NoPressure { path }
        }
        other => other,
    }
}

/// The pressure in a file that was opened, or why there is none.
pub(crate) fn reading(source: &Result<Source, HostError>, scratch: &mut Scratch) -> Reading<Pressure> {
    let pressure = match source {
        Ok(source) => source.parse(scratch, parse),
        Err(error) => return Reading::absent(error.absence()),
    };
    match pressure {
        Ok(pressure) => Reading::now(pressure),
        Err(error) => Reading::absent(missing(error).absence()),
    }
}

/// Opens a pressure file.
pub(crate) fn open(path: std::path::PathBuf) -> Result<Source, HostError> {
    Source::open(path).map_err(missing)
}
