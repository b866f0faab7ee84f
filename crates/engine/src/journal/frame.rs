//! The encoding of a record as bytes.
//!
//! A segment begins with a header: the eight bytes `memtide\0`, then the format's number as a little-endian `u32`. Frames
//! follow. A frame is the payload's length and the payload's CRC-32, each a little-endian `u32`, then the payload: the JSON
//! of one [`Record`].
//!
//! A length of zero is not a frame. The CRC-32 of nothing is zero, and a file system may leave zeros in unwritten places.

use memtide_model::Record;

use super::{FORMAT, JournalError, LONGEST_FRAME};

/// The length of a segment's header in bytes.
pub(super) const HEADER: usize = 12;
/// The length of a frame without its payload in bytes.
pub(super) const FRAME: usize = 8;

const MAGIC: [u8; 8] = *b"memtide\0";
/// Every record's JSON begins with these bytes.
const RECORD: &[u8] = br#"{"record":""#;
/// A tick's JSON begins with these.
const TICK: &[u8] = br#"{"record":"tick","#;
/// The number of places that are tried in the search for a frame.
const MOST_CANDIDATES: usize = 100;

/// The header of a segment.
#[must_use]
pub fn header() -> [u8; HEADER] {
    let mut header = [0; HEADER];
    header[..MAGIC.len()].copy_from_slice(&MAGIC);
    header[MAGIC.len()..].copy_from_slice(&FORMAT.to_le_bytes());
    header
}

/// The meaning of a file's first bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Header {
    Ours,
    Cut,
    Foreign,
    Format(u32),
}

/// Reads a header from the first [`HEADER`] bytes of a file, or from a whole shorter file.
pub(super) fn read_header(bytes: &[u8]) -> Header {
    if header().starts_with(bytes) {
        return if bytes.len() == HEADER { Header::Ours } else { Header::Cut };
    }
    match bytes.strip_prefix(&MAGIC) {
        Some(format) => u32_at(format, 0).map_or(Header::Cut, Header::Format),
        None => Header::Foreign,
    }
}

/// Appends the frame of `record` to `out`.
///
/// # Errors
/// If the record is too large for a frame. `out` then stays unchanged.
///
/// # Panics
/// Never: JSON can express everything in a record.
pub fn encode(record: &Record, out: &mut Vec<u8>) -> Result<(), JournalError> {
    let begin = out.len();
    out.extend_from_slice(&[0; FRAME]);
    serde_json::to_writer(&mut *out, record)
        .expect("a record's keys are texts, its numbers integers, and a vector takes all that is written");
    let payload = &out[begin + FRAME..];
    let (length, crc) = (payload.len(), crc32fast::hash(payload));
    match u32::try_from(length) {
        Ok(fits) if length <= LONGEST_FRAME => {
            out[begin..begin + 4].copy_from_slice(&fits.to_le_bytes());
            out[begin + 4..begin + FRAME].copy_from_slice(&crc.to_le_bytes());
            Ok(())
        }
        _ => {
            out.truncate(begin);
            Err(JournalError::TooLarge { bytes: length })
        }
    }
}

/// A new segment up to its first `frames`, which are those of `records`. If these do not begin with a [`Record::Start`], `start` gives it.
///
/// # Errors
/// If the start is too large.
pub fn beginning(
    start: impl FnOnce() -> Record,
    records: &[Record],
    mut frames: Vec<u8>,
) -> Result<Vec<u8>, JournalError> {
    let mut bytes = header().to_vec();
    if !matches!(records.first(), Some(Record::Start { .. })) {
        encode(&start(), &mut bytes)?;
    }
    bytes.append(&mut frames);
    Ok(bytes)
}

/// The record of a whole payload.
///
/// Ticks are almost all of a journal. To find out which record it is, serde copies a payload into a tree of its own first, which takes longer than
/// reading it.
pub(super) fn decode(payload: &[u8]) -> serde_json::Result<Record> {
    match payload.starts_with(TICK) {
        true => serde_json::from_slice(payload).map(Record::Tick),
        false => serde_json::from_slice(payload),
    }
}

