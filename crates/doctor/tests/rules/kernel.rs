//! The host's kernel.

use super::*;

#[test]
fn the_hosts_kernel() {
    gives(WARNING, "kernel.no-pressure", "psi=1", |facts| {
        facts.host.pressure = Sight::Unseen(Absence::Unsupported)
    });
    // 100,000 pages take a quarter of a second, then 20 ms of pause follow: 92 % of a CPU.
    gives(WARNING, "ksm.busy", "about 92 % of a CPU", |facts| {
        ksm(facts).run = KsmRun::Scanning;
        ksm(facts).pages_to_scan = 100_000;
    });
    gives(HINT, "kernel.old", "4.19", |facts| facts.host.release = Some("4.19.0-27-amd64".to_owned()));
    gives(HINT, "thp.never", "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled", |facts| {
        thp(facts).enabled = "never".to_owned()
    });
    gives(HINT, "thp.stalls", "echo defer+madvise", |facts| thp(facts).defrag = "always".to_owned());
    gives(HINT, "ksm.unmerges", "echo 0 > /sys/kernel/mm/ksm/run", |facts| ksm(facts).run = KsmRun::Unmerged);
    // 2 GiB are 524,288 pages: at 1 page in 20 ms 10,485 s.
    gives(HINT, "ksm.slow", "takes 174 minutes", |facts| {
        ksm(facts).run = KsmRun::Scanning;
        ksm(facts).pages_to_scan = 1;
    });
    gives(HINT, "ksm.guest-off", "-machine mem-merge=on", |facts| {
        ksm(facts).run = KsmRun::Scanning;
        equipment(facts).mem_merge = false;
    });
    // Between two bursts, and where somebody else switches it on and off, nothing scans.
    gives(HINT, "ksm.guest-off", "-machine mem-merge=on", |facts| {
        facts.host.ksm_saves = Some(mib(1));
        equipment(facts).mem_merge = false;
    });
    gives(HINT, "ksm.guest-off", "-machine mem-merge=on", |facts| {
        facts.config.ksm.mode = KsmMode::Govern;
        facts.config.classes.get_mut(Config::DEFAULT_CLASS).unwrap().share = true;
        equipment(facts).mem_merge = false;
    });
    // What the process has marked counts more than its command line, and what its VMM tells counts most.
    gives(HINT, "ksm.guest-off", "-machine mem-merge=on", |facts| {
        facts.host.ksm_saves = Some(mib(1));
        first(facts).marked = Some(false);
    });
    let told = found(|facts| {
        facts.host.ksm_saves = Some(mib(1));
        equipment(facts).mem_merge = false;
        first(facts).marked = Some(false);
        first(facts).told.merges = Reading::now(true);
    });
    assert_eq!(told, []);
    let share = |facts: &mut Facts| {
        facts.config.classes.get_mut(Config::DEFAULT_CLASS).unwrap().share = true;
    };
    gives(HINT, "ksm.guest-unmergeable", "share=on", |facts| {
        share(facts);
        first(facts).process.ram =
            vec![MemoryBlock { backing: Backing::Memfd, shared: true, ..MemoryBlock::default() }];
    });
    let huge = found(|facts| {
        share(facts);
        first(facts).memory_files = vec![("/dev/hugepages/web".into(), Some("hugetlbfs".to_owned()))];
    });
    let huge = huge.iter().find(|finding| finding.rule == "ksm.guest-unmergeable").unwrap();
    assert!(text(huge).contains("hugetlbfs pages: KSM cannot merge it"), "{huge:#?}");
    gives(HINT, "ksm.shares", "share = false", |facts| {
        facts.config.ksm.mode = KsmMode::Govern;
        facts.config.classes.get_mut(Config::DEFAULT_CLASS).unwrap().share = true;
    });
    // memtide cannot change what it does not manage.
    let foreign = found(|facts| {
        facts.config.ksm.mode = KsmMode::Govern;
        facts.guests.iter_mut().for_each(|guest| guest.managed = false);
    });
    let shares = foreign.iter().find(|finding| finding.rule == "ksm.shares").unwrap();
    assert!(
        text(shares).contains("-machine mem-merge=off") && !text(shares).contains("share = false"),
        "{shares:#?}"
    );
    gives(HINT, "tcg.code-buffer", "tb-size=64", |facts| first(facts).process.accel = Accel::Tcg);
    let shared = found(|facts| {
        thp(facts).enabled = "never".to_owned();
        for guest in &mut facts.guests {
            guest.process.ram =
                vec![MemoryBlock { backing: Backing::Memfd, shared: true, ..MemoryBlock::default() }];
        }
    });
    assert_eq!(shared, [], "anonymous huge pages are nothing to shared memory");
}
