//! `memtide_fuzz::qmp` under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| memtide_fuzz::qmp::run(bytes));
