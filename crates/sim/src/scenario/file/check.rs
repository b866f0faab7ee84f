//! What cannot be in a scenario although each of its values can be read: the first of it is a mistake.

use memtide_guest::Spec;
use memtide_model::{Bytes, Span, stays_in_line};

use super::{FaultEntry, FaultName, File, FileEntry, Guest, Host, Program};
use crate::scenario::Mistake;
use crate::scenario::positions::{Position, Positions};
use crate::scenario::values::{Rate, Size, Time};
use crate::setup::HostSpec;

/// Looks at everything that values are held against.
pub(super) fn check(file: &File, positions: &Positions<'_>) -> Result<(), Mistake> {
    let top = positions.top();
    host(&file.host, &top.table("host"))?;
    top.refuse(file.guest.is_empty(), "guest", "there is none: write [[guest]] and below it name = \"a\"")?;
    for (index, entry) in file.guest.iter().enumerate() {
        guest(entry, &top.nth("guest", index))?;
        let nowhere = entry.in_tmpfs && file.host.tmpfs.is_none();
        top.nth("guest", index).refuse(
            nowhere,
            "in_tmpfs",
            "say how large it is: add tmpfs = \"512 MiB\" below [host]",
        )?;
    }
    let is_empty = file.host.tmpfs.is_some() && file.guest.iter().all(|guest| !guest.in_tmpfs);
    top.table("host").refuse(
        is_empty,
        "tmpfs",
        "nobody's memory is in it: add in_tmpfs = true to some guests",
    )?;
    for (index, entry) in file.fault.iter().enumerate() {
        fault(entry, file.lasts.0, &top.nth("fault", index))?;
    }
    let none_equal = file.guest.iter().all(|guest| guest.equal.is_none());
    for (index, entry) in file.keep.iter().enumerate() {
        let position = top.nth("keep", index);
        entry.check(&position)?;
        let nothing = "no guest has equal memory: add equal = \"200 MiB\" to some";
        position.refuse(entry.is_about_merging() && none_equal, "keep", nothing)?;
    }
    Ok(())
}

fn host(host: &Host, position: &Position<'_, '_>) -> Result<(), Mistake> {
    let HostSpec { memory, other, other_most, .. } = host.spec();
    let above = format!("it is above the host's memory, {memory}");
    position.refuse(other > memory, "other", &above)?;
    position.refuse(other > other_most, "other_up_to", &format!("it is below other, {other}"))?;
    position.refuse(other_most > memory, "other_up_to", &above)?;
    let unknown = host.processors_busy > 0 && host.processors.is_none();
    position.refuse(unknown, "processors_busy", "say how many there are: processors = 2")
}

fn guest(guest: &Guest, position: &Position<'_, '_>) -> Result<(), Mistake> {
    let name = guest.name.get_ref();
    position.refuse(name.trim().is_empty(), "name", "a guest needs a name, as in name = \"web\"")?;
    let is_shown = name.chars().all(stays_in_line);
    position.refuse(!is_shown, "name", "it has characters that a terminal does not show: take them out")?;
    let default = Spec::default();
    let memory = guest.memory.map_or(default.memory, |size| size.0);
    fits(guest.uses, memory, "uses", position)?;
    fits(guest.kernel_uses, memory, "kernel_uses", position)?;
    fits(guest.equal, memory, "equal", position)?;
    let without = guest.equal_changes.is_some() && guest.equal.is_none();
    position.refuse(without, "equal_changes", "say how much memory: add equal = \"200 MiB\"")?;
    let never = guest.equal_changes.is_some_and(|every| every.0 == Span::ZERO);
    position.refuse(never, "equal_changes", "write a time such as \"10m\"")?;
    let unmergeable = guest.equal.is_some() && guest.in_tmpfs;
    position.refuse(unmergeable, "equal", "KSM merges no memory of a file: take out equal or in_tmpfs")?;
    let overhead = guest.overhead.map_or(default.overhead, |size| size.0);
    let is_less = guest.overhead_bound.is_some_and(|most| most.0 < overhead);
    position.refuse(is_less, "overhead_bound", &format!("it is below overhead, {overhead}"))?;
    position.refuse(guest.torn.is_some_and(|torn| torn.0 > 1_000), "torn", "100% is the most")?;
    span(guest.starts, guest.ends, position)?;
    for (index, program) in guest.program.iter().enumerate() {
        self::program(program, memory, &position.nth("program", index))?;
    }
    for (index, file) in guest.file.iter().enumerate() {
        self::file(file, &position.nth("file", index))?;
    }
    Ok(())
}

