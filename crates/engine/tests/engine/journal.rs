//! The journal on a real file system: torn, with flipped bits, full, deleted, and read by another process.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use memtide_engine::journal::{Cut, JournalError, Reader, Writer, encode, header};
use memtide_model::{Bytes, Moment, Record};
use memtide_testing::start;
use proptest::prelude::*;
use rustix::fs::{FileType, Mode};

const MOST: Bytes = Bytes::from_mib(8);

fn note(number: u64) -> Record {
    Record::Note { at: Moment::from_millis(number), text: format!("note {number}") }
}

fn write(dir: &Path, notes: std::ops::Range<u64>) -> Option<Cut> {
    let (mut writer, cut) = Writer::open(dir, MOST).unwrap();
    for number in notes {
        writer.write(start, &[note(number)]).unwrap();
    }
    cut
}

fn read(path: &Path) -> Result<Vec<Record>, JournalError> {
    Reader::open(path)?.collect()
}

fn files(dir: &Path) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

#[test]
fn records_come_back_in_order_from_the_directory_and_from_one_file() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), 0..3);
    write(dir.path(), 3..4);
    let all = [start(), note(0), note(1), note(2), start(), note(3)];
    assert_eq!(read(dir.path()).unwrap(), all);
    assert_eq!(read(&dir.path().join("000002.mtj")).unwrap(), all[4..]);
}

#[test]
fn nobody_else_may_read_or_write_it() {
    let dir = tempfile::tempdir().unwrap();
    let journal = dir.path().join("var/journal");
    let (mut writer, _) = Writer::open(&journal, MOST).unwrap();
    writer.write(start, &[note(0)]).unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&journal), mode(&journal.join("000001.mtj"))), (0o700, 0o600));
    assert!(matches!(Writer::open(&journal, MOST), Err(JournalError::InUse { .. })));
    drop(writer);
    Writer::open(&journal, MOST).unwrap();
}

#[test]
fn a_tail_torn_anywhere_is_left_out_and_cut_off() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), 0..3);
    let file = dir.path().join("000001.mtj");
    let whole = fs::read(&file).unwrap();
    let mut last = Vec::new();
    encode(&note(2), &mut last).unwrap();
    let kept = whole.len() - last.len();
    for length in kept + 1..whole.len() {
        fs::write(&file, &whole[..length]).unwrap();
        let mut reader = Reader::open(dir.path()).unwrap();
        let records: Vec<Record> = reader.by_ref().collect::<Result<_, _>>().unwrap();
        assert_eq!(records, [start(), note(0), note(1)], "{length}");
        let torn = reader.torn().unwrap();
        assert_eq!((torn.path.as_path(), torn.offset), (file.as_path(), kept as u64));

        let cut = write(dir.path(), 9..10);
        let expected = Cut { path: file.clone(), kept: kept as u64, cut: (length - kept) as u64 };
        assert_eq!(cut, Some(expected));
        assert_eq!(read(dir.path()).unwrap(), [start(), note(0), note(1), start(), note(9)]);
        fs::remove_file(dir.path().join("000002.mtj")).unwrap();
    }
}

#[test]
fn a_segment_torn_in_its_header_or_first_frame_is_deleted() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), 0..1);
    let file = dir.path().join("000001.mtj");
    let whole = fs::read(&file).unwrap();
    for length in 0..header().len() + 9 {
        fs::write(&file, &whole[..length]).unwrap();
        assert_eq!(read(dir.path()).unwrap(), [], "{length}");
        let cut = write(dir.path(), 0..0);
        match length == header().len() {
            true => assert_eq!(cut, None, "an empty segment is whole"),
            false => assert_eq!(cut, Some(Cut { path: file.clone(), kept: 0, cut: length as u64 })),
        }
    }
}

#[test]
fn zeros_after_the_last_frame_are_a_torn_tail() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), 0..1);
    let file = dir.path().join("000001.mtj");
    let mut bytes = fs::read(&file).unwrap();
    bytes.resize(bytes.len() + 5000, 0);
    fs::write(&file, bytes).unwrap();
    assert_eq!(read(dir.path()).unwrap(), [start(), note(0)]);
    assert_eq!(write(dir.path(), 1..2).unwrap().cut, 5000);
    assert_eq!(read(dir.path()).unwrap(), [start(), note(0), start(), note(1)]);
}

