//! `memtide_fuzz::agent` under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| memtide_fuzz::agent::run(bytes));
