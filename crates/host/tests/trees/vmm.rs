//! The mappings of a QEMU guest of 256 MiB with a VGA under TCG (`tb-size=32`), captured on Linux 6.18 after a memory load. Shortened to
//! the large mappings and all memory that the guest can touch.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use memtide_host::{
    CodeBuffer, DeviceFile, FileId, FilePart, HostError, Mapping, Mappings, ProcFs, RamBlock,
};
use memtide_model::{Bytes, Withheld};

use crate::tree::Tree;

const PID: u32 = 7;
const SMAPS: &str = include_str!("../kernels/6.18/smaps");

fn qemu() -> Tree {
    let tree = Tree::new();
    tree.file("proc/7/smaps", SMAPS);
    tree
}

#[test]
fn a_command_line_is_read_up_to_its_bound() {
    let tree = Tree::new();
    tree.file("proc/7/cmdline", vec![b'a'; 3 << 20]);
    let proc_fs = ProcFs::new(&tree.path().join("proc"));
    assert_eq!(proc_fs.cmdline(PID).unwrap().len(), 1 << 20);
    assert_eq!(proc_fs.start_of_cmdline(PID).unwrap().len(), 4 << 10);
}

#[test]
fn a_guest_under_tcg_is_told_apart_from_its_vmm() {
    let ram = [RamBlock::Size(Bytes::from_mib(256))];
    let seen = Mappings::read(&qemu().root(), PID, &ram).unwrap();
    let program = 4568 + 5984;
    let other = 261_132 - 196_608 - program;
    let expected = Mappings {
        ram_resident: Bytes::from_kib(196_608),
        ram_swapped: Bytes::ZERO,
        ram_missing: Bytes::ZERO,
        program_resident: Bytes::from_kib(program),
        other_resident: Bytes::from_kib(other),
        other_swapped: Bytes::ZERO,
        // 14 of 16 MiB of video memory, 24 KiB of a table, an option ROM.
        guest_visible: Bytes::from_kib(14_336 + 24 + 128),
        code_buffer: CodeBuffer { size: Bytes::from_kib(32_764), resident: Bytes::from_kib(32_764) },
        ram_like: Bytes::from_mib(256),
        ram_mapped: Bytes::from_mib(256),
        ram_huge: Bytes::ZERO,
        ram_huge_private: Bytes::ZERO,
        ram_is_shared: false,
        files: BTreeMap::new(),
        withheld: None,
    };
    assert_eq!(seen, expected);
    assert_eq!(seen.other_bound(Bytes::from_mib(16)), Bytes::from_kib(other + 14_488 + 16_384));
}

#[test]
fn ram_that_is_not_found_counts_as_other() {
    let ram = [RamBlock::Size(Bytes::from_mib(300)), RamBlock::File("/dev/shm/ram".into())];
    let seen = Mappings::read(&qemu().root(), PID, &ram).unwrap();
    assert_eq!(seen.ram_missing, Bytes::from_mib(300));
    assert_eq!((seen.ram_resident, seen.other_resident), (Bytes::ZERO, Bytes::from_kib(261_132 - 10_552)));
}

#[test]
fn files_are_told_with_the_pages_that_are_theirs() {
    let of = |inode| FileId { device: 5, inode };
    let at = |start, inode| Mapping { device: 5, inode, name: "/dev/shm/ram".into(), ..mapping(start, 64) };
    let private = Mapping { is_private: true, anonymous: Bytes::from_mib(20), ..at(100, 1) };
    let shared = Mapping { is_private: false, ..at(200, 2) };
    let program = Mapping { writable: false, name: "/usr/bin/qemu".into(), ..at(300, 3) };
    let huge = Mapping { is_huge: true, ..at(400, 4) };
    let ram = [RamBlock::File("/dev/shm/ram".into())];
    let seen = |all: &[&Mapping]| Mappings::of(&all.iter().copied().cloned().collect::<Vec<_>>(), &ram);
    let all = seen(&[&private, &shared, &program, &huge]);
    let part = |mib| FilePart { ram: Bytes::from_mib(mib), ..FilePart::default() };
    let expected = [(of(1), part(12)), (of(2), part(32)), (of(4), part(0))];
    assert_eq!((all.files, all.ram_is_shared), (BTreeMap::from(expected), true));
    assert!(!seen(&[&private]).ram_is_shared);
    // What is no RAM is told apart, and a segment of System V is no file.
    let image = Mapping { name: "/images/ivshmem".into(), ..shared.clone() };
    let segment = Mapping { name: "/SYSV00000000 (deleted)".into(), ..shared };
    let beside_ram = FilePart { beside_ram: Bytes::from_mib(32), ..FilePart::default() };
    assert_eq!(seen(&[&image, &segment]).files, BTreeMap::from([(of(2), beside_ram)]));
}

