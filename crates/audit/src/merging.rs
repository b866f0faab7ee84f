//! How the kernel merges.

use memtide_host::Root;

/// How the kernel merges, as it is set in `/sys/kernel/mm/ksm`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Merging {
    /// The most pages that share one copy: `max_page_sharing`.
    pub most_sharing: u64,
    /// Whether pages full of zeros are merged with the kernel's own page: `use_zero_pages`.
    pub use_zero_pages: bool,
    /// The NUMA nodes of which each keeps copies of its own; 1 if pages of all nodes are merged (`merge_across_nodes`).
    pub nodes: u64,
}

impl Default for Merging {
    /// The kernel's defaults.
    fn default() -> Self {
        Self { most_sharing: 256, use_zero_pages: false, nodes: 1 }
    }
}

impl Merging {
    /// As it is set on this host; the kernel's defaults where it does not say.
    #[must_use]
    pub fn of_host(root: &Root) -> Self {
        let read = |name: &str| {
            let text = std::fs::read_to_string(root.sys("kernel/mm/ksm").join(name)).ok()?;
            text.trim().parse::<u64>().ok()
        };
        let usual = Self::default();
        Self {
            most_sharing: read("max_page_sharing").unwrap_or(usual.most_sharing).max(2),
            nodes: if read("merge_across_nodes") == Some(0) { nodes(root) } else { usual.nodes },
            use_zero_pages: read("use_zero_pages").map_or(usual.use_zero_pages, |on| on > 0),
        }
    }
}

/// The NUMA nodes with memory, from a list as in `0-1,4`; 1 if the kernel does not tell.
fn nodes(root: &Root) -> u64 {
    let text = std::fs::read_to_string(root.sys("devices/system/node/has_memory")).unwrap_or_default();
    let count = |range: &str| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last) = (first.parse::<u64>().ok()?, last.parse::<u64>().ok()?);
        last.checked_sub(first)?.checked_add(1)
    };
    text.trim().split(',').filter_map(count).fold(0_u64, u64::saturating_add).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn nodes_count_only_where_they_are_not_merged() {
        let directory = tempfile::tempdir().unwrap();
        let root = Root::at(directory.path());
        let nodes_of = |across: &str, list: &str| {
            for (name, text) in
                [("kernel/mm/ksm/merge_across_nodes", across), ("devices/system/node/has_memory", list)]
            {
                fs::create_dir_all(root.sys(name).parent().unwrap()).unwrap();
                fs::write(root.sys(name), format!("{text}\n")).unwrap();
            }
            Merging::of_host(&root).nodes
        };
        assert_eq!(nodes_of("0", "0-1,4"), 3);
        assert_eq!(nodes_of("1", "0-1,4"), 1);
        assert_eq!(nodes_of("0", "0"), 1);
        assert_eq!((nodes_of("0", "7-3,x"), Merging::of_host(&Root::at("/nonexistent")).nodes), (1, 1));
    }
}