/// The length and the CRC-32 in the first bytes of a frame; `None` if they cannot belong to a frame.
pub(super) fn announced(frame: &[u8]) -> Option<(usize, u32)> {
    let length = usize::try_from(u32_at(frame, 0)?).ok()?;
    let crc = u32_at(frame, 4)?;
    (1..=LONGEST_FRAME).contains(&length).then_some((length, crc))
}

/// The offset of the first whole frame in `bytes`.
pub(super) fn find_frame(bytes: &[u8]) -> Option<usize> {
    let payloads = bytes.windows(RECORD.len()).enumerate().skip(FRAME);
    let mut candidates = payloads.filter(|(_, window)| *window == RECORD).take(MOST_CANDIDATES);
    let (at, _) = candidates.find(|&(at, _)| {
        announced(&bytes[at - FRAME..]).is_some_and(|(length, crc)| {
            bytes.get(at..at + length).is_some_and(|payload| crc32fast::hash(payload) == crc)
        })
    })?;
    Some(at - FRAME)
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at + 4)?.try_into().ok().map(u32::from_le_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use memtide_model::Moment;

    fn note(text: &str) -> Vec<u8> {
        let mut out = Vec::new();
        encode(&Record::Note { at: Moment::from_millis(7), text: text.to_owned() }, &mut out).unwrap();
        out
    }

    #[test]
    fn a_frame_announces_its_payload() {
        let frame = note("x");
        let (length, crc) = announced(&frame).unwrap();
        assert_eq!(length, frame.len() - FRAME);
        assert_eq!(crc, crc32fast::hash(&frame[FRAME..]));
        assert!(frame[FRAME..].starts_with(RECORD));
    }

    #[test]
    fn a_tick_is_read_as_any_record_is() {
        let seen = memtide_model::Snapshot {
            taken_at: Moment::from_millis(7),
            wall: memtide_model::WallClock(8),
            host: memtide_model::HostSeen::of(memtide_model::Bytes::from_mib(9), memtide_model::Bytes::ZERO),
            guests: Vec::new(),
            tmpfs: Vec::new(),
            orders: Vec::new(),
        };
        let plan = memtide_model::Plan::default();
        let (refusals, answers) = (Vec::new(), Vec::new());
        let tick = memtide_model::Tick { seen, plan, state_crc: 1, witness_crc: Some(2), refusals, answers };
        for record in
            [Record::Tick(Box::new(tick)), Record::Note { at: Moment::default(), text: "x".to_owned() }]
        {
            let json = serde_json::to_vec(&record).unwrap();
            assert_eq!(decode(&json).unwrap(), record);
            assert_eq!(serde_json::from_slice::<Record>(&json).unwrap(), record);
            assert_eq!(json.starts_with(TICK), matches!(record, Record::Tick(_)));
        }
    }

    #[test]
    fn zeros_and_huge_lengths_are_no_frames() {
        assert_eq!(announced(&[0; 8]), None);
        assert_eq!(announced(&[0xff; 8]), None);
        assert_eq!(announced(&[1, 0, 0]), None);
    }

    #[test]
    fn headers_are_told_apart() {
        let ours = header();
        assert_eq!(read_header(&ours), Header::Ours);
        for length in 0..HEADER {
            assert_eq!(read_header(&ours[..length]), Header::Cut, "{length}");
        }
        let mut newer = ours;
        newer[8] = 9;
        assert_eq!(read_header(&newer), Header::Format(9));
        assert_eq!(read_header(b"#!/bin/sh\necho"), Header::Foreign);
    }

    #[test]
    fn a_frame_is_found_among_other_bytes() {
        let mut bytes = vec![7; 33];
        bytes.extend(note("found"));
        assert_eq!(find_frame(&bytes), Some(33));
        assert_eq!(find_frame(&bytes[..bytes.len() - 1]), None);
        assert_eq!(find_frame(b"{\"record\":\"note\"}"), None);
    }

    #[test]
    fn a_record_that_is_too_large_leaves_nothing_behind() {
        let mut out = vec![1, 2, 3];
        let record = Record::Note { at: Moment::default(), text: "x".repeat(LONGEST_FRAME) };
        assert!(matches!(encode(&record, &mut out), Err(JournalError::TooLarge { .. })));
        assert_eq!(out, [1, 2, 3]);
    }
}
