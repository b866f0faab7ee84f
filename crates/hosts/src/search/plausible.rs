//! Random setups without faults that an operator could have.

use std::sync::Arc;

use memtide_guest::{Course, File, Kernel, Program, Spec};
use memtide_model::{Amount, Budget, Bytes, Class, Commitment, Config, MIB, Share, Span};

use crate::seeds::draw::{Draw, later};
use crate::seeds::{need, self_deflations, starts_with};
use memtide_sim::setup::{GuestSetup, HostSpec, Setup, WhenFull};

/// The most guests of a setup. A problem with more guests also shows with these.
const MOST_GUESTS: usize = 8;
/// Memory that a guest must keep free in addition to its programs. With less, programs would kill each other even without a manager.
const OWN_ROOM: Bytes = Bytes::from_mib(64);
/// The fullest that a host may be when its guests start, in percent: memtide must take them over first.
const FULL_AT_START: u64 = 90;
/// The largest size of one guest, and of all guests together, in percent of the host.
const LARGEST_GUEST: u64 = 80;
const OVERCOMMITTED: u64 = 250;
/// The shortest and the longest plausible run.
const LASTS: (Span, Span) = (Span::from_secs(300), Span::from_secs(2_400));

/// A random setup.
pub(crate) fn setup(draw: &mut Draw) -> Setup {
    let count = draw.index(MOST_GUESTS - 1) + 2;
    let lasts = draw.secs(600, 1_500);
    let guests: Vec<GuestSetup> = (0..count).map(|number| guest(draw, number, lasts)).collect();
    let noise = if draw.chance(1, 4) { draw.mib(50, 300) } else { Bytes::ZERO };
    let needs = guests.iter().map(|guest| need(&guest.spec).saturating_add(guest.spec.overhead));
    let fits = Bytes::sum(needs.chain([noise])).mul_div(draw.number(75, 140), 100);
    let at_start = guests.iter().filter(|guest| guest.arrives == Span::ZERO);
    let at_start = Bytes::sum(at_start.map(|guest| starts_with(&guest.spec)).chain([noise]));
    let memory = fits.max(at_start.mul_div(100, FULL_AT_START));
    let memory = Bytes::from_mib(memory.whole_mib().next_multiple_of(10));
    let reserve = Amount::Share(Share::percent(draw.pick(&[5, 5, 0, 10])).unwrap_or_default());
    let mut config = Config { reserve, self_deflations: draw.pick(&[1, 1, 0]), ..Config::default() };
    config.budget = Budget::Size(memory);
    if draw.chance(1, 5) {
        let gold = Class { patterns: vec!["vm-1".to_owned()], shares: 4_000, ..Class::default() };
        config.classes.insert("gold".into(), gold);
    }
    let noise_every = if noise.is_zero() { HostSpec::default().noise_every } else { draw.secs(2, 60) };
    let swap = draw.pick(&[0, 0, 0, 1024]);
    let host = HostSpec {
        memory,
        other_most: noise,
        noise_every,
        swap: Bytes::from_mib(swap),
        when_full: WhenFull::Kill,
        ..HostSpec::default()
    };
    Setup { lasts, seed: draw.number(0, 999), host, guests, faults: Vec::new(), config }
}

/// A random guest of a setup with this length.
pub(super) fn guest(draw: &mut Draw, number: usize, lasts: Span) -> GuestSetup {
    let arrives = if number > 0 && draw.chance(1, 6) { draw.secs(30, 600) } else { Span::ZERO };
    let mut spec = spec(draw);
    if arrives > Span::ZERO {
        boots_first(&mut spec);
    }
    let leaves = draw.chance(1, 12).then(|| later(arrives, draw.secs(60, 900)));
    let leaves = leaves.filter(|at| *at < lasts);
    GuestSetup {
        name: format!("vm-{number}"),
        spec: Arc::new(spec),
        equal: None,
        in_tmpfs: false,
        arrives,
        leaves,
    }
}

/// Makes a guest that arrives later start empty: no manager could make room for all of it at once.
pub(super) fn boots_first(spec: &mut Spec) {
    (spec.cold, spec.full_of_cold) = (Bytes::ZERO, false);
    spec.files.iter_mut().for_each(|file| file.cached = false);
    spec.programs.iter_mut().for_each(|program| program.starts = program.starts.max(Span::from_secs(5)));
}

/// Whether the promise of a commitment fits on the host: the needs of all guests without their page cache, the reserve, and with a strict
/// commitment the k largest self-deflations. A policy is not to blame for a host that is too small for a promise.
pub(super) fn promise_fits(setup: &Setup, commitment: Commitment) -> bool {
    let without_cache = |guest: &GuestSetup| {
        let spec = Spec { files: Vec::new(), ..(*guest.spec).clone() };
        GuestSetup { spec: Arc::new(spec), ..guest.clone() }
    };
    let guests: Vec<GuestSetup> = setup.guests.iter().map(without_cache).collect();
    let needs = guests.iter().map(|guest| need(&guest.spec).saturating_add(guest.spec.overhead_bound));
    let own = match commitment {
        Commitment::Strict => self_deflations(&guests, setup.config.self_deflations),
        Commitment::Elastic => Bytes::ZERO,
    };
    let reserve = setup.config.reserve_of(setup.host.memory);
    Bytes::sum(needs.chain([setup.host.other_most, own, reserve])) <= setup.host.memory
}

