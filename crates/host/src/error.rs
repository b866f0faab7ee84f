//! Errors of the readers.

use std::io;
use std::path::{Path, PathBuf};

use memtide_model::Absence;
use rustix::io::Errno;

/// An error in reading a kernel file, or a problem with its content.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// The kernel refused, or there is no such file.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The kernel refused a value, or there is no such file.
    #[error("cannot write {}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The file does not have the form that kernels write.
    #[error("cannot parse {}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// The problem with its content.
        source: ParseError,
    },
    /// Not all of the file was read by the reader's deadline.
    #[error("{} takes too long to read", path.display())]
    Timeout {
        /// The file.
        path: PathBuf,
    },
    /// The process has ended.
    #[error("process {pid} is gone")]
    Gone {
        /// The process.
        pid: u32,
    },
    /// The kernel has no pressure stall information: it is not built in, or switched off (`psi=0`).
    #[error("no pressure stall information at {}", path.display())]
    NoPressure {
        /// The file that would hold it.
        path: PathBuf,
    },
    /// The kernel did not accept a trigger.
    #[error(
        "{} refuses a trigger of {stall_us} µs in {window_us} µs: without CAP_SYS_RESOURCE, kernels since 6.4 take \
         only windows of multiples of 2 s",
        path.display()
    )]
    Trigger {
        /// The pressure file.
        path: PathBuf,
        /// The requested stall.
        stall_us: u64,
        /// The requested window.
        window_us: u64,
        /// The kernel's answer.
        source: io::Error,
    },
}

/// A problem in a text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    /// A field that all kernels write is missing: the text is cut, or it is another file.
    #[error("`{0}` is missing")]
    Missing(&'static str),
    /// A field holds no number, or one that does not fit in 64 bits.
    #[error("`{field}` is not a 64-bit number: `{text}`")]
    NoNumber {
        /// The field.
        field: &'static str,
        /// Its content (truncated).
        text: String,
    },
    /// The text is not UTF-8.
    #[error("not UTF-8")]
    NotText,
    /// The text is longer than any kernel writes.
    #[error("longer than {0} bytes")]
    TooLong(usize),
}

impl HostError {
    pub(crate) fn read(path: &Path, source: io::Error) -> Self {
        Self::Read { path: path.to_owned(), source }
    }

    pub(crate) fn malformed(path: &Path, source: ParseError) -> Self {
        Self::Malformed { path: path.to_owned(), source }
    }

    /// Whether there is no such file, or the kernel does not offer its content.
    #[must_use]
    pub fn is_unsupported(&self) -> bool {
        match self {
            Self::Read { source, .. } => {
                matches!(
                    Errno::from_io_error(source),
                    Some(Errno::NOENT | Errno::OPNOTSUPP | Errno::NOSYS | Errno::NODEV)
                ) || matches!(source.kind(), io::ErrorKind::NotFound | io::ErrorKind::Unsupported)
            }
            Self::NoPressure { .. } => true,
            _ => false,
        }
    }

    /// The error as the reason of an absent reading.
    #[must_use]
    pub fn absence(&self) -> Absence {
        match self {
            Self::Gone { .. } => Absence::Gone,
            Self::Timeout { .. } => Absence::Overran,
            Self::Read { source, .. } if source.kind() == io::ErrorKind::PermissionDenied => {
                Absence::Forbidden
            }
            Self::Read { source, .. } if Errno::from_io_error(source) == Some(Errno::SRCH) => Absence::Gone,
            error if error.is_unsupported() => Absence::Unsupported,
            Self::Read { source, .. } | Self::Trigger { source, .. } => Absence::Refused(source.to_string()),
            error => Absence::Refused(error.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_becomes_the_reason_of_an_absence() {
        let read = |errno: Errno| HostError::read(Path::new("/proc/x"), errno.into());
        assert_eq!(read(Errno::ACCESS).absence(), Absence::Forbidden);
        assert_eq!(read(Errno::PERM).absence(), Absence::Forbidden);
        assert_eq!(read(Errno::NOENT).absence(), Absence::Unsupported);
        assert_eq!(read(Errno::OPNOTSUPP).absence(), Absence::Unsupported);
        assert_eq!(read(Errno::SRCH).absence(), Absence::Gone);
        assert_eq!(HostError::Gone { pid: 1 }.absence(), Absence::Gone);
        assert_eq!(HostError::Timeout { path: "/proc/x".into() }.absence(), Absence::Overran);
        assert!(matches!(read(Errno::IO).absence(), Absence::Refused(_)));
        assert!(matches!(
            HostError::malformed(Path::new("/x"), ParseError::Missing("MemTotal")).absence(),
            Absence::Refused(_)
        ));
    }
}
