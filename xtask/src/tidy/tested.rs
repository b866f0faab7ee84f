//! What docs/security.md promises names its tests, and each of them is there.
//!
//! A promise ends with `[Tested: …]`: names of tests between backquotes, or, with double quotes around it, the words of a check of the package's test. A
//! name counts if a function or a trial has it.

use std::collections::BTreeSet;

use super::{Finding, SourceFile, Tree};

/// The texts whose promises are tested.
const PROMISES: &str = "docs/security.md";
/// The package's test.
const CHECKS: &str = "packaging/test-in-guest.sh";
/// What introduces the names.
const TESTED: &str = "[Tested: ";

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let Some(promises) = tree.files.iter().find(|file| file.path == PROMISES) else { return Vec::new() };
    let checks = tree.files.iter().find(|file| file.path == CHECKS).map_or("", |file| &file.text);
    let tests: BTreeSet<&str> = tree.files.iter().filter(|file| file.is(".rs")).flat_map(tests_of).collect();
    let is_there = |name: &str| match name.strip_prefix('"').and_then(|name| name.strip_suffix('"')) {
        Some(words) => checks.contains(&format!("check \"{words}\"")),
        None => tests.contains(name),
    };
    let missing = names(&promises.text).into_iter().filter(|(_, name)| !is_there(name));
    missing.map(|(line, name)| promises.finding(line, format!("there is no test `{name}`"))).collect()
}

/// The names between backquotes in each mark, with their lines, from 1.
fn names(text: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    for (start, _) in text.match_indices(TESTED) {
        let mark = &text[start..];
        let mark = &mark[..mark.find(']').unwrap_or(mark.len())];
        let mut at = start;
        for (nth, part) in mark.split('`').enumerate() {
            if nth % 2 == 1 {
                found.push((text[..at].matches('\n').count() + 1, part));
            }
            at += part.len() + 1;
        }
    }
    found
}

/// The names of functions, and what stands between double quotes: trials have their names there.
fn tests_of(file: &SourceFile) -> impl Iterator<Item = &str> {
    let is_name =
        |name: &&str| !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    let functions =
        file.text.split("fn ").skip(1).filter_map(|rest| rest.split_once('(').map(|(name, _)| name));
    let trials = file.text.split('"');
    functions.chain(trials).filter(is_name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_named_test_must_be_there() {
        let promises = "It holds. [Tested: `holds`, `is_tried`]\nAnd more. [Tested: `\"it stays\"`,\n`gone`, `\"it goes\"`] `other`\n";
        let tree = Tree::of(&[
            (PROMISES, promises),
            ("crates/a/src/lib.rs", "#[test]\nfn holds() {}\n"),
            ("crates/a/tests/b.rs", "trial(\"is_tried\", run)"),
            (CHECKS, "check \"it stays\" true\n"),
        ]);
        let found: Vec<_> = check(&tree).into_iter().map(|finding| (finding.line, finding.text)).collect();
        assert_eq!(
            found,
            [(3, "there is no test `gone`".to_owned()), (3, "there is no test `\"it goes\"`".to_owned())]
        );
    }
}
