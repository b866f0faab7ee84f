//! Made-up hosts for tests.

use memtide_api::view::{GuestStatus, Stalled, Status};
use memtide_engine::Counters;
use memtide_model::{
    Backend, Bytes, Commitment, CostParts, GuestId, GuestReport, HostReport, HostState, Mode, Moment, Names,
    Outsiders, Parts, Polling, SizeParts, Span, Verdict, WallClock,
};

const fn mib(mib: u64) -> Bytes {
    Bytes::from_mib(mib)
}

/// The moment of the first frame.
const BEGUN: u64 = 5_000_000;

/// November 30, 2026, 14:32:00 UTC, and some seconds.
pub const fn wall(second: u64) -> WallClock {
    WallClock(1_796_049_120_000 + second * 1000)
}

/// The moment of a second.
pub const fn moment(second: u64) -> Moment {
    Moment::from_millis(BEGUN + second * 1000)
}

/// A guest of 1 GiB.
pub fn guest(name: &str, (used, actual, target): (u64, u64, u64), verdict: Verdict) -> GuestStatus {
    let size = SizeParts {
        used: mib(used),
        needed_cache: mib(60),
        cold_cache: mib(90),
        free: mib(actual - used - 150),
        untold: Bytes::ZERO,
        given: mib(1024 - actual),
    };
    let cost = CostParts { ram: mib(used + 160), vmm: mib(30), ..CostParts::default() };
    let report = GuestReport {
        id: GuestId::new(name, 1, "boot"),
        class: "default".into(),
        footprint: Some(cost.sum()),
        merged: None,
        reach: mib(target.max(actual) + 40),
        actual: mib(actual),
        full: mib(1024),
        used: Some(mib(used)),
        cache: mib(60),
        headroom: mib(32),
        demand: mib(used + 92),
        entitlement: mib(500),
        target: Some(mib(target)),
        unordered: Bytes::ZERO,
        bound_by: None,
        verdict,
    };
    let state = report.in_words(&Names::default(), Moment::default());
    GuestStatus {
        name: name.to_owned(),
        pid: 7,
        backend: Backend::new("QEMU"),
        polling: Polling::Every(Span::from_secs(1)),
        report,
        parts: Some(Parts { size, cost: Some(cost) }),
        stalled: Stalled { some_us: None, count: Some(0) },
        matter: None,
        state,
        last_reason: Some("220 MiB idle (needs 180 MiB); 64 MiB needed elsewhere".to_owned()),
        last_change: Some(Span::from_millis(4_200)),
        cannot_share: false,
    }
}

/// A host with these guests at a second.
pub fn host(guests: Vec<GuestStatus>, second: u64, (used, free): (u64, u64)) -> Status {
    let host = HostReport {
        capacity: mib(4096),
        reserve: mib(204),
        footprints: mib(used),
        torn: mib(40),
        other: mib(4096 - 204 - 40 - used - free),
        free: mib(free),
        state: if free < 100 { HostState::Hard } else { HostState::High },
        ..HostReport::default()
    };
    Status {
        version: "0.1.0".to_owned(),
        mode: Mode::Manage,
        commitment: Commitment::Elastic,
        sentence: None,
        warnings: Vec::new(),
        confined: Vec::new(),
        counters: Counters::default(),
        unwritten: None,
        decided_at: Some(moment(second)),
        age: None,
        took: Span::ZERO,
        host,
        swap: None,
        pressure: None,
        guests,
        outsiders: Outsiders::default(),
    }
}

/// A host with this many guests at a second. The first one grows, the others rest.
pub fn status(guests: u64, second: u64) -> Status {
    let all = (0..guests).map(|nth| {
        let name = format!("guest-{nth:04}");
        if nth == 0 {
            return guest(&name, (200 + second % 300, 700, 760), Verdict::Grown);
        }
        let rests = guest(&name, (180, 420, 420), Verdict::Steady);
        GuestStatus { last_change: Some(Span::from_secs(60 + second)), ..rests }
    });
    host(all.collect(), second, (1200 + second % 600, 1800 - second % 600))
}
