//! `memtide_fuzz::proc` under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| memtide_fuzz::proc::run(bytes));
