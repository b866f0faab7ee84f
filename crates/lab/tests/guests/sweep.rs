//! The experiment `swap-sweep` at its smallest, with a real guest: it swaps to compressed memory of the host, its own or a tier of memtide's, and every
//! byte comes back.

use memtide_lab::experiments::swap_sweep::{Point, SwapSweep};
use memtide_model::Bytes;

/// The heap in MiB, and the part of it that fits into the guest, in percent.
const HEAP_MIB: u64 = 64;
const PART: u64 = 60;

pub fn a_guest_swaps_to_compressed_memory_and_gets_every_byte_back() {
    crate::needs_zram();
    let run = crate::prepare("test-sweep");
    let sweep = crate::or_skip(SwapSweep::measure(&run, HEAP_MIB));
    let at = |arm: &str| sweep.at(arm, PART, &run.part(arm).unwrap()).unwrap();
    let own = at("zram");
    works_in_little_memory(&own);
    // The heap compresses to two fifths. (What memtide's tiers hold is not compared: tests beside this one have some, too.)
    let held = own.swap_held_bytes;
    assert!(held > Bytes::ZERO && held < own.swapped_out_bytes.mul_div(3, 5), "{own:?}");
    works_in_little_memory(&at("memtide"));
}

fn works_in_little_memory(point: &Point) {
    println!("{point:?}");
    assert!(point.seconds.is_some(), "{point:?}");
    assert_eq!(point.mismatched_words, 0);
    assert!(point.verified_bytes > crate::mib(8 * HEAP_MIB), "{point:?}");
    assert!(point.swapped_out_bytes > crate::mib(HEAP_MIB / 8), "{point:?}");
    assert!(point.total_bytes > point.guest_memory_bytes.mul_div(1, 2), "{point:?}");
}
