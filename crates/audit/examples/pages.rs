//! A process with memory of a known mix, for the tests of the audit: `pages OWN SHARED REPEATED ZEROS CHANGING SEED`.
//!
//! The numbers count pages: of its own, shared with other processes of the same kind, copies of one page, full of zeros, and changing all the
//! time. It says `ready` and lives until its standard input ends.

use std::io::{Read as _, Write as _};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const PAGE: usize = 4096;

fn main() {
    let numbers: Vec<usize> = std::env::args().skip(1).map(|word| word.parse().expect("a number")).collect();
    let [own, shared, repeated, zeros, changing, seed] = numbers[..] else { panic!("six numbers") };
    let mut memory = vec![0_u8; (own + shared + repeated + zeros + changing + 1) * PAGE];
    let from = memory.as_ptr().align_offset(PAGE);
    let pages = &mut memory[from..];
    let mut pages = pages.chunks_exact_mut(PAGE);
    let mut fill = |count: usize, of: &mut dyn FnMut(usize) -> u64| {
        for nth in 0..count {
            write(pages.next().expect("a page"), of(nth));
        }
    };
    fill(own, &mut |nth| (seed as u64 + 1) << 40 | nth as u64);
    fill(shared, &mut |nth| 1 << 60 | nth as u64);
    fill(repeated, &mut |_| 1 << 61);
    // Written, so that it is there.
    fill(zeros, &mut |_| 0);
    let changing: Vec<&mut [u8]> = pages.by_ref().take(changing).collect();
    let ends = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let change = || {
            let mut changing = changing;
            let mut turn = 1 << 62;
            while !ends.load(Ordering::Relaxed) {
                for page in &mut changing {
                    turn += 1;
                    write(page, turn);
                }
                std::thread::sleep(Duration::from_millis(1));
            }
        };
        scope.spawn(change);
        println!("ready");
        std::io::stdout().flush().expect("a reader");
        std::io::stdin().read_to_end(&mut Vec::new()).expect("a pipe");
        ends.store(true, Ordering::Relaxed);
    });
}

/// Fills a page with numbers that only this content has; zero gives zeros.
fn write(page: &mut [u8], content: u64) {
    let mut state = content;
    for word in page.chunks_exact_mut(8) {
        let value = if content == 0 { 0 } else { next(&mut state) };
        word.copy_from_slice(&std::hint::black_box(value).to_le_bytes());
    }
}

/// SplitMix64.
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