#[test]
fn the_end_of_an_older_segment_may_not_be_torn() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), 0..2);
    write(dir.path(), 2..3);
    let file = dir.path().join("000001.mtj");
    let whole = fs::read(&file).unwrap();
    fs::write(&file, &whole[..whole.len() - 1]).unwrap();
    let mut reader = Reader::open(dir.path()).unwrap();
    assert_eq!(reader.next().unwrap().unwrap(), start());
    assert_eq!(reader.next().unwrap().unwrap(), note(0));
    let error = reader.next().unwrap().unwrap_err();
    assert!(matches!(&error, JournalError::Corrupt { path, .. } if *path == file), "{error}");
    let rest: Vec<Record> = reader.collect::<Result<_, _>>().unwrap();
    assert_eq!(rest, [start(), note(2)], "the next segment can still be read");
}

#[test]
fn other_files_are_told_from_journals() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("000001.mtj");
    fs::write(&path, "#!/bin/sh\nexit 1\n").unwrap();
    assert!(matches!(read(&path), Err(JournalError::NotAJournal { .. })));
    let mut newer = header();
    newer[8] = 9;
    fs::write(&path, newer).unwrap();
    assert!(matches!(read(&path), Err(JournalError::OtherFormat { format: 9, .. })));
    assert_eq!(write(dir.path(), 0..1), None, "a file of another format is left alone");
    assert_eq!(fs::read(&path).unwrap(), newer);

    let mut bytes = header().to_vec();
    let payload = br#"{"record":"prophecy\u001b[31m"}"#;
    bytes.extend(u32::try_from(payload.len()).unwrap().to_le_bytes());
    bytes.extend(crc32fast::hash(payload).to_le_bytes());
    bytes.extend(payload);
    encode(&note(1), &mut bytes).unwrap();
    fs::write(&path, bytes).unwrap();
    let mut reader = Reader::open(&path).unwrap();
    let error = reader.next().unwrap().unwrap_err();
    assert!(matches!(error, JournalError::UnknownRecord { offset: 12, .. }), "{error}");
    let text = error.to_string();
    assert!(text.contains("at byte 12: unknown variant `prophecy [31m`"), "{text}");
    assert_eq!(reader.next().unwrap().unwrap(), note(1));
    assert!(Reader::open(&dir.path().join("nothing")).is_err());
}

#[test]
fn segments_turn_over_and_the_oldest_go() {
    let dir = tempfile::tempdir().unwrap();
    let (mut writer, _) = Writer::open(dir.path(), MOST).unwrap();
    let text = "x".repeat(100_000);
    for number in 0..200 {
        let record = Record::Note { at: Moment::from_millis(number), text: text.clone() };
        writer.write(start, &[record]).unwrap();
        let sizes: Vec<u64> =
            files(dir.path()).iter().map(|file| fs::metadata(file).unwrap().len()).collect();
        assert!(sizes.iter().sum::<u64>() <= MOST.get());
        assert!(sizes.iter().all(|size| *size <= 1 << 20));
    }
    let numbers: Vec<u64> = read(dir.path())
        .unwrap()
        .into_iter()
        .filter_map(|record| if let Record::Note { at, .. } = record { Some(at.as_millis()) } else { None })
        .collect();
    let newest: Vec<u64> = (200 - numbers.len() as u64..200).collect();
    assert_eq!(numbers, newest, "what is left is the end, without a hole");
    assert!(numbers.len() > 60, "the journal uses most of its room: {}", numbers.len());
    for file in files(dir.path()) {
        assert!(matches!(Reader::open(&file).unwrap().next().unwrap().unwrap(), Record::Start { .. }));
    }
}

#[test]
fn a_record_larger_than_a_segment_gets_one_of_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let (mut writer, _) = Writer::open(dir.path(), MOST).unwrap();
    writer.write(start, &[note(0)]).unwrap();
    let large = Record::Note { at: Moment::default(), text: "x".repeat(3 << 20) };
    writer.write(start, std::slice::from_ref(&large)).unwrap();
    writer.write(start, &[note(1)]).unwrap();
    assert_eq!(read(dir.path()).unwrap(), [start(), note(0), start(), large, start(), note(1)]);
    assert_eq!(files(dir.path()).len(), 3);
}

#[test]
fn a_journal_that_was_deleted_under_the_writer_begins_anew() {
    let dir = tempfile::tempdir().unwrap();
    let journal = dir.path().join("journal");
    let (mut writer, _) = Writer::open(&journal, MOST).unwrap();
    writer.write(start, &[note(0)]).unwrap();
    fs::remove_dir_all(&journal).unwrap();
    writer.write(start, &[note(1)]).unwrap();
    assert_eq!(read(&journal).unwrap(), [start(), note(1)]);
    assert!(matches!(Writer::open(&journal, MOST), Err(JournalError::InUse { .. })), "and is held again");
}

