//! Small random changes of a setup.

use std::sync::Arc;

use memtide_guest::{Course, Kernel, Program, Spec};
use memtide_model::{Amount, Budget, Bytes, MIB, Share, Span};

use super::plausible::{add_role, boots_first, guest, is_plausible};
use crate::seeds::draw::Draw;
use memtide_sim::setup::Setup;

/// The most attempts to get a plausible setup.
const TRIES: usize = 20;
const SIZES: [u64; 6] = [50, 75, 90, 110, 130, 200];
const TIMES: [u64; 4] = [50, 75, 150, 200];
const RATES: [u64; 4] = [25, 50, 200, 400];

/// A plausible setup that differs from `setup` in one to three things; `setup` itself if none was found.
pub(super) fn mutate(draw: &mut Draw, setup: &Setup) -> Setup {
    for _ in 0..TRIES {
        let mut changed = setup.clone();
        for _ in 0..draw.number(1, 3) {
            change(draw, &mut changed);
        }
        changed.config.budget = Budget::Size(changed.host.memory);
        if is_plausible(&changed) {
            return changed;
        }
    }
    setup.clone()
}

fn change(draw: &mut Draw, setup: &mut Setup) {
    let (count, lasts) = (setup.guests.len(), setup.lasts);
    let index = draw.index(count);
    match draw.number(0, 12) {
        0..=2 => setup.host.memory = round(setup.host.memory.mul_div(draw.number(88, 112), 100)),
        3 if count > 1 => {
            setup.guests.remove(index);
        }
        4 => {
            let number = setup.guests.iter().filter_map(|guest| guest.name.strip_prefix("vm-")?.parse().ok());
            let number: usize = number.max().map_or(0, |most: usize| most + 1);
            let mut new = guest(draw, number, lasts);
            if draw.chance(1, 2) {
                new.spec = Arc::clone(&setup.guests[index].spec);
            }
            setup.guests.push(new);
        }
        5 => of_host(draw, setup),
        6 => {
            let arrives = if index > 0 && draw.chance(1, 2) { draw.secs(10, 600) } else { Span::ZERO };
            setup.guests[index].arrives = arrives;
            setup.guests[index].leaves = None;
            if arrives > Span::ZERO {
                boots_first(Arc::make_mut(&mut setup.guests[index].spec));
            }
        }
        _ => of_guest(draw, Arc::make_mut(&mut setup.guests[index].spec)),
    }
}

fn of_host(draw: &mut Draw, setup: &mut Setup) {
    match draw.number(0, 4) {
        0 => setup.lasts = scaled(draw, setup.lasts, &TIMES),
        1 => setup.host.other_most = draw.mib(0, 300),
        2 => setup.host.noise_every = draw.secs(2, 60),
        3 => setup.config.reserve = Amount::Share(Share::percent(draw.pick(&[0, 5, 10])).unwrap_or_default()),
        _ => setup.config.self_deflations = draw.pick(&[0, 1, 1]),
    }
}

fn of_guest(draw: &mut Draw, spec: &mut Spec) {
    match draw.number(0, 9) {
        0 => add_role(draw, spec),
        1 => {
            let memory = Bytes::from_mib(draw.pick(&[512, 1024, 2048, 4096]));
            spec.memory = memory;
        }
        2 => spec.kernel = draw.pick(&[Kernel::V6_12, Kernel::V6_12, Kernel::V6_1, Kernel::V4_19]),
        3 => match draw.number(0, 3) {
            0 => spec.deflate_on_oom = !spec.deflate_on_oom,
            1 => spec.free_page_reporting = !spec.free_page_reporting,
            2 => spec.swap = Bytes::from_mib(draw.pick(&[0, 256, 1024])),
            _ => spec.disk = draw.rate(&[12, 50, 100, 500, 2_000]),
        },
        4 if !spec.files.is_empty() => {
            spec.files.remove(draw.index(spec.files.len()));
        }
        4 => (spec.cold, spec.full_of_cold) = (Bytes::ZERO, false),
        5 | 6 if !spec.files.is_empty() => {
            let index = draw.index(spec.files.len());
            let file = &mut spec.files[index];
            match draw.number(0, 2) {
                0 => file.rate = rate(file.rate.saturating_mul(draw.pick(&RATES)) / 100),
                1 => file.size = file.size.map(|size| round(size.mul_div(draw.pick(&SIZES), 100))),
                _ => {
                    let scale = draw.pick(&TIMES);
                    file.periods =
                        file.periods.map(|(reads, every)| (secs(reads, scale), secs(every, scale)));
                }
            }
        }
        _ => of_program(draw, spec),
    }
}

fn of_program(draw: &mut Draw, spec: &mut Spec) {
    let index = draw.index(spec.programs.len());
    let Some(program) = spec.programs.get_mut(index) else { return add_role(draw, spec) };
    let (by, time) = (draw.pick(&SIZES), draw.pick(&TIMES));
    let resize = |program: &mut Program| {
        program.size = round(program.size.mul_div(by, 100));
        program.touches = program.size.get();
    };
    match (draw.number(0, 5), &mut program.course) {
        (0, _) => resize(program),
        (1, _) => program.rate = rate(program.rate.saturating_mul(draw.pick(&RATES)) / 100),
        (2 | 3, Course::Rise { to, .. } | Course::Drift { to, .. }) => *to = round(to.mul_div(by, 100)),
        (4, Course::Rise { at, .. }) => *at = secs(*at, time),
        (_, Course::Rise { holds, every, .. }) => match draw.chance(1, 2) {
            true => *holds = holds.map(|holds| secs(holds, time)),
            false => *every = every.map(|every| secs(every, time)),
        },
        (_, Course::Drift { rate: speed, .. }) => {
            *speed = rate(speed.saturating_mul(draw.pick(&RATES)) / 100)
        }
        _ => resize(program),
    }
}

/// Rounds to whole 10 MiB, but at least 10 MiB.
fn round(size: Bytes) -> Bytes {
    Bytes::from_mib((size.whole_mib() / 10).max(1) * 10)
}

fn rate(bytes: u64) -> u64 {
    (bytes / MIB).max(1) * MIB
}

fn secs(time: Span, percent: u64) -> Span {
    Span::from_secs((time.as_millis() * percent / 100_000).max(1))
}

fn scaled(draw: &mut Draw, time: Span, by: &[u64]) -> Span {
    secs(time, draw.pick(by))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::search::plausible;
    use memtide_sim::scenario::write;

    #[test]
    fn changed_setups_stay_plausible_and_can_be_written() {
        let mut draw = Draw::new(3, 1);
        let mut changes = 0;
        for seed in 0..60 {
            let mut setup = plausible::setup(&mut Draw::new(seed, 1));
            if !is_plausible(&setup) {
                continue;
            }
            for _ in 0..10 {
                let changed = mutate(&mut draw, &setup);
                changes += usize::from(changed != setup);
                setup = changed;
                assert!(is_plausible(&setup));
                assert!(write("", &setup, None, &[]).is_ok(), "{seed}: {setup:?}");
            }
        }
        assert!(changes > 300, "{changes}");
    }
}
