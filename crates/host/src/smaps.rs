//! `/proc/PID/smaps`: the mappings of a process, with the resident memory of each. Takes milliseconds: never read it every tick.

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::time::Instant;

use memtide_model::Bytes;
use rustix::fs::makedev;

use crate::process::gone;
use crate::shared_ram::FileId;
use crate::text::kib;
use crate::{HostError, ParseError, Root};

/// Sixteen times the default of `vm.max_map_count`, the number of mappings that a process may have.
const MAX_MAPPINGS: usize = 1 << 20;

/// One mapping of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mapping {
    /// Its first address.
    pub start: u64,
    /// The address after its last.
    pub end: u64,
    /// Whether it can be written.
    pub writable: bool,
    /// Whether it can be executed.
    pub executable: bool,
    /// Whether what is written to it stays in this process (`p`).
    pub is_private: bool,
    /// Whether KSM may scan it (`mg`, `MADV_MERGEABLE`).
    pub is_mergeable: bool,
    /// Whether it is locked in memory (`lo`, `mlock`, `mlockall`).
    pub is_locked: bool,
    /// Whether it consists of pages of hugetlbfs (`ht`).
    pub is_huge: bool,
    /// Whether fork skips it (`dc`, `MADV_DONTFORK`). QEMU sets this on all memory that a guest can touch.
    pub dont_fork: bool,
    /// The device of its file, as `stat` numbers it; 0 for anonymous memory.
    pub device: u64,
    /// The inode of its file; 0 for anonymous memory.
    pub inode: u64,
    /// The path of its file, or a name in brackets; empty for plain anonymous memory.
    pub name: String,
    /// `Rss`, plus hugetlbfs pages, which the kernel counts separately.
    pub resident: Bytes,
    /// `Anonymous`: resident memory that belongs to no file, though it may once have.
    pub anonymous: Bytes,
    /// `Swap`: the part of it in swap.
    pub swapped: Bytes,
    /// `KSM`: pages that KSM has merged and that are merged still, its zero pages apart; `None` before Linux 6.7.
    pub merged: Option<Bytes>,
}

impl Mapping {
    /// Its size.
    #[must_use]
    pub const fn size(&self) -> Bytes {
        Bytes::new(self.end.saturating_sub(self.start))
    }

    /// Its file, if it has one.
    #[must_use]
    pub const fn file(&self) -> Option<FileId> {
        if self.inode == 0 { None } else { Some(FileId { device: self.device, inode: self.inode }) }
    }

    /// Reads the mappings of a process.
    ///
    /// # Errors
    /// [`HostError::Gone`] if there is no such process; another error if the file cannot be read or is malformed.
    pub fn read_all(root: &Root, pid: u32) -> Result<Vec<Self>, HostError> {
        Self::read(root, pid, None)
    }

    /// Does the same, but stops between two lines at the moment `by`. A process can have tens of thousands of mappings, and the kernel takes seconds to
    /// describe them. A single read of the kernel is not cut short: who must not wait for that uses a thread.
    ///
    /// # Errors
    /// [`HostError::Timeout`] if not all of it was read by then; otherwise as of [`Mapping::read_all`].
    pub fn read_until(root: &Root, pid: u32, by: Instant) -> Result<Vec<Self>, HostError> {
        Self::read(root, pid, Some(by))
    }

    fn read(root: &Root, pid: u32, by: Option<Instant>) -> Result<Vec<Self>, HostError> {
        let path = root.process(pid, "smaps");
        let file = File::open(&path).map_err(|source| gone(pid, HostError::read(&path, source)))?;
        match parse(BufReader::new(file), by) {
            Ok(Ok(mappings)) => Ok(mappings),
            Ok(Err(error)) => Err(HostError::malformed(&path, error)),
            Err(source) if source.kind() == io::ErrorKind::TimedOut => Err(HostError::Timeout { path }),
            Err(source) => Err(gone(pid, HostError::read(&path, source))),
        }
    }
}

/// The outer error comes from reading, the inner one from parsing. Names need not be UTF-8.
fn parse(mut text: impl BufRead, by: Option<Instant>) -> io::Result<Result<Vec<Mapping>, ParseError>> {
    let mut mappings = Vec::new();
    let mut line = Vec::new();
    loop {
        if by.is_some_and(|by| Instant::now() >= by) {
            return Err(io::ErrorKind::TimedOut.into());
        }
        line.clear();
        if text.read_until(b'\n', &mut line)? == 0 {
            return Ok(Ok(mappings));
        }
        if let Err(error) = take(&String::from_utf8_lossy(&line), &mut mappings) {
            return Ok(Err(error));
        }
    }
}

