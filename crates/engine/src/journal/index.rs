//! Where each decision of a journal is.
//!
//! **Problem.** A journal has hundreds of MiB. Somebody wants to see one moment of it.
//!
//! **Rule.** The index passes from frame to frame and reads only the first bytes of each: a tick tells its moments there. Whether a frame is
//! whole shows when it is read. The index knows 32 bytes of each decision.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use memtide_model::{Answer, Moment, Plan, Record, WallClock};
use serde::Deserialize;

use super::segment::{Next, Segment, Skimmed};
use super::{JournalError, TornTail, folder};

/// A tick's payload begins with this.
const TICK: &[u8] = br#"{"record":"tick","seen":{"taken_at":"#;
/// What comes between the two moments of a tick.
const WALL: &[u8] = br#","wall":"#;
/// A payload of another kind begins with one of these.
const OTHERS: [&[u8]; 3] = [br#"{"record":"start""#, br#"{"record":"note""#, br#"{"record":"sets_ksm""#];
/// What was done comes after what was seen, and begins with this.
const DONE: &[u8] = br#""plan":["#;
/// At most this many places that cannot be read are kept.
const MOST_UNREAD: usize = 100;

/// A decision in a journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mark {
    /// The place of its segment in [`Index::segments`].
    pub(crate) segment: u32,
    /// The place of its frame in the segment.
    pub(crate) offset: u64,
    pub(crate) at: Moment,
    pub(crate) wall: WallClock,
}

/// A segment, and how far it is known.
#[derive(Debug)]
struct Known {
    /// The number in its name; `None` for a single segment.
    number: Option<u64>,
    path: PathBuf,
    /// The end of the last frame that was passed; `None` before the first look, or if it cannot be read.
    passed: Option<u64>,
}

/// All decisions of a journal, the oldest first.
#[derive(Debug)]
pub(crate) struct Index {
    path: PathBuf,
    is_folder: bool,
    segments: Vec<Known>,
    pub(crate) marks: Vec<Mark>,
    /// The first places that cannot be read.
    pub(crate) unread: Vec<JournalError>,
    pub(crate) torn: Option<TornTail>,
}

impl Index {
    /// The index of `path`: a directory with a journal, or one segment.
    pub(crate) fn open(path: &Path) -> Result<Self, JournalError> {
        let metadata = fs::metadata(path).map_err(JournalError::io("open", path))?;
        let mut index = Self {
            path: path.to_owned(),
            is_folder: metadata.is_dir(),
            segments: Vec::new(),
            marks: Vec::new(),
            unread: Vec::new(),
            torn: None,
        };
        index.refresh()?;
        Ok(index)
    }

    /// The path of a segment.
    pub(crate) fn segment(&self, place: u32) -> &Path {
        &self.segments[place as usize].path
    }

    /// The number of segments that are missing between others.
    pub(crate) fn missing(&self) -> u64 {
        let pairs = self.segments.windows(2);
        let missing =
            pairs.filter_map(|pair| Some(pair[1].number?.saturating_sub(pair[0].number?).saturating_sub(1)));
        missing.sum()
    }

    /// Looks for what was written since the last look. Returns how many of the oldest decisions are no longer there.
    pub(crate) fn refresh(&mut self) -> Result<usize, JournalError> {
        let listed: Vec<(Option<u64>, PathBuf)> = match self.is_folder {
            true => folder::list(&self.path)?.into_iter().map(|one| (Some(one.number), one.path)).collect(),
            false => vec![(None, self.path.clone())],
        };
        let oldest = listed.first().and_then(|(number, _)| *number);
        let gone = self.segments.iter().take_while(|segment| segment.number < oldest).count();
        let lost = self.marks.partition_point(|mark| (mark.segment as usize) < gone);
        self.marks.drain(..lost);
        self.segments.drain(..gone);
        let shift = u32::try_from(gone).unwrap_or(u32::MAX);
        self.marks.iter_mut().for_each(|mark| mark.segment = mark.segment.saturating_sub(shift));
        self.torn = None;
        let newest = self.segments.last().map(|last| last.number);
        let first = self.segments.len().saturating_sub(1);
        let new = listed.into_iter().filter(|(number, _)| newest.is_none_or(|newest| newest < *number));
        self.segments.extend(new.map(|(number, path)| Known { number, path, passed: None }));
        for place in first..self.segments.len() {
            self.look(place)?;
        }
        Ok(lost)
    }

    /// Passes the frames of one segment that are not known yet.
    fn look(&mut self, place: usize) -> Result<(), JournalError> {
        let Known { path, passed, .. } = &self.segments[place];
        let path = path.clone();
        let is_last = place + 1 == self.segments.len();
        let opened = match Segment::open(&path) {
            Ok(Ok(segment)) => Ok(segment),
            Ok(Err(_)) if is_last => {
                self.torn = Some(TornTail { path, offset: 0 });
                return Ok(());
            }
            Ok(Err(_)) => Err(JournalError::Corrupt { path: path.clone(), offset: 0 }),
            // The writer deletes the oldest segments, and the list with this one is old.
            Err(JournalError::Io { source, .. })
                if self.is_folder && source.kind() == ErrorKind::NotFound =>
            {
                return Ok(());
            }
            Err(error @ JournalError::Io { .. }) => return Err(error),
            Err(error) => Err(error),
        };
        let mut segment = match opened {
            Ok(segment) => segment,
            Err(error) => {
                self.note(error);
                return Ok(());
            }
        };
        if let Some(passed) = *passed {
            segment.go_to(passed)?;
        }
        let mut frames = Vec::new();
        loop {
            match segment.skim()? {
                Skimmed::Head { offset, head } => {
                    frames.push(offset);
                    self.mark(place, offset, &head);
                }
                Skimmed::End => break,
                Skimmed::Broken { offset, torn: true } if is_last => {
                    self.torn = Some(TornTail { path: path.clone(), offset });
                    break;
                }
                Skimmed::Broken { offset, torn } => {
                    self.note(JournalError::Corrupt { path: path.clone(), offset });
                    if torn {
                        break;
                    }
                }
            }
        }
        self.segments[place].passed = Some(segment.offset());
        if is_last {
            self.drop_tail(place, &mut segment, &frames)?;
        }
        Ok(())
    }

