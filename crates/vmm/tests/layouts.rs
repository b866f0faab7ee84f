//! How people start QEMU (`layouts.txt`), and everything that memtide reads there.
//!
//! To add a layout, write its command line there, run this test, and check the facts that it prints.

use std::fmt::Write;

use memtide_model::Bytes;
use memtide_vmm::qemu::{Arguments, Backing, CommandLine, Equipment, MemoryBlock, MemoryRole, SetsBalloon};

/// One layout of the table.
#[derive(Default)]
struct Layout {
    title: String,
    /// The public source after which it was made.
    source: String,
    words: Vec<String>,
    /// The content of the file of options.
    file: String,
    facts: Vec<String>,
}

fn table() -> Vec<Layout> {
    let mut layouts: Vec<Layout> = Vec::new();
    for line in include_str!("layouts.txt").lines() {
        if let Some(title) = line.strip_prefix("== ") {
            layouts.push(Layout { title: title.to_owned(), ..Layout::default() });
            continue;
        }
        // Before the first layout, the table explains itself.
        let Some(layout) = layouts.last_mut() else { continue };
        if let Some(source) = line.strip_prefix("# ") {
            source.clone_into(&mut layout.source);
        } else if let Some(option) = line.strip_prefix('|') {
            layout.file.push_str(option.trim());
            layout.file.push('\n');
        } else if let Some(fact) = line.strip_prefix("= ") {
            layout.facts.push(fact.to_owned());
        } else {
            layout.words.extend(words(line));
        }
    }
    layouts
}

/// The words of a line of a shell, with quotes as they are.
fn words(line: &str) -> Vec<String> {
    let (mut words, mut word, mut quoted) = (Vec::new(), String::new(), false);
    for c in line.chars() {
        match c {
            '\'' => quoted = !quoted,
            ' ' if !quoted => words.push(std::mem::take(&mut word)),
            c => word.push(c),
        }
    }
    words.push(word);
    words.retain(|word| !word.is_empty());
    words
}

/// Everything that is read, one fact a line.
fn facts(layout: &Layout) -> Vec<String> {
    let cmdline = layout.words.join("\0") + "\0";
    let file = || (!layout.file.is_empty()).then(|| layout.file.clone().into_bytes());
    let arguments = Arguments::read(cmdline.as_bytes(), |_| file());
    let (line, equipment) = (CommandLine::of(&arguments), Equipment::of(&arguments));
    let owner = match line.launcher.sets_balloon() {
        SetsBalloon::No => "nobody else sets the balloon",
        SetsBalloon::Perhaps => "it may set the balloon",
        SetsBalloon::Yes => "it owns the balloon",
    };
    let mut facts = vec![format!("launcher {}; {owner}", line.launcher.name())];
    facts.extend(line.of_xen.then(|| "no guest: Xen".to_owned()));
    facts.extend(line.no_machine.then(|| "no guest: no machine".to_owned()));
    facts.push(format!("name {}", line.name.as_deref().unwrap_or("-")));
    facts.push(match line.memory {
        Some(memory) => format!("size {} ({})", mib(Some(memory)), line.memory_source.words()),
        None => "size unknown".to_owned(),
    });
    facts.extend(line.ram.iter().chain(&line.device_memory).map(block));
    facts.extend(equipment.withheld().map(|why| format!("withheld {why:?}")));
    facts.extend(equipment.is_filled_at_start().then(|| "filled at the start".to_owned()));
    facts.push(match &equipment.balloon {
        None => "balloon none".to_owned(),
        Some(balloon) => {
            let reports = if balloon.free_page_reporting { ", reports free pages" } else { "" };
            let deflates = if balloon.deflate_on_oom { ", deflates" } else { "" };
            format!("balloon {}{reports}{deflates}", balloon.driver)
        }
    });
    facts.extend(monitors(&line));
    facts
}

fn monitors(line: &CommandLine) -> Vec<String> {
    let unix = line.monitors.iter().map(|path| path.display().to_string());
    let passed = line.passed_monitors.iter().map(|number| format!("descriptor {number}"));
    let all: Vec<String> = unix.chain(passed).chain(line.tcp_monitors.clone()).collect();
    if all.is_empty() {
        return vec!["monitor none".to_owned()];
    }
    all.iter().map(|monitor| format!("monitor {monitor}")).collect()
}

fn block(block: &MemoryBlock) -> String {
    let role = match block.role {
        MemoryRole::Base => "base",
        MemoryRole::Dimm => "DIMM",
        MemoryRole::VirtioMem => "virtio-mem",
        MemoryRole::Unused => "unused",
        MemoryRole::Nvdimm => "NVDIMM",
        MemoryRole::VirtioPmem => "virtio-pmem",
        MemoryRole::Cxl => "CXL",
        MemoryRole::Ivshmem => "ivshmem",
        MemoryRole::Enclave => "enclave",
        MemoryRole::Firmware => "firmware",
        MemoryRole::Device => "device",
    };
    let backing = match &block.backing {
        Backing::Anonymous => "anonymous".to_owned(),
        Backing::Memfd => "memfd".to_owned(),
        Backing::Shm => "shm".to_owned(),
        Backing::File(path) => path.display().to_string(),
        Backing::Epc => "EPC".to_owned(),
    };
    let kind = if block.role.is_ram() { "RAM" } else { "memory" };
    let mut text = format!("{kind} {role} {} {backing}", mib(block.size));
    text.push_str(if block.shared { " shared" } else { " private" });
    text.push_str(if block.huge { " huge" } else { "" });
    text.push_str(if block.prealloc { " prealloc" } else { "" });
    if !block.nodes.is_empty() {
        text.push_str(&format!(" on nodes {:?}", block.nodes));
    }
    text
}

fn mib(size: Option<Bytes>) -> String {
    size.map_or("?".to_owned(), |size| format!("{}M", size.whole_mib()))
}

#[test]
fn every_layout_is_read() {
    let layouts = table();
    let mut wrong = String::new();
    for layout in &layouts {
        let seen = facts(layout);
        if seen != layout.facts {
            let seen: String = seen.iter().map(|fact| format!("= {fact}\n")).collect();
            write!(wrong, "\n== {}\n{seen}", layout.title).unwrap();
        }
    }
    assert!(wrong.is_empty(), "read otherwise than the table says:{wrong}");
}

#[test]
fn the_table_has_many_layouts_with_their_sources() {
    let layouts = table();
    assert!(layouts.len() >= 45, "{}", layouts.len());
    assert!(layouts.iter().filter(|layout| !layout.source.starts_with("cases/")).count() >= 40);
    for layout in &layouts {
        assert!(!layout.source.is_empty() && !layout.words.is_empty(), "{}", layout.title);
    }
    let titles: std::collections::BTreeSet<_> = layouts.iter().map(|layout| &layout.title).collect();
    assert_eq!(titles.len(), layouts.len(), "each title once");
}

#[test]
fn two_dashes_mean_the_same_as_one() {
    for layout in table() {
        let doubled = layout.words.iter().map(|word| match word.strip_prefix('-') {
            // A dash alone, and two dashes, stay.
            Some(rest) if !rest.is_empty() && !rest.starts_with('-') => format!("-{word}"),
            _ => word.clone(),
        });
        let other = Layout { words: doubled.collect(), file: layout.file.clone(), ..Layout::default() };
        assert_eq!(facts(&other), facts(&layout), "{}", layout.title);
    }
}
