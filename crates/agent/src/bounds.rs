//! `/etc/memtide-agent.toml`: what the guest's administrator lets the host ask for.
//!
//! ```toml
//! least_cache = "64 MiB"   # page cache that is never trimmed; or a share of all memory, as in "5%"
//! trim = true              # cold page cache may be dropped
//! compact = true           # free memory may be compacted
//! report_pieces = true     # free page reporting may return smaller pieces while the host needs memory
//! least_piece = "64 KiB"   # but none smaller than this
//! tier = true              # programs' coldest memory may be swapped to a compressed device of the host
//! swap = false             # trimming may swap, if the host says so
//! drop_caches = false      # as a last resort, if the host says so, all page cache may be dropped at once
//! ```

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use memtide_model::{Amount, Bytes};
use serde::{Deserialize, Deserializer, de};

/// The file.
pub const PATH: &str = "/etc/memtide-agent.toml";

/// What the host may ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Bounds {
    /// Page cache that is never trimmed.
    #[serde(deserialize_with = "amount")]
    pub least_cache: Amount,
    /// Cold page cache may be dropped.
    pub trim: bool,
    /// Free memory may be compacted.
    pub compact: bool,
    /// Free page reporting may return smaller pieces than the kernel chose, while the host asks for it.
    pub report_pieces: bool,
    /// No smaller piece is reported.
    pub least_piece: Bytes,
    /// Programs' coldest memory may be swapped to a compressed device of the host.
    pub tier: bool,
    /// Trimming may swap, if the host says so.
    pub swap: bool,
    /// All page cache may be dropped as a last resort, if the host says so.
    pub drop_caches: bool,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            least_cache: Amount::Bytes(Bytes::from_mib(64)),
            trim: true,
            compact: true,
            report_pieces: true,
            least_piece: Bytes::from_kib(64),
            tier: true,
            swap: false,
            drop_caches: false,
        }
    }
}

/// A mistake in the file.
#[derive(Debug, thiserror::Error)]
pub enum BoundsError {
    /// It cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
    /// It cannot be understood.
    #[error("{}: {source}", path.display())]
    Parse {
        /// The file.
        path: PathBuf,
        /// The mistake, with its line.
        source: Box<toml::de::Error>,
    },
}

impl Bounds {
    /// Reads the file; without one, the defaults.
    ///
    /// # Errors
    /// If the file exists and cannot be read or understood.
    pub fn read(path: &Path) -> Result<Self, BoundsError> {
        let text = match std::fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Self::default()),
            Err(source) => return Err(BoundsError::Read { path: path.to_owned(), source }),
        };
        toml::from_str(&text)
            .map_err(|source| BoundsError::Parse { path: path.to_owned(), source: Box::new(source) })
    }

    /// Page cache that is never trimmed, in a guest with this much memory.
    #[must_use]
    pub fn least_cache(&self, total: Bytes) -> Bytes {
        self.least_cache.of(total)
    }
}

/// For people: what the host may ask for, and what not.
impl fmt::Display for Bounds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let deeds = [
            (self.trim, "trim page cache"),
            (self.compact, "compact free memory"),
            (self.report_pieces, "report small pieces of free memory"),
            (self.tier, "swap to its tier"),
            (self.swap, "swap when it trims"),
            (self.drop_caches, "drop all page cache"),
        ];
        let names = |allowed: bool| -> Vec<&str> {
            deeds.into_iter().filter(|(may, _)| *may == allowed).map(|(_, name)| name).collect()
        };
        let list = |allowed| match names(allowed).join(", ") {
            none if none.is_empty() => "nothing".to_owned(),
            some => some,
        };
        match self.least_cache {
            Amount::Bytes(bytes) => write!(f, "at least {bytes} of page cache stay")?,
            Amount::Share(share) => write!(f, "at least {share} of all memory stays page cache")?,
        }
        write!(f, "; the host may ask to: {}; not to: {}", list(true), list(false))
    }
}

fn amount<'de, D: Deserializer<'de>>(from: D) -> Result<Amount, D::Error> {
    let text = String::deserialize(from)?;
    let amount = match text.contains('%') {
        true => text.parse().map(Amount::Share).ok(),
        false => text.parse().map(Amount::Bytes).ok(),
    };
    amount.ok_or_else(|| {
        de::Error::custom(format_args!("write a size or a share, as in \"64 MiB\" or \"5%\", not `{text}`"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Bounds, BoundsError> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        Bounds::read(file.path())
    }

    #[test]
    fn a_guest_without_the_file_has_the_defaults() {
        assert_eq!(Bounds::read(Path::new("/nowhere/at/all")).unwrap(), Bounds::default());
        assert_eq!(read("").unwrap(), Bounds::default());
    }

    #[test]
    fn sizes_and_shares_are_read() {
        let bounds = read("least_cache = \"5%\"\ntrim = false\n").unwrap();
        assert_eq!(bounds.least_cache(Bytes::from_mib(1000)), Bytes::from_mib(50));
        assert!(!bounds.trim && bounds.compact);
    }

    #[test]
    fn bounds_are_told_in_words() {
        assert_eq!(
            Bounds::default().to_string(),
            "at least 64 MiB of page cache stay; the host may ask to: trim page cache, compact free memory, report small pieces of free memory, swap to its tier; not to: swap when it trims, drop all page cache"
        );
    }

    #[test]
    fn mistakes_are_told_with_their_line() {
        for (text, said) in [("trin = true\n", "trin"), ("\nleast_cache = \"lots\"\n", "lots")] {
            let error = read(text).unwrap_err().to_string();
            assert!(error.contains(said) && error.contains("line"), "{error}");
        }
    }
}
