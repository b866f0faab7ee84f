//! `/proc/vmstat`: the swap traffic of the host.

use std::str::FromStr;

use memtide_model::{Absence, PageSize, Pages, Reading, SwapCounters};

use crate::source::parse_once;
use crate::text::value;
use crate::{HostError, Meminfo, ParseError, Root};

/// The swap counters of `/proc/vmstat`, cumulative since boot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Vmstat {
    /// `pswpin`: pages read back from swap.
    pub pswpin: Pages,
    /// `pswpout`: pages written to swap.
    pub pswpout: Pages,
}

impl Vmstat {
    /// Reads `/proc/vmstat`.
    ///
    /// # Errors
    /// If the file cannot be read, is malformed, or lacks the counters (a kernel without `CONFIG_SWAP`).
    pub fn read(root: &Root) -> Result<Self, HostError> {
        parse_once(root.proc("vmstat"), str::parse)
    }

    /// The counters in bytes.
    #[must_use]
    pub const fn swap(self, page: PageSize) -> SwapCounters {
        SwapCounters { swapped_in: self.pswpin.to_bytes(page), swapped_out: self.pswpout.to_bytes(page) }
    }
}

impl FromStr for Vmstat {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        Ok(Self {
            pswpin: value("pswpin", text).map(Pages::new)?,
            pswpout: value("pswpout", text).map(Pages::new)?,
        })
    }
}

/// The swap traffic of a host with this `meminfo`. Absent if no swap is configured: counters that cannot move say nothing.
pub(crate) fn reading(
    meminfo: &Meminfo,
    vmstat: Result<Vmstat, HostError>,
    page: PageSize,
) -> Reading<SwapCounters> {
    if meminfo.swap_total.is_zero() {
        return Reading::absent(Absence::Unsupported);
    }
    match vmstat {
        Ok(vmstat) => Reading::now(vmstat.swap(page)),
        Err(error) => Reading::absent(error.absence()),
    }
}
