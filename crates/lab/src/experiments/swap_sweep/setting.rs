//! What all arms share: the work, and the needs of a guest besides its heap.

use std::time::{Duration, Instant};

use memtide_load::exerciser::report::Summary;
use memtide_load::helper::wire::Ask;
use memtide_model::Bytes;
use serde::Serialize;

use super::NAMES;
use crate::error::LabError;
use crate::guest::{BOOT, Guest, GuestBuilder};
use crate::machine::lab::Run;
use crate::machine::small_host::SmallHost;
use crate::work::exercise::load;

/// The heap of each guest.
pub(super) const HEAP_MIB: u64 = 160;
/// How far it compresses with LZO. Measured heaps have 2.2 to 2.7.
pub(super) const RATIO: &str = "2.5";
/// The part of it that is hot, and the touches that go there.
const HOT: &str = "30%:95%";
/// The share of touches that write.
const WRITES: &str = "30%";
/// The touches, as rounds over the heap.
const PASSES: u64 = 8;
/// Memory that a guest alone has besides its heap: more than it needs.
const AMPLE: Bytes = Bytes::from_mib(160);
/// The longest work of a guest that does not have too little memory.
const ALONE: Duration = Duration::from_secs(300);

/// The setting.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Setting {
    pub(super) heap_mib: u64,
    /// What a guest needs besides its heap.
    #[serde(rename = "base_bytes")]
    pub(super) base: Bytes,
    /// What its process takes besides the guest's memory.
    #[serde(rename = "overhead_bytes")]
    pub(super) overhead: Bytes,
    /// The time of the work with ample memory.
    pub(super) seconds: f64,
}

impl Setting {
    /// Measures one guest with ample memory.
    pub(super) fn measure(run: &Run, heap_mib: u64) -> Result<Self, LabError> {
        let memory = Bytes::from_mib(heap_mib).saturating_add(AMPLE);
        let host = SmallHost::create("sweep-alone", memory.mul_div(3, 1), Bytes::ZERO)?;
        let guest = builder("alone", memory).start(run, Some(&host))?;
        guest.wait_up(BOOT)?;
        let meminfo = guest.meminfo()?;
        let available = Bytes::from_kib(meminfo.available_kib);
        let unused = Bytes::from_kib(meminfo.free_kib);
        let booted = guest.footprint();
        // What it has not used so far is not in its process, either.
        let overhead = booted.saturating_sub(memory.saturating_sub(unused));
        let begun = Instant::now();
        guest.ask::<Summary>(work(1, heap_mib), ALONE)?;
        let seconds = begun.elapsed().as_secs_f64();
        Ok(Self { heap_mib, base: memory.saturating_sub(available), overhead, seconds })
    }

    pub(super) const fn heap(&self) -> Bytes {
        Bytes::from_mib(self.heap_mib)
    }

    /// A guest's memory if this part of its heap fits, in percent.
    pub(super) fn memory(&self, part: u64) -> Bytes {
        let memory = self.base.saturating_add(self.heap().mul_div(part, 100));
        Bytes::from_mib(memory.whole_mib() + 1)
    }

    /// The memory of a guest under memtide: all that it can use.
    pub(super) fn full(&self) -> Bytes {
        self.memory(150)
    }

    /// Swap for the whole heap, and more.
    pub(super) const fn swap(&self) -> Bytes {
        Bytes::from_mib(2 * self.heap_mib)
    }
}

/// A guest of this experiment.
pub(super) fn builder(name: &str, memory: Bytes) -> GuestBuilder {
    Guest::builder(&format!("{NAMES}{name}")).memory(memory)
}

/// The work. Each touch is checked. The load keeps its memory, to check it once more.
pub(super) fn work(seed: u64, heap_mib: u64) -> Ask {
    load(&format!(
        "--size {heap_mib}M --grow max --content heap --compress {RATIO} --seed {seed} --hot {HOT} --writes {WRITES} \
         --passes {PASSES} --verify --hold"
    ))
}

/// The work in words.
pub(super) fn in_words(heap_mib: u64) -> String {
    format!(
        "fills {heap_mib} MiB that compress to 1/{RATIO} and touches them {PASSES} times over ({HOT} hot, {WRITES} of the touches write, each one checked)"
    )
}
