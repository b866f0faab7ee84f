//! The journal. Any file is read as records, a torn tail, or an error with its place. A part of a journal reads as the
//! beginning of the whole. All records read can be written, printed and decided again, and each decision can be shown.
//!
//! An input that begins like a segment is used as one. Any other input is split into lines, each the content of a frame: no
//! fuzzer finds a CRC-32 by itself.

use std::fs;
use std::path::Path;

use memtide_engine::journal::{self, Reader};
use memtide_engine::{Recorded, ReplayError, golden, redecide, replay_journal};
use memtide_model::Record;
use tempfile::TempDir;

use crate::scratch;
use crate::texts::{are_for_people, survives_json};

thread_local! {
    static DIRECTORY: TempDir = scratch::directory();
}

/// Reads `bytes` as a journal.
///
/// # Panics
/// If a property does not hold.
pub fn run(bytes: &[u8]) {
    let segment = if bytes.starts_with(b"memtide\0") { bytes.to_vec() } else { framed(bytes) };
    let file = DIRECTORY.with(|directory| directory.path().join("000001.mtj"));
    let whole = read(&file, &segment);
    for record in &whole.records {
        survives_json(record);
        let mut frame = Vec::new();
        // Only a record that is too large cannot be written, and no input has one.
        journal::encode(record, &mut frame).unwrap_or_else(|error| panic!("{error}"));
    }
    is_decided_again(&file, &segment, &whole.records);
    is_shown(&file, &segment, whole.failed);
    for cut in cuts(&segment) {
        let part = read(&file, &segment[..cut]);
        assert!(whole.records.starts_with(&part.records), "cut at {cut}: another beginning");
        assert!(!part.failed || whole.failed, "cut at {cut}: a torn tail was taken for corruption");
    }
}

/// Each decision is shown, from behind and in order, or there is a reason why not.
fn is_shown(file: &Path, segment: &[u8], failed: bool) {
    fs::write(file, segment).expect("the fuzz target's file");
    // A file that is no segment has no decisions.
    let mut recorded = Recorded::open(file).unwrap_or_else(|error| panic!("{error}"));
    let mut shown: Vec<_> = (0..recorded.len()).rev().map(|place| recorded.show(place)).collect();
    shown.reverse();
    for (place, first) in shown.into_iter().enumerate() {
        match (first, recorded.show(place)) {
            (Ok(first), Ok(again)) => assert_eq!(first, again, "{place}"),
            (Err(_), Err(_)) => assert!(failed, "{place}: the reader found nothing broken"),
            (first, again) => panic!("{place}: {first:?}, and then {again:?}"),
        }
    }
}

/// A segment with each line in its own frame.
fn framed(lines: &[u8]) -> Vec<u8> {
    let mut segment = journal::header().to_vec();
    for line in lines.split(|&byte| byte == b'\n').filter(|line| !line.is_empty()) {
        let length = u32::try_from(line.len()).expect("no input is that long");
        segment.extend_from_slice(&length.to_le_bytes());
        segment.extend_from_slice(&crc32fast::hash(line).to_le_bytes());
        segment.extend_from_slice(line);
    }
    segment
}

/// Places to cut: a few that depend only on the content, so that an input always behaves the same.
fn cuts(segment: &[u8]) -> impl Iterator<Item = usize> {
    const CUTS: u32 = 4;
    let (length, seed) = (segment.len(), crc32fast::hash(segment));
    (0..CUTS).map(move |nth| {
        let place = (u64::from(seed.rotate_left(nth * 8)) * (length as u64)) >> 32;
        usize::try_from(place).unwrap_or(length)
    })
}

/// A reader's result for a file.
struct Seen {
    /// The records before the first error.
    records: Vec<Record>,
    failed: bool,
}

fn read(file: &Path, bytes: &[u8]) -> Seen {
    fs::write(file, bytes).expect("the fuzz target's file");
    let mut seen = Seen { records: Vec::new(), failed: false };
    let mut reader = match Reader::open(file) {
        Ok(reader) => reader,
        Err(error) => panic!("{error}"),
    };
    // After an error, the reader can be asked for more. Each answer is a frame, or the last answer.
    let most = bytes.len() / 9 + 2;
    let mut answers = 0;
    for answer in reader.by_ref() {
        answers += 1;
        assert!(answers <= most, "{answers} answers from {} bytes", bytes.len());
        match answer {
            Ok(record) if !seen.failed => seen.records.push(record),
            Ok(_) => {}
            Err(error) => {
                are_for_people(&error);
                seen.failed = true;
            }
        }
    }
    if let Some(torn) = reader.torn() {
        assert!(torn.offset <= bytes.len() as u64, "{torn:?} of {} bytes", bytes.len());
    }
    seen
}

/// Deciding again succeeds or fails with the first difference, and the decisions can be printed.
fn is_decided_again(file: &Path, segment: &[u8], records: &[Record]) {
    fs::write(file, segment).expect("the fuzz target's file");
    let mut reader = Reader::open(file).unwrap_or_else(|error| panic!("{error}"));
    match replay_journal(&mut reader) {
        Ok(_) => {}
        Err(ReplayError::Journal(error)) => are_for_people(&error),
        Err(ReplayError::Differs(difference)) => assert!(!difference.to_string().is_empty()),
    }
    let _ = golden(records.iter().cloned());
    let again = redecide(records.iter().cloned());
    assert_eq!(redecide(again.iter().cloned()), again, "what was decided again is decided otherwise");
}
