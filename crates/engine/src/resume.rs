//! The state that a run takes over from the journal of the former run.
//!
//! **Problem.** A killed daemon leaves guests on the way to its targets, orders of the operator, and polling intervals that must be
//! restored. A new daemon without this knowledge would think that somebody else moved its own balloons.
//!
//! **Rule.** The newest segment with a readable start is decided again, up to the first difference (another version wrote the
//! segment) or the first unreadable place. From there on, only orders and carried-out actions are noted. The lasting parts are taken
//! over: targets, holds, intervals, and everything learned about a guest. Rates, stalls and footprints were true
//! only at that moment, so they are dropped; the first tick sees the real ones. Actions of the last tick may have
//! been carried out without a record, except an order to KSM: the journal tells of it before it is given, perhaps at the end of the
//! segment before. So for [`DOUBT`], no movement of a balloon is blamed on somebody else.

use std::path::{Path, PathBuf};

use memtide_model::{
    Config, GuestState, KsmSettings, KsmState, Moment, Ordered, Record, Request, Search, State, Surge, Tick,
    TierState, Witness,
};
use memtide_policy::hears::DOUBT;
use memtide_policy::witness;

use crate::Replay;
use crate::journal::{JournalError, Reader, segments};

/// The content of a journal that matters to the next run.
#[derive(Debug, Default)]
pub struct Before {
    /// The lasting state, and what the check had seen; `None` if the journal has none from this boot of the host.
    pub memory: Option<(State, Witness)>,
    /// The first unreadable thing in each segment, which was skipped.
    pub unread: Vec<JournalError>,
}

/// The lasting state, at `now`, of the runs whose journal is in `dir`.
///
/// # Errors
/// If the directory cannot be read.
pub fn resume(dir: &Path, now: Moment) -> Result<Before, JournalError> {
    let segments = segments(dir)?;
    let mut unread = Vec::new();
    for first in (0..segments.len()).rev() {
        let last = hear_all(Last::Unknown, &segments[first], &mut unread);
        if matches!(last, Last::Unknown) {
            continue;
        }
        // The later segments, whose start cannot be read. Their content comes after this segment.
        let mut heard_already = Vec::new();
        let later = segments[first + 1..].iter();
        let last = later.fold(last, |last, segment| hear_all(last.noted(), segment, &mut heard_already));
        // It may begin between an order to KSM and the tick of this order.
        let open = if last.has_decided() { None } else { open_order(&segments[..first]) };
        let last = last.tried(open);
        // Moments count from the boot, so a decision later than now was made before the host booted.
        let memory = last.memory().filter(|(state, _)| state.decided_at.is_none_or(|at| at <= now));
        let lasts = |(state, record)| (lasting(state, now), witness::lasting(record, now));
        return Ok(Before { memory: memory.map(lasts), unread });
    }
    Ok(Before { memory: None, unread })
}

/// An order to KSM whose tick has yet to come: when it was decided, and the settings before and after it.
type Order = (Moment, (KsmSettings, KsmSettings));

/// The order that is open after this record.
fn open_after(record: &Record, open: Option<Order>) -> Option<Order> {
    match record {
        Record::SetsKsm { at, before, wanted } => Some((*at, (*before, *wanted))),
        // A start tells what its run knows of KSM, or that KSM was put back.
        Record::Tick(_) | Record::Start { .. } => None,
        Record::Note { .. } => open,
    }
}

/// The order that is open at the end of the newest of these segments that has readable records.
fn open_order(segments: &[PathBuf]) -> Option<Order> {
    let heard = |segment: &PathBuf| {
        let records = Reader::open(segment).ok()?.filter_map(Result::ok);
        records.fold(None, |heard, record| Some(open_after(&record, heard.flatten())))
    };
    segments.iter().rev().find_map(heard).flatten()
}

/// `last` after all readable records of a segment.
fn hear_all(mut last: Last, segment: &Path, unread: &mut Vec<JournalError>) -> Last {
    let mut open = None;
    let mut reader = match Reader::open(segment) {
        Ok(reader) => reader,
        Err(error) => {
            unread.push(error);
            return last;
        }
    };
    let mut is_first = true;
    for record in &mut reader {
        last = match record {
            Ok(record) => {
                open = open_after(&record, open);
                last.hear(record)
            }
            Err(error) => {
                if std::mem::take(&mut is_first) {
                    unread.push(error);
                }
                last.noted()
            }
        };
    }
    last.tried(open)
}

/// The state after the records so far.
#[derive(Default)]
enum Last {
    /// No start so far.
    #[default]
    Unknown,
    /// Decided again so far.
    Replayed(Box<Replay>),
    /// Noted since the first difference, or since an unreadable place.
    Noted(Box<(State, Witness)>),
}

impl Last {
    fn hear(self, record: Record) -> Self {
        match (self, record) {
            (_, record @ Record::Start { .. }) => Self::replayed(Box::default(), record),
            (Self::Replayed(replay), record @ Record::Tick(_)) => Self::replayed(replay, record),
            (Self::Noted(mut memory), Record::Tick(tick)) => {
                note(&mut memory, &tick);
                Self::Noted(memory)
            }
            (last, _) => last,
        }
    }

