//! `memtide_fuzz::libvirt` under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| memtide_fuzz::libvirt::run(bytes));
