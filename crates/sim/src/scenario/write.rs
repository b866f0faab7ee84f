//! Writes a setup as a scenario file, as short as the defaults allow.
//!
//! **Property.** A written file reads back as the same setup. A setup that would not read back cannot be written (for example a recorded
//! course, or a spec that no key sets).

use std::fmt::Write as _;
use std::time::Duration;

use memtide_guest::{Course, File, Kernel, Program, Spec};
use memtide_model::{
    Amount, Bytes, Class, Commitment, Config, Fence, KsmConfig, KsmMode, Limit, SelfDeflationWithin, Share,
    Span, StateLines,
};

use super::Scenario;
use crate::setup::{Fault, FaultKind, GuestSetup, HostSpec, Lie, Setup, WhenFull};

/// A promise of a scenario, for its `[[keep]]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Promise {
    /// The only commitment that it applies to; `None`: both.
    pub policy: Option<Commitment>,
    /// The only guest that it applies to; `None`: all.
    pub guest: Option<String>,
    /// The bound that must hold.
    pub bound: Bound,
    /// The reason why memtide's policy breaks it, if it does.
    pub fails: Option<String>,
}

/// A bound for a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    /// The least work of a guest, in thousandths of the work that it could do.
    Work(u64),
    /// The least work of a guest, in thousandths of its work without a manager.
    WorkOfNone(u64),
    /// The least work of all guests, in thousandths of their work under the best other manager.
    WorkOfBest(u64),
    /// The longest that a guest starves.
    Starved(Span),
    /// The longest that a guest is hungry.
    Hungry(Span),
    /// The most programs of a guest that may be killed.
    Kills(u64),
    /// The most that the host may be above its capacity.
    AboveCapacity(Bytes),
    /// The longest time after the last fault until everything is right again.
    RightAgain(Span),
}

/// A setup that the format cannot express.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the scenario format cannot express this setup")]
pub struct Inexpressible;

/// The scenario file of `setup`, for runs with the commitment `only` (`None`: both). `about` is a sentence or two.
///
/// # Errors
/// If the format cannot express the setup.
pub fn write(
    about: &str,
    setup: &Setup,
    only: Option<Commitment>,
    promises: &[Promise],
) -> Result<String, Inexpressible> {
    let mut text = String::new();
    if about.contains('\n') {
        let _ = writeln!(
            text,
            "about = \"\"\"\n{}\n\"\"\"",
            about.trim().replace('\\', "\\\\").replace('"', "\\\"")
        );
    } else {
        let _ = writeln!(text, "about = {}", quoted(about));
    }
    let _ = writeln!(text, "lasts = {}", time(setup.lasts));
    if setup.seed != 0 {
        let _ = writeln!(text, "seed = {}", setup.seed);
    }
    text.push_str(&host(&setup.host));
    text.push_str(&memtide(&setup.config, only));
    let mut rest = &setup.guests[..];
    while !rest.is_empty() {
        let alike = alike(rest);
        text.push_str(&guest(&rest[..alike]));
        rest = &rest[alike..];
    }
    for one in &setup.faults {
        text.push_str(&fault(one, &setup.guests));
    }
    promises.iter().for_each(|promise| text.push_str(&keep(promise)));
    let read = Scenario::parse(&text).map_err(|_| Inexpressible)?.setup;
    // The file names the commitment of a run separately from the configuration.
    let config = Config { commitment: setup.config.commitment, ..read.config };
    if (Setup { config, ..read }) == *setup { Ok(text) } else { Err(Inexpressible) }
}

/// The lines of a table below its head; empty if there are no lines.
fn table(head: &str, lines: &[(&str, Option<String>)]) -> String {
    let lines: Vec<String> =
        lines.iter().filter_map(|(key, value)| Some(format!("{key} = {}\n", value.as_ref()?))).collect();
    if lines.is_empty() { String::new() } else { format!("\n{head}\n{}", lines.concat()) }
}

/// The same lines as an inline table.
fn inline(pairs: &[(&str, Option<String>)]) -> String {
    let pairs: Vec<String> =
        pairs.iter().filter_map(|(key, value)| Some(format!("{key} = {}", value.as_ref()?))).collect();
    format!("{{ {} }}", pairs.join(", "))
}

