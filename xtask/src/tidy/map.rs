//! ARCHITECTURE.md must name every crate, and in the crate's section every module directly under its `src`.
//!
//! A crate's section has a heading with the crate's directory in back-quotes (`model`, `crates/model` or `memtide-model`).
//! It ends at the next heading of the same or a higher level. A section names a module if it has the module's stem or file name
//! in back-quotes (`units`, `units.rs` or `src/units.rs`). `lib.rs` and `main.rs` need not be named.

use std::collections::{BTreeMap, BTreeSet};

use super::glossary::code_spans;
use super::{Finding, SourceFile, Tree, allows};

const MAP: &str = "ARCHITECTURE.md";

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let crates = modules(tree);
    let Some(map) = tree.file(MAP) else {
        if crates.is_empty() {
            return Vec::new();
        }
        let text = "is missing; it names the crates and their modules".to_owned();
        return vec![Finding { path: MAP.to_owned(), line: 0, text }];
    };
    let mut findings = Vec::new();
    for (name, files) in crates {
        let Some(named) = names_in_section(map, name) else {
            findings.push(map.finding(0, format!("no heading names the crate `crates/{name}`")));
            continue;
        };
        let unnamed =
            files.iter().filter(|(stem, file)| !named.contains(stem.as_str()) && !allows(file.line(1), stem));
        findings.extend(unnamed.map(|(stem, file)| {
            let text = format!("`{stem}` is not named in the section of `crates/{name}` of {MAP}");
            file.finding(0, text)
        }));
    }
    findings
}

/// The modules of each crate: stem and file.
fn modules(tree: &Tree) -> BTreeMap<&str, Vec<(String, &SourceFile)>> {
    let mut crates = BTreeMap::<_, Vec<_>>::new();
    for file in &tree.files {
        let Some((name, inside)) = file.in_crate() else { continue };
        let modules = crates.entry(name).or_default();
        let Some(stem) = inside.strip_prefix("src/").and_then(|path| path.strip_suffix(".rs")) else {
            continue;
        };
        let stem = stem.strip_suffix("/mod").unwrap_or(stem);
        if !stem.contains('/') && stem != "lib" && stem != "main" {
            modules.push((stem.to_owned(), file));
        }
    }
    crates
}

/// The names in back-quotes in the sections of a crate, without directories and endings; `None` if the crate has no section.
fn names_in_section<'map>(map: &'map SourceFile, name: &str) -> Option<BTreeSet<&'map str>> {
    let mut names = None;
    let (mut inside, mut fenced) = (None, false);
    for line in map.text.lines() {
        fenced ^= line.trim_start().starts_with("```");
        match heading_level(line) {
            Some(level) if !fenced => {
                if heads_crate(line, name) {
                    inside = Some(level);
                } else if inside.is_some_and(|started| level <= started) {
                    inside = None;
                }
            }
            _ => {}
        }
        if inside.is_some() {
            names.get_or_insert_with(BTreeSet::new).extend(code_spans(line).map(bare));
        }
    }
    names
}

fn heading_level(line: &str) -> Option<usize> {
    let level = line.bytes().take_while(|byte| *byte == b'#').count();
    (level > 0 && line[level..].starts_with(' ')).then_some(level)
}

fn heads_crate(heading: &str, name: &str) -> bool {
    code_spans(heading).any(|span| {
        let span = span.trim_end_matches('/');
        [span.strip_prefix("crates/"), span.strip_prefix("memtide-"), Some(span)].contains(&Some(name))
    })
}

fn bare(span: &str) -> &str {
    let span = span.trim_end_matches('/');
    let last = span.rsplit_once('/').map_or(span, |(_, last)| last);
    last.strip_suffix(".rs").unwrap_or(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAP_TEXT: &str = "# Architecture\n\n## Crates\n\n### `crates/model`\n\n`units.rs` counts, `src/plan.rs` plans.\n\n\
                            #### Inside `model`\n\n`state`\n\n### `agent`, `load`\n\n`wire`\n\n## Flow\n\n`other`\n";

    fn found(paths: &[&str]) -> Vec<String> {
        let mut files = vec![(MAP, MAP_TEXT)];
        files.extend(paths.iter().map(|path| (*path, "")));
        check(&Tree::of(&files)).into_iter().map(|finding| finding.to_string()).collect()
    }

    #[test]
    fn named_modules_pass() {
        let paths = ["units", "plan", "state", "lib"].map(|stem| format!("crates/model/src/{stem}.rs"));
        assert_eq!(found(&paths.each_ref().map(String::as_str)), Vec::<String>::new());
        assert_eq!(found(&["crates/agent/src/wire.rs", "crates/load/src/wire.rs"]), Vec::<String>::new());
    }

    #[test]
    fn a_module_named_in_another_section_only_is_found() {
        assert_eq!(
            found(&["crates/model/src/other.rs"]),
            [
                "crates/model/src/other.rs: `other` is not named in the section of `crates/model` of ARCHITECTURE.md"
            ]
        );
        assert_eq!(found(&["crates/model/src/wire.rs"]).len(), 1);
    }

    #[test]
    fn a_module_that_is_a_directory_counts_and_its_parts_do_not() {
        assert_eq!(found(&["crates/model/src/deep/mod.rs", "crates/model/src/deep/part.rs"]).len(), 1);
    }

    #[test]
    fn a_crate_without_a_section_is_found_once() {
        let all = found(&["crates/sim/Cargo.toml", "crates/sim/src/fault.rs"]);
        assert_eq!(all, ["ARCHITECTURE.md: no heading names the crate `crates/sim`"]);
    }

    #[test]
    fn a_missing_map_is_said_once() {
        assert_eq!(check(&Tree::of(&[("crates/a/src/lib.rs", ""), ("crates/b/src/lib.rs", "")])).len(), 1);
    }
}
