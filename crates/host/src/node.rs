//! NUMA nodes: what is free of one, and the node that a process is bound to.
//!
//! **Problem.** Memory of a guest that is bound to one node can only come from that node. Free memory of the other nodes is no room for it:
//! the kernel kills the guest when its node is full.
//!
//! **Rule.** A process is bound to the only node with memory that its cpuset allows (`Mems_allowed_list`). A binding of the guest's memory alone
//! (QEMU's `host-nodes`) is on the VMM's command line; `/proc/PID/numa_maps` shows it, too, but it walks all page tables. *Free* of a node is its
//! free memory and its clean page cache. A host with one node binds nobody.

use memtide_model::{Bytes, Space};

use crate::process::gone;
use crate::source::parse_once;
use crate::text::{kib, number};
use crate::{HostError, ParseError, Root};

/// The nodes that have memory, in ascending order; none if the kernel knows no nodes. At most 1024 are looked at, as many as Linux has.
///
/// # Errors
/// If the list cannot be read.
pub fn nodes(root: &Root) -> Result<Vec<u32>, HostError> {
    let listed = |text: &str| {
        let mut all = Vec::new();
        for node in 0..1024 {
            if lists(text, node)? {
                all.push(node);
            }
        }
        Ok(all)
    };
    match parse_once(root.sys("devices/system/node/has_memory"), listed) {
        Err(error) if error.is_unsupported() => Ok(Vec::new()),
        nodes => nodes,
    }
}

/// The size of a node, and what is free of it.
///
/// # Errors
/// If the node's `meminfo` cannot be read.
pub fn space_of_node(root: &Root, node: u32) -> Result<Space, HostError> {
    parse_once(root.sys(format!("devices/system/node/node{node}/meminfo")), space)
}

/// The only one of these `nodes` that the cpuset of a process allows; `None` if it allows several, or is unknown.
///
/// # Errors
/// [`HostError::Gone`] if there is no such process; another error if its status cannot be read.
pub fn bound_to(root: &Root, pid: u32, nodes: &[u32]) -> Result<Option<u32>, HostError> {
    let allowed = |text: &str| {
        let list = text.lines().find_map(|line| line.strip_prefix("Mems_allowed_list:"));
        let Some(list) = list else { return Ok(None) };
        let mut only = None;
        for node in nodes {
            if lists(list, *node)? && only.replace(*node).is_some() {
                return Ok(None);
            }
        }
        Ok(only)
    };
    parse_once(root.process(pid, "status"), allowed).map_err(|error| gone(pid, error))
}

/// Whether a list such as `0-1,3` has this node.
fn lists(list: &str, node: u32) -> Result<bool, ParseError> {
    let node = u64::from(node);
    for part in list.trim().split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        if (number("node", first)?..=number("node", last)?).contains(&node) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Lines are `Node 0 MemFree:  123 kB`.
fn space(text: &str) -> Result<Space, ParseError> {
    let value = |field: &'static str| {
        let found = text.lines().find_map(|line| {
            let (name, value) = line.strip_prefix("Node ")?.split_once(' ')?.1.split_once(':')?;
            (name.trim() == field).then_some(value)
        });
        kib(field, found.ok_or(ParseError::Missing(field))?)
    };
    let cache = value("Active(file)")?.saturating_add(value("Inactive(file)")?);
    let clean = cache.saturating_sub(value("Dirty")?).saturating_sub(value("Writeback")?);
    let size: Bytes = value("MemTotal")?;
    Ok(Space { size, free: value("MemFree")?.saturating_add(clean).min(size) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::fs;

    const MEMINFO: &str = "\
Node 1 MemTotal:       16777216 kB\nNode 1 MemFree:         1048576 kB\nNode 1 MemUsed:        15728640 kB
Node 1 Active(file):     102400 kB\nNode 1 Inactive(file):    51200 kB\nNode 1 Dirty:             10240 kB
Node 1 Writeback:          1024 kB\nNode 1 WritebackTmp:          9 kB\n";

    #[test]
    fn clean_page_cache_of_a_node_is_free() {
        let free = Bytes::from_kib(1_048_576 + 102_400 + 51_200 - 10_240 - 1_024);
        assert_eq!(space(MEMINFO), Ok(Space { size: Bytes::from_mib(16 * 1024), free }));
        assert!(space(&MEMINFO.replace("MemFree", "MemFoo")).is_err());
        assert!(space(&MEMINFO.replace("1048576 kB", "1048576")).is_err(), "it is cut");
    }

    #[test]
    fn a_process_is_bound_to_the_only_node_that_its_cpuset_allows() {
        let dir = tempfile::tempdir().unwrap();
        let root = Root::at(dir.path());
        assert_eq!(nodes(&root).unwrap(), [], "a kernel without NUMA");
        fs::create_dir_all(dir.path().join("sys/devices/system/node")).unwrap();
        fs::create_dir_all(dir.path().join("proc/7")).unwrap();
        fs::write(dir.path().join("sys/devices/system/node/has_memory"), "0-1,3\n").unwrap();
        let all = nodes(&root).unwrap();
        assert_eq!(all, [0, 1, 3]);
        for (allowed, node) in [
            ("Mems_allowed_list:\t0-4294967295\n", None),
            ("Mems_allowed_list:\t1\n", Some(1)),
            // The second node has processors only.
            ("VmPeak: 1 kB\nMems_allowed_list:\t2-3\n", Some(3)),
            ("Mems_allowed_list:\t0,3\n", None),
            ("VmPeak: 1 kB\n", None),
        ] {
            fs::write(dir.path().join("proc/7/status"), allowed).unwrap();
            assert_eq!(bound_to(&root, 7, &all).unwrap(), node, "{allowed}");
        }
        assert!(matches!(bound_to(&root, 8, &all), Err(HostError::Gone { pid: 8 })));
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "(?s).{0,200}", list in "[0-9,-]{0,40}", node: u32) {
            let _ = space(&text);
            let _ = lists(&text, node);
            let _ = lists(&list, node);
        }
    }
}