fn host(host: &HostSpec) -> String {
    let default = HostSpec::default();
    let noise = host.other_most != host.other;
    table(
        "[host]",
        &[
            ("memory", unless(host.memory, default.memory, size)),
            ("other", unless(host.other, default.other, size)),
            ("other_up_to", noise.then(|| size(host.other_most))),
            ("other_changes", unless(host.noise_every, default.noise_every, time)),
            ("swap", unless(host.swap, default.swap, size)),
            ("splits", (!host.splits).then(|| "false".to_owned())),
            ("tiers", (!host.tiers).then(|| "false".to_owned())),
            ("when_full", (host.when_full == WhenFull::Count).then(|| quoted("count"))),
            ("tmpfs", host.tmpfs.map(size)),
            ("processors", host.processors.map(|processors| processors.number.to_string())),
            ("processors_busy", host.processors.map(|processors| processors.busy.to_string())),
        ],
    )
}

fn memtide(config: &Config, only: Option<Commitment>) -> String {
    let default = Config::default();
    let commitment = only.map(|commitment| match commitment {
        Commitment::Strict => quoted("strict"),
        Commitment::Elastic => quoted("elastic"),
    });
    let mut text = table(
        "[memtide]",
        &[
            ("commitment", commitment),
            ("reserve", unless(config.reserve, default.reserve, amount)),
            ("self_deflations", unless(config.self_deflations, default.self_deflations, |k| k.to_string())),
            (
                "self_deflation_within",
                unless(config.self_deflation_within, default.self_deflation_within, |most| match most {
                    SelfDeflationWithin::Whole => quoted("whole"),
                    SelfDeflationWithin::Size(bytes) => size(bytes),
                }),
            ),
            ("growth_prior", unless(config.growth_prior, default.growth_prior, share)),
            ("squeeze_every", config.squeeze_every.map(time)),
            ("ksm", unless(config.ksm, default.ksm, ksm)),
            ("states", unless(config.states, default.states, states)),
        ],
    );
    for (name, class) in &config.classes {
        text.push_str(&class_table(name, class));
    }
    text
}

fn class_table(name: &str, class: &Class) -> String {
    let default = Class::default();
    let list = |texts: &[String]| {
        let texts: Vec<String> = texts.iter().map(|text| quoted(text)).collect();
        format!("[{}]", texts.join(", "))
    };
    let limit = match class.limit {
        Limit::Max => None,
        Limit::At(bytes) => Some(size(bytes)),
    };
    table(
        &format!("[memtide.class.{}]", quoted(name)),
        &[
            ("match", (class.patterns != default.patterns).then(|| list(&class.patterns))),
            ("users", class.users.as_ref().map(|users| list(users.words()))),
            ("shares", unless(class.shares, default.shares, |shares| shares.to_string())),
            ("reservation", unless(class.reservation, default.reservation, size)),
            ("limit", limit),
            ("squeeze", unless(class.squeeze, default.squeeze, |squeeze| squeeze.to_string())),
            ("cache", unless(class.cache, default.cache, amount)),
            ("cache_limit", class.cache_limit.map(share)),
            ("tier", class.tier.map(share)),
            ("manage", unless(class.manage, default.manage, |manage| manage.to_string())),
            ("share", unless(class.share, default.share, |share| share.to_string())),
        ],
    )
}

/// The number of `guests`, from the first on, that form one entry: alike, numbered, and started at even intervals.
fn alike(guests: &[GuestSetup]) -> usize {
    let most = guests.iter().take_while(|guest| {
        let first = &guests[0];
        (&guest.spec, guest.equal, guest.in_tmpfs, guest.leaves)
            == (&first.spec, first.equal, first.in_tmpfs, first.leaves)
    });
    let step = |a: &GuestSetup, b: &GuestSetup| b.arrives.as_millis().checked_sub(a.arrives.as_millis());
    let every = guests.get(1).and_then(|second| step(&guests[0], second));
    (2..=most.count())
        .rev()
        .find(|&count| {
            let evenly = guests[..count].windows(2).all(|pair| step(&pair[0], &pair[1]) == every);
            base_of(&guests[..count]).is_some() && every.is_some() && evenly
        })
        .unwrap_or(1)
}

/// The common part of these guests' names, if they are numbered as `count` numbers them.
fn base_of(guests: &[GuestSetup]) -> Option<&str> {
    let digits = guests.len().to_string().len();
    let (base, _) = guests[0].name.rsplit_once('-')?;
    let numbered =
        |(index, guest): (usize, &GuestSetup)| guest.name == format!("{base}-{:0digits$}", index + 1);
    guests.iter().enumerate().all(numbered).then_some(base)
}