/// A part of a guest is not larger than its memory.
fn fits(size: Option<Size>, memory: Bytes, key: &str, position: &Position<'_, '_>) -> Result<(), Mistake> {
    let is_above = size.is_some_and(|size| size.0 > memory);
    position.refuse(is_above, key, &format!("it is above the guest's memory, {memory}"))
}

/// What ends has begun before.
fn span(starts: Option<Time>, ends: Option<Time>, position: &Position<'_, '_>) -> Result<(), Mistake> {
    let starts = starts.map_or(Span::ZERO, |time| time.0);
    position.refuse(ends.is_some_and(|ends| ends.0 < starts), "ends", "it ends before it starts")
}

fn program(program: &Program, memory: Bytes, position: &Position<'_, '_>) -> Result<(), Mistake> {
    let Program { uses, grows_to, drifts_to, .. } = program;
    fits(Some(*uses), memory, "uses", position)?;
    fits(*grows_to, memory, "grows_to", position)?;
    fits(*drifts_to, memory, "drifts_to", position)?;
    let below = |to: &Option<Size>| to.is_some_and(|to| to.0 < uses.0);
    let is_below = format!("it is below uses, {}", uses.0);
    position.refuse(below(grows_to), "grows_to", &is_below)?;
    position.refuse(below(drifts_to), "drifts_to", &is_below)?;
    let both = grows_to.is_some() && drifts_to.is_some();
    position.refuse(both, "drifts_to", "a program rises or drifts: write grows_to or drifts_to")?;
    let no_time = grows_to.is_some() && program.at.is_none();
    position.refuse(no_time, "grows_to", "say when it rises: add at = \"5m\"")?;
    let of_a_rise = [
        ("at", program.at.is_some()),
        ("at_every", program.at_every.is_some()),
        ("holds", program.holds.is_some()),
        ("every", program.every.is_some()),
    ];
    for (key, is_set) in of_a_rise {
        position.refuse(
            is_set && grows_to.is_none(),
            key,
            "say how far it rises: add grows_to = \"500 MiB\"",
        )?;
    }
    let drift = program.drift.is_some() && drifts_to.is_none();
    position.refuse(drift, "drift", "say how far it drifts: add drifts_to = \"500 MiB\"")?;
    let moves = grows_to.is_some() || drifts_to.is_some();
    let stands = moves && program.rate == Some(Rate(0));
    position.refuse(stands, "rate", "at this rate it never rises: write a rate such as \"300 MiB/s\"")?;
    span(program.starts, program.ends, position)
}

fn file(file: &FileEntry, position: &Position<'_, '_>) -> Result<(), Mistake> {
    let alone = |one: Option<Time>, other: Option<Time>| one.is_some() && other.is_none();
    position.refuse(alone(file.reads, file.every), "reads", "say how often: add every = \"10m\"")?;
    position.refuse(alone(file.every, file.reads), "every", "say how long it is read: add reads = \"1m\"")?;
    position.refuse(is_longer(file.reads, file.every), "reads", "it is longer than every, its period")?;
    span(file.starts, file.ends, position)
}

fn is_longer(part: Option<Time>, whole: Option<Time>) -> bool {
    part.zip(whole).is_some_and(|(part, whole)| part.0 > whole.0)
}

fn fault(fault: &FaultEntry, end: Span, position: &Position<'_, '_>) -> Result<(), Mistake> {
    let late = format!("the scenario is over then: it lasts {end}");
    position.refuse(fault.at.0 >= end, "at", &late)?;
    position.refuse(fault.times == Some(0), "times", "1 is the least")?;
    let once = fault.times.is_some() && fault.every.is_none();
    position.refuse(once, "times", "needs an interval: add every = \"1m\"")?;
    let is = *fault.is.get_ref();
    let no_use = fault.target.is_some() && is != FaultName::ForeignTarget;
    position.refuse(no_use, "target", "only is = \"foreign-target\" has one")?;
    let no_use = fault.size.is_some() && is != FaultName::WrongSize;
    position.refuse(no_use, "size", "only is = \"wrong-size\" has one")?;
    let no_guest = is.is_of_host() && fault.guest.is_some();
    position.refuse(no_guest, "guest", "this happens to the host or the daemon: take it out")
}