    /// Drops the last of these frames that are long enough and not whole: they are a torn tail, too.
    fn drop_tail(&mut self, place: usize, segment: &mut Segment, frames: &[u64]) -> Result<(), JournalError> {
        for &offset in frames.iter().rev() {
            segment.go_to(offset)?;
            if matches!(segment.next()?, Next::Payload { .. }) {
                break;
            }
            self.marks.pop_if(|mark| mark.segment as usize == place && mark.offset == offset);
            self.segments[place].passed = Some(offset);
            self.torn = Some(TornTail { path: segment.path().to_owned(), offset });
        }
        Ok(())
    }

    fn note(&mut self, error: JournalError) {
        if self.unread.len() < MOST_UNREAD {
            self.unread.push(error);
        }
    }

    /// Marks the frame at `offset`, if it is a tick.
    fn mark(&mut self, place: usize, offset: u64, head: &[u8]) {
        let moments = match moments(head) {
            None if OTHERS.iter().any(|other| head.starts_with(other)) => None,
            // Another version wrote the keys in another order.
            None => {
                let whole =
                    Cursor::open(&self.segments[place].path, offset).and_then(|mut cursor| cursor.next());
                match whole {
                    Ok(Some(Record::Tick(tick))) => Some((tick.seen.taken_at, tick.seen.wall)),
                    Ok(_) => None,
                    Err(error) => {
                        self.note(error);
                        None
                    }
                }
            }
            found => found,
        };
        if let Some((at, wall)) = moments {
            let segment = u32::try_from(place).unwrap_or(u32::MAX);
            self.marks.push(Mark { segment, offset, at, wall });
        }
    }
}

/// The moments in the first bytes of a tick.
fn moments(head: &[u8]) -> Option<(Moment, WallClock)> {
    let (at, rest) = number(head.strip_prefix(TICK)?)?;
    let (wall, _) = number(rest.strip_prefix(WALL)?)?;
    Some((Moment::from_millis(at), WallClock(wall)))
}

/// The number at the beginning of `bytes`, and what follows it.
fn number(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let digits = bytes.iter().position(|byte| !byte.is_ascii_digit())?;
    let (number, rest) = bytes.split_at(digits);
    Some((std::str::from_utf8(number).ok()?.parse().ok()?, rest))
}

/// Reads records of one segment from a place on.
#[derive(Debug)]
pub(crate) struct Cursor {
    segment: Segment,
}

/// What was done with a decision.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct Done {
    pub(crate) plan: Plan,
    #[serde(default)]
    pub(crate) answers: Vec<Answer>,
}

impl Done {
    /// What was done in the payload of a tick; `None` if it is not at its end.
    fn of(payload: &[u8]) -> Option<Self> {
        // No text in it can look like that: quotes in texts are escaped.
        let begin = payload.windows(DONE.len()).rposition(|window| window == DONE)?;
        let rest = &payload[begin..];
        if rest.starts_with(br#""plan":[],"#) {
            return Some(Self::default());
        }
        serde_json::from_slice(&[b"{", rest].concat()).ok()
    }
}

impl Cursor {
    /// What was done with the tick at `offset`, without all that was seen; nothing if it is no tick.
    pub(crate) fn done(&mut self, offset: u64) -> Result<Done, JournalError> {
        self.segment.go_to(offset)?;
        if let Next::Payload { payload, .. } = self.segment.next()?
            && let Some(done) = Done::of(&payload)
        {
            return Ok(done);
        }
        self.segment.go_to(offset)?;
        Ok(match self.next()? {
            Some(Record::Tick(tick)) => Done { plan: tick.plan, answers: tick.answers },
            _ => Done::default(),
        })
    }

    /// Begins at the frame at `offset` of the segment, or at its first frame.
    pub(crate) fn open(path: &Path, offset: u64) -> Result<Self, JournalError> {
        let Ok(mut segment) = Segment::open(path)? else {
            return Err(JournalError::Corrupt { path: path.to_owned(), offset: 0 });
        };
        if offset > segment.offset() {
            segment.go_to(offset)?;
        }
        Ok(Self { segment })
    }

    /// The place of the next frame.
    pub(crate) const fn offset(&self) -> u64 {
        self.segment.offset()
    }

    /// The next record; `None` at the end. After an error, the next whole record can follow.
    pub(crate) fn next(&mut self) -> Result<Option<Record>, JournalError> {
        match self.segment.next()? {
            Next::Payload { offset, payload } => self.segment.record(offset, &payload).map(Some),
            Next::End | Next::Broken { torn: true, .. } => Ok(None),
            Next::Broken { offset, .. } => {
                Err(JournalError::Corrupt { path: self.segment.path().to_owned(), offset })
            }
        }
    }
}