fn guest(guests: &[GuestSetup]) -> String {
    let (first, spec, default) = (&guests[0], &*guests[0].spec, Spec::default());
    let many = guests.len() > 1;
    let name = if many { base_of(guests).unwrap_or(&first.name) } else { &first.name };
    let step = guests.get(1).map_or(0, |second| second.arrives.as_millis() - first.arrives.as_millis());
    let uses = spec.programs.first().filter(|program| **program == Program::constant(program.size));
    let programs = &spec.programs[usize::from(uses.is_some())..];
    let cold = if spec.full_of_cold { Some(quoted("full")) } else { unless(spec.cold, Bytes::ZERO, size) };
    let yes = |value: bool| value.to_string();
    table(
        "[[guest]]",
        &[
            ("name", Some(quoted(name))),
            ("count", many.then(|| guests.len().to_string())),
            ("memory", unless(spec.memory, default.memory, size)),
            ("kernel", unless(spec.kernel, default.kernel, kernel)),
            ("starts", unless(first.arrives, Span::ZERO, time)),
            ("starts_every", (step > 0).then(|| time(Span::from_millis(step)))),
            ("ends", first.leaves.map(time)),
            ("boots_for", unless(spec.boots_for, default.boots_for, time)),
            ("balloon", unless(spec.balloon, default.balloon, yes)),
            ("agent", unless(spec.agent, default.agent, yes)),
            ("agent_takes", unless(spec.agent_takes, default.agent_takes, time)),
            ("deflate_on_oom", unless(spec.deflate_on_oom, default.deflate_on_oom, yes)),
            ("counts_reads", unless(spec.counts_reads, default.counts_reads, yes)),
            ("free_page_reporting", unless(spec.free_page_reporting, default.free_page_reporting, yes)),
            ("inflates", unless(spec.inflates, default.inflates, rate)),
            ("deflates", unless(spec.deflates, default.deflates, rate)),
            ("deflates_itself", unless(spec.deflates_itself, default.deflates_itself, rate)),
            ("reclaims", unless(spec.reclaims, default.reclaims, rate)),
            ("disk", unless(spec.disk, default.disk, rate)),
            ("swap", unless(spec.swap, default.swap, size)),
            ("swap_speed", unless(spec.swap_speed, default.swap_speed, rate)),
            ("overhead", unless(spec.overhead, default.overhead, size)),
            ("overhead_bound", unless(spec.overhead_bound, spec.overhead, size)),
            ("kernel_uses", unless(spec.kernel_size, default.kernel_size, size)),
            ("torn", unless(spec.torn_per_mille, 0, per_mille)),
            ("gives_nothing", spec.gives_nothing.then(|| yes(true))),
            ("uses", uses.map(|program| size(program.size))),
            ("cold_cache", cold),
            ("equal", first.equal.map(|equal| size(equal.size))),
            ("equal_changes", first.equal.and_then(|equal| equal.changes_every).map(time)),
            ("in_tmpfs", first.in_tmpfs.then(|| yes(true))),
            ("program", list(programs.iter().map(program))),
            ("file", list(spec.files.iter().map(file))),
        ],
    )
}

/// A list of inline tables: a single table stays on the line of its key; several get a line each.
fn list(tables: impl Iterator<Item = String>) -> Option<String> {
    let tables: Vec<String> = tables.collect();
    match &tables[..] {
        [] => None,
        [one] => Some(format!("[{one}]")),
        several => Some(format!("[\n  {},\n]", several.join(",\n  "))),
    }
}

fn program(program: &Program) -> String {
    let default = Program::constant(program.size);
    let mut pairs = vec![("uses", Some(size(program.size)))];
    match &program.course {
        Course::Constant | Course::Recorded(_) => {}
        Course::Rise { to, at, holds, every } => pairs.extend([
            ("grows_to", Some(size(*to))),
            ("at", Some(time(*at))),
            ("holds", holds.map(time)),
            ("every", every.map(time)),
        ]),
        Course::Drift { to, rate: speed } => {
            pairs.extend([("drifts_to", Some(size(*to))), ("drift", Some(rate(*speed)))]);
        }
    }
    pairs.extend([
        ("rate", unless(program.rate, default.rate, rate)),
        ("touches", unless(program.touches, default.touches, rate)),
        ("touches_from", unless(program.touches_from, default.touches_from, time)),
        ("compresses", unless(program.compresses, default.compresses, times)),
        ("starts", unless(program.starts, default.starts, time)),
        ("ends", program.ends.map(time)),
        ("restarts", program.restarts.filter(|_| program.restarts != default.restarts).map(time)),
    ]);
    inline(&pairs)
}

fn file(file: &File) -> String {
    let (reads, every) = file.periods.unzip();
    inline(&[
        ("size", file.size.map(size)),
        ("rate", Some(rate(file.rate))),
        ("mapped", unless(file.mapped, false, |mapped| mapped.to_string())),
        ("cached", unless(file.cached, file.size.is_some(), |cached| cached.to_string())),
        ("starts", unless(file.starts, Span::ZERO, time)),
        ("ends", file.ends.map(time)),
        ("reads", reads.map(time)),
        ("every", every.map(time)),
        ("dropped", unless(file.dropped, false, |dropped| dropped.to_string())),
    ])
}