/// Takes one line: the head of a mapping, or a field of the last mapping.
fn take(line: &str, mappings: &mut Vec<Mapping>) -> Result<(), ParseError> {
    if let Some(mapping) = head(line) {
        if mappings.len() == MAX_MAPPINGS {
            return Err(ParseError::TooLong(MAX_MAPPINGS));
        }
        mappings.push(mapping);
        return Ok(());
    }
    let (key, rest) = line.split_once(':').ok_or(ParseError::Missing("a field's name"))?;
    let mapping = mappings.last_mut().ok_or(ParseError::Missing("the head of a mapping"))?;
    match key {
        "Rss" => add(&mut mapping.resident, kib("Rss", rest)?),
        "Shared_Hugetlb" => add(&mut mapping.resident, kib("Shared_Hugetlb", rest)?),
        "Private_Hugetlb" => add(&mut mapping.resident, kib("Private_Hugetlb", rest)?),
        "Anonymous" => mapping.anonymous = kib("Anonymous", rest)?,
        "KSM" => mapping.merged = Some(kib("KSM", rest)?),
        "Swap" => mapping.swapped = kib("Swap", rest)?,
        "VmFlags" => {
            let has = |wanted: &str| rest.split_ascii_whitespace().any(|flag| flag == wanted);
            (mapping.dont_fork, mapping.is_mergeable) = (has("dc"), has("mg"));
            (mapping.is_locked, mapping.is_huge) = (has("lo"), has("ht"));
        }
        _ => {}
    }
    Ok(())
}

fn add(sum: &mut Bytes, part: Bytes) {
    *sum = sum.saturating_add(part);
}

/// `start-end perms offset device inode [name]`; `None` for any other line.
fn head(line: &str) -> Option<Mapping> {
    let mut rest = line.trim_end_matches('\n');
    let mut next = || {
        let (word, tail) = rest.split_once(' ').unwrap_or((rest, ""));
        rest = tail;
        word
    };
    let (start, end) = next().split_once('-')?;
    let (start, end) = (u64::from_str_radix(start, 16).ok()?, u64::from_str_radix(end, 16).ok()?);
    let perms = next();
    let _offset = next();
    let (major, minor) = next().split_once(':')?;
    let device = makedev(u32::from_str_radix(major, 16).ok()?, u32::from_str_radix(minor, 16).ok()?);
    let inode = next().parse().ok()?;
    Some(Mapping {
        start,
        end,
        writable: perms.contains('w'),
        executable: perms.contains('x'),
        is_private: perms.contains('p'),
        device,
        inode,
        name: rest.trim_start().to_owned(),
        ..Mapping::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_mapping_is_its_head_and_its_fields() {
        let text = "\
7fa863e00000-7fa883e00000 rw-p 00000000 00:00 0 \nSize:             524288 kB\nRss:               96256 kB\n\
Anonymous:         96000 kB\nKSM:                  64 kB\nSwap:                  8 kB\nVmFlags: rd wr mr mw me dc ac hg mg \n\
7fa890000000-7fa890200000 rw-s 00000000 00:01 99                         /memfd:a b: (deleted)\n\
Rss:                   0 kB\nShared_Hugetlb:     2048 kB\nVmFlags: rd wr sh lo ht \n";
        let mappings = parse(text.as_bytes(), None).unwrap().unwrap();
        assert_eq!(mappings.len(), 2);
        let ram = &mappings[0];
        assert_eq!(ram.size(), Bytes::from_mib(512));
        assert_eq!((ram.resident, ram.swapped), (Bytes::from_mib(94), Bytes::from_kib(8)));
        assert_eq!(ram.anonymous, Bytes::from_kib(96_000));
        assert_eq!((ram.merged, mappings[1].merged), (Some(Bytes::from_kib(64)), None));
        assert!(ram.writable && !ram.executable && ram.dont_fork && ram.is_private && ram.is_mergeable);
        assert_eq!((ram.inode, ram.name.as_str()), (0, ""));
        let file = &mappings[1];
        assert_eq!((file.inode, file.name.as_str()), (99, "/memfd:a b: (deleted)"));
        assert_eq!((ram.file(), file.file()), (None, Some(FileId { device: 1, inode: 99 })));
        assert_eq!(file.resident, Bytes::from_mib(2));
        assert!(!file.dont_fork && !file.is_private && !file.is_mergeable);
        assert!(file.is_locked && file.is_huge && !ram.is_locked && !ram.is_huge);
    }

    #[test]
    fn a_cut_or_strange_text_is_refused() {
        for text in ["Rss: 1 kB\n", "1-2 rw-p 0 0:0 0\nRss: 12", "1-2 rw-p 0 0:0 0\njunk\n", "\u{0}\n"] {
            assert!(parse(text.as_bytes(), None).unwrap().is_err(), "{text:?}");
        }
        assert_eq!(parse(&b""[..], None).unwrap(), Ok(Vec::new()));
    }

    #[test]
    fn this_process_is_read() {
        let mappings = Mapping::read_all(&Root::system(), std::process::id()).unwrap();
        assert!(mappings.iter().any(|mapping| mapping.name == "[stack]" && !mapping.resident.is_zero()));
    }

    #[test]
    fn reading_stops_at_its_deadline() {
        let read = |by| Mapping::read_until(&Root::system(), std::process::id(), by);
        let error = read(Instant::now()).unwrap_err();
        assert!(matches!(error, HostError::Timeout { .. }), "{error}");
        assert!(read(Instant::now() + std::time::Duration::from_secs(60)).is_ok_and(|all| !all.is_empty()));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse(bytes.as_slice(), None).unwrap();
        }

        #[test]
        fn any_line_is_read_or_refused(head in "[0-9a-f]{0,17}-[0-9a-f]{0,17} [rwxps-]{0,4}.{0,40}",
                                       field in "(Rss|Swap|VmFlags):.{0,30}") {
            let _ = parse(format!("{head}\n{field}\n").as_bytes(), None).unwrap();
        }
    }
}
