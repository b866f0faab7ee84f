//! Only the doors connect to sockets and open files: everything else asks them.
//!
//! A user of the host names sockets and files, and may exchange them at any moment. What is named is looked at once, judged and used through the
//! same descriptor, in the modules that do only this. The crates that meet strangers open nothing elsewhere; what a door opens by itself is the
//! kernel's or memtide's own. Tests and stand-ins are not checked.

use super::{Finding, SourceFile, Tree, allows};

/// The crates that meet strangers.
const CRATES: [&str; 4] = ["audit", "daemon", "doctor", "vmm"];

/// The doors, and what is behind each.
const DOORS: [(&str, &str); 9] = [
    ("crates/vmm/src/qemu/socket.rs", "monitors and agents' ports"),
    ("crates/vmm/src/uml/replies.rs", "consoles, their answers, terminals"),
    ("crates/daemon/src/endpoint.rs", "the daemon's own socket"),
    ("crates/daemon/src/guest_locks.rs", "the daemon's own directory"),
    ("crates/daemon/src/helpers/journal.rs", "the helper's socket, which is root's"),
    ("crates/daemon/src/helpers/mod.rs", "the helpers' sockets, which are root's"),
    ("crates/doctor/src/facts/small.rs", "the kernel's files"),
    ("crates/audit/src/merging.rs", "the kernel's files"),
    ("crates/audit/src/pages.rs", "the kernel's files"),
];

/// What opens or connects.
const WORDS: [&str; 10] = [
    "UnixStream::connect",
    "UnixDatagram::connect",
    "net::connect",
    "File::open",
    "File::create",
    "OpenOptions",
    "fs::open",
    "openat(",
    "fs::read(",
    "read_to_string(",
];

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    tree.files.iter().filter(|file| is_checked(file)).flat_map(opens).collect()
}

fn is_checked(file: &SourceFile) -> bool {
    let is_code = |(name, path): (&str, &str)| {
        CRATES.contains(&name) && path.starts_with("src/") && path.ends_with(".rs")
    };
    file.in_crate().is_some_and(is_code) && !DOORS.iter().any(|(door, _)| *door == file.path)
}

/// Whether the rest of a file is tests.
fn begins_tests(line: &str) -> bool {
    line.starts_with("#[cfg(test)]") || line.starts_with("#[cfg(all(test,")
}

fn opens(file: &SourceFile) -> Vec<Finding> {
    let code = file.lines().take_while(|(_, line)| !begins_tests(line));
    let code = code.filter(|(_, line)| !line.trim_start().starts_with("//"));
    code.flat_map(|(number, line)| {
        let found =
            WORDS.iter().filter(|word| line.contains(*word) && !allows(line, word.trim_end_matches('(')));
        found.map(move |word| {
            let word = word.trim_end_matches('(');
            file.finding(
                number,
                format!("`{word}`: a user may have named it; ask one of the doors (xtask/src/tidy/doors.rs)"),
            )
        })
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(path: &str, text: &str) -> Vec<usize> {
        check(&Tree::of(&[(path, text)])).into_iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn only_doors_open_and_connect() {
        let text = "// File::open\nlet a = File::open(path);\nlet b = UnixStream::connect(path); // tidy-allow: UnixStream::connect\n\
                    #[cfg(test)]\nmod tests { fn c() { fs::read(path) } }\n";
        assert_eq!(lines("crates/vmm/src/qemu/other.rs", text), [2]);
        for path in [
            "crates/vmm/src/qemu/socket.rs",
            "crates/stand-in/src/qemu/mod.rs",
            "crates/sim/src/run.rs",
            "crates/vmm/tests/it.rs",
        ] {
            assert_eq!(lines(path, text), Vec::<usize>::new(), "{path}");
        }
    }

    #[test]
    fn each_door_is_there() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        for (door, _) in DOORS {
            assert!(root.join(door).is_file(), "{door}");
        }
    }
}