fn fault(fault: &Fault, guests: &[GuestSetup]) -> String {
    let (target, wrong) = match fault.kind {
        FaultKind::Foreign(target) => (Some(size(target)), None),
        FaultKind::TellsSize(wrong) => (None, Some(size(wrong))),
        _ => (None, None),
    };
    let guest = fault.guest.and_then(|index| guests.get(index)).map(|guest| quoted(&guest.name));
    table(
        "[[fault]]",
        &[
            ("at", Some(time(fault.at))),
            ("lasts", unless(fault.lasts, Span::from_millis(1), time)),
            ("guest", guest),
            ("is", Some(quoted(name_of(fault.kind)))),
            ("target", target),
            ("size", wrong),
        ],
    )
}

/// The name of a kind of fault in a scenario.
#[must_use]
pub const fn name_of(kind: FaultKind) -> &'static str {
    match kind {
        FaultKind::Refuses => "refuses",
        FaultKind::Stuck => "stuck",
        FaultKind::Lies(Lie::NothingAvailable) => "says-nothing-available",
        FaultKind::Lies(Lie::AllAvailable) => "says-all-available",
        FaultKind::Lies(Lie::Stalls) => "says-stalls",
        FaultKind::Lies(Lie::Kills) => "says-kills",
        FaultKind::Lies(Lie::Scans) => "says-scans",
        FaultKind::Lies(Lie::Random) => "says-anything",
        FaultKind::Silent => "silent",
        FaultKind::Reset => "reset",
        FaultKind::SelfDeflates => "self-deflates",
        FaultKind::Vanishes => "vanishes",
        FaultKind::Fenced(Fence::Paused) => "paused",
        FaultKind::Fenced(_) => "migrating",
        FaultKind::Late => "late",
        FaultKind::Lost => "answers-lost",
        FaultKind::Foreign(_) => "foreign-target",
        FaultKind::Unreadable => "unreadable",
        FaultKind::Unknown => "unknown",
        FaultKind::TellsSize(_) => "wrong-size",
        FaultKind::SaidPinned => "said-pinned",
        FaultKind::HostUnreadable => "host-unreadable",
        FaultKind::ClockJumps => "clock-jumps",
        FaultKind::Suspended => "suspended",
        FaultKind::DaemonKilled => "daemon-killed",
        FaultKind::DiskFull => "disk-full",
    }
}

fn keep(promise: &Promise) -> String {
    let bound = match promise.bound {
        Bound::Work(least) => ("work", Some(per_mille(least))),
        Bound::WorkOfNone(least) => ("work_of_none", Some(per_mille(least))),
        Bound::WorkOfBest(least) => ("work_of_best", Some(per_mille(least))),
        Bound::Starved(most) => ("starved", Some(time(most))),
        Bound::Hungry(most) => ("hungry", Some(time(most))),
        Bound::Kills(most) => ("kills", Some(most.to_string())),
        Bound::AboveCapacity(most) => ("above_capacity", Some(size(most))),
        Bound::RightAgain(most) => ("right_again", Some(time(most))),
    };
    let policy = promise.policy.map(|policy| match policy {
        Commitment::Strict => quoted("strict"),
        Commitment::Elastic => quoted("elastic"),
    });
    let guest = promise.guest.as_deref().map(quoted);
    let fails = promise.fails.as_deref().map(quoted);
    table("[[keep]]", &[("policy", policy), ("guest", guest), bound, ("fails", fails)])
}

/// The text of `value`, unless it is the default.
fn unless<T: PartialEq>(value: T, default: T, text: impl Fn(T) -> String) -> Option<String> {
    (value != default).then(|| text(value))
}

fn quoted(text: &str) -> String {
    toml::Value::String(text.to_owned()).to_string()
}

/// In MiB, or in smaller units if it is not a whole number of MiB: sizes are easier to compare in one unit.
fn size_text(bytes: u64) -> String {
    match bytes {
        0 => "0".to_owned(),
        bytes if bytes.is_multiple_of(1 << 20) => format!("{} MiB", bytes >> 20),
        bytes if bytes.is_multiple_of(1 << 10) => format!("{} KiB", bytes >> 10),
        bytes => format!("{bytes} B"),
    }
}

fn size(bytes: Bytes) -> String {
    quoted(&size_text(bytes.get()))
}