    /// Whether a decision was made again: then all orders before it are known.
    fn has_decided(&self) -> bool {
        matches!(self, Self::Replayed(replay) if replay.summary().ticks > 0)
    }

    /// Notes the order to KSM whose tick is missing, if there is one: nobody knows whether it was carried out.
    fn tried(self, open: Option<Order>) -> Self {
        let Some((at, (before, wanted))) = open else { return self };
        let Self::Noted(mut memory) = self.noted() else { return Self::Unknown };
        let state = &mut memory.0;
        if state.decided_at >= Some(at) {
            return Self::Noted(memory);
        }
        state.decided_at = Some(at);
        state.ksm.found.get_or_insert(before.to_put_back());
        state.ksm.tried = Some(wanted);
        Self::Noted(memory)
    }

    /// Ends deciding again: the following records are only noted.
    fn noted(self) -> Self {
        match self {
            Self::Replayed(replay) => Self::Noted(Box::new(replay.memory().unwrap_or_default())),
            last => last,
        }
    }

    fn replayed(mut replay: Box<Replay>, record: Record) -> Self {
        let tick = match &record {
            Record::Tick(tick) => Some(tick.clone()),
            _ => None,
        };
        if replay.step(record).is_ok() {
            return Self::Replayed(replay);
        }
        let mut memory = Box::new(replay.memory().unwrap_or_default());
        if let Some(tick) = tick {
            note(&mut memory, &tick);
        }
        Self::Noted(memory)
    }

    fn memory(self) -> Option<(State, Witness)> {
        match self {
            Self::Unknown => None,
            Self::Replayed(replay) => replay.memory(),
            Self::Noted(memory) => Some(*memory),
        }
    }
}

/// Notes the orders and carried-out actions of a tick that cannot be decided again.
fn note((state, witness): &mut (State, Witness), tick: &Tick) {
    // The configuration of a run that cannot be decided again does not matter: its movements are known only roughly, so the check blames nobody
    // else for them.
    witness::looks(witness, &Config::default(), &tick.seen);
    witness::hears(witness, &tick.seen, &tick.plan, &tick.answers);
    state.decided_at = Some(tick.seen.taken_at);
    for order in &tick.seen.orders {
        let hold = match order.ordered {
            Ordered::Leave(hold) => Some(hold),
            Ordered::Manage => None,
            Ordered::Reclaim(_) | Ordered::Trim(_) | Ordered::Fetch(_) => continue,
        };
        state.guests.entry(order.guest.clone()).or_default().hold = hold;
    }
    let done = tick.plan.actions.iter().zip(&tick.answers).filter(|(_, out)| out.is_accepted());
    for (action, _) in done {
        if let (Request::Merge(order), Some(ksm)) = (action.request, tick.seen.host.ksm.fresh()) {
            state.ksm.found.get_or_insert(ksm.settings.to_put_back());
            state.ksm.written = Some(order.after(ksm.settings));
        }
    }
    memtide_policy::hears(state, &tick.seen, &tick.plan, &tick.answers);
    for seen in &tick.seen.guests {
        if let Some(remembered) = state.guests.get_mut(&seen.id) {
            remembered.actual = seen.actual();
        }
    }
}

/// The parts of a state that stay valid after its run.
fn lasting(state: State, now: Moment) -> State {
    State {
        growth: peak_of(state.growth),
        high_water: state.high_water,
        reaction: state.reaction,
        ksm: Box::new(lasting_ksm(&state.ksm)),
        guests: state.guests.into_iter().map(|(id, guest)| (id, Box::new(lasting_of(&guest, now)))).collect(),
        ..State::default()
    }
}

/// What must be known of KSM after a run: how it was found, and who has set it.
pub(crate) fn lasting_ksm(ksm: &KsmState) -> KsmState {
    KsmState {
        found: ksm.found,
        written: ksm.written,
        tried: ksm.tried,
        foreign_since: ksm.foreign_since,
        ..KsmState::default()
    }
}

/// The same once KSM is as it was found.
pub(crate) fn without_settings(ksm: &KsmState) -> KsmState {
    KsmState { found: None, written: None, tried: None, ..ksm.clone() }
}

fn lasting_of(guest: &GuestState, now: Moment) -> GuestState {
    GuestState {
        first_seen: guest.first_seen,
        target: guest.target,
        target_set_at: guest.target_set_at,
        target_set_from: guest.target_set_from,
        actual: guest.actual,
        told_since: guest.told_since,
        growth: peak_of(guest.growth),
        surge: peak_of(guest.surge),
        polled_before: guest.polled_before,
        polled_at: guest.polled_at,
        reset_at: guest.reset_at,
        hold: guest.hold,
        doubt_until: Some(now.after(DOUBT)),
        plugged: guest.plugged,
        search: Search { trial: None, ..guest.search },
        inflating_at: guest.inflating_at,
        squeezed_at: guest.squeezed_at,
        splits: guest.splits,
        tier: TierState { watched: None, ..guest.tier },
        last_reason: guest.last_reason,
        gain: guest.gain,
        ..GuestState::default()
    }
}

fn peak_of(surge: Surge) -> Surge {
    Surge { peak: surge.peak, ..Surge::default() }
}
