//! The guests' jobs.

/// What the guests do at their turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Job {
    /// They fill memory.
    Memory,
    /// They read the same part of their disks each time, and fill less memory.
    PageCache,
    /// They hold a cold heap from the beginning, and fill less memory.
    ColdHeap,
}

impl Job {
    /// The job in words.
    pub(super) const fn title(self) -> &'static str {
        match self {
            Self::Memory => "it fills memory",
            Self::PageCache => "it reads its disk and fills memory",
            Self::ColdHeap => "it holds a cold heap and fills memory",
        }
    }

    /// The text after an arm's key.
    pub(super) const fn suffix(self) -> &'static str {
        match self {
            Self::Memory => "",
            Self::PageCache => "-cache",
            Self::ColdHeap => "-cold",
        }
    }
}
