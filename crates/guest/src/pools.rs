//! The account of a guest's memory: every byte is in exactly one place.
//!
//! **Terms.** Memory is *backed* while the host has it for the guest: it was touched and not returned. All memory in use is
//! backed; free memory can be either. *Pieces* are free and backed, but stay with the host: they are smaller than a block, or
//! share a huge page of the host with memory in use.
//!
//! **Rule.** kernel + slab + programs + cache + ready + free = memory − balloon. `check` asserts it after each step of a test.

/// Of a guest's memory, one part in this many is in pieces. Guests of 1 GiB that had just booted had 936 MiB free, of which the
/// host had 36; after their work, with all free blocks reported and balloons of 0 to 700 MiB, it had 30 to 50.
const PIECES_PART: u64 = 32;

/// Where the bytes of a guest are. Programs and files hold theirs; here are the sums.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pools {
    /// All memory of the guest.
    pub(crate) memory: u64,
    /// What the kernel has for itself, slab included.
    pub(crate) kernel: u64,
    /// Programs' memory that is resident in the guest.
    pub(crate) programs: u64,
    /// Page cache.
    pub(crate) cache: u64,
    /// Freed pages on the per-CPU lists: in use for every counter.
    pub(crate) ready: u64,
    /// The most that these lists keep.
    pub(crate) most_ready: u64,
    /// Free and backed memory that neither reporting nor a balloon gives back while anything else is free.
    pub(crate) pieces: u64,
    /// Free and backed.
    pub(crate) free_backed: u64,
    /// Free, and the host has nothing for it.
    pub(crate) free_bare: u64,
    /// In the balloon.
    pub(crate) balloon: u64,
    /// Returned by the balloon, but kept by the host in torn huge pages.
    pub(crate) torn: u64,
}

impl Pools {
    /// A guest of `memory` bytes whose kernel has `kernel`, and has touched its pieces; nothing else was touched.
    pub(crate) fn new(memory: u64, kernel: u64, most_ready: u64) -> Self {
        let kernel = kernel.min(memory);
        let pieces = (memory / PIECES_PART).min(memory - kernel);
        let free_bare = memory - kernel - pieces;
        Self { memory, kernel, most_ready, pieces, free_backed: pieces, free_bare, ..Self::default() }
    }

    /// What its kernel calls free.
    pub(crate) const fn free(&self) -> u64 {
        self.free_backed + self.free_bare
    }

    /// What the host has for the guest's memory, torn huge pages not counted.
    pub(crate) const fn backed(&self) -> u64 {
        self.kernel + self.programs + self.cache + self.ready + self.free_backed
    }

    /// Free and backed memory in whole blocks.
    pub(crate) const fn blocks(&self) -> u64 {
        self.free_backed.saturating_sub(self.pieces)
    }

    /// Takes up to `wanted` of what is free beyond `keep`; the lists of the processors come first, then backed memory, and the
    /// pieces at last.
    pub(crate) fn take(&mut self, wanted: u64, keep: u64) -> u64 {
        let ready = wanted.min(self.ready);
        self.ready -= ready;
        let rest = (wanted - ready).min(self.free().saturating_sub(keep));
        let backed = rest.min(self.blocks()).max(rest.saturating_sub(self.free_bare));
        self.free_backed -= backed;
        self.free_bare -= rest - backed;
        ready + rest
    }

    /// Frees `bytes` that were in use.
    pub(crate) fn free_up(&mut self, bytes: u64) {
        let ready = bytes.min(self.most_ready.saturating_sub(self.ready));
        self.ready += ready;
        self.free_backed += bytes - ready;
    }

    /// The balloon takes up to `wanted` of what is free beyond `keep`. Memory on the lists and backed memory come first, but not
    /// only: one page in five of the rest was never touched. The pieces come last. Returns how much it took.
    pub(crate) fn inflate(&mut self, wanted: u64, keep: u64, torn_per_mille: u64) -> u64 {
        let ready = wanted.min(self.ready);
        let rest = (wanted - ready).min(self.free().saturating_sub(keep));
        let bare = (rest / 5).max(rest.saturating_sub(self.blocks())).min(self.free_bare);
        let backed = rest - bare;
        self.ready -= ready;
        self.free_bare -= bare;
        self.free_backed -= backed;
        self.balloon += ready + rest;
        self.torn += (ready + backed) / 1_000 * torn_per_mille;
        ready + rest
    }

    /// The balloon gives back up to `bytes`; the host has nothing for them yet.
    pub(crate) fn deflate(&mut self, bytes: u64) -> u64 {
        let bytes = bytes.min(self.balloon);
        // What comes back fills the holes in huge pages that the host still has.
        self.torn -= self.torn.min(self.torn * bytes / self.balloon.max(1));
        self.balloon -= bytes;
        self.free_bare += bytes;
        bytes
    }

    /// Free blocks that were reported: the host takes them.
    pub(crate) fn report(&mut self, bytes: u64) {
        let bytes = bytes.min(self.blocks());
        self.free_backed -= bytes;
        self.free_bare += bytes;
    }

    /// Panics if a byte is lost or counted twice: a mistake of the model.
    pub(crate) fn check(&self) {
        let all = self.kernel + self.programs + self.cache + self.ready + self.free() + self.balloon;
        assert_eq!(all, self.memory, "every byte of a guest is in one place: {self:?}");
    }
}
