//! Before the first page: the available memory, and the content of a file.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

use memtide_model::Bytes;

use super::available::{Available, available};
use super::content::{Content, PAGE, read_words};
use super::error::RunError;
use super::machine::number_after;
use super::memory::{Kind, Memory};
use super::options::Options;

/// The initial size; refused at once if it is not available.
pub fn size(options: &Options) -> Result<Bytes, RunError> {
    let Some(asked) = options.size else { return Ok(all_memory()) };
    match too_little(options, asked) {
        Some(Available { bytes: left, set_by }) => Err(RunError::TooLittle { asked, left, set_by }),
        None => Ok(asked),
    }
}

/// The available memory, if it is less than `more`. Growing memory and files need none beforehand.
#[must_use]
pub fn too_little(options: &Options, more: Bytes) -> Option<Available> {
    let counts = options.kind.path().is_none() && options.grow.is_none();
    available(Path::new("/")).filter(|available| counts && available.bytes < more)
}

/// Address space for `most` bytes. If nobody requested a size, as much of it as the kernel gives.
///
/// # Errors
/// If the kernel refuses, or the file cannot be opened.
pub fn reserve(options: &Options, size: Bytes, most: Bytes) -> Result<Memory, RunError> {
    let mut wanted = most;
    loop {
        match Memory::reserve(options.kind.clone(), wanted) {
            Ok(memory) => return Ok(memory),
            Err(_) if options.size.is_none() && wanted.get() > 2 * PAGE as u64 => {
                wanted = wanted.mul_div(1, 2)
            }
            Err(error) => {
                return Err(match options.kind.path() {
                    Some(path) => RunError::File(path.display().to_string(), error),
                    None => RunError::Memory(size, error),
                });
            }
        }
    }
}

/// Memory and swap of the machine: an upper bound.
#[must_use]
pub fn all_memory() -> Bytes {
    let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let kib = |name: &str| number_after(&meminfo, name).unwrap_or(0);
    Bytes::from_kib(kib("MemTotal:")).saturating_add(Bytes::from_kib(kib("SwapTotal:")))
}

/// What the exerciser may do with a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// The pages have the expected content, or are read whatever they contain: they are not filled.
    pub there: bool,
    /// The whole content is ours, so the file may be written.
    pub ours: bool,
}

/// Looks at the file before anything is written to it. The file is ours if each page has the content that `options` describe.
///
/// # Errors
/// If the file is not ours and more than reading is requested, or if it is too short.
pub fn look_at_the_file(options: &Options, memory: &Memory, size: Bytes) -> Result<Found, RunError> {
    let filled_anew = Found { there: false, ours: true };
    let (Some(path), Some(file)) = (options.kind.path(), memory.cached().or(memory.mapped_file())) else {
        return Ok(filled_anew);
    };
    let path = path.display().to_string();
    let found = memory.found();
    if memory.is_fixed() && found < size.get() {
        return Err(RunError::Short { path, has: Bytes::new(found), wants: size });
    }
    if found == 0 {
        return Ok(filled_anew);
    }
    let holds = |bytes: u64| {
        holds(file, &options.content, bytes).map_err(|error| RunError::File(path.clone(), error))
    };
    if options.writes.basis_points() == 0 && found >= size.get() {
        let any = !options.verify && matches!(options.kind, Kind::Cache(_));
        if any || holds(found.min(PAGE as u64))? {
            return Ok(Found { there: true, ours: false });
        }
    } else if holds(if memory.is_fixed() { size.get() } else { found })? {
        return Ok(Found { there: memory.is_fixed(), ours: true });
    }
    Err(RunError::Foreign(path))
}

/// Whether the first word of a page is that after some number of writes, modulo 256.
fn is_stamp(content: &Content, number: u64, page: &[u8; PAGE]) -> bool {
    let first = read_words(page).next();
    (0..=u64::from(u8::MAX)).any(|sequence| first == Some(content.first_word(number, sequence)))
}

/// Whether the first `bytes` of a file have the expected content, after any number of writes.
fn holds(file: &File, content: &Content, bytes: u64) -> io::Result<bool> {
    let mut reader = io::BufReader::with_capacity(1 << 20, file).take(bytes);
    reader.get_mut().seek(SeekFrom::Start(0))?;
    let (mut page, mut expected) = ([0; PAGE], [0; PAGE]);
    for number in 0.. {
        let mut length = 0;
        while length < PAGE {
            match reader.read(&mut page[length..])? {
                0 => break,
                read => length += read,
            }
        }
        if length == 0 {
            break;
        }
        content.fill_bytes(number, &mut expected);
        let ours = page == expected || (page[8..] == expected[8..] && is_stamp(content, number, &page));
        if length < PAGE || !ours {
            return Ok(false);
        }
    }
    Ok(true)
}
