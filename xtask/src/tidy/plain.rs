//! Plain English: phrases that read like a translation, and what to write instead.
//!
//! Documents, sources and settings are searched, whatever the case; the changelog and these rules are not.

use super::{Finding, SourceFile, Tree, allows};

/// A phrase, and what to write instead.
const PHRASES: [(&str, &str); 17] = [
    ("come to cost", "worst case"),
    ("comes to cost", "worst case"),
    ("so many", "this many, or the number"),
    ("whoever", "anyone who"),
    ("for ever", "forever"),
    ("mended", "fixed"),
    ("had back", "reclaimed, or returned"),
    ("cannot be had", "is not available"),
    ("all else", "everything else"),
    ("for so long", "this long"),
    ("give for", "give memory to, or for a named use"),
    ("gives for", "gives memory to, or for a named use"),
    ("nobody gives", "no guest gives, or memtide takes nothing"),
    ("means it", "what exactly is wanted"),
    ("is not believed", "what it does not affect"),
    ("are right now", "are due now"),
    ("what needs", "the thing that needs it"),
];

const SKIPPED: [&str; 2] = ["CHANGELOG.md", "xtask/src/tidy/plain.rs"];

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let searched = tree.files.iter().filter(|file| !SKIPPED.contains(&file.path.as_str()));
    searched.flat_map(stilted).collect()
}

fn stilted(file: &SourceFile) -> impl Iterator<Item = Finding> {
    file.lines().flat_map(move |(number, line)| {
        let lower = line.to_lowercase();
        let found = PHRASES.into_iter().filter(move |(phrase, _)| has_words(&lower, phrase));
        let found = found.filter(move |(phrase, _)| !allows(line, phrase));
        found.map(move |(phrase, better)| file.finding(number, format!("`{phrase}`: write {better}")))
    })
}

/// Whether `line` has these words, not as parts of others.
fn has_words(line: &str, words: &str) -> bool {
    let is_part = |next: Option<char>| next.is_some_and(|next| next.is_alphanumeric() || next == '_');
    line.match_indices(words).any(|(at, _)| {
        !is_part(line[..at].chars().next_back()) && !is_part(line[at + words.len()..].chars().next())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stilted_phrases_are_found_as_whole_words() {
        let count = |path: &str, text: &str| check(&Tree::of(&[(path, text)])).len();
        assert_eq!(count("docs/a.md", "Guests can come to cost 3 GiB. So many guests fit.\n"), 2);
        assert_eq!(count("crates/x/src/a.rs", "/// Kept for ever.\n"), 1);
        assert_eq!(count("a.md", "Whoever reads this: tidy-allow: whoever\n"), 0);
        assert_eq!(count("a.md", "recommended, also manyfold, whoevers\n"), 0);
        assert_eq!(count("CHANGELOG.md", "mended\n"), 0);
    }
}
