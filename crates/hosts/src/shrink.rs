//! From a bad setup to the simplest one that is still bad enough.
//!
//! **Rule.** Try all simpler setups, those that leave out most first. Take the first one that is bad enough, and continue from there until
//! none is.

use std::sync::Arc;

use memtide_guest::{Course, File, Kernel, Program, Spec};
use memtide_model::{Budget, Bytes, Config, MIB, Span};

use crate::seeds::{need, starts_with};
use memtide_sim::setup::{Fault, FaultKind, GuestSetup, HostSpec, Setup};

/// Rates that are easy to read, in MiB a second.
const ROUND_RATES: [u64; 6] = [1, 10, 50, 100, 200, 500];

/// The simplest setup found that `is_allowed` and for which `is_bad` holds, as it does for `setup`. Asks `is_bad` fewer than `most` times.
pub(crate) fn shrink(
    mut setup: Setup,
    mut most: u64,
    is_allowed: &dyn Fn(&Setup) -> bool,
    is_bad: &mut dyn FnMut(&Setup) -> bool,
) -> Setup {
    let (mut from, mut changed) = (0, false);
    loop {
        let mut simpler = simpler(&setup);
        simpler.retain(is_allowed);
        let found = simpler.into_iter().enumerate().skip(from).find(|(_, simpler)| {
            most = most.saturating_sub(1);
            most > 0 && is_bad(simpler)
        });
        match found {
            Some((index, simpler)) => (setup, from, changed) = (simpler, index, true),
            None if changed && most > 0 => (from, changed) = (0, false),
            None => return setup,
        }
    }
}

/// Simpler setups, those that leave out most first.
fn simpler(setup: &Setup) -> Vec<Setup> {
    let mut all = Vec::new();
    without_guests(setup, &mut all);
    without_faults(setup, &mut all);
    of_host(setup, &mut all);
    let specs: [fn(&Spec) -> Vec<Spec>; 3] = [without_parts, with_defaults, with_simple_parts];
    for simpler in specs {
        for index in 0..setup.guests.len() {
            all.extend(
                simpler(&setup.guests[index].spec).into_iter().map(|spec| with_spec(setup, index, spec)),
            );
        }
    }
    alike(setup, &mut all);
    rounded(setup, &mut all);
    all.retain_mut(|simpler| {
        simpler.config.budget = Budget::Size(simpler.host.memory);
        simpler != setup
    });
    all
}

fn with(setup: &Setup, change: impl FnOnce(&mut Setup)) -> Setup {
    let mut changed = setup.clone();
    change(&mut changed);
    changed
}

fn with_spec(setup: &Setup, index: usize, spec: Spec) -> Setup {
    with(setup, |setup| setup.guests[index].spec = Arc::new(spec))
}

/// Leaves out one guest, on a host that is smaller by the guest's need, by its cost at the start, by its full size, or by nothing.
fn without_guests(setup: &Setup, all: &mut Vec<Setup>) {
    for (index, GuestSetup { spec, .. }) in setup.guests.iter().enumerate() {
        let overhead = spec.overhead;
        let whole = spec.memory.saturating_add(overhead);
        for less in [need(spec).saturating_add(overhead), starts_with(spec), whole, Bytes::ZERO] {
            all.push(with(setup, |setup| {
                setup.guests.remove(index);
                setup.faults.retain(|fault| fault.guest != Some(index));
                let later = setup.faults.iter_mut().filter_map(|fault| fault.guest.as_mut());
                later.filter(|guest| **guest > index).for_each(|guest| *guest -= 1);
                setup.host.memory = Bytes::from_mib(setup.host.memory.saturating_sub(less).whole_mib());
            }));
        }
    }
}

fn without_faults(setup: &Setup, all: &mut Vec<Setup>) {
    for index in 0..setup.faults.len() {
        all.push(with(setup, |setup| _ = setup.faults.remove(index)));
    }
}

