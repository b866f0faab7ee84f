//! The formats of several kernels. The files of 6.18 were captured. Those of 4.19, 5.10 and 6.1 imitate the files of these kernels,
//! shortened. 4.19 has no pressure stall information.

use std::path::Path;

use memtide_host::{HostError, Meminfo, ParseError, Root, Vmstat, pressure};
use memtide_model::{Bytes, PAGE_4K, Pages, Pressure};
use proptest::prelude::*;

const KERNELS: [&str; 4] = ["4.19", "5.10", "6.1", "6.18"];

fn sample(kernel: &str, name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/kernels").join(kernel).join(name);
    std::fs::read_to_string(path).expect("a sample of this crate")
}

#[test]
fn meminfo_of_each_kernel_reads() {
    for kernel in KERNELS {
        let seen: Meminfo = sample(kernel, "meminfo").parse().unwrap();
        assert!(seen.free <= seen.available && seen.available <= seen.total, "{kernel}: {seen:?}");
        assert!(seen.shmem <= seen.cached && seen.swap_free <= seen.swap_total, "{kernel}: {seen:?}");
        assert_eq!(seen.used().saturating_add(seen.available), seen.total, "{kernel}");
    }
    let seen: Meminfo = sample("4.19", "meminfo").parse().unwrap();
    let expected = Meminfo {
        total: Bytes::from_kib(16_326_480),
        free: Bytes::from_kib(842_136),
        available: Bytes::from_kib(11_573_972),
        buffers: Bytes::from_kib(718_200),
        cached: Bytes::from_kib(9_607_424),
        shmem: Bytes::from_kib(87_692),
        anon: Bytes::from_kib(3_877_432),
        // 3,340,296 active + 633,720 inactive + 32 unevictable − 10,752 of swap cache.
        listed: Some(Bytes::from_kib(3_963_296)),
        dirty: Bytes::from_kib(412),
        swap_total: Bytes::from_kib(4_194_300),
        swap_free: Bytes::from_kib(3_981_308),
    };
    assert_eq!(seen, expected);
}

#[test]
fn swap_traffic_of_each_kernel_reads() {
    for (kernel, pswpin, pswpout) in
        [("4.19", 3711, 55820), ("5.10", 0, 0), ("6.1", 1024, 4096), ("6.18", 0, 0)]
    {
        let seen: Vmstat = sample(kernel, "vmstat").parse().unwrap();
        let expected = Vmstat { pswpin: Pages::new(pswpin), pswpout: Pages::new(pswpout) };
        assert_eq!(seen, expected, "{kernel}");
    }
    let seen: Vmstat = sample("6.1", "vmstat").parse().unwrap();
    assert_eq!(seen.swap(PAGE_4K).swapped_out, Bytes::from_mib(16));
}

#[test]
fn pressure_of_each_kernel_reads() {
    for (kernel, some_us, full_us) in
        [("5.10", 83_211_904, 61_820_117), ("6.1", u64::MAX, 17), ("6.18", 0, 0)]
    {
        let seen = pressure::parse(&sample(kernel, "pressure")).unwrap();
        assert_eq!(seen, Pressure { some_us, full_us }, "{kernel}");
    }
}

#[test]
fn a_kernel_without_pressure_is_no_broken_one() {
    let dir = tempfile::tempdir().unwrap();
    let error = pressure::read(&Root::at(dir.path())).unwrap_err();
    assert!(matches!(error, HostError::NoPressure { .. }), "{error}");
    std::fs::create_dir_all(dir.path().join("proc/pressure")).unwrap();
    std::fs::write(dir.path().join("proc/pressure/memory"), "some avg10=0.00\n").unwrap();
    let error = pressure::read(&Root::at(dir.path())).unwrap_err();
    assert!(matches!(error, HostError::Malformed { .. }), "{error}");
}

#[test]
fn malformed_files_are_refused_with_what_is_wrong() {
    let meminfo = sample("5.10", "meminfo");
    let without = meminfo.replace("MemAvailable", "MemAvoidable");
    assert_eq!(without.parse::<Meminfo>(), Err(ParseError::Missing("MemAvailable")));
    let huge = meminfo.replace("8145256 kB", "99999999999999999999 kB");
    assert!(matches!(huge.parse::<Meminfo>(), Err(ParseError::NoNumber { field: "MemTotal", .. })));
    let negative = meminfo.replace("8145256 kB", "-1 kB");
    assert!(negative.parse::<Meminfo>().is_err());
    for (some, full) in [("total=1", "total=-1"), ("total=x", "total=1"), ("avg10=0", "total=1"), ("", "")] {
        assert!(pressure::parse(&format!("some {some}\nfull {full}\n")).is_err(), "{some} {full}");
    }
    assert!("pswpin 1\n".parse::<Vmstat>().is_err());
    assert!("pswpin\npswpout 1\n".parse::<Vmstat>().is_err());
}

#[test]
fn the_running_kernel_reads() {
    let root = Root::system();
    assert!(Meminfo::read(&root).unwrap().total > Bytes::ZERO);
    match pressure::read(&root) {
        Ok(seen) => assert!(seen.full_us <= seen.some_us),
        Err(error) => assert!(error.is_unsupported(), "{error}"),
    }
}

proptest! {
    #[test]
    fn any_text_is_read_or_refused(text in "(?s).{0,300}") {
        let _ = text.parse::<Meminfo>();
        let _ = text.parse::<Vmstat>();
        let _ = pressure::parse(&text);
    }

    /// A truncated file is never mistaken for another one: it is refused, or every used line precedes the cut.
    #[test]
    fn a_cut_file_is_refused_or_complete(kernel in 0..KERNELS.len(), cut: prop::sample::Index) {
        let whole = sample(KERNELS[kernel], "meminfo");
        let text = &whole[..cut.index(whole.len())];
        if let Ok(seen) = text.parse::<Meminfo>() {
            prop_assert_eq!(Ok(seen), whole.parse());
        }
    }

    #[test]
    fn one_changed_byte_never_panics(at: prop::sample::Index, byte in 0_u8..128) {
        for name in ["meminfo", "vmstat", "pressure"] {
            let mut bytes = sample("6.18", name).into_bytes();
            let at = at.index(bytes.len());
            bytes[at] = byte;
            let text = String::from_utf8(bytes).unwrap();
            let _ = text.parse::<Meminfo>();
            let _ = text.parse::<Vmstat>();
            let _ = pressure::parse(&text);
        }
    }
}
