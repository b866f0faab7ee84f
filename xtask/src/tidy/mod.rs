//! Rules of style that neither rustfmt nor clippy knows.
//!
//! Each rule is one file: a function from the project's texts ([`Tree`]) to its findings ([`Finding`]). The module doc of a
//! rule describes the rule and the method of the check. A line that must break a rule says so: `tidy-allow: WORD` (several
//! words with commas) in a comment on that line. `WORD` is the word that the finding quotes.

mod circles;
mod doors;
mod functions;
mod glossary;
mod map;
mod markers;
mod plain;
mod purity;
mod targets;
mod tested;
mod tree;
mod whitespace;

use std::fmt;
use std::path::{Path, PathBuf};

pub use tree::{SourceFile, Tree};

/// A place that breaks a rule.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Finding {
    /// The file, relative to the project's directory.
    pub path: String,
    /// The line, from 1; 0 if the finding is about the whole file.
    pub line: usize,
    /// The problem and its fix.
    pub text: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "{}: {}", self.path, self.text),
            line => write!(f, "{}:{line}: {}", self.path, self.text),
        }
    }
}

/// Why the project's texts could not be read.
#[derive(Debug, thiserror::Error)]
pub enum TidyError {
    /// A file or directory could not be read, or is not UTF-8 text.
    #[error("{}", path.display())]
    File {
        /// The file or directory.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
}

/// All places in the project at `root` that break a rule, sorted.
///
/// # Errors
/// If a file cannot be read.
pub fn run(root: &Path) -> Result<Vec<Finding>, TidyError> {
    Ok(check(&Tree::read(root)?))
}

/// All places in `tree` that break a rule, sorted.
#[must_use]
pub fn check(tree: &Tree) -> Vec<Finding> {
    let rules: [fn(&Tree) -> Vec<Finding>; 11] = [
        circles::check,
        doors::check,
        functions::check,
        glossary::check,
        map::check,
        markers::check,
        plain::check,
        purity::check,
        targets::check,
        tested::check,
        whitespace::check,
    ];
    let mut findings: Vec<Finding> = rules.iter().flat_map(|rule| rule(tree)).collect();
    findings.sort();
    findings
}

/// Whether a line is allowed to use `word`.
fn allows(line: &str, word: &str) -> bool {
    line.split_once("tidy-allow:").is_some_and(|(_, words)| {
        let words = words.trim_end().trim_end_matches("-->").trim_end_matches("*/");
        words.split(',').any(|allowed| allowed.trim() == word)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_allows_the_words_it_names() {
        assert!(allows("let x = 1; // tidy-allow: zorp", "zorp"));
        assert!(allows("<!-- tidy-allow: blub, zorp -->", "zorp"));
        assert!(allows("# tidy-allow: big zorp", "big zorp"));
        assert!(!allows("// tidy-allow: zorps", "zorp"));
        assert!(!allows("// zorp", "zorp"));
    }

    #[test]
    fn a_finding_prints_as_editors_read_it() {
        let mut finding = Finding { path: "a.rs".to_owned(), line: 3, text: "too long".to_owned() };
        assert_eq!(finding.to_string(), "a.rs:3: too long");
        finding.line = 0;
        assert_eq!(finding.to_string(), "a.rs: too long");
    }

    #[test]
    fn findings_of_several_rules_are_sorted_by_place() {
        let tree =
            Tree::of(&[("crates/x/src/lib.rs", "let a = 1; \nmod b;"), ("README.md", "`make demo`\n")]);
        let places: Vec<_> = check(&tree).into_iter().map(|finding| (finding.path, finding.line)).collect();
        assert!(places.is_sorted(), "{places:?}");
        assert!(places.len() > 3);
    }
}