fn of_host(setup: &Setup, all: &mut Vec<Setup>) {
    let (host, config) = (HostSpec::default(), Config::default());
    let noise = setup.host.other_most;
    for less in [Bytes::ZERO, noise.mul_div(1, 2), noise] {
        all.push(with(setup, |setup| {
            (setup.host.other, setup.host.other_most) = (host.other, host.other_most);
            setup.host.noise_every = host.noise_every;
            setup.host.memory = setup.host.memory.saturating_sub(less);
        }));
    }
    all.push(with(setup, |setup| setup.host.noise_every = host.noise_every));
    all.push(with(setup, |setup| setup.host.swap = host.swap));
    all.push(with(setup, |setup| setup.guests.iter_mut().for_each(|guest| guest.equal = None)));
    all.push(with(setup, |setup| {
        setup.host.tmpfs = host.tmpfs;
        setup.guests.iter_mut().for_each(|guest| guest.in_tmpfs = false);
    }));
    all.push(with(setup, |setup| setup.config.ksm = config.ksm));
    all.push(with(setup, |setup| setup.config.classes = config.classes.clone()));
    all.push(with(setup, |setup| setup.config.reserve = config.reserve));
    all.push(with(setup, |setup| setup.config.self_deflations = config.self_deflations));
    all.push(with(setup, |setup| setup.seed = 0));
    for minutes in [5, 10, 15, 20, 30] {
        let lasts = Span::from_secs(minutes * 60);
        if lasts < setup.lasts {
            all.push(with(setup, |setup| setup.lasts = lasts));
        }
    }
    for index in 0..setup.guests.len() {
        all.push(with(setup, |setup| setup.guests[index].arrives = Span::ZERO));
        all.push(with(setup, |setup| setup.guests[index].leaves = None));
    }
}

fn changed(spec: &Spec, change: impl FnOnce(&mut Spec)) -> Spec {
    let mut changed = spec.clone();
    change(&mut changed);
    changed
}

/// A guest without one of its programs or files, or without its cold cache or swap.
fn without_parts(spec: &Spec) -> Vec<Spec> {
    let mut all = vec![
        changed(spec, |spec| (spec.cold, spec.full_of_cold) = (Bytes::ZERO, false)),
        changed(spec, |spec| spec.swap = Bytes::ZERO),
    ];
    all.extend((0..spec.programs.len()).map(|index| changed(spec, |spec| _ = spec.programs.remove(index))));
    all.extend((0..spec.files.len()).map(|index| changed(spec, |spec| _ = spec.files.remove(index))));
    all
}

/// A guest with one of its properties at the usual value.
fn with_defaults(spec: &Spec) -> Vec<Spec> {
    let default = Spec::default();
    vec![
        changed(spec, |spec| (spec.agent, spec.agent_takes) = (default.agent, default.agent_takes)),
        changed(spec, |spec| spec.agent_takes = default.agent_takes),
        changed(spec, |spec| spec.kernel = Kernel::V6_12),
        changed(spec, |spec| spec.deflate_on_oom = default.deflate_on_oom),
        changed(spec, |spec| spec.free_page_reporting = default.free_page_reporting),
        changed(spec, |spec| spec.disk = default.disk),
        changed(spec, |spec| spec.memory = default.memory),
        changed(spec, |spec| {
            if !spec.cold.is_zero() {
                (spec.cold, spec.full_of_cold) = (Bytes::ZERO, true);
            }
        }),
    ]
}

