//! What a page contains, and which contents belong to the sample.

use twox_hash::XxHash3_128;

/// A hash of a page: pages with equal hashes are taken for equal.
pub type Content = u128;

/// Stands for a page full of zeros among contents.
pub const ZERO: Content = 0;

/// Selects contents.
#[derive(Clone, Copy, Debug)]
pub struct Select {
    seed: u64,
    /// A content belongs to the sample if its upper half is below this.
    below: u64,
    /// The part of all contents that is selected.
    pub part: f64,
}

impl Select {
    /// Selects `part` of all contents, from 0 to 1. `seed` decides which: nobody who does not know it can choose the pages of the sample.
    pub fn new(part: f64, seed: u64) -> Self {
        let part = part.clamp(0.0, 1.0);
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "from 0 to u64::MAX, and saturating"
        )]
        let below = (part * u64::MAX as f64) as u64;
        Self { seed, below, part }
    }

    /// The content of a page.
    pub fn content(&self, page: &[u8]) -> Content {
        if is_zero(page) { ZERO } else { XxHash3_128::oneshot_with_seed(self.seed, page) }
    }

    /// Whether pages with this content belong to the sample.
    pub fn takes(&self, content: Content) -> bool {
        let upper = u64::try_from(content >> 64).unwrap_or(u64::MAX);
        upper < self.below || self.below == u64::MAX
    }
}

/// Whether a page is full of zeros.
fn is_zero(page: &[u8]) -> bool {
    page.chunks_exact(64).all(|line| line == [0; 64])
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn equal_pages_are_selected_together_and_as_many_as_asked_for() {
        let select = Select::new(0.25, 7);
        let page = |nth: u32| -> Vec<u8> { nth.to_le_bytes().repeat(1024) };
        let taken = (1..=4000).filter(|nth| select.takes(select.content(&page(*nth)))).count();
        assert!((880..1120).contains(&taken), "{taken}");
        assert_eq!(select.content(&page(5)), select.content(&page(5)));
        assert_ne!(select.content(&page(5)), select.content(&page(6)));
    }

    #[test]
    fn all_or_nothing_can_be_selected() {
        let (all, none) = (Select::new(1.0, 1), Select::new(0.0, 1));
        for content in [0, 1, u128::MAX] {
            assert!(all.takes(content) && !none.takes(content));
        }
    }

    proptest! {
        #[test]
        fn a_page_is_zero_if_all_its_bytes_are(at in 0..4096_usize, byte in 0..3_u8) {
            let mut page = vec![0; 4096];
            page[at] = byte;
            prop_assert_eq!(Select::new(1.0, 1).content(&page) == ZERO, byte == 0);
        }
    }
}
