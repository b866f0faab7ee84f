//! `/proc/PID/statm` and `/proc/PID/stat`: a process's mapped and resident memory, its start time and its CPU time.

use memtide_model::{Bytes, PageSize, Pages, Span};
use rustix::io::Errno;

use crate::source::parse_once;
use crate::text::number;
use crate::{HostError, ParseError, Root, page_size};

/// The mapped and resident memory of a process, in the terms of `proc_pid_statm(5)`. Neither of the last two numbers includes hugetlbfs
/// pages. `resident` counts pages that KSM merged as if each existed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statm {
    /// All mapped memory, resident or not.
    pub mapped: Bytes,
    /// Resident pages: anonymous memory, mapped files, mapped shared memory.
    pub resident: Bytes,
    /// The resident pages that belong to files or shared memory.
    pub shared: Bytes,
}

impl Statm {
    /// Parses a `statm` file, which counts in pages of the size `page`.
    ///
    /// # Errors
    /// If a field is missing or not a number.
    pub fn parse(text: &str, page: PageSize) -> Result<Self, ParseError> {
        let mut fields = text.split_ascii_whitespace();
        let mut next = |name: &'static str| {
            let count = number(name, fields.next().ok_or(ParseError::Missing(name))?)?;
            Ok(Pages::new(count).to_bytes(page))
        };
        Ok(Self { mapped: next("size")?, resident: next("resident")?, shared: next("shared")? })
    }
}

/// The real user in a process's `status`.
pub(crate) fn user_in(status: &[u8]) -> Option<u32> {
    // The command's name comes first. The kernel escapes line breaks in it.
    let users = status.split(|&byte| byte == b'\n').find_map(|line| line.strip_prefix(b"Uid:"))?;
    str::from_utf8(users).ok()?.split_ascii_whitespace().next()?.parse().ok()
}

/// Reads the resident memory of a process.
///
/// # Errors
/// [`HostError::Gone`] if there is no such process; another error if the file cannot be read or is malformed.
pub fn statm(root: &Root, pid: u32) -> Result<Statm, HostError> {
    parse_once(root.process(pid, "statm"), |text| Statm::parse(text, page_size()))
        .map_err(|error| gone(pid, error))
}

/// Reads the start time of a process, in clock ticks after boot (field 22 of `stat`). Together with the process number, it identifies a
/// process for good.
///
/// # Errors
/// [`HostError::Gone`] if there is no such process; another error if the file cannot be read or is malformed.
pub fn start_time(root: &Root, pid: u32) -> Result<u64, HostError> {
    parse_once(root.process(pid, "stat"), parse_start_time).map_err(|error| gone(pid, error))
}

fn parse_start_time(text: &str) -> Result<u64, ParseError> {
    parse_stat(text).map(|stat| stat.start)
}

/// Parses a `stat` file.
///
/// # Errors
/// If a field is missing or not a number.
pub(crate) fn parse_stat(text: &str) -> Result<Stat, ParseError> {
    Stat::parse(text).ok_or(ParseError::Missing("starttime"))
}

/// The needed fields of `/proc/PID/stat`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    /// The parent process.
    pub parent: u32,
    /// Start in clock ticks after the boot.
    pub start: u64,
    /// Page faults of all its threads that needed no I/O: a write to a page that it shares is one.
    pub minor_faults: u64,
    /// CPU time used since then, in user mode and in the kernel, in clock ticks.
    pub cpu: u64,
    /// The process has ended and waits for its parent.
    pub dead: bool,
}