/// A guest with a simpler program or file.
fn with_simple_parts(spec: &Spec) -> Vec<Spec> {
    let mut all = Vec::new();
    for (index, program) in spec.programs.iter().enumerate() {
        let mut put = |program: Program| all.push(changed(spec, |spec| spec.programs[index] = program));
        let simple = Program::constant(program.size);
        put(simple.clone());
        put(Program { course: program.course.clone(), ..simple.clone() });
        let course = |course: Course| Program { course, ..program.clone() };
        match program.course {
            Course::Rise { to, at, holds, .. } => {
                put(Program::constant(to));
                put(course(Course::Rise { to, at, holds, every: None }));
                put(course(Course::Rise { to, at, holds: None, every: None }));
            }
            Course::Drift { to, rate } => {
                put(Program::constant(to));
                put(course(Course::Rise { to, at: Span::from_secs(60), holds: None, every: None }));
                put(course(Course::Drift { to, rate: rate.min(15 * MIB) }));
            }
            Course::Constant | Course::Recorded(_) => {}
        }
    }
    for (index, file) in spec.files.iter().enumerate() {
        let mut put = |file: File| all.push(changed(spec, |spec| spec.files[index] = file));
        put(File { periods: None, ..file.clone() });
        put(File { mapped: false, ..file.clone() });
        put(File { dropped: false, ..file.clone() });
        put(File { cached: file.size.is_some(), ..file.clone() });
    }
    all
}

/// Makes a guest that is like no other the same as another.
fn alike(setup: &Setup, all: &mut Vec<Setup>) {
    let count =
        |index: usize| setup.guests.iter().filter(|guest| guest.spec == setup.guests[index].spec).count();
    for index in (0..setup.guests.len()).filter(|&index| count(index) == 1) {
        for other in (0..setup.guests.len()).filter(|other| *other != index) {
            let spec = &setup.guests[other].spec;
            if setup.guests[index].spec != *spec {
                all.push(with(setup, |setup| setup.guests[index].spec = Arc::clone(spec)));
            }
        }
    }
}

/// Rounds one number at a time.
fn rounded(setup: &Setup, all: &mut Vec<Setup>) {
    for step in [500, 100, 50, 10] {
        let round = |size: Bytes| nearest(size.whole_mib(), step).map(Bytes::from_mib);
        if let Some(memory) = round(setup.host.memory) {
            all.push(with(setup, |setup| setup.host.memory = memory));
        }
        if let Some(noise) = round(setup.host.other_most) {
            all.push(with(setup, |setup| setup.host.other_most = noise));
        }
        for index in 0..setup.guests.len() {
            let specs = rounded_sizes(&setup.guests[index].spec, &round);
            all.extend(specs.into_iter().map(|spec| with_spec(setup, index, spec)));
        }
    }
    for (index, fault) in setup.faults.iter().enumerate() {
        all.extend(rounded_fault(fault).into_iter().map(|fault| with(setup, |s| s.faults[index] = fault)));
    }
    for (index, guest) in setup.guests.iter().enumerate() {
        let round = |time: Span| [300, 60, 30, 10].into_iter().filter_map(move |step| round_time(time, step));
        all.extend(round(guest.arrives).map(|time| with(setup, |setup| setup.guests[index].arrives = time)));
        let leaves = guest.leaves.into_iter().flat_map(round);
        all.extend(leaves.map(|time| with(setup, |setup| setup.guests[index].leaves = Some(time))));
        let specs = rounded_rates_and_times(&guest.spec);
        all.extend(specs.into_iter().map(|spec| with_spec(setup, index, spec)));
    }
}

/// The multiple of `step` nearest to `value`, if it is a different number and not zero.
fn nearest(value: u64, step: u64) -> Option<u64> {
    let near = (value + step / 2) / step * step;
    (near != value && near > 0).then_some(near)
}

fn round_time(time: Span, step: u64) -> Option<Span> {
    nearest(time.as_millis() / 1_000, step).map(Span::from_secs)
}

fn rounded_fault(fault: &Fault) -> Vec<Fault> {
    let mut all = Vec::new();
    for step in [60, 30, 10] {
        all.extend(round_time(fault.at, step).map(|at| Fault { at, ..fault.clone() }));
        all.extend(round_time(fault.lasts, step).map(|lasts| Fault { lasts, ..fault.clone() }));
    }
    let near = |size: Bytes| nearest(size.whole_mib(), 100).map(Bytes::from_mib);
    let kind = match fault.kind {
        FaultKind::Foreign(size) => near(size).map(FaultKind::Foreign),
        FaultKind::TellsSize(size) => near(size).map(FaultKind::TellsSize),
        _ => None,
    };
    all.extend(kind.map(|kind| Fault { kind, ..fault.clone() }));
    all
}

