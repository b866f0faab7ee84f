//! The files that `make install` and `make uninstall` leave.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// All files and directories below `directory`, as relative paths.
fn tree(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut waiting = vec![directory.to_owned()];
    while let Some(next) = waiting.pop() {
        for entry in fs::read_dir(next).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                waiting.push(path.clone());
            }
            found.push(path.strip_prefix(directory).unwrap().to_owned());
        }
    }
    found.sort();
    found
}

fn make(goal: &str, built: &Path, root: &Path) {
    let output = Command::new("make")
        .args(["--silent", "-C", concat!(env!("CARGO_MANIFEST_DIR"), "/../.."), goal])
        .arg(format!("DESTDIR={}", root.display()))
        .env("CARGO_TARGET_DIR", built)
        // Flags of a surrounding `make test` are not for this one.
        .env_remove("MAKEFLAGS")
        .output()
        .unwrap();
    assert!(output.status.success(), "{goal}: {}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn uninstalling_leaves_the_configuration_and_what_was_there_before() {
    let directory = tempfile::tempdir().unwrap();
    let (built, root) = (directory.path().join("built"), directory.path().join("root"));
    fs::create_dir_all(built.join("release")).unwrap();
    for program in ["memtide", "memtide-load"] {
        fs::copy("/bin/true", built.join("release").join(program)).unwrap();
    }
    let manual =
        Command::new(env!("CARGO_BIN_EXE_memtide-manual")).arg(built.join("manual")).status().unwrap();
    assert!(manual.success());
    fs::create_dir_all(root.join("usr/local/share/man")).unwrap();
    fs::create_dir_all(root.join("usr/local/bin")).unwrap();
    let before = tree(&root);

    make("install", &built, &root);
    assert!(root.join("usr/local/share/man/man1/memtide-hold.1").exists());
    let scrape = root.join("usr/local/share/memtide/prometheus/memtide-scrape.yml");
    let rules = "/usr/local/share/memtide/prometheus/memtide.rules.yml";
    assert!(fs::read_to_string(scrape).unwrap().contains(&format!("- {rules}\n")));
    assert!(root.join(rules.trim_start_matches('/')).exists());
    // An upgrade remembers the directories created before.
    make("install", &built, &root);
    make("uninstall", &built, &root);
    let configuration = ["etc", "etc/memtide", "etc/memtide/memtide.toml"].map(PathBuf::from);
    let mut expected = [before, configuration.to_vec()].concat();
    expected.sort();
    assert_eq!(tree(&root), expected);
}
