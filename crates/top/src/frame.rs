//! A frame: the host and its guests at one moment, as the screen needs them.
//!
//! **Problem.** Ten minutes of frames stay in memory, and a status of a hundred guests takes a hundred KiB.
//!
//! **Rule.** A frame keeps what the screen shows, and shares with the frame before it everything that did not change. Each text from
//! outside becomes printable here, so nothing else needs to think of control characters.

use std::collections::HashMap;
use std::sync::Arc;

use memtide_api::recent::HostPoint;
pub use memtide_api::view::Matter;
use memtide_api::view::{GuestStatus, Stalled, Status};
use memtide_model::{
    Bytes, Commitment, CostParts, HostPart, HostReport, HostState, Mode, Moment, Pressure, SizeParts,
    WallClock, printable,
};

/// The host and its guests at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// The time of the decision, by the host's boot clock.
    pub at: Moment,
    /// The time, for people.
    pub wall: WallClock,
    /// The version of the daemon.
    pub version: Arc<str>,
    /// Whether the daemon may act.
    pub mode: Mode,
    /// The promise of the ledger.
    pub commitment: Commitment,
    /// Facts that an operator should know now.
    pub warnings: Arc<[String]>,
    /// What goes on, in a sentence; `None` without guests.
    pub sentence: Option<String>,
    /// The host's memory.
    pub host: Host,
    /// The guests, ordered by identity.
    pub rows: Vec<Arc<Row>>,
}

/// The host's memory at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Host {
    /// The moment.
    pub at: Moment,
    /// All memory that the ledger counts.
    pub capacity: Bytes,
    /// The parts in the order of [`HostPart::ALL`]; together the capacity.
    pub parts: [Bytes; 5],
    /// The shortage of memory.
    pub state: HostState,
    /// How long programs of the host have waited for memory since its boot.
    pub pressure: Option<Pressure>,
}

impl Host {
    /// The host's memory at a point of a daemon's history.
    #[must_use]
    pub fn at_point(point: &HostPoint) -> Self {
        let HostPoint { footprints, torn, other, free, reserve, .. } = *point;
        let pressure = point.some_us.zip(point.full_us);
        Self {
            at: point.at,
            capacity: point.capacity,
            parts: [footprints, torn, other, free, reserve],
            state: point.state,
            pressure: pressure.map(|(some_us, full_us)| Pressure { some_us, full_us }),
        }
    }

    /// The host's memory at a moment; nothing is known of its pressure.
    #[must_use]
    pub fn of(report: &HostReport, at: Moment) -> Self {
        Self {
            at,
            capacity: report.capacity,
            parts: HostPart::ALL.map(|part| report.of_part(part)),
            state: report.state,
            pressure: None,
        }
    }
}

/// One guest at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Its name for people and for orders.
    pub name: Arc<str>,
    /// The same, as a terminal may show it.
    pub shown: Arc<str>,
    /// Its class.
    pub class: Arc<str>,
    /// How much it matters now.
    pub matter: Matter,
    /// Where its full size is.
    pub size: SizeParts,
    /// What it costs the host; `None` if the host cannot read it.
    pub cost: Option<CostParts>,
    /// The memory that it needs; `None` without fresh statistics.
    pub needs: Option<Bytes>,
    /// Its fair share.
    pub entitlement: Bytes,
    /// Its target.
    pub target: Option<Bytes>,
    /// The memory that it keeps.
    pub actual: Bytes,
    /// Its full size.
    pub full: Bytes,
    /// Its present state, in a few words.
    pub state: Arc<str>,
    /// The reason for its last change.
    pub reason: Option<Arc<str>>,
    /// The moment of that change.
    pub changed: Option<Moment>,
    /// How its programs have waited for memory.
    pub stalled: Stalled,
}

impl Frame {
    /// The frame of a status at `wall`, which shares what it can with the frame `before`.
    #[must_use]
    pub fn of(status: &Status, wall: WallClock, before: Option<&Self>) -> Self {
        let at = status.decided_at.unwrap_or_default();
        let known: HashMap<&str, &Arc<Row>> =
            before.iter().flat_map(|frame| &frame.rows).map(|row| (&*row.name, row)).collect();
        let rows = status.guests.iter().map(|guest| Row::of(guest, at, known.get(&*guest.name).copied()));
        let warnings: Vec<String> = status.warnings.iter().map(|warning| printable(warning)).collect();
        let host = Host { pressure: status.pressure, ..Host::of(&status.host, at) };
        Self {
            at,
            wall,
            version: share(before.map(|frame| &frame.version), printable(&status.version)),
            mode: status.mode,
            commitment: status.commitment,
            warnings: match before.filter(|frame| *frame.warnings == *warnings) {
                Some(frame) => Arc::clone(&frame.warnings),
                None => warnings.into(),
            },
            sentence: status.in_a_sentence(),
            host,
            rows: rows.collect(),
        }
    }

    /// The guest with this name.
    #[must_use]
    pub fn row(&self, name: &str) -> Option<&Arc<Row>> {
        self.rows.iter().find(|row| &*row.name == name)
    }
}

/// How much a guest's programs waited for memory over some time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stall {
    /// This number of allocations waited.
    Times(u64),
    /// Some program waited for this long, in microseconds.
    Micros(u64),
}

impl Row {
    /// How much its programs waited since the row `before`; `None` if it does not tell.
    #[must_use]
    pub fn stalled_since(&self, before: &Self) -> Option<Stall> {
        let more = |now: Option<u64>, before: Option<u64>| Some(now?.saturating_sub(before?));
        let micros = more(self.stalled.some_us, before.stalled.some_us).map(Stall::Micros);
        micros.or_else(|| more(self.stalled.count, before.stalled.count).map(Stall::Times))
    }

    fn of(status: &GuestStatus, at: Moment, before: Option<&Arc<Self>>) -> Arc<Self> {
        let report = &status.report;
        let size = status.parts.map_or_else(
            || SizeParts {
                untold: report.actual.min(report.full),
                given: report.full.saturating_sub(report.actual),
                ..SizeParts::default()
            },
            |parts| parts.size,
        );
        let name = share(before.map(|row| &row.name), status.name.clone());
        let shown = printable(&status.name);
        let row = Self {
            shown: if *shown == *name {
                Arc::clone(&name)
            } else {
                share(before.map(|row| &row.shown), shown)
            },
            name,
            class: share(before.map(|row| &row.class), printable(&report.class)),
            matter: Matter::of(report),
            size,
            cost: status.parts.and_then(|parts| parts.cost),
            needs: report.used.map(|_| report.demand),
            entitlement: report.entitlement,
            target: report.target,
            actual: report.actual,
            full: report.full,
            state: share(before.map(|row| &row.state), printable(&status.state)),
            reason: status
                .last_reason
                .as_ref()
                .map(|reason| share(before.and_then(|row| row.reason.as_ref()), printable(reason))),
            changed: status.last_change.map(|ago| at.before(ago)),
            stalled: status.stalled,
        };
        before.filter(|before| ***before == row).map_or_else(|| Arc::new(row), Arc::clone)
    }
}

/// The text, shared with `before` if that is the same.
fn share(before: Option<&Arc<str>>, text: String) -> Arc<str> {
    before.filter(|before| ***before == *text).map_or_else(|| text.into(), Arc::clone)
}
