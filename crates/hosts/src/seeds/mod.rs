//! Setups with faults from a seed, the promises that they must keep, and a sweep over many seeds.
//!
//! **Problem.** Each fault alone is easy to test. The dangerous case is three at once, in an order that nobody thought of.
//!
//! **Shape of a setup.** Two to eight guests fit comfortably on a host. In the *faults phase* (three to six minutes), programs rise and
//! drift, guests come and leave, and guests, host and daemon have faults. In the *quiet phase* (six to ten minutes), nothing changes, and
//! everything must become right again; `judge` defines this. Even seeds use a strict commitment, odd seeds an elastic one.
//!
//! **Comfortably** means that all of this fits together: the guests' needs at their peaks ([`need`]), their VMMs' overhead, the others'
//! use, the reserve, the k largest self-deflations (strict) and some of the capacity. So if a guest lacks memory in the quiet phase, a
//! decision is the cause.
//!
//! **Properties.** A seed gives the same setup on every machine. It gives a different one only if this module changes.

pub(crate) mod draw;
mod faults;
mod guests;
mod judge;
mod sweep;
mod violation;

use std::sync::Arc;

use memtide_guest::{Course, Guest, Spec};
use memtide_model::{Amount, Budget, Bytes, Class, Commitment, Config, KsmMode, Share, Span};

use draw::{Draw, later};
use memtide_sim::setup::{EqualMemory, Fault, GuestSetup, HostSpec, Setup, WhenFull};

pub use judge::{RIGHT_WITHIN, Wrong, WrongKind, judge, quiet_from};
pub use sweep::{Failure, Sweep, sweep};
pub use violation::{Violation, violations};

/// The part of the capacity that a comfortable host leaves free in addition to the reserve, in percent: the states of a host begin at 6 %.
const COMFORT: u64 = 8;

/// The setup with faults of this seed.
#[must_use]
pub fn faulty(seed: u64) -> Setup {
    let mut draw = Draw::new(seed, 1);
    let phase = draw.secs(180, 360);
    let quiet = draw.secs(360, 600);
    let commitment = if seed.is_multiple_of(2) { Commitment::Strict } else { Commitment::Elastic };
    let mut guests = guests::draw(&mut Draw::new(seed, 2), phase);
    let faults = faults::draw(&mut Draw::new(seed, 3), &guests, phase);
    guests::calm_down(&mut guests, &faults, phase);
    let mut draw = Draw::new(seed, 4);
    let mut config = Config { commitment, ..Config::default() };
    config.self_deflations = draw.pick(&[0, 0, 1, 1, 2]);
    let reserve = draw.pick(&[0, 2, 5, 5]);
    config.reserve = Amount::Share(Share::percent(reserve).unwrap_or_default());
    let host = host(&mut draw, &guests, (&config, u64::from(reserve)));
    config.budget = Budget::Size(host.memory);
    share(&mut Draw::new(seed, 5), &mut guests, &mut config);
    install_agents(&mut Draw::new(seed, 6), &mut guests);
    Setup { lasts: later(phase, quiet), seed, host, guests, faults, config }
}

/// On one host in four, guests have equal memory, and memtide lets KSM merge it. The host is large enough without that.
fn share(draw: &mut Draw, guests: &mut [GuestSetup], config: &mut Config) {
    if !draw.chance(1, 4) {
        return;
    }
    config.ksm.mode = KsmMode::Govern;
    for guest in guests {
        let size = draw.part(guest.spec.memory, 5, 25);
        // In the quiet phase nothing changes.
        guest.equal = draw.chance(3, 4).then_some(EqualMemory { size, changes_every: None });
    }
    let shares = Class { share: true, ..Class::default() };
    config.classes.insert(Config::DEFAULT_CLASS.into(), shares);
}

/// On every second host, guests have agents. Some are slow.
fn install_agents(draw: &mut Draw, guests: &mut [GuestSetup]) {
    if !draw.chance(1, 2) {
        return;
    }
    for guest in guests.iter_mut().filter(|guest| guest.spec.balloon) {
        let agent_takes = draw.pick(&[0, 0, 100, 500, 2_000]);
        if draw.chance(2, 3) {
            let agent_takes = Span::from_millis(agent_takes);
            guest.spec = Arc::new(Spec { agent: true, agent_takes, ..(*guest.spec).clone() });
        }
    }
}

