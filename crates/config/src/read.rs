//! The bytes of a configuration file, and their text. A file that cannot be a configuration is refused by its kind, its
//! length or its first wrong byte.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::FileTypeExt as _;
use std::path::Path;

use rustix::fs::{Mode, OFlags};

use crate::ConfigError;
use crate::mistake::Mistake;

/// The longest file that is read: hundreds of times the size for a host with many guests.
const LONGEST: u64 = 1 << 20;

/// The content of the file `path`.
pub(crate) fn bytes(path: &Path) -> Result<Vec<u8>, ConfigError> {
    let failed = |source: io::Error| ConfigError::Read { path: path.to_owned(), source };
    let unfit = |why| Err(ConfigError::Unfit { path: path.to_owned(), why });
    // Opening a pipe without a writer would block.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, Mode::empty()).map_err(|error| failed(error.into()))?;
    let file = File::from(file);
    let kind = file.metadata().map_err(failed)?.file_type();
    if kind.is_dir() {
        return unfit("is a directory: name the file in it");
    }
    if kind.is_fifo() {
        return unfit("is a pipe, which can be read only once: name a file");
    }
    let mut bytes = Vec::new();
    let length = file.take(LONGEST + 1).read_to_end(&mut bytes).map_err(failed)?;
    if length as u64 > LONGEST {
        return unfit("is too long for a configuration (more than 1 MiB): name another file");
    }
    Ok(bytes)
}

/// The bytes as text.
pub(crate) fn text(bytes: &[u8]) -> Result<&str, (usize, usize, String)> {
    str::from_utf8(bytes).map_err(|error| {
        let (valid, rest) = bytes.split_at(error.valid_up_to());
        let wrong = rest.first().copied().unwrap_or_default();
        let message = format!("the byte 0x{wrong:02x} is not UTF-8: save the file as UTF-8");
        Mistake::new(valid.len(), message).explain(&String::from_utf8_lossy(valid))
    })
}
