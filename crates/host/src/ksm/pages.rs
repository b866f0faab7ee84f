//! The memory of one process that KSM has merged.
//!
//! The kernel's resident size of a process ignores merging: each merged page counts in full. A process's `ksm_merging_pages` is the number
//! of its merged pages. The global `pages_shared` and `pages_sharing` give the true number of copies: of all `pages_shared + pages_sharing`
//! merged pages, `pages_sharing` are saved. Each process is credited with the same share of its merged pages:
//!
//! ```text
//! saved = ksm_merging_pages × pages_sharing / (pages_shared + pages_sharing)
//! ```
//!
//! Pages merged with the kernel's zero page (`ksm_zero_pages`) need no correction: they are not resident at all.

use memtide_model::{Bytes, PageSize, Pages};

use crate::text::only;
use crate::{HostError, Root, Scratch, Source, page_size};

/// The global state of KSM.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KsmPages {
    /// `pages_shared`: merged pages that exist.
    pub shared: Pages,
    /// `pages_sharing`: further uses of these pages, and so the number of pages saved.
    pub sharing: Pages,
}

impl KsmPages {
    /// The memory that merging saves for a process with this many merged pages.
    #[must_use]
    pub fn saved(self, merging: Pages, page: PageSize) -> Bytes {
        let (shared, sharing) = (self.shared.get(), self.sharing.get());
        match shared.saturating_add(sharing) {
            0 => Bytes::ZERO,
            all => {
                let saved = merging.to_bytes(page).mul_div(sharing, all);
                assert!(saved <= merging.to_bytes(page), "no process saves more than it merged");
                saved
            }
        }
    }

    /// The memory that merging saves on the whole host.
    #[must_use]
    pub const fn saved_in_all(self, page: PageSize) -> Bytes {
        self.sharing.to_bytes(page)
    }
}

/// Reads the global state of KSM every tick.
#[derive(Debug)]
pub struct KsmReader(Option<(Source, Source)>);

impl KsmReader {
    /// Opens the files in `/sys/kernel/mm/ksm`. A kernel without KSM merges nothing.
    ///
    /// # Errors
    /// If the files exist but cannot be opened.
    pub fn open(root: &Root) -> Result<Self, HostError> {
        let open = |name: &str| Source::open(root.sys("kernel/mm/ksm").join(name));
        match (open("pages_shared"), open("pages_sharing")) {
            (Ok(shared), Ok(sharing)) => Ok(Self(Some((shared, sharing)))),
            (Err(error), _) | (_, Err(error)) if error.is_unsupported() => Ok(Self(None)),
            (Err(error), _) | (_, Err(error)) => Err(error),
        }
    }

    /// Reads the state.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn read(&self, scratch: &mut Scratch) -> Result<KsmPages, HostError> {
        let Some((shared, sharing)) = &self.0 else { return Ok(KsmPages::default()) };
        Ok(KsmPages {
            shared: Pages::new(shared.parse_line(scratch, |text| only("pages_shared", text))?),
            sharing: Pages::new(sharing.parse_line(scratch, |text| only("pages_sharing", text))?),
        })
    }
}

/// Opens the counter of a process's merged pages. `None` if the kernel has none (before 5.19, or without KSM).
pub(crate) fn open_merging(root: &Root, pid: u32) -> Result<Option<Source>, HostError> {
    match Source::open(root.process(pid, "ksm_merging_pages")) {
        Ok(source) => Ok(Some(source)),
        Err(error) if error.is_unsupported() => Ok(None),
        Err(error) => Err(error),
    }
}

/// The memory that merging saves for a process. Reads nothing while nothing is merged on the host.
pub(crate) fn saved(
    merging: Option<&Source>,
    global: KsmPages,
    scratch: &mut Scratch,
) -> Result<Bytes, HostError> {
    match merging {
        Some(source) if global.sharing.get() > 0 => {
            let pages = source.parse_line(scratch, |text| only("ksm_merging_pages", text))?;
            Ok(global.saved(Pages::new(pages), page_size()))
        }
        _ => Ok(Bytes::ZERO),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use memtide_model::PAGE_4K;
    use proptest::prelude::*;

    fn ksm(shared: u64, sharing: u64) -> KsmPages {
        KsmPages { shared: Pages::new(shared), sharing: Pages::new(sharing) }
    }

    #[test]
    fn a_process_is_credited_with_its_share() {
        // Two processes have the same 100 pages: 100 exist and 100 are saved, so each process saves 50 of its 100.
        assert_eq!(ksm(100, 100).saved(Pages::new(100), PAGE_4K), Bytes::new(50 * 4096));
        // Eight processes have the same 10 pages: 10 exist and 70 are saved, so each process saves 8.75 of its 10.
        assert_eq!(ksm(10, 70).saved(Pages::new(10), PAGE_4K), Bytes::new(35 * 1024));
        assert_eq!(ksm(0, 0).saved(Pages::new(10), PAGE_4K), Bytes::ZERO);
    }

    #[test]
    fn a_kernel_without_ksm_merges_nothing() {
        let nothing = tempfile::tempdir().unwrap();
        let root = Root::at(nothing.path());
        let reader = KsmReader::open(&root).unwrap();
        assert_eq!(reader.read(&mut Scratch::default()).unwrap(), KsmPages::default());
        assert!(open_merging(&root, 1).unwrap().is_none());
    }

    proptest! {
        #[test]
        fn no_process_saves_more_than_it_merged(shared: u64, sharing: u64, merging in 0_u64..1 << 40) {
            let pages = Pages::new(merging);
            prop_assert!(ksm(shared, sharing).saved(pages, PAGE_4K) <= pages.to_bytes(PAGE_4K));
        }
    }
}
