//! `memtide_fuzz::mconsole` under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| memtide_fuzz::mconsole::run(bytes));
