//! UML instances: a way to them, and room for their memory.

use std::collections::BTreeMap;

use memtide_model::{Bytes, Space, TmpfsId};

use super::promises;
use crate::facts::{Facts, ImageFacts, InstanceFacts, TmpfsFacts};
use crate::finding::{Finding, Severity, Subject};
use crate::quote::shell;

/// Smaller images are not worth a word.
const WORTH_A_WORD: Bytes = Bytes::from_mib(16);
/// The file system whose files are memory.
const TMPFS: &str = "tmpfs";

/// All findings about instances.
pub(super) fn instances(facts: &Facts) -> Vec<Finding> {
    let of_each: [fn(&InstanceFacts) -> Option<Finding>; 2] = [console, on_disk];
    let each = facts.instances.iter().flat_map(|one| of_each.iter().filter_map(move |rule| rule(one)));
    let claims = facts.instances.iter().filter_map(|one| claimed(facts, one));
    each.chain(claims).chain(rooms(facts)).chain(copies(facts)).collect()
}

fn of_instance(instance: &InstanceFacts, rule: &'static str, severity: Severity, fact: String) -> Finding {
    let severity = if instance.managed { severity } else { severity.min(Severity::Warning) };
    let subject = Subject::Guest { name: instance.name.clone(), pid: Some(instance.pid) };
    Finding { subject, ..Finding::of_host(rule, severity, fact) }
}

/// The instance claims more memory than counts.
fn claimed(facts: &Facts, instance: &InstanceFacts) -> Option<Finding> {
    let (fact, cost) = promises::unproved(facts, instance.claims?, instance.memory);
    Some(of_instance(instance, "guest.claims", Severity::Warning, fact).costs(cost))
}

/// There is no console.
fn console(instance: &InstanceFacts) -> Option<Finding> {
    if instance.has_console {
        return None;
    }
    let fact = format!("no management console at {}", instance.console.display());
    let finding = of_instance(instance, "uml.console", Severity::Problem, fact);
    Some(
        finding
            .costs("memtide sees what the instance costs, and can neither ask it nor move its memory")
            .fix("the configuration of its kernel", ["CONFIG_MCONSOLE=y"]),
    )
}

/// Its memory is in a file on a disk.
fn on_disk(instance: &InstanceFacts) -> Option<Finding> {
    let file = instance.file.as_ref()?;
    let kind = file.kind.as_deref().filter(|kind| *kind != TMPFS)?;
    let directory = file.directory.display();
    let fact = format!("its memory file is on {kind}, in {directory}");
    let finding = of_instance(instance, "uml.memory_on_disk", Severity::Problem, fact);
    Some(
        finding
            .costs("the host writes the instance's memory to that disk, and its cost is not known: files on a disk are page cache")
            .fix("before its start (from the next start)", ["export TMPDIR=/dev/shm"]),
    )
}

/// File systems that cannot hold the memory of all instances in them, beside everything else that is there.
fn rooms(facts: &Facts) -> impl Iterator<Item = Finding> {
    let mut rooms: BTreeMap<TmpfsId, Vec<(&InstanceFacts, &TmpfsFacts)>> = BTreeMap::new();
    for instance in &facts.instances {
        if let Some(tmpfs) = instance.file.as_ref().and_then(|file| file.tmpfs.as_ref()) {
            rooms.entry(tmpfs.id).or_default().push((instance, tmpfs));
        }
    }
    rooms.into_values().filter_map(|instances| room(&instances))
}

fn room(instances: &[(&InstanceFacts, &TmpfsFacts)]) -> Option<Finding> {
    let (_, tmpfs) = instances.first()?;
    let Space { size, free } = tmpfs.space;
    let promised = Bytes::sum(instances.iter().map(|(instance, _)| instance.memory));
    let held = Bytes::sum(instances.iter().map(|(_, tmpfs)| tmpfs.held));
    let others = size.saturating_sub(free).saturating_sub(held);
    let needs = promised.saturating_add(others);
    if needs <= size {
        return None;
    }
    let at = tmpfs.at.display();
    let holds =
        if others < WORTH_A_WORD { String::new() } else { format!(", and other files there hold {others}") };
    let who = match instances.len() {
        1 => format!("its UML instance may take {promised}"),
        count => format!("its {count} UML instances may take {promised} together"),
    };
    let fact = format!("{free} of {size} in {at} are free, and {who}{holds}");
    let finding = Finding::of_host("uml.tmpfs_small", Severity::Warning, fact)
        .costs("when it is full, the kernel kills an instance that touches more of its memory (SIGBUS), however much memory the host has");
    if !tmpfs.is_here {
        // No command for root: in a mount namespace of a user, the programs are the user's, too.
        return Some(finding.fix(
            "only the instances see it: make it larger there as its owner, or start them with a larger tmpfs (from the next start)",
            ["export TMPDIR=/dev/shm"],
        ));
    }
    let grown = needs.whole_mib() + needs.whole_mib() / 8;
    let at = shell(&tmpfs.at.to_string_lossy());
    Some(finding.fix("now, and in /etc/fstab", [format!("sudo mount -o remount,size={grown}M {at}")]))
}

/// Instances whose images are copies of one image, or may be.
fn copies(facts: &Facts) -> impl Iterator<Item = Finding> {
    let mut by_size: BTreeMap<Bytes, BTreeMap<(u64, u64), &ImageFacts>> = BTreeMap::new();
    for image in facts.instances.iter().flat_map(|instance| &instance.images) {
        by_size.entry(image.size).or_default().insert(image.file, image);
    }
    by_size.retain(|size, _| *size >= WORTH_A_WORD);
    by_size.into_iter().flat_map(|(size, files)| copies_of(size, files.values().copied().collect()))
}

/// Different files of one size: those with the same content, and those that only may have it because instances write to them.
fn copies_of(size: Bytes, mut images: Vec<&ImageFacts>) -> Vec<Finding> {
    images.sort_by_key(|image| &image.path);
    let mut by_sample: BTreeMap<u64, Vec<&ImageFacts>> = BTreeMap::new();
    for image in &images {
        if let Some(sample) = image.sample {
            by_sample.entry(sample).or_default().push(image);
        }
    }
    let mut found = Vec::new();
    for same in by_sample.into_values().filter(|same| same.len() > 1) {
        let named: Vec<String> = same.iter().take(3).map(|image| image.path.display().to_string()).collect();
        let more = if same.len() > named.len() { ", …" } else { "" };
        let fact = format!(
            "{} files of {size} that UML instances read have the same content: {}{more}",
            same.len(),
            named.join(", ")
        );
        found.push(copies_finding(fact, "the host caches the same pages once for each copy", &same));
        images.retain(|image| !same.iter().any(|other| other.file == image.file));
    }
    images.retain(|image| !image.is_backing);
    if images.len() > 1 {
        let fact =
            format!("{} UML instances have disk images of their own of the same size, {size}", images.len());
        found.push(copies_finding(
            fact,
            "if they are copies, the host caches the same pages once for each",
            &images,
        ));
    }
    found
}

fn copies_finding(fact: String, cost: &str, images: &[&ImageFacts]) -> Finding {
    let first = images.first().map_or_else(String::new, |image| shell(&image.path.to_string_lossy()));
    Finding::of_host("uml.copies", Severity::Hint, fact)
        .costs(format!("{cost}: n instances hold 2n copies, and n + 1 with COW files of one image"))
        .fix("UML's command line (from the next start)", [format!("ubd0=NAME.cow,{first}")])
}
