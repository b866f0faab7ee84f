//! Files as kernels of several versions have them, as the agent reads them.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::path::{Path, PathBuf};

use memtide_agent::Facts;
use memtide_agent::facts::Reported;
use memtide_agent::wire::Report;
use memtide_host::Root;
use memtide_model::Bytes;

/// A report of the kernel whose files were captured.
fn report(version: &str) -> (Report, bool) {
    let captured: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join("../host/tests/kernels").join(version);
    let dir = tempfile::tempdir().unwrap();
    let proc = dir.path().join("proc");
    fs::create_dir_all(proc.join("pressure")).unwrap();
    for (file, at) in [("meminfo", "meminfo"), ("vmstat", "vmstat"), ("pressure", "pressure/memory")] {
        // Linux 4.19 has no PSI.
        let _ = fs::copy(captured.join(file), proc.join(at));
    }
    let mut facts = Facts::open(&Root::at(dir.path()), Reported::default()).unwrap();
    let counts = facts.counts_refaults();
    (facts.report().unwrap(), counts)
}

#[test]
fn every_kernel_tells_of_its_page_cache_and_refaults() {
    for version in ["4.19", "5.10", "6.1", "6.18"] {
        let (report, counts) = report(version);
        let memory = report.memory;
        assert!(counts, "{version}");
        assert!(memory.available <= memory.total && !memory.available.is_zero(), "{version}: {memory:?}");
        assert!(memory.unmapped_cache <= memory.total, "{version}: {memory:?}");
        assert_eq!(report.stalls.is_some(), version != "4.19", "{version}");
    }
}

#[test]
fn refaults_of_before_linux_5_9_are_those_of_files() {
    let (report, _) = report("4.19");
    let pages = |pages: u64| Bytes::from_kib(4 * pages);
    assert_eq!(
        (report.counters.refaults_file, report.counters.activations_file),
        (pages(83_201), pages(51_022))
    );
    assert_eq!(report.counters.refaults_anon, Bytes::ZERO);
}
