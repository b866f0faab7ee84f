//! How the kernel merges.

use memtide_host::Root;

/// How the kernel merges, as it is set in `/sys/kernel/mm/ksm`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Merging {
    /// The most pages that share one copy: `max_page_sharing`.
    pub most_sharing: u64,
    /// Whether pages full of zeros are merged with the kernel's own page: `use_zero_pages`.
    pub use_zero_pages: bool,
}

impl Default for Merging {
    /// The kernel's defaults.
    fn default() -> Self {
        Self { most_sharing: 256, use_zero_pages: false }
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
            use_zero_pages: read("use_zero_pages").map_or(usual.use_zero_pages, |on| on > 0),
        }
    }
}
