//! What the kernel shows of a guest's memory, for people: see [`Fact`].

use memtide_host::{Locked, Mappings};
use memtide_model::{About, Absence, Bytes, Fact, FactSource, Withheld};

/// The facts in a guest's mappings. `told`: all RAM that it must have mapped, as its VMM or its command line tells.
pub(super) fn of(mappings: &Mappings, locked: &Locked, told: Bytes) -> Vec<Fact> {
    let mut all = Vec::new();
    let mut add = |about, says: String| all.push(Fact::new(about, says, FactSource::Kernel));
    let Mappings { ram_mapped, ram_resident, ram_huge, ram_missing, .. } = mappings;
    let huge = match ram_huge.is_zero() {
        true => String::new(),
        false => format!(", {ram_huge} of it in a pool of huge pages"),
    };
    add(About::Mapped, format!("{ram_mapped} that can be its RAM, {ram_resident} resident{huge}"));
    if !ram_missing.is_zero() {
        let says = format!(
            "{ram_missing} of its RAM is not mapped: what is mapped instead counts as its VMM's own memory"
        );
        add(About::Contradiction, says);
    }
    if *ram_resident > told {
        let says =
            format!("{ram_resident} of its RAM are resident, but it has {told}: what is resident counts");
        add(About::Contradiction, says);
    }
    let why = mappings.withheld.clone().or_else(|| locked.withheld(told.max(mappings.ram_like)));
    add(About::Gives, gives(why.as_ref()));
    all
}

/// The fact that its mappings could not be read.
pub(super) fn unread(why: &Absence) -> Vec<Fact> {
    vec![Fact::new(About::Mapped, format!("cannot be read: {why}"), FactSource::Kernel)]
}

/// What is known before the kernel was asked, and what the kernel shows. If the command line tells already why a guest gives nothing, that is enough.
pub(super) fn together(before: &[Fact], mut of_kernel: Vec<Fact>) -> Vec<Fact> {
    if before.iter().any(|fact| fact.about == About::Gives) {
        of_kernel.retain(|fact| fact.about != About::Gives);
    }
    [before, &of_kernel].concat()
}

fn gives(why: Option<&Withheld>) -> String {
    match why {
        Some(why) => format!("nothing: {why}"),
        None => "yes, as far as its mappings show".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contradictions_are_told_and_what_counts() {
        let mappings = Mappings {
            ram_mapped: Bytes::from_mib(600),
            ram_resident: Bytes::from_mib(550),
            ram_missing: Bytes::from_mib(64),
            withheld: Some(Withheld::Locked),
            ..Mappings::default()
        };
        let said = |told| -> Vec<(About, String)> {
            let facts = of(&mappings, &Locked::default(), Bytes::from_mib(told));
            facts.into_iter().map(|fact| (fact.about, fact.says)).collect()
        };
        let facts = said(512);
        assert_eq!(facts.iter().filter(|(about, _)| *about == About::Contradiction).count(), 2, "{facts:?}");
        assert!(facts.contains(&(About::Gives, "nothing: its memory is locked".to_owned())), "{facts:?}");
        let vfio = Fact::new(About::Gives, "nothing: a device pins its memory", FactSource::CommandLine);
        let of_kernel = of(&mappings, &Locked::default(), Bytes::ZERO);
        let both = together(std::slice::from_ref(&vfio), of_kernel);
        assert_eq!(both.iter().filter(|fact| fact.about == About::Gives).collect::<Vec<_>>(), [&vfio]);
        assert_eq!(said(600).iter().filter(|(about, _)| *about == About::Contradiction).count(), 1);
    }
}
