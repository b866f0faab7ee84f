//! The experiment `swap-sweep` at its smallest, with a real guest: it swaps to compressed memory of the host, and every byte comes back.

use memtide_lab::experiments::swap_sweep::SwapSweep;
use memtide_model::Bytes;

/// The heap in MiB, and the part of it that fits into the guest, in percent.
const HEAP_MIB: u64 = 64;
const PART: u64 = 60;

pub fn a_guest_swaps_to_compressed_memory_and_gets_every_byte_back() {
    crate::needs_zram();
    let run = crate::prepare("test-sweep");
    let sweep = crate::or_skip(SwapSweep::measure(&run, HEAP_MIB));
    let point = sweep.at("zram", PART, &run.part("zram").unwrap()).unwrap();
    println!("{point:?}");
    assert!(point.seconds.is_some(), "{point:?}");
    assert_eq!(point.mismatched_words, 0);
    assert!(point.verified_bytes > crate::mib(8 * HEAP_MIB), "{point:?}");
    assert!(point.swapped_out_bytes > crate::mib(HEAP_MIB / 8), "{point:?}");
    // The heap compresses to two fifths.
    let held = point.swap_held_bytes;
    assert!(held > Bytes::ZERO && held < point.swapped_out_bytes.mul_div(3, 5), "{point:?}");
    assert!(point.total_bytes > point.guest_memory_bytes.mul_div(1, 2), "{point:?}");
}