#[test]
fn a_process_that_is_gone_has_no_mappings() {
    let seen = Mappings::read(&qemu().root(), 8, &[]);
    assert!(matches!(seen, Err(HostError::Gone { pid: 8 })));
}

/// `size` MiB at `start` MiB, half of them resident.
fn mapping(start: u64, size: u64) -> Mapping {
    Mapping {
        start: Bytes::from_mib(start).get(),
        end: Bytes::from_mib(start + size).get(),
        writable: true,
        resident: Bytes::from_mib(size / 2),
        ..Mapping::default()
    }
}

#[test]
fn a_mapping_that_was_split_is_found_as_a_whole() {
    let mappings =
        [mapping(0, 100), mapping(100, 156), mapping(256, 100), mapping(400, 256 - 100), mapping(556, 40)];
    let seen = Mappings::of(&mappings, &[RamBlock::Size(Bytes::from_mib(256))]);
    assert_eq!(seen.ram_missing, Bytes::ZERO);
    assert_eq!(seen.ram_resident, Bytes::from_mib(50 + 78), "the first two adjoin and have 256 MiB together");
}

/// The shortest of a few times that a look at `count` adjoining mappings takes.
fn looked_at(count: u64, change: impl Fn(Mapping) -> Mapping, ram: &[RamBlock]) -> Duration {
    let mappings: Vec<Mapping> = (0..count).map(|at| change(mapping(at * 40, 40))).collect();
    let looks = (0..3).map(|_| {
        let begun = Instant::now();
        assert!(Mappings::of(&mappings, ram).other_resident <= Bytes::from_mib(count * 20));
        begun.elapsed()
    });
    looks.min().expect("a few looks")
}

#[test]
fn many_mappings_and_blocks_of_a_stranger_take_no_more_than_their_number() {
    // As large as half of them together, and nowhere.
    let block = |at: u64| RamBlock::Size(Bytes::new((100_000 << 20) + at));
    let ram: Vec<RamBlock> = (0..20).map(block).collect();
    let files: Vec<RamBlock> = (0..20).map(|at| RamBlock::File(format!("/ram/{at}").into())).collect();
    let named = |mapping: Mapping| Mapping {
        is_private: true,
        dont_fork: true,
        inode: mapping.start,
        name: "/ram/7/qemu_back_mem.a (deleted)".into(),
        ..mapping
    };
    for change in [&|mapping| mapping, &named as &dyn Fn(Mapping) -> Mapping] {
        for ram in [&ram, &files] {
            let (few, many) = (looked_at(4_000, change, ram), looked_at(32_000, change, ram));
            assert!(many < few * 8 * 3, "{few:?}, then {many:?} for eight times as many");
        }
    }
}

#[test]
fn no_more_blocks_are_looked_for_than_a_guest_can_have() {
    let mappings = [mapping(0, 64)];
    let mut ram = vec![RamBlock::Size(Bytes::from_mib(100)); 255];
    let found = |ram: &[RamBlock]| Mappings::of(&mappings, ram).ram_resident;
    ram.push(RamBlock::Size(Bytes::from_mib(64)));
    assert_eq!(found(&ram), Bytes::from_mib(32));
    ram.insert(0, RamBlock::Size(Bytes::from_mib(100)));
    assert_eq!(found(&ram), Bytes::ZERO);
}

#[test]
fn blocks_of_equal_size_are_different_mappings() {
    let idle = Mapping { resident: Bytes::ZERO, ..mapping(0, 64) };
    let mappings = [idle, mapping(100, 64), mapping(200, 64)];
    let block = RamBlock::Size(Bytes::from_mib(64));
    let seen = Mappings::of(&mappings, &[block.clone(), block]);
    assert_eq!((seen.ram_resident, seen.other_resident), (Bytes::from_mib(64), Bytes::ZERO));
}

#[test]
fn ram_in_a_file_is_found_by_its_name() {
    let file = Mapping { inode: 9, name: "/memfd:ram (deleted)".to_owned(), ..mapping(0, 128) };
    let code = Mapping { executable: true, ..mapping(200, 1024) };
    let seen = Mappings::of(&[file, code], &[RamBlock::File("/memfd:ram".into())]);
    assert_eq!(seen.ram_resident, Bytes::from_mib(64));
    let expected = CodeBuffer { size: Bytes::from_mib(1024), resident: Bytes::from_mib(512) };
    assert_eq!(seen.code_buffer, expected);
    // 512 resident, 512 still to come, and an eighth of the resident ones.
    assert_eq!(seen.other_bound(Bytes::from_mib(16)), Bytes::from_mib(512 + 512 + 64));
}