/// A host on which the guests fit, with `reserve` percent kept free.
fn host(draw: &mut Draw, guests: &[GuestSetup], (config, reserve): (&Config, u64)) -> HostSpec {
    let other = draw.pick(&[0, 0, 100, 200]);
    let noise = draw.pick(&[0, 0, 50, 100]);
    let other_most = Bytes::from_mib(other + noise);
    let needs = guests.iter().map(|guest| need(&guest.spec).saturating_add(guest.spec.overhead_bound));
    let strict = config.commitment == Commitment::Strict;
    let own = if strict { self_deflations(guests, config.self_deflations) } else { Bytes::ZERO };
    let mut fits = Bytes::sum(needs.chain([other_most, own]));
    // All memory at the guests' start must fit from the beginning.
    let at_start = guests.iter().filter(|guest| guest.arrives == Span::ZERO);
    fits = fits.max(Bytes::sum(at_start.map(|guest| starts_with(&guest.spec)).chain([other_most])));
    let comfortable = fits.mul_div(100, 100 - reserve - COMFORT);
    let roomy = comfortable.mul_div(draw.number(100, 120), 100);
    HostSpec {
        memory: Bytes::from_mib(roomy.whole_mib().next_multiple_of(10)),
        other: Bytes::from_mib(other),
        other_most,
        noise_every: draw.secs(2, 20),
        swap: draw.pick(&[Bytes::ZERO, Bytes::ZERO, Bytes::from_mib(1024)]),
        when_full: WhenFull::Count,
        ..HostSpec::default()
    }
}

/// The `k` largest self-deflations of guests that have the memory that they need.
pub(crate) fn self_deflations(guests: &[GuestSetup], k: u32) -> Bytes {
    let deflates = guests.iter().filter(|guest| guest.spec.deflate_on_oom);
    let mut own: Vec<Bytes> =
        deflates.map(|guest| guest.spec.memory.saturating_sub(need(&guest.spec))).collect();
    own.sort_unstable_by(|a, b| b.cmp(a));
    Bytes::sum(own.into_iter().take(usize::try_from(k).unwrap_or(usize::MAX)))
}

/// The memory that a guest needs at its peak: kernel, programs, the files that it reads repeatedly, and headroom for growth. Without a
/// balloon, or if it gives the host nothing, it keeps all of its memory.
#[must_use]
pub fn need(spec: &Spec) -> Bytes {
    if !spec.balloon || spec.gives_nothing {
        return spec.memory;
    }
    let peaks = spec.programs.iter().map(|program| match &program.course {
        Course::Constant => program.size,
        Course::Rise { to, .. } | Course::Drift { to, .. } => *to,
        Course::Recorded(sizes) => sizes.iter().map(|(_, size)| *size).max().unwrap_or_default(),
    });
    let files = spec.files.iter().filter_map(|file| file.size);
    let headroom = spec.memory.mul_div(1, 32).saturating_add(Bytes::from_mib(32));
    let parts = peaks.chain(files).chain([spec.kernel_size, spec.slab, headroom]);
    Bytes::sum(parts).min(spec.memory)
}

/// The memory that a guest without faults always uses: kernel, and programs that stay constant to the end.
fn uses_always(spec: &Spec) -> Bytes {
    let stays = spec.programs.iter().filter(|p| p.course == Course::Constant && p.ends.is_none());
    let programs = stays.map(|program| program.size);
    Bytes::sum(programs.chain([spec.kernel_size, spec.slab])).min(spec.memory)
}

/// A guest's cost to the host at its start.
pub(crate) fn starts_with(spec: &Spec) -> Bytes {
    Guest::new(Arc::new(spec.clone()), 0).size().footprint
}

/// The faults of a guest.
fn faults_of(faults: &[Fault], guest: usize) -> impl Iterator<Item = &Fault> {
    faults.iter().filter(move |fault| fault.guest == Some(guest))
}
