//! Guests of mixed sizes, kernels, programs and caches.

use std::sync::Arc;

use memtide_guest::{Course, File, Kernel, Program, Spec};
use memtide_model::{Bytes, Span};

use super::draw::{Draw, later, less};
use super::judge::stands_still;
use memtide_sim::setup::{Fault, GuestSetup};

/// Nothing rises, arrives or fails before this: memtide takes the guests over first.
pub(super) const BEGINS: Span = Span::from_secs(30);
/// Programs end this long before the end of the faults phase.
const ENDS_BEFORE: Span = Span::from_secs(5);
const NAMES: [&str; 8] = ["web", "db", "mail", "build", "cache", "test", "proxy", "desk"];

/// Two to eight guests. Some arrive in a burst during the faults `phase`, some leave.
pub(super) fn draw(draw: &mut Draw, phase: Span) -> Vec<GuestSetup> {
    let count = draw.index(7) + 2;
    let burst_at = draw.secs(BEGINS.as_millis() / 1_000, phase.as_millis() / 1_000 - 60);
    let come_in_a_burst = if draw.chance(1, 2) { draw.index(count / 2 + 1) } else { 0 };
    let guest = |(index, name): (usize, &&str)| {
        let comes = index >= count - come_in_a_burst;
        let spec = Arc::new(spec(draw, comes));
        let arrives = if comes { later(burst_at, draw.secs(0, 5)) } else { Span::ZERO };
        let earliest = later(arrives, BEGINS).as_millis() / 1_000;
        let leaves = draw.chance(1, 8).then(|| draw.secs(earliest, phase.as_millis() / 1_000));
        GuestSetup {
            name: (*name).to_owned(),
            spec,
            equal: None,
            in_tmpfs: false,
            arrives,
            leaves: leaves.filter(|_| index > 0),
        }
    };
    NAMES.iter().take(count).enumerate().map(guest).collect()
}

fn spec(draw: &mut Draw, comes: bool) -> Spec {
    let memory = Bytes::from_mib(draw.pick(&[512, 768, 1024, 1024, 1536, 2048]));
    let overhead = draw.mib(40, 80);
    let cold = draw.number(0, 5);
    Spec {
        memory,
        kernel: draw.pick(&[Kernel::V4_19, Kernel::V6_1, Kernel::V6_12, Kernel::V6_12]),
        boots_for: if comes && draw.chance(1, 2) { draw.secs(2, 20) } else { Span::ZERO },
        balloon: !draw.chance(1, 16),
        deflate_on_oom: draw.chance(2, 3),
        free_page_reporting: draw.chance(3, 4),
        disk: draw.rate(&[50, 100, 500, 2_000]),
        swap: if draw.chance(1, 5) { Bytes::from_mib(256) } else { Bytes::ZERO },
        overhead,
        overhead_bound: overhead.saturating_add(draw.mib(0, 60)),
        torn_per_mille: draw.pick(&[0, 0, 0, 50]),
        gives_nothing: draw.chance(1, 12),
        programs: programs(draw, memory),
        files: files(draw, memory),
        cold: if cold <= 1 { draw.part(memory, 5, 30) } else { Bytes::ZERO },
        full_of_cold: cold == 2,
        ..Spec::default()
    }
}

/// One program that stays constant, and perhaps one that rises or drifts. At its peak, a guest uses at most half of its memory.
fn programs(draw: &mut Draw, memory: Bytes) -> Vec<Program> {
    let mut programs = vec![Program::constant(draw.part(memory, 5, 25))];
    let idle = Program { rate: draw.rate(&[50, 300, 1_000]), ..Program::constant(Bytes::from_mib(10)) };
    if draw.chance(1, 3) {
        let every = draw.chance(2, 3).then(|| draw.secs(20, 90));
        let course = Course::Rise {
            to: draw.part(memory, 5, 25),
            at: draw.secs(30, 120),
            holds: Some(draw.secs(2, 30)),
            every,
        };
        programs.push(Program { course, ..idle });
    } else if draw.chance(1, 4) {
        let (to, rate) = (draw.part(memory, 5, 20), draw.rate(&[5, 15, 50]));
        programs.push(Program { course: Course::Drift { to, rate }, ..idle });
    }
    programs
}

fn files(draw: &mut Draw, memory: Bytes) -> Vec<File> {
    let mut files = Vec::new();
    if draw.chance(1, 2) {
        let hot = File::hot(draw.part(memory, 3, 15), draw.rate(&[1, 10, 50, 200]));
        let periods = draw.chance(1, 4).then(|| (draw.secs(5, 20), draw.secs(30, 90)));
        files.push(File { mapped: draw.chance(1, 4), cached: draw.chance(3, 4), periods, ..hot });
    }
    // A file that is read only once fills all available memory.
    if draw.chance(1, 2) {
        let rate = draw.rate(&[1, 10, 50, 200]);
        files.push(File { size: None, cached: false, ..File::hot(Bytes::ZERO, rate) });
    }
    files
}

/// Ends every program that rises or drifts within the faults `phase`. Times of programs count from the start of their guest. They stand
/// still while the guest is paused or the host is suspended, and begin again after a guest has vanished.
pub(super) fn calm_down(guests: &mut [GuestSetup], faults: &[Fault], phase: Span) {
    for (index, guest) in guests.iter_mut().enumerate() {
        let ends = less(phase, later(stands_still(faults, guest, index), ENDS_BEFORE));
        let mut spec = (*guest.spec).clone();
        for program in spec.programs.iter_mut().filter(|program| program.course != Course::Constant) {
            program.ends = Some(ends);
        }
        guest.spec = Arc::new(spec);
    }
}
