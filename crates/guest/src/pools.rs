//! The account of a guest's memory: every byte is in exactly one place.
//!
//! **Terms.** Memory is *backed* while the host has pages for it: the guest touched it and has not returned it. All memory in use is
//! backed; free memory may or may not be. *Pieces* are free and backed, but smaller than a block, so that reporting does not return them. Some
//! of them are *loose*.
//!
//! **Rule.** kernel (with slab) + programs + cache + ready + free = memory − balloon. In debug builds, `check` asserts this after each
//! step. A program or a balloon that takes free memory gets the loose pieces first: the kernel splits no larger block while a smaller one
//! is there. The other pieces come last: they are on lists that movable memory does not use while there is anything else. The page cache of a
//! file that is gone leaves loose pieces; programs free whole blocks.

/// One part in this many of a guest's memory is in pieces that come last. Source: freshly booted guests of 1 GiB had 936 MiB free, and the
/// host backed 36 of them. After some work, with all free blocks reported and balloons of 0 to 700 MiB, it backed 30 to 50.
const LAST_PART: u64 = 32;
/// At most one part in this many of a guest's memory is in loose pieces. Source: guests of 1 GiB that had filled and freed 819 MiB. Once reporting
/// was done, the first 60 MiB of an inflation brought 58 back, and the next 540 none. (Real programs leave such pieces, too. With them in the
/// model, recorded guests with page cache cost 6 % less than measured: see docs/calibration.md.)
const LOOSE_PART: u64 = 16;

/// One part in this many of the loose pieces is smaller than 64 KiB, which is what an agent lets reporting return. Source: a guest of 512 MiB whose
/// agent had dropped 100 MiB of page cache had 17.3 of 18.6 MiB in larger pieces.
const SMALL: u64 = 16;

/// The places of all bytes of a guest. Programs and files hold their own numbers; these are the sums.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pools {
    /// All memory of the guest.
    pub(crate) memory: u64,
    /// The kernel's own memory, including slab.
    pub(crate) kernel: u64,
    /// Programs' memory that is resident in the guest.
    pub(crate) programs: u64,
    /// Page cache.
    pub(crate) cache: u64,
    /// Freed pages on the per-CPU lists: every counter shows them as in use.
    pub(crate) ready: u64,
    /// The most that these lists keep.
    pub(crate) most_ready: u64,
    /// The part of `free_backed` in loose pieces.
    pub(crate) loose: u64,
    /// The part of `free_bare` in loose pieces that reporting has returned: the kernel still has them in small blocks.
    pub(crate) returned: u64,
    /// The pieces that come last, while so much of `free_backed` is left.
    pub(crate) last: u64,
    /// Free and backed.
    pub(crate) free_backed: u64,
    /// Free, and not backed by the host.
    pub(crate) free_bare: u64,
    /// In the balloon.
    pub(crate) balloon: u64,
    /// Returned by the balloon, but kept by the host in torn huge pages.
    pub(crate) torn: u64,
}

impl Pools {
    /// A guest of `memory` bytes whose kernel has `kernel`. It has touched the kernel's memory and its pieces, and nothing else.
    pub(crate) fn new(memory: u64, kernel: u64, most_ready: u64) -> Self {
        let kernel = kernel.min(memory);
        let last = (memory / LAST_PART).min(memory - kernel);
        let free_bare = memory - kernel - last;
        Self { memory, kernel, most_ready, last, free_backed: last, free_bare, ..Self::default() }
    }

    /// Free and backed memory that reporting does not return.
    pub(crate) const fn pieces(&self) -> u64 {
        self.loose + self.last
    }

    /// The memory that its kernel calls free.
    pub(crate) const fn free(&self) -> u64 {
        self.free_backed + self.free_bare
    }

    /// The guest memory that the host backs, without torn huge pages.
    pub(crate) const fn backed(&self) -> u64 {
        self.kernel + self.programs + self.cache + self.ready + self.free_backed
    }

    /// The loose pieces that reporting returns if it returns smaller blocks, too.
    pub(crate) const fn larger_pieces(&self) -> u64 {
        let all = self.loose + self.returned;
        (all - all / SMALL).saturating_sub(self.returned)
    }

    /// Free and backed memory in whole blocks.
    pub(crate) const fn blocks(&self) -> u64 {
        self.free_backed.saturating_sub(self.pieces())
    }

    /// Takes up to `wanted` bytes of free memory, but leaves `keep`. The per-CPU lists come first, then the loose pieces, other backed memory,
    /// memory that was never touched, and the other pieces.
    pub(crate) fn take(&mut self, wanted: u64, keep: u64) -> u64 {
        let ready = wanted.min(self.ready);
        self.ready -= ready;
        let rest = (wanted - ready).min(self.free().saturating_sub(keep));
        let backed = rest.min(self.loose + self.blocks()).max(rest.saturating_sub(self.free_bare));
        self.take_free(backed, rest - backed);
        ready + rest
    }

    fn take_free(&mut self, backed: u64, bare: u64) {
        self.loose -= backed.min(self.loose);
        self.free_backed -= backed;
        self.free_bare -= bare;
        self.returned -= bare.min(self.returned);
    }

    /// Frees `bytes` that were in use.
    pub(crate) fn free_up(&mut self, bytes: u64) {
        let ready = bytes.min(self.most_ready.saturating_sub(self.ready));
        self.ready += ready;
        self.free_backed += bytes - ready;
    }

    /// Frees `bytes` of the page cache of a file that is gone: they lie all over the memory.
    pub(crate) fn drop_cache(&mut self, bytes: u64) {
        self.free_backed += bytes;
        let most = (self.memory / LOOSE_PART).min(self.blocks() + self.loose);
        self.loose = (self.loose + bytes).min(most);
    }

    /// The balloon takes up to `wanted` bytes of free memory, but leaves `keep`, in the same order as a program, but one page in five beyond
    /// the loose pieces was never touched. Returns the bytes taken.
    pub(crate) fn inflate(&mut self, wanted: u64, keep: u64, torn_per_mille: u64) -> u64 {
        let ready = wanted.min(self.ready);
        let rest = (wanted - ready).min(self.free().saturating_sub(keep));
        let others = rest.saturating_sub(self.loose);
        let bare = (others / 5).max(others.saturating_sub(self.blocks())).min(self.free_bare);
        let backed = rest - bare;
        self.ready -= ready;
        self.take_free(backed, bare);
        self.balloon += ready + rest;
        self.torn += (ready + backed) / 1_000 * torn_per_mille;
        ready + rest
    }

    /// The balloon returns up to `bytes`. The host does not back them yet.
    pub(crate) fn deflate(&mut self, bytes: u64) -> u64 {
        let bytes = bytes.min(self.balloon);
        // Returned memory fills the holes in huge pages that the host still has.
        self.torn -= self.torn.min(self.torn * bytes / self.balloon.max(1));
        self.balloon -= bytes;
        self.free_bare += bytes;
        bytes
    }

    /// The host takes free blocks that were reported, and loose pieces.
    pub(crate) fn report(&mut self, blocks: u64, pieces: u64) {
        let blocks = blocks.min(self.blocks());
        let pieces = pieces.min(self.loose);
        self.loose -= pieces;
        self.returned += pieces;
        self.free_backed -= blocks + pieces;
        self.free_bare += blocks + pieces;
    }

    /// Panics if a byte is lost or counted twice: an error in the model.
    pub(crate) fn check(&self) {
        let all = self.kernel + self.programs + self.cache + self.ready + self.free() + self.balloon;
        assert_eq!(all, self.memory, "every byte of a guest is in one place: {self:?}");
    }
}
