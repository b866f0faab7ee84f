//! Reading a file through the page cache, and checking it.
//!
//! The kernel drops the page cache of a block device at its last close: who wants the cache to stay behind keeps the
//! file that [`read`] returns.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};

use crate::MIB;
use crate::pace::Pacer;
use crate::pattern::{PAGE, Tally};

/// Pages read at a time.
const CHUNK: usize = 64 * PAGE;

/// A part of a file that holds the pattern.
#[derive(Clone, Debug)]
pub struct Part<'a> {
    /// The file.
    pub path: &'a str,
    /// The pattern's seed.
    pub seed: u64,
    /// Where to begin, in MiB.
    pub offset_mib: u64,
    /// How much to read, in MiB.
    pub mib: u64,
}

/// Reads `part` and compares it with the pattern; returns what was found, and the file, still open. `step` hears of the
/// bytes done so far and ends the job with an error.
///
/// # Errors
/// Where the file cannot be read or ends too early, and those of `step`.
pub fn read(
    part: &Part<'_>,
    pacer: &mut Pacer,
    mut step: impl FnMut(u64) -> io::Result<()>,
) -> io::Result<(Tally, File)> {
    let too_large = || io::Error::new(io::ErrorKind::InvalidInput, "the size does not fit in 64 bits");
    let start = part.offset_mib.checked_mul(MIB).ok_or_else(too_large)?;
    let total = part.mib.checked_mul(MIB).ok_or_else(too_large)?;
    let mut file = File::open(part.path)?;
    file.seek(SeekFrom::Start(start))?;
    let mut buffer = vec![0; CHUNK];
    let mut tally = Tally::default();
    while tally.bytes < total {
        let left = usize::try_from(total - tally.bytes).unwrap_or(usize::MAX);
        let chunk = &mut buffer[..left.min(CHUNK)];
        file.read_exact(chunk)?;
        tally.check_bytes(part.seed, (start + tally.bytes) / PAGE as u64, chunk);
        step(tally.bytes)?;
        pacer.after(chunk.len() as u64);
    }
    Ok((tally, file))
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;
    use crate::pattern;

    #[test]
    fn a_part_of_a_file_is_checked_against_the_patterns_own_pages() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        let mut bytes = vec![0; 3 << 20];
        pattern::fill(9, 0, &mut bytes);
        file.write_all(&bytes).unwrap();
        let path = file.path().to_str().unwrap();
        let part = Part { path, seed: 9, offset_mib: 1, mib: 2 };
        let (tally, _) = read(&part, &mut Pacer::new(None), |_| Ok(())).unwrap();
        assert_eq!((tally.bytes, tally.mismatches), (2 << 20, 0));
        assert_eq!(tally.checksum, pattern::checksum(9, 256, 512));
        let beyond = Part { mib: 3, ..part.clone() };
        let error = read(&beyond, &mut Pacer::new(None), |_| Ok(())).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
        let huge = Part { mib: u64::MAX, ..part };
        assert_eq!(
            read(&huge, &mut Pacer::new(None), |_| Ok(())).unwrap_err().kind(),
            io::ErrorKind::InvalidInput
        );
    }
}