/// A random spec with one or two roles.
pub(super) fn spec(draw: &mut Draw) -> Spec {
    let memory = Bytes::from_mib(draw.pick(&[512, 1024, 1024, 2048, 4096]));
    let mut spec = Spec {
        memory,
        kernel: draw.pick(&[Kernel::V6_12, Kernel::V6_12, Kernel::V6_1, Kernel::V4_19]),
        deflate_on_oom: draw.chance(1, 2),
        free_page_reporting: draw.chance(3, 4),
        disk: draw.rate(&[12, 100, 500, 500, 2_000]),
        swap: Bytes::from_mib(draw.pick(&[0, 0, 0, 0, 512])),
        programs: vec![Program::constant(draw.part(memory, 5, 30))],
        ..Spec::default()
    };
    for _ in 0..draw.number(1, 2) {
        add_role(draw, &mut spec);
    }
    spec
}

/// Gives a guest some work.
pub(super) fn add_role(draw: &mut Draw, spec: &mut Spec) {
    let memory = spec.memory;
    match draw.number(0, 6) {
        0 => (spec.cold, spec.full_of_cold) = (Bytes::ZERO, true),
        1 => (spec.cold, spec.full_of_cold) = (draw.part(memory, 10, 50), false),
        2 => spec.files.push(hot(draw, memory)),
        3 => {
            let periods = Some((draw.secs(5, 30), draw.secs(60, 300)));
            spec.files.push(File { periods, ..hot(draw, memory) });
        }
        4 => {
            let rate = draw.rate(&[2, 10, 20, 50, 100]);
            spec.files.push(File { size: None, cached: false, ..File::hot(Bytes::ZERO, rate) });
        }
        5 => {
            let every = draw.chance(2, 3).then(|| draw.secs(30, 300));
            let holds = (every.is_some() || draw.chance(1, 2)).then(|| draw.secs(5, 60));
            let (to, at) = (draw.part(memory, 20, 70), draw.secs(20, 400));
            rise(draw, spec, Course::Rise { to, at, holds, every });
        }
        _ => {
            let (to, rate) = (draw.part(memory, 20, 60), draw.rate(&[2, 5, 15, 40]));
            rise(draw, spec, Course::Drift { to, rate });
        }
    }
}

fn rise(draw: &mut Draw, spec: &mut Spec, course: Course) {
    let rate = draw.rate(&[20, 100, 300, 300]);
    match spec.programs.first_mut() {
        Some(program) => (program.course, program.rate) = (course, rate),
        None => spec.programs.push(Program { course, rate, ..Program::constant(Bytes::from_mib(50)) }),
    }
}

fn hot(draw: &mut Draw, memory: Bytes) -> File {
    let hot = File::hot(draw.part(memory, 10, 60), draw.rate(&[5, 20, 60, 100, 200, 400]));
    File { mapped: draw.chance(1, 5), cached: draw.chance(3, 4), ..hot }
}

/// Whether an operator could have this setup. Every guest must have room for its own programs at their peak, and no size, time or rate may
/// be absurd.
pub(crate) fn is_plausible(setup: &Setup) -> bool {
    let is_guest = |guest: &GuestSetup| {
        let spec = &guest.spec;
        let programs = spec.programs.iter().map(|program| match &program.course {
            Course::Rise { to, .. } | Course::Drift { to, .. } => program.size.max(*to),
            Course::Constant | Course::Recorded(_) => program.size,
        });
        let needs = Bytes::sum(programs.chain([spec.kernel_size, spec.slab, OWN_ROOM]));
        let rates = spec.programs.iter().map(|p| p.rate).chain(spec.files.iter().map(|file| file.rate));
        let repeats = spec.programs.iter().all(|program| match program.course {
            Course::Rise { every: Some(every), .. } => every >= Span::from_secs(20),
            _ => true,
        });
        let grow = spec.programs.iter().all(|program| match program.course {
            Course::Rise { to, .. } | Course::Drift { to, .. } => to >= program.size,
            Course::Constant | Course::Recorded(_) => true,
        });
        let streams = spec.files.iter().filter(|file| file.size.is_none());
        let streams = streams.map(|file| file.rate).sum::<u64>() <= 100 * MIB;
        let files = spec.files.iter().all(|file| file.size.is_none_or(|size| size <= spec.memory));
        let fast = rates.into_iter().all(|rate| (MIB..=500 * MIB).contains(&rate));
        needs <= spec.memory && fast && repeats && grow && streams && files && spec.disk >= 10 * MIB
    };
    let at_start = setup.guests.iter().filter(|guest| guest.arrives == Span::ZERO);
    let at_start = Bytes::sum(at_start.map(|guest| starts_with(&guest.spec)).chain([setup.host.other_most]));
    let is_bare = |guest: &GuestSetup| {
        let mut bare = (*guest.spec).clone();
        boots_first(&mut bare);
        bare == *guest.spec
    };
    let come = setup.guests.iter().filter(|guest| guest.arrives > Span::ZERO);
    let sizes = || setup.guests.iter().map(|guest| guest.spec.memory);
    let host = setup.host.memory;
    // The reserve is for memory that others take all at once.
    let noise = setup.host.other_most.saturating_sub(setup.host.other);
    let fits = noise <= setup.config.reserve_of(host)
        && sizes().max().unwrap_or_default() <= host.mul_div(LARGEST_GUEST, 100)
        && Bytes::sum(sizes()) <= host.mul_div(OVERCOMMITTED, 100);
    (1..=MOST_GUESTS).contains(&setup.guests.len())
        && setup.guests.iter().all(is_guest)
        && come.into_iter().all(is_bare)
        && fits
        && (LASTS.0..=LASTS.1).contains(&setup.lasts)
        && at_start <= host.mul_div(FULL_AT_START, 100)
}
