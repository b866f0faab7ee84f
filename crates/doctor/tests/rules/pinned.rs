//! Memory that no balloon brings back.

use super::*;

#[test]
fn memory_that_no_balloon_brings_back() {
    gives(PROBLEM, "pinned.device", "-device vfio-pci,host=0000:65:00.0", |facts| {
        equipment(facts).pinning = vec!["vfio-pci 0000:65:00.0".to_owned()]
    });
    gives(PROBLEM, "pinned.confidential", "manage = false", |facts| {
        equipment(facts).confidential = Some("sev-guest".to_owned())
    });
    gives(PROBLEM, "pinned.locked", "-overcommit mem-lock=off", |facts| equipment(facts).mem_lock = true);
    gives(PROBLEM, "pinned.locked", "1 GiB of its process are locked", |facts| {
        locked(facts).locked = mib(1024)
    });
    gives(PROBLEM, "pinned.huge-pages", "memory-backend-ram,id=mem0,size=1024M", |facts| {
        status(facts).huge = mib(512)
    });
    gives(PROBLEM, "pinned.huge-pages", "at /dev/hugepages", |facts| {
        first(facts).memory_files = vec![("/dev/hugepages".into(), Some("hugetlbfs".to_owned()))]
    });
    gives(PROBLEM, "pinned.huge-pages", r#"[class."fixed-web1"]"#, |facts| {
        equipment(facts).memory =
            vec![MemoryArgument { hugetlb: true, prealloc: true, ..MemoryArgument::default() }]
    });
    gives(WARNING, "pinned.file", "memory-backend-memfd", |facts| {
        first(facts).memory_files = vec![("/var/tmp/ram".into(), Some("ext4".to_owned()))]
    });
    gives(HINT, "memory.prealloc", "prealloc=on", |facts| equipment(facts).prealloc = true);
    let shared =
        found(|facts| first(facts).memory_files = vec![("/dev/shm/g".into(), Some("tmpfs".to_owned()))]);
    assert_eq!(shared, [], "shared memory is freed like any other");
}

#[test]
fn a_name_with_the_signs_of_patterns_is_no_pattern_for_other_guests() {
    for (name, pattern) in [("b-*", "b-?"), ("b-?", "b-?"), ("b[1]", "b?1]")] {
        let findings = found(|facts| {
            equipment(facts).mem_lock = true;
            first(facts).name = name.to_owned();
        });
        let class = findings[0].fixes.last().unwrap();
        assert!(class.lines[1].starts_with("# Each ? matches any character"), "{class:?}");
        assert_eq!(class.lines[2], format!("match = [\"{pattern}\"]"), "{name}");
        assert!(name_matches(pattern, name) && !name_matches(pattern, "b-web"), "{name}");
    }
    let plain = found(|facts| equipment(facts).mem_lock = true);
    assert!(!text(&plain[0]).contains("Each ?"), "{plain:#?}");
}

#[test]
fn a_guest_that_gives_nothing_is_told_nothing_that_helps_to_take_from_it() {
    let without_both = |facts: &mut Facts| {
        facts.mode = Mode::Observe;
        first(facts).agent = None;
        first(facts).told.polling = Polling::Off;
    };
    let (agent, polling) = ("agent.none", "statistics.off");
    let gives = rules(&found(without_both));
    assert!(gives.contains(&agent) && gives.contains(&polling), "{gives:?}");
    let pinned = rules(&found(|facts| {
        without_both(facts);
        equipment(facts).mem_lock = true;
    }));
    assert!(pinned.contains(&"pinned.locked"), "{pinned:?}");
    assert!(!pinned.contains(&agent) && !pinned.contains(&polling), "{pinned:?}");
}

#[test]
fn a_few_locked_pages_are_nothing_unusual() {
    assert_eq!(found(|facts| locked(facts).locked = mib(2)), []);
}

#[test]
fn a_template_is_a_problem_and_nobody_is_told_to_punch_holes_into_it() {
    gives(PROBLEM, "pinned.private-file", "/dev/shm/template", |facts| {
        spoil_balloon(facts);
        first(facts).withheld = Some(Withheld::PrivateFile("/dev/shm/template".to_owned()));
    });
    gives(PROBLEM, "pinned.withheld", "its memory is locked", |facts| {
        spoil_balloon(facts);
        first(facts).withheld = Some(Withheld::Locked);
    });
}

/// The balloon of the first guest lacks its options.
fn spoil_balloon(facts: &mut Facts) {
    let device = device(facts);
    (device.free_page_reporting, device.deflate_on_oom) = (false, false);
    let balloon = balloon(facts);
    (balloon.free_page_reporting, balloon.deflate_on_oom) = (false, false);
}

#[test]
fn free_page_reporting_is_not_advised_where_discarding_is_unsafe_or_in_vain() {
    let backing =
        |path: &str, shared| MemoryArgument { path: Some(path.into()), shared, ..MemoryArgument::default() };
    let unread = move |facts: &mut Facts, shared| {
        first(facts).mappings = Err(Absence::Forbidden);
        equipment(facts).memory = vec![backing("/srv/ram", shared)];
    };
    let unsafe_ones: Vec<Box<Spoiler>> = vec![
        Box::new(|facts| equipment(facts).pinning = vec!["vfio-pci 0000:65:00.0".to_owned()]),
        Box::new(|facts| equipment(facts).pinning = vec!["vhost-vdpa".to_owned()]),
        Box::new(|facts| equipment(facts).confidential = Some("tdx-guest".to_owned())),
        Box::new(|facts| equipment(facts).mem_lock = true),
        Box::new(|facts| locked(facts).locked = mib(1024)),
        Box::new(|facts| locked(facts).pinned = mib(1024)),
        Box::new(|facts| status(facts).huge = mib(512)),
        Box::new(|facts| first(facts).memory_files = vec![("/huge".into(), Some("hugetlbfs".into()))]),
        Box::new(|facts| {
            equipment(facts).memory = vec![MemoryArgument { hugetlb: true, ..MemoryArgument::default() }];
        }),
        Box::new(|facts| first(facts).withheld = Some(Withheld::PrivateFile("/t".to_owned()))),
        Box::new(|facts| first(facts).withheld = Some(Withheld::Pinned("by a device".to_owned()))),
        Box::new(move |facts| unread(facts, false)),
    ];
    for (number, spoil) in unsafe_ones.iter().enumerate() {
        for without_device in [false, true] {
            let findings = found(|facts| {
                spoil_balloon(facts);
                spoil(facts);
                if without_device {
                    equipment(facts).balloon = None;
                    absent(facts, Absence::NoBalloon);
                }
                first(facts).launch.by = Launcher::Kata;
            });
            let told = findings.iter().map(text).collect::<String>();
            let advises =
                ["free-page-reporting=on", "free-page-reporting\":true", "reclaim_guest_freed_memory"];
            assert!(!advises.iter().any(|line| told.contains(line)), "{number}: {told}");
        }
    }
    let safe = found(|facts| {
        spoil_balloon(facts);
        unread(facts, true);
    });
    assert!(safe.iter().any(|finding| finding.rule == "balloon.free-page-reporting"), "{safe:#?}");
}