#[test]
fn programs_are_page_cache_and_memory_files_are_not() {
    let read_only = |start, name: &str| Mapping {
        writable: false,
        inode: 9,
        name: name.to_owned(),
        anonymous: Bytes::from_mib(1),
        ..mapping(start, 8)
    };
    let program = read_only(0, "/usr/bin/qemu-system-x86_64");
    let memory = read_only(10, "/memfd:ram (deleted)");
    let seen = Mappings::of(&[program, memory], &[]);
    // Half is resident. Of the program, the pages that the linker wrote belong to the process.
    assert_eq!(seen.program_resident, Bytes::from_mib(4 - 1));
    assert_eq!(seen.other_resident, Bytes::from_mib(1 + 4));
}

const DELETED: &str = "/dev/shm/qemu_back_mem.pc.ram.Xy12ab (deleted)";
const QEMUS_MEMFD: &str = "/memfd:memory-backend-memfd (deleted)";

#[test]
fn a_private_file_is_the_guests_own_only_if_qemu_was_told_to_create_it() {
    let of = |name: &str, inode: u64, start: u64| Mapping {
        inode,
        is_private: true,
        dont_fork: true,
        name: name.to_owned(),
        ..mapping(start, 256)
    };
    let told = |path: &str| RamBlock::File(path.into());
    let why = |mappings: &[Mapping], ram: &[RamBlock]| Mappings::of(mappings, ram).withheld;
    for (name, own) in [(DELETED, "/dev/shm"), (QEMUS_MEMFD, "/memfd:memory-backend-memfd")] {
        let anothers = Some(Withheld::PrivateFile(name.to_owned()));
        let one = of(name, 9, 0);
        let two = [one.clone(), of(name, 10, 1000)];
        assert_eq!(why(std::slice::from_ref(&one), &[told(own)]), None);
        assert_eq!(why(std::slice::from_ref(&one), &[told("/proc/77/fd/12")]), anothers);
        assert_eq!(why(&two, &[told(own), told(own)]), None);
        // One of the two is another's, and nobody knows which.
        assert_eq!(why(&two, &[told(own), told("/proc/77/fd/12")]), anothers);
        // Parts of one file.
        assert_eq!(why(&[one, of(name, 9, 1000)], &[told(own)]), None);
    }
    let named = "/dev/shm/qemu_back_mem.pc.ram.Xy12ab";
    assert!(why(&[of(DELETED, 9, 0)], &[told(named)]).is_some(), "a clone of the file itself");
}

#[test]
fn memory_that_cannot_be_the_hosts_is_told() {
    let of = |name: &str| Mapping {
        inode: 9,
        is_private: true,
        dont_fork: true,
        name: name.to_owned(),
        ..mapping(0, 256)
    };
    let shared = Mapping { is_private: false, ..of("/dev/shm/template") };
    let ram = mapping(0, 256);
    let file = |path: &str| Some(Withheld::PrivateFile(path.to_owned()));
    for (seen, why) in [
        (of("/dev/shm/template"), file("/dev/shm/template")),
        // Of a memfd, nobody knows who else has it.
        (of("/memfd:template (deleted)"), file("/memfd:template (deleted)")),
        // Named like QEMU's own files, but nobody has told QEMU to create one: it is that of another QEMU.
        (of(DELETED), file(DELETED)),
        (of(QEMUS_MEMFD), file(QEMUS_MEMFD)),
        // Its clones still have it.
        (of("/dev/shm/template (deleted)"), file("/dev/shm/template (deleted)")),
        (shared, None),
        (Mapping { is_locked: true, ..ram.clone() }, Some(Withheld::Locked)),
        (Mapping { is_huge: true, is_locked: true, ..ram.clone() }, Some(Withheld::HugePages)),
        (ram, None),
    ] {
        let found = Mappings::of(std::slice::from_ref(&seen), &[RamBlock::Size(Bytes::from_mib(256))]);
        assert_eq!(found.withheld, why, "{seen:?}");
        // The command line says nothing of its memory: what a guest can touch is not copied on fork.
        let seen = Mapping { dont_fork: true, ..seen };
        assert_eq!(Mappings::of(&[seen], &[]).withheld, why);
    }
    let huge = Mapping { is_huge: true, dont_fork: true, ..mapping(0, 256) };
    let seen = Mappings::of(&[huge.clone(), mapping(300, 64)], &[]);
    assert_eq!((seen.ram_huge, seen.ram_like), (Bytes::from_mib(256), Bytes::from_mib(256)));
    // Half of each mapping is resident. What is RAM is no overhead, also if nobody tells its size.
    assert_eq!((seen.ram_resident, seen.other_resident), (Bytes::from_mib(128), Bytes::from_mib(32)));
    // What the command line names counts although a child would have a copy of it, and no further than it is mapped.
    let named = [RamBlock::Size(Bytes::from_mib(64)), RamBlock::Size(Bytes::from_mib(900 << 10))];
    assert_eq!(Mappings::of(&[huge.clone(), mapping(300, 64)], &named).ram_mapped, Bytes::from_mib(256 + 64));
    assert_eq!(Mappings::of(&[mapping(300, 64)], &named[1..]).ram_mapped, Bytes::ZERO);
    // If the RAM is known, huge or private memory of other devices is not the guest's.
    let ram = Mapping { dont_fork: true, ..mapping(1000, 512) };
    let device =
        Mapping { start: mapping(2000, 0).start, end: mapping(2000, 1024).end, ..of("/images/nvdimm") };
    let seen = Mappings::of(&[huge, device, ram], &[RamBlock::Size(Bytes::from_mib(512))]);
    assert_eq!((seen.withheld, seen.ram_huge), (None, Bytes::ZERO));
    let registers = Mapping { name: "anon_inode:[vfio-device]".to_owned(), is_private: false, ..of("") };
    assert_eq!(Mappings::of(&[registers], &[]).ram_like, Bytes::ZERO);
    let video = Mapping { is_locked: true, dont_fork: true, ..mapping(0, 16) };
    assert_eq!(Mappings::of(&[video], &[]).withheld, None);
}

