//! Faults of guests, host and daemon.

use memtide_model::{Bytes, Fence, Span};

use super::draw::{Draw, later};
use super::guests::BEGINS;
use super::need;
use memtide_sim::setup::{Fault, FaultKind, GuestSetup, Lie};

/// The kinds of faults, without their numbers.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Guest(FaultKind),
    Foreign,
    TellsSize,
    Host(FaultKind),
}

const KINDS: [Kind; 26] = [
    Kind::Guest(FaultKind::Refuses),
    Kind::Guest(FaultKind::Stuck),
    Kind::Guest(FaultKind::Lies(Lie::NothingAvailable)),
    Kind::Guest(FaultKind::Lies(Lie::AllAvailable)),
    Kind::Guest(FaultKind::Lies(Lie::Stalls)),
    Kind::Guest(FaultKind::Lies(Lie::Kills)),
    Kind::Guest(FaultKind::Lies(Lie::Scans)),
    Kind::Guest(FaultKind::Lies(Lie::Random)),
    Kind::Guest(FaultKind::Silent),
    Kind::Guest(FaultKind::Reset),
    Kind::Guest(FaultKind::SelfDeflates),
    Kind::Guest(FaultKind::Vanishes),
    Kind::Guest(FaultKind::Fenced(Fence::Paused)),
    Kind::Guest(FaultKind::Fenced(Fence::Migrating)),
    Kind::Guest(FaultKind::Late),
    Kind::Guest(FaultKind::Lost),
    Kind::Foreign,
    Kind::Guest(FaultKind::Unreadable),
    Kind::Guest(FaultKind::Unknown),
    Kind::TellsSize,
    Kind::Guest(FaultKind::SaidPinned),
    Kind::Host(FaultKind::HostUnreadable),
    Kind::Host(FaultKind::ClockJumps),
    Kind::Host(FaultKind::Suspended),
    Kind::Host(FaultKind::DaemonKilled),
    Kind::Host(FaultKind::DiskFull),
];

/// Up to twelve faults, several at once. All end within the `phase`.
pub(super) fn draw(draw: &mut Draw, guests: &[GuestSetup], phase: Span) -> Vec<Fault> {
    let count = draw.number(4, 12);
    // Half of them begin within ten seconds of each other.
    let worst = draw.secs(BEGINS.as_millis() / 1_000, phase.as_millis() / 1_000 - 70);
    // A daemon with faults has a journal, which takes as long as everything else: only one setup in five has such a daemon.
    let spares_the_daemon = !draw.chance(1, 5);
    let mut faults: Vec<Fault> = (0..count).filter_map(|_| fault(draw, guests, (phase, worst))).collect();
    let of_daemon = |kind| matches!(kind, FaultKind::DaemonKilled | FaultKind::DiskFull);
    faults.retain(|fault| !(spares_the_daemon && of_daemon(fault.kind)));
    faults.sort_by_key(|fault| (fault.at, fault.guest));
    faults
}

fn fault(draw: &mut Draw, guests: &[GuestSetup], (phase, worst): (Span, Span)) -> Option<Fault> {
    let kind = draw.pick(&KINDS);
    let index = draw.index(guests.len());
    let at = match draw.chance(1, 2) {
        true => later(worst, draw.secs(0, 10)),
        false => draw.secs(BEGINS.as_millis() / 1_000, phase.as_millis() / 1_000 - 10),
    };
    let length = draw.pick(&[1, 3, 10, 20, 40, 60]);
    let left = phase.as_millis() / 1_000 - at.as_millis() / 1_000;
    let lasts = Span::from_secs(length.min(left).max(1));
    let guest = &guests[index];
    let target = draw.number(0, 100);
    let (guest, kind) = match kind {
        Kind::Host(kind) => (None, kind),
        Kind::Guest(FaultKind::Stuck | FaultKind::Foreign(_)) | Kind::Foreign if !guest.spec.balloon => {
            return None;
        }
        Kind::Guest(kind) => (Some(index), kind),
        Kind::Foreign => (Some(index), FaultKind::Foreign(foreign_target(guest, target))),
        Kind::TellsSize => (Some(index), FaultKind::TellsSize(guest.spec.memory.mul_div(3 * target, 100))),
    };
    let instant = matches!(kind, FaultKind::SelfDeflates | FaultKind::Foreign(_));
    let lasts = match kind {
        _ if instant => Span::from_millis(1),
        // The distance of the jump.
        FaultKind::ClockJumps => Span::from_secs(lasts.as_millis() / 1_000 * 60),
        _ => lasts,
    };
    Some(Fault { at, lasts, guest, kind })
}

/// Somebody else gives a guest its need plus `percent` of the rest: nobody can help a guest that an operator starves.
fn foreign_target(guest: &GuestSetup, percent: u64) -> Bytes {
    let (need, full) = (need(&guest.spec), guest.spec.memory);
    let target = need.saturating_add(full.saturating_sub(need).mul_div(percent, 100));
    Bytes::from_mib(target.whole_mib())
}