fn rounded_sizes(spec: &Spec, round: &dyn Fn(Bytes) -> Option<Bytes>) -> Vec<Spec> {
    let mut all = Vec::new();
    if let Some(cold) = round(spec.cold) {
        all.push(changed(spec, |spec| spec.cold = cold));
    }
    for (index, program) in spec.programs.iter().enumerate() {
        if let Some(size) = round(program.size) {
            // The touched memory changes with the size.
            let touches = if program.touches == program.size.get() { size.get() } else { program.touches };
            let program = Program { size, touches, ..program.clone() };
            all.push(changed(spec, |spec| spec.programs[index] = program));
        }
        let course = match program.course.clone() {
            Course::Rise { to, at, holds, every } => {
                round(to).map(|to| Course::Rise { to, at, holds, every })
            }
            Course::Drift { to, rate } => round(to).map(|to| Course::Drift { to, rate }),
            Course::Constant | Course::Recorded(_) => None,
        };
        all.extend(course.map(|course| changed(spec, |spec| spec.programs[index].course = course)));
    }
    for (index, file) in spec.files.iter().enumerate() {
        let size = file.size.and_then(round);
        all.extend(size.map(|size| changed(spec, |spec| spec.files[index].size = Some(size))));
    }
    all
}

fn rounded_rates_and_times(spec: &Spec) -> Vec<Spec> {
    let mut all = Vec::new();
    for (index, program) in spec.programs.iter().enumerate() {
        let Course::Rise { to, at, holds, every } = program.course.clone() else { continue };
        let mut put = |course| all.push(changed(spec, |spec| spec.programs[index].course = course));
        for step in [300, 60, 30, 10] {
            if let Some(at) = round_time(at, step) {
                put(Course::Rise { to, at, holds, every });
            }
            if let Some(holds) = holds.and_then(|time| round_time(time, step)) {
                put(Course::Rise { to, at, holds: Some(holds), every });
            }
            if let Some(every) = every.and_then(|time| round_time(time, step)) {
                put(Course::Rise { to, at, holds, every: Some(every) });
            }
        }
    }
    for (index, file) in spec.files.iter().enumerate() {
        let round = ROUND_RATES.map(|rate| rate * MIB);
        for rate in round {
            // A rounder rate must be within a factor of two.
            if !round.contains(&file.rate) && rate <= file.rate * 2 && rate * 2 >= file.rate {
                all.push(changed(spec, |spec| spec.files[index].rate = rate));
            }
        }
        for step in [60, 30, 10] {
            let Some((reads, every)) = file.periods else { continue };
            let rounded =
                (round_time(reads, step).unwrap_or(reads), round_time(every, step).unwrap_or(every));
            all.push(changed(spec, |spec| spec.files[index].periods = Some(rounded)));
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::search::plausible::{self, is_plausible};
    use crate::seeds::draw::Draw;

    #[test]
    fn what_is_not_needed_goes() {
        for seed in 0..40 {
            let setup = plausible::setup(&mut Draw::new(seed, 1));
            let reads = |guest: &GuestSetup| guest.spec.files.iter().any(|file| file.size.is_some());
            if !is_plausible(&setup) || !setup.guests.iter().any(reads) {
                continue;
            }
            let mut is_bad = |setup: &Setup| setup.guests.iter().any(reads);
            let small = shrink(setup, 10_000, &is_plausible, &mut is_bad);
            assert_eq!(small.guests.len(), 1, "seed {seed}");
            let spec = &small.guests[0].spec;
            assert_eq!(
                (spec.programs.len(), spec.files.len(), spec.kernel),
                (0, 1, Kernel::V6_12),
                "seed {seed}"
            );
            assert_eq!((small.seed, small.lasts), (0, Span::from_secs(300)), "seed {seed}");
            assert_eq!(small.host.other_most, Bytes::ZERO, "seed {seed}");
        }
    }
}
