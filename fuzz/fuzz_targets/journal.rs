//! `memtide_fuzz::journal` under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| memtide_fuzz::journal::run(bytes));
