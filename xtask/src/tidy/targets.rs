//! The commands in the documentation must exist: README.md shows `make demo` and `make test`, and every `make TARGET`
//! in README.md or CONTRIBUTING.md is a target of the Makefile.
//!
//! A command is shown if a code span or a line of a fenced block begins with `make`, with or without a prompt `$ `.

use std::collections::BTreeSet;

use super::glossary::code_spans;
use super::{Finding, SourceFile, Tree};

const README: &str = "README.md";
const PROMISED: [&str; 2] = ["demo", "test"];

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let targets = tree.file("Makefile").map(targets).unwrap_or_default();
    let mut findings = Vec::new();
    for file in [README, "CONTRIBUTING.md"].into_iter().filter_map(|path| tree.file(path)) {
        let unknown = shown(file).into_iter().filter(|(_, target)| !targets.contains(target));
        findings.extend(
            unknown
                .map(|(line, target)| file.finding(line, format!("the Makefile has no target `{target}`"))),
        );
    }
    let readme = tree.file(README).map(shown).unwrap_or_default();
    for target in PROMISED.iter().filter(|target| !readme.iter().any(|(_, shown)| shown == *target)) {
        let text = format!("does not show `make {target}`");
        findings.push(Finding { path: README.to_owned(), line: 0, text });
    }
    findings
}

/// The targets of a makefile: the words before a colon that does not begin an assignment.
fn targets(makefile: &SourceFile) -> BTreeSet<&str> {
    let rules = makefile.text.lines().filter_map(|line| {
        let (names, rest) = line.split_once(':')?;
        let is_rule =
            !line.starts_with(['\t', '#', '.', ' ']) && !rest.starts_with(['=', ':']) && !names.contains('=');
        is_rule.then_some(names)
    });
    rules.flat_map(str::split_whitespace).collect()
}

/// The targets of the `make` commands in a text, each with its line.
fn shown(file: &SourceFile) -> Vec<(usize, &str)> {
    let (mut found, mut fenced) = (Vec::new(), false);
    for (number, line) in file.lines() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        } else if fenced {
            found.extend(target_of(line).map(|target| (number, target)));
        } else {
            found.extend(code_spans(line).filter_map(target_of).map(|target| (number, target)));
        }
    }
    found
}

/// The first target of a `make` command. Options and variables are not targets.
fn target_of(command: &str) -> Option<&str> {
    let command = command.trim_start();
    let command = command.strip_prefix("$ ").unwrap_or(command);
    let arguments = command.strip_prefix("sudo ").unwrap_or(command).strip_prefix("make ")?;
    let words = arguments.split('#').next().unwrap_or_default().split_whitespace();
    let mut targets = words.filter(|word| !word.starts_with('-') && !word.contains('='));
    targets.next()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAKEFILE: &str =
        "PREFIX ?= /usr\nBIN := a:b\n.PHONY: all\ndemo: build ## Shows it\n\tcargo run\ntest bench:\n";

    fn found(readme: &str) -> Vec<String> {
        let tree = Tree::of(&[("Makefile", MAKEFILE), (README, readme)]);
        check(&tree).into_iter().map(|finding| finding.to_string()).collect()
    }

    #[test]
    fn shown_commands_that_exist_pass() {
        assert_eq!(
            found("```sh\n$ make demo   # five minutes\n```\nthen `make test`\n"),
            Vec::<String>::new()
        );
        assert_eq!(found("`make -j2 PREFIX=/opt demo` `sudo make test`\n"), Vec::<String>::new());
    }

    #[test]
    fn an_unknown_target_is_found_where_it_is_shown() {
        let all = found("`make demo` `make test`\n\n    make sure of it\n\n`make tset`\n");
        assert_eq!(all, ["README.md:5: the Makefile has no target `tset`"]);
    }

    #[test]
    fn both_commands_must_be_shown() {
        assert_eq!(found("`make demo`\n"), ["README.md: does not show `make test`"]);
        assert_eq!(check(&Tree::default()).len(), 2);
    }
}
