//! UML instances: a way to them, and room for their memory.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use memtide_model::Bytes;

use crate::facts::{Facts, InstanceFacts, Room};
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
    each.chain(rooms(facts)).chain(copies(facts)).collect()
}

fn of_instance(instance: &InstanceFacts, rule: &'static str, severity: Severity, fact: String) -> Finding {
    let severity = if instance.managed { severity } else { severity.min(Severity::Warning) };
    let subject = Subject::Guest { name: instance.name.clone(), pid: Some(instance.pid) };
    Finding { subject, ..Finding::of_host(rule, severity, fact) }
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

/// File systems that cannot hold the memory of all instances in them.
fn rooms(facts: &Facts) -> impl Iterator<Item = Finding> {
    let mut rooms: BTreeMap<&Path, (Room, Vec<&InstanceFacts>)> = BTreeMap::new();
    for instance in &facts.instances {
        let Some(file) = &instance.file else { continue };
        if let (Some(TMPFS), Some(room)) = (file.kind.as_deref(), file.room) {
            rooms.entry(&file.directory).or_insert_with(|| (room, Vec::new())).1.push(instance);
        }
    }
    rooms.into_iter().filter_map(|(directory, (room, instances))| {
        let promised = Bytes::sum(instances.iter().map(|instance| instance.memory));
        if promised <= room.size {
            return None;
        }
        let fact = format!(
            "{} of {} in {} are free, and its {} UML instances may take {promised} together",
            room.free,
            room.size,
            directory.display(),
            instances.len()
        );
        let grown = promised.whole_mib() + promised.whole_mib() / 8;
        let remount = format!("sudo mount -o remount,size={grown}M {}", shell(&directory.to_string_lossy()));
        Some(
            Finding::of_host("uml.tmpfs_small", Severity::Warning, fact)
                .costs("when it is full, the kernel kills an instance that touches more of its memory (SIGBUS), however much memory the host has")
                .fix("now, and in /etc/fstab", [remount]),
        )
    })
}

/// Instances with images of their own that may be copies of one image.
fn copies(facts: &Facts) -> impl Iterator<Item = Finding> {
    let mut by_size: BTreeMap<Bytes, BTreeSet<&Path>> = BTreeMap::new();
    for (path, size) in facts.instances.iter().flat_map(|instance| &instance.images) {
        by_size.entry(*size).or_default().insert(path);
    }
    by_size.into_iter().filter(|(size, paths)| *size >= WORTH_A_WORD && paths.len() > 1).map(|(size, paths)| {
        let fact = format!("{} UML instances have disk images of their own of the same size, {size}", paths.len());
        let first = paths.first().map_or_else(String::new, |path| shell(&path.to_string_lossy()));
        Finding::of_host("uml.copies", Severity::Hint, fact)
            .costs("if they are copies, the host caches the same pages once for each: n instances hold 2n copies, and n + 1 with COW files of one image")
            .fix("UML's command line (from the next start)", [format!("ubd0=NAME.cow,{first}")])
    })
}
