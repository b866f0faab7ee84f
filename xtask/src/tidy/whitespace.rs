//! No white space at the end of a line, no tabs, and one line end at the end of a file.
//!
//! A Makefile needs its tabs. Captured files that tests read are not texts of the project, so they are not checked.

use super::{Finding, SourceFile, Tree};

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    tree.files.iter().flat_map(file_findings).collect()
}

fn file_findings(file: &SourceFile) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (number, line) in (1..).zip(file.text.split('\n')) {
        if line.ends_with(char::is_whitespace) {
            findings.push(file.finding(number, "white space at the end of the line".to_owned()));
        }
        if line.contains('\t') && !file.is("Makefile") {
            findings.push(file.finding(number, "a tab; use spaces".to_owned()));
        }
    }
    if !file.text.is_empty() && (!file.text.ends_with('\n') || file.text.ends_with("\n\n")) {
        findings.push(file.finding(0, "must end with exactly one line end".to_owned()));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(path: &str, text: &str) -> Vec<usize> {
        check(&Tree::of(&[(path, text)])).into_iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn finds_trailing_blanks_and_carriage_returns() {
        assert_eq!(lines("a.md", "one\ntwo \nthree\r\n"), [2, 3]);
    }

    #[test]
    fn finds_tabs_but_in_a_makefile() {
        assert_eq!(lines("a.rs", "\tlet a = 1;\n"), [1]);
        assert_eq!(lines("Makefile", "all:\n\ttrue\n"), Vec::<usize>::new());
    }

    #[test]
    fn asks_for_one_line_end() {
        assert_eq!(lines("a.rs", "fn a() {}"), [0]);
        assert_eq!(lines("a.rs", "fn a() {}\n\n"), [0]);
        assert_eq!(lines("a.rs", ""), Vec::<usize>::new());
    }
}
