//! Pressure stall information: `/proc/pressure/memory`, and `memory.pressure` of a v2 cgroup.
//!
//! The averages in these files are rounded and lag. The `total=` fields are exact microseconds, so only they are read. A rate is the
//! difference of two totals.

use std::io;

use memtide_model::{Pressure, Reading};
use rustix::io::Errno;

use crate::source::parse_once;
use crate::text::number;
use crate::{HostError, ParseError, Root, Scratch, Source};

/// The stall times in a pressure file.
///
/// # Errors
/// If the `some` or `full` line is missing, or its `total=` is missing or not a number.
pub fn parse(text: &str) -> Result<Pressure, ParseError> {
    Ok(Pressure { some_us: total("some", text)?, full_us: total("full", text)? })
}

/// The time for which some task stalled, in microseconds.
///
/// # Errors
/// If the `some` line is missing, or its `total=` is missing or not a number.
pub(crate) fn some(text: &str) -> Result<u64, ParseError> {
    total("some", text)
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
/// [`HostError::NoPressure`] if the kernel has none; another error if the file cannot be read or is malformed.
pub fn read(root: &Root) -> Result<Pressure, HostError> {
    parse_once(root.proc("pressure/memory"), parse).map_err(missing)
}

/// Maps the error of a kernel without pressure stall information to [`HostError::NoPressure`]. Without `CONFIG_PSI` the file does not
/// exist; with `psi=0` or `cgroup.pressure` 0, opening or reading it fails with `EOPNOTSUPP`.
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

/// The pressure from an opened file, or the reason why it is absent.
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