#[test]
fn what_was_plugged_since_is_ram_and_no_overhead() {
    let guest = |start, size| Mapping { dont_fork: true, ..mapping(start, size) };
    let file = |start, size| Mapping { inode: 9, name: "/dev/shm/ram".to_owned(), ..guest(start, size) };
    let (base, video) = (guest(0, 256), guest(5000, 16));
    let of = |mappings: &[Mapping], ram: &[RamBlock], all: u64| {
        let seen = Mappings::of_guest(mappings, ram, &[], Some(Bytes::from_mib(all)));
        (seen.ram_resident.whole_mib(), seen.other_resident.whole_mib(), seen.ram_missing.whole_mib())
    };
    let anonymous = [RamBlock::Size(Bytes::from_mib(256))];
    let shared = [RamBlock::File("/dev/shm/ram".into())];
    // Half of each mapping is resident.
    assert_eq!(of(&[base.clone(), guest(1000, 512), video.clone()], &anonymous, 768), (384, 8, 0));
    // Two DIMMs at once, of different sizes.
    let two = [base.clone(), guest(1000, 128), guest(2000, 64), video.clone()];
    assert_eq!(of(&two, &anonymous, 448), (224, 8, 0));
    // A DIMM beside RAM in a file, and one in the same file system.
    assert_eq!(of(&[file(0, 256), guest(1000, 128), video.clone()], &shared, 384), (192, 8, 0));
    assert_eq!(of(&[file(0, 256), file(1000, 128), video.clone()], &shared, 384), (192, 8, 0));
    // It is told before it is mapped, and unplugged before it is unmapped.
    assert_eq!(of(&[base.clone(), video.clone()], &anonymous, 768), (128, 8, 512));
    assert_eq!(of(&[base, guest(1000, 512), video], &anonymous, 256), (128, 264, 0));
}

#[test]
fn the_file_of_another_device_is_page_cache_or_memory_but_no_ram() {
    let image = |is_private| Mapping {
        inode: 9,
        name: "/images/root.img".to_owned(),
        dont_fork: true,
        is_private,
        ..mapping(1000, 256)
    };
    let ram = Mapping { dont_fork: true, ..mapping(0, 256) };
    let of = |device: Mapping, is_on_disk| {
        let devices = [DeviceFile { path: "/images".into(), is_on_disk }];
        let blocks = [RamBlock::Size(Bytes::from_mib(256))];
        Mappings::of_guest(&[device, ram.clone()], &blocks, &devices, Some(Bytes::from_mib(512)))
    };
    let seen = of(image(false), true);
    assert_eq!((seen.ram_resident, seen.ram_missing), (Bytes::from_mib(128), Bytes::from_mib(256)));
    assert_eq!((seen.program_resident, seen.other_resident), (Bytes::from_mib(128), Bytes::ZERO));
    assert_eq!((seen.guest_visible, seen.withheld, seen.ram_like), (Bytes::ZERO, None, Bytes::from_mib(256)));
    // In a tmpfs, and where the guest's writes become memory of the process, it costs.
    for seen in [of(image(false), false), of(image(true), true)] {
        assert_eq!((seen.other_resident, seen.guest_visible), (Bytes::from_mib(128), Bytes::from_mib(128)));
    }
}

#[test]
fn memory_in_swap_can_come_back() {
    let heap = Mapping { swapped: Bytes::from_mib(20), ..mapping(0, 8) };
    let seen = Mappings::of(&[heap], &[]);
    assert_eq!(seen.other_bound(Bytes::from_mib(16)), Bytes::from_mib(4 + 20 + 16));
}