impl Stat {
    /// Parses a `stat` file; `None` if a field is missing or not a number.
    ///
    /// The command's name comes second, in parentheses. It may itself contain spaces, parentheses and digits, so fields are counted from
    /// the *last* closing parenthesis.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (_, rest) = text.rsplit_once(')')?;
        let mut fields = rest.split_ascii_whitespace();
        let state = fields.next()?;
        let parent = number("ppid", fields.next()?).ok()?;
        // Fields 10, 14, 15 and 22 of the whole line. The state is field 3, the parent is field 4.
        let minor_faults = number("minflt", fields.nth(5)?).ok()?;
        let user = number("utime", fields.nth(3)?).ok()?;
        let system = number("stime", fields.next()?).ok()?;
        let start = number("starttime", fields.nth(6)?).ok()?;
        Some(Self {
            parent: u32::try_from(parent).ok()?,
            start,
            minor_faults,
            cpu: user.saturating_add(system),
            dead: matches!(state, "Z" | "X"),
        })
    }

    /// The CPU time used.
    #[must_use]
    pub fn cpu_time(&self) -> Span {
        let a_second = rustix::param::clock_ticks_per_second().max(1);
        Span::from_millis(
            u64::try_from(u128::from(self.cpu) * 1_000 / u128::from(a_second)).unwrap_or(u64::MAX),
        )
    }
}

/// If a file below `/proc/PID` is missing, or an open one answers `ESRCH`, the process has ended.
pub(crate) fn gone(pid: u32, error: HostError) -> HostError {
    match error {
        HostError::Read { source, .. }
            if matches!(Errno::from_io_error(&source), Some(Errno::NOENT | Errno::SRCH)) =>
        {
            HostError::Gone { pid }
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use memtide_model::PAGE_4K;
    use proptest::prelude::*;

    #[test]
    fn statm_counts_in_pages() {
        // A QEMU guest of 512 MiB under TCG on 6.18, one minute after boot.
        let statm = Statm::parse("218501 45868 6279 1657 0 159749 0\n", PAGE_4K).unwrap();
        assert_eq!(statm.mapped, Bytes::new(218501 * 4096));
        assert_eq!(statm.resident, Bytes::new(45868 * 4096));
        assert_eq!(statm.shared, Bytes::new(6279 * 4096));
        assert!(Statm::parse("218501 45868", PAGE_4K).is_err());
        assert!(Statm::parse("", PAGE_4K).is_err());
        assert!(Statm::parse("1 x 3 4 0 6 0", PAGE_4K).is_err());
    }

    #[test]
    fn the_name_of_a_command_does_not_move_the_start_time() {
        let tail = "S 1 12696 12696 0 -1 138412416 15389 0 11 0 443 56 0 0 20 0 4 0 218027 894980096 45861 1";
        for name in ["(qemu-system-x86)", "(a b) c)", "(tricky) S 1 2 3 (x)", "())", "(\n)"] {
            assert_eq!(parse_start_time(&format!("12696 {name} {tail}\n")), Ok(218_027), "{name}");
        }
        for text in ["", "1 (x", "1 (x) S 1 2", "1 (x) S 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 -5 1"] {
            assert!(parse_start_time(text).is_err(), "{text}");
        }
    }

    #[test]
    fn the_start_is_found_behind_any_name() {
        let line = "7029 (qemu) S) x) S 7021 7029 7029 0 -1 4194560 58 0 0 0 1 2 0 0 20 0 4 0 216512 900 100 18446744073709551615\n";
        let stat = Stat { parent: 7021, start: 216_512, minor_faults: 58, cpu: 3, dead: false };
        assert_eq!(Stat::parse(line), Some(stat));
        assert_eq!(Stat::parse(&line.replace(" S 7021", " Z 7021")).map(|stat| stat.dead), Some(true));
        for text in ["", "7029 (qemu", "7029 (qemu) S 1 2 3", "7029 (qemu) S x"] {
            assert_eq!(Stat::parse(text), None, "{text}");
        }
    }

    #[test]
    fn this_process_is_read() {
        let (root, pid) = (Root::system(), std::process::id());
        assert!(statm(&root, pid).unwrap().resident > Bytes::ZERO);
        assert_eq!(start_time(&root, pid).unwrap(), start_time(&root, pid).unwrap());
        let none = u32::MAX;
        assert!(matches!(statm(&root, none), Err(HostError::Gone { pid }) if pid == none));
        assert!(matches!(start_time(&root, none), Err(HostError::Gone { .. })));
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "(?s).{0,80}", fields in "[0-9 ()-]{0,200}") {
            for text in [text, fields] {
                let _ = Statm::parse(&text, PAGE_4K);
                let _ = parse_start_time(&text);
            }
        }
    }
}
