//! The memory cgroups that use most.

use std::fs;
use std::path::Path;

use memtide_host::Root;
use memtide_model::Bytes;

use crate::wire::{Group, MAX_GROUPS};

/// The longest path in a report, in bytes.
const MAX_PATH: usize = 128;
/// The most cgroups that are looked at, and how deep: a guest with more pays no more for its reports.
const MOST_LOOKED_AT: usize = 256;
const DEEPEST: usize = 3;

/// The directories of the v2 hierarchy and of the v1 memory controller, and the file with a cgroup's memory.
const HIERARCHIES: [(&str, &str); 2] =
    [("fs/cgroup", "memory.current"), ("fs/cgroup/memory", "memory.usage_in_bytes")];

/// The largest memory cgroups of the guest, the largest first. Empty if there are none, or if they cannot be read.
#[must_use]
pub fn largest_groups(root: &Root) -> Vec<Group> {
    let mut found = Vec::new();
    for (hierarchy, file) in HIERARCHIES {
        let top = root.sys(hierarchy);
        let mut left = MOST_LOOKED_AT;
        look(&top, &top, file, DEEPEST, &mut left, &mut found);
    }
    found.sort_by(|a: &Group, b: &Group| b.bytes.cmp(&a.bytes).then_with(|| a.path.cmp(&b.path)));
    found.truncate(MAX_GROUPS);
    found
}

fn look(top: &Path, at: &Path, file: &str, deep: usize, left: &mut usize, found: &mut Vec<Group>) {
    let Ok(entries) = fs::read_dir(at) else { return };
    for entry in entries.flatten() {
        if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            continue;
        }
        if *left == 0 {
            return;
        }
        *left -= 1;
        let path = entry.path();
        if let Some(bytes) =
            fs::read_to_string(path.join(file)).ok().and_then(|text| text.trim().parse().ok())
        {
            let name = path.strip_prefix(top).unwrap_or(&path).to_string_lossy();
            let end =
                (0..=MAX_PATH.min(name.len())).rev().find(|end| name.is_char_boundary(*end)).unwrap_or(0);
            found.push(Group { path: name[..end].to_owned(), bytes: Bytes::new(bytes) });
        }
        if deep > 1 {
            look(top, &path, file, deep - 1, left, found);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_come_first_and_no_more_than_five() {
        let dir = tempfile::tempdir().unwrap();
        for (path, bytes) in [("a", 5), ("b", 70), ("b/c", 60), ("d", 1), ("e", 2), ("f", 3)] {
            let at = dir.path().join("sys/fs/cgroup").join(path);
            fs::create_dir_all(&at).unwrap();
            fs::write(at.join("memory.current"), format!("{bytes}\n")).unwrap();
        }
        let groups = largest_groups(&Root::at(dir.path()));
        let names: Vec<&str> = groups.iter().map(|group| group.path.as_str()).collect();
        assert_eq!(names, ["b", "b/c", "a", "f", "e"]);
        assert_eq!(groups[0].bytes, Bytes::new(70));
    }

    #[test]
    fn a_guest_without_cgroups_has_none() {
        assert_eq!(largest_groups(&Root::at(tempfile::tempdir().unwrap().path())), []);
    }
}
