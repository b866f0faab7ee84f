//! The pages of a process that KSM could merge: present, anonymous, and private.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use memtide_host::{HostError, Mapping, Root, page_size};
use memtide_model::Bytes;

/// Bits of an entry of `pagemap`, as in the kernel's `admin-guide/mm/pagemap.rst`.
const EXCLUSIVE: u64 = 1 << 56;
const FILE_OR_SHARED: u64 = 1 << 61;
const PRESENT: u64 = 1 << 63;
/// Entries read at once: those of 16 MiB.
const ENTRIES: usize = 4096;

/// A page that is present.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Page {
    /// Its address.
    pub address: u64,
    /// Whether nobody else has it mapped. A page that KSM has merged, or the kernel's page of zeros, is mapped by others.
    pub exclusive: bool,
}

/// The page table of a process.
#[derive(Debug)]
pub struct PageTable {
    pagemap: File,
    mappings: Vec<Mapping>,
    page: u64,
}

impl PageTable {
    /// Opens it.
    ///
    /// # Errors
    /// If the process is gone, or belongs to somebody whose memory this user may not see.
    pub fn open(root: &Root, pid: u32) -> Result<Self, HostError> {
        let path = root.process(pid, "pagemap");
        let pagemap = File::open(&path).map_err(|source| HostError::Read { path, source })?;
        let mut mappings = Mapping::read_all(root, pid)?;
        mappings.retain(|mapping| mapping.is_private && !mapping.anonymous.is_zero());
        Ok(Self { pagemap, mappings, page: page_size().bytes().get() })
    }

    /// About how many pages there are.
    pub fn pages(&self) -> u64 {
        Bytes::sum(self.mappings.iter().map(|mapping| mapping.anonymous)).get() / self.page
    }

    /// Memory that KSM is allowed to scan today.
    pub fn mergeable(&self) -> Bytes {
        Bytes::sum(
            self.mappings.iter().filter(|mapping| mapping.is_mergeable).map(|mapping| mapping.anonymous),
        )
    }

    /// Calls `each` for all pages in the order of their addresses, with at most [`ENTRIES`] of them at once. Also calls it for holes, without any page: reading
    /// the table of a hole takes time, too.
    ///
    /// # Errors
    /// If the process is gone, or the error of `each`.
    pub fn visit<E: From<io::Error>>(&self, mut each: impl FnMut(&[Page]) -> Result<(), E>) -> Result<(), E> {
        let mut bytes = vec![0; ENTRIES * 8];
        let mut pages = Vec::with_capacity(ENTRIES);
        for mapping in &self.mappings {
            let mut from = mapping.start;
            while from < mapping.end {
                let left = usize::try_from((mapping.end - from) / self.page).unwrap_or(ENTRIES).min(ENTRIES);
                let wanted = bytes.get_mut(..left * 8).unwrap_or_default();
                let got = self.pagemap.read_at(wanted, from / self.page * 8)? / 8;
                if got == 0 {
                    return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
                }
                pages.clear();
                for (entry, at) in bytes.chunks_exact(8).take(got).zip((from..).step_by(step(self.page))) {
                    let entry = u64::from_ne_bytes(entry.try_into().unwrap_or_default());
                    if entry & (PRESENT | FILE_OR_SHARED) == PRESENT {
                        pages.push(Page { address: at, exclusive: entry & EXCLUSIVE != 0 });
                    }
                }
                each(&pages)?;
                from += got as u64 * self.page;
            }
        }
        Ok(())
    }
}

fn step(page: u64) -> usize {
    usize::try_from(page).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holes_are_visited_piece_by_piece() {
        // 1 GiB, of which one page is present.
        let mut sparse: Vec<u8> = Vec::with_capacity(1 << 30);
        sparse.push(1);
        let table = PageTable::open(&Root::system(), std::process::id()).unwrap();
        let (mut pieces, mut empty) = (0_u64, 0_u64);
        let visited = table.visit(|pages| {
            pieces += 1;
            empty += u64::from(pages.is_empty());
            assert!(pages.len() <= ENTRIES);
            Ok::<_, io::Error>(())
        });
        visited.unwrap();
        // 16 MiB each.
        assert!(pieces >= 64 && empty >= 60, "{pieces} {empty}");
        assert_eq!(std::hint::black_box(&sparse).len(), 1);
    }
}