fn rate(bytes: u64) -> String {
    quoted(&if bytes == 0 { "0".to_owned() } else { format!("{}/s", size_text(bytes)) })
}

/// Thousandths as a number.
fn times(thousandths: u64) -> String {
    let text = format!("{}.{:03}", thousandths / 1_000, thousandths % 1_000);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn time(span: Span) -> String {
    let millis = span.as_millis();
    quoted(&match millis {
        0 => "0".to_owned(),
        // Whole seconds up to ten minutes are easier to compare in seconds.
        millis if millis <= 600_000 && millis.is_multiple_of(1_000) => format!("{}s", millis / 1_000),
        millis => humantime::format_duration(Duration::from_millis(millis)).to_string(),
    })
}

fn kernel(kernel: Kernel) -> String {
    quoted(match kernel {
        Kernel::V4_19 => "4.19",
        Kernel::V6_1 => "6.1",
        Kernel::V6_12 => "6.12",
    })
}

fn ksm(config: KsmConfig) -> String {
    let default = KsmConfig::default();
    let mode = quoted(match config.mode {
        KsmMode::Off => "off",
        KsmMode::Observe => "observe",
        KsmMode::Govern => "govern",
    });
    match (config.cpu, config.worth) == (default.cpu, default.worth) {
        true => mode,
        false => {
            format!("{{ mode = {mode}, cpu = {}, worth = {} }}", share(config.cpu), size(config.worth))
        }
    }
}

fn states(lines: StateLines) -> String {
    let [soft, hard, low] = [lines.soft(), lines.hard(), lines.low()].map(share);
    format!("{{ soft = {soft}, hard = {hard}, low = {low} }}")
}

fn amount(amount: Amount) -> String {
    match amount {
        Amount::Bytes(bytes) => size(bytes),
        Amount::Share(part) => share(part),
    }
}

fn share(share: Share) -> String {
    quoted(&share.to_string())
}

fn per_mille(value: u64) -> String {
    match value % 10 {
        0 => quoted(&format!("{}%", value / 10)),
        tenth => quoted(&format!("{}.{tenth}%", value / 10)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::Manager;

    #[test]
    fn guests_that_are_alike_are_one_entry() {
        let text = "seed = 7\n[host]\nmemory = \"8 GiB\"\nother = \"1 GiB\"\ntmpfs = \"2 GiB\"\ntiers = false\n[memtide]\nreserve = \"2.5%\"\n\
                    [memtide.class.gold]\nmatch = [\"a-1*\", \"b\"]\nshares = 2000\nlimit = \"512 MiB\"\ntier = \"50%\"\n\
                    [[guest]]\nname = \"a\"\ncount = 12\nstarts = \"1s\"\nstarts_every = \"2s\"\nin_tmpfs = true\nuses = \"100 MiB\"\ntorn = \"2.5%\"\n\
                    [[guest]]\nname = \"b\"\nkernel = \"4.19\"\nprogram = [{ uses = \"1 KiB\", touches = \"1 KiB/s\", touches_from = \"30s\", compresses = 1.25 }, { uses = \"1 MiB\", compresses = 1 }]\n";
        let setup = Scenario::parse(text).unwrap().setup;
        let promise = Promise {
            policy: Some(Commitment::Elastic),
            guest: Some("b".to_owned()),
            bound: Bound::WorkOfNone(975),
            fails: Some("because".to_owned()),
        };
        let written = write("Two\nlines.", &setup, None, &[promise]).unwrap();
        for line in [
            "tmpfs = \"2048 MiB\"",
            "count = 12",
            "starts_every = \"2s\"",
            "in_tmpfs = true",
            "work_of_none = \"97.5%\"",
            "reserve = \"2.50%\"",
            "tiers = false",
        ] {
            assert!(written.lines().any(|found| found == line), "{line} in {written}");
        }
        let read = Scenario::parse(&written).unwrap();
        assert_eq!(read.setup, setup);
        assert_eq!(read.commitments, [Manager::STRICT, Manager::ELASTIC]);
        assert_eq!((read.bounds.len(), read.bounds[0].fails.as_deref()), (1, Some("because")));
    }

    #[test]
    fn what_the_format_cannot_say_is_not_written() {
        let text = "[host]\nmemory = \"1 GiB\"\n[[guest]]\nname = \"a\"\n";
        let mut setup = Scenario::parse(text).unwrap().setup;
        assert!(write("", &setup, None, &[]).is_ok());
        let mut spec = (*setup.guests[0].spec).clone();
        spec.slab = Bytes::from_mib(9);
        setup.guests[0].spec = spec.into();
        assert_eq!(write("", &setup, None, &[]), Err(Inexpressible));
    }
}