#[test]
fn a_journal_that_was_moved_away_from_the_writer_begins_anew() {
    let dir = tempfile::tempdir().unwrap();
    let (journal, away) = (dir.path().join("journal"), dir.path().join("away"));
    let (mut writer, _) = Writer::open(&journal, MOST).unwrap();
    writer.write(start, &[note(0)]).unwrap();
    fs::rename(&journal, &away).unwrap();
    writer.write(start, &[note(1)]).unwrap();
    assert_eq!(read(&journal).unwrap(), [start(), note(1)], "where the next run looks for it");
    assert_eq!(read(&away).unwrap(), [start(), note(0)]);
    // A file in place of the directory is reported, with its fix.
    fs::remove_dir_all(&journal).unwrap();
    fs::write(&journal, "").unwrap();
    let error = writer.write(start, &[note(2)]).unwrap_err();
    assert!(error.to_string().contains(journal.to_str().unwrap()), "{error}");
    assert!(error.fix().contains("put a directory there"), "{}", error.fix());
}

#[test]
fn after_a_corrupt_place_the_next_whole_record_follows() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), 0..3);
    let file = dir.path().join("000001.mtj");
    let mut bytes = fs::read(&file).unwrap();
    let place = bytes.windows(6).position(|six| six == b"note 1").unwrap();
    bytes[place] = b'N';
    fs::write(&file, &bytes).unwrap();
    let mut reader = Reader::open(dir.path()).unwrap();
    assert_eq!(reader.next().unwrap().unwrap(), start());
    assert_eq!(reader.next().unwrap().unwrap(), note(0));
    assert!(matches!(reader.next().unwrap(), Err(JournalError::Corrupt { .. })));
    assert_eq!(reader.collect::<Result<Vec<_>, _>>().unwrap(), [note(2)]);
}

#[test]
fn a_pipe_in_the_directory_is_no_journal_and_holds_nothing_up() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), 0..2);
    let pipe = dir.path().join("000009.mtj");
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    let (mut writer, cut) = Writer::open(dir.path(), MOST).unwrap();
    assert_eq!(cut, None);
    let before = memtide_engine::resume(dir.path(), Moment::from_millis(9)).unwrap();
    let is_pipe = |error: &JournalError| matches!(error, JournalError::NotAJournal { path } if *path == pipe);
    assert!(before.unread.iter().any(is_pipe), "{:?}", before.unread);
    writer.write(start, &[note(2)]).unwrap();
    assert!(dir.path().join("000010.mtj").exists(), "the next one has the next number");
}

#[test]
fn a_start_is_not_written_twice() {
    let dir = tempfile::tempdir().unwrap();
    let (mut writer, _) = Writer::open(dir.path(), MOST).unwrap();
    writer.write(start, &[start(), note(0)]).unwrap();
    writer.write(start, &[start(), note(1)]).unwrap();
    assert_eq!(read(dir.path()).unwrap(), [start(), note(0), start(), note(1)]);
}

proptest! {
    /// A flipped bit is never read as a record. It is reported, or skipped as a torn tail if it is in the last frame.
    #[test]
    fn every_flipped_bit_is_found(place: prop::sample::Index, bit in 0..8_u8) {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), 0..4);
        let file = dir.path().join("000001.mtj");
        let mut bytes = fs::read(&file).unwrap();
        let mut last = Vec::new();
        encode(&note(3), &mut last).unwrap();
        let last_begins = bytes.len() - last.len();
        let place = place.index(bytes.len());
        bytes[place] ^= 1 << bit;
        fs::write(&file, &bytes).unwrap();
        match read(dir.path()) {
            Ok(records) => {
                prop_assert!(place >= last_begins, "a flip at {place} was not found");
                prop_assert_eq!(records, vec![start(), note(0), note(1), note(2)]);
            }
            Err(JournalError::Corrupt { offset, .. }) => {
                prop_assert!(offset <= place as u64 && place < last_begins);
            }
            Err(JournalError::NotAJournal { .. } | JournalError::OtherFormat { .. }) => prop_assert!(place < 12),
            Err(error) => prop_assert!(false, "{error}"),
        }
    }

    /// Any bytes are read or refused, without a panic.
    #[test]
    fn any_bytes_after_a_header_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("000001.mtj");
        let mut content = header().to_vec();
        content.extend(bytes);
        fs::write(&file, content).unwrap();
        let _ = read(&file);
        write(dir.path(), 0..1);
    }
}
