//! One term, one meaning: nothing uses the words that GLOSSARY.md bans.
//!
//! The section `## Banned words` of GLOSSARY.md has one list entry for each meaning: the banned words in back-quotes, a
//! dash, and the word to use instead. The check covers all Rust sources (comments, strings and names) and prose.
//! GLOSSARY.md and CHANGELOG.md may quote the words. The check is case-sensitive, and finds a word only if no letter
//! touches it. A digit may precede the word, and `_` separates words, so a banned `zorp` is found
//! in `3zorp` and `max_zorp`, not in `zorps`.

use super::{Finding, SourceFile, Tree, allows};

const GLOSSARY: &str = "GLOSSARY.md";
const HEADING: &str = "## Banned words";

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let Some(glossary) = tree.file(GLOSSARY) else {
        return vec![missing(&format!(
            "is missing; its section `{HEADING}` names the words that are not used"
        ))];
    };
    let (banned, mut findings) = banned_words(glossary);
    for file in tree.files.iter().filter(|file| is_checked(file)) {
        for (number, line) in file.lines() {
            let used = banned.iter().filter(|ban| contains_word(line, &ban.word) && !allows(line, &ban.word));
            findings.extend(used.map(|ban| file.finding(number, format!("`{}`: {}", ban.word, ban.instead))));
        }
    }
    findings
}

struct Ban {
    word: String,
    instead: String,
}

fn missing(text: &str) -> Finding {
    Finding { path: GLOSSARY.to_owned(), line: 0, text: text.to_owned() }
}

fn is_checked(file: &SourceFile) -> bool {
    file.is(".rs") || (file.is(".md") && !file.is(GLOSSARY) && !file.is("CHANGELOG.md"))
}

/// The banned words, and findings for entries of the section that cannot be parsed.
fn banned_words(glossary: &SourceFile) -> (Vec<Ban>, Vec<Finding>) {
    let mut lines = glossary.lines().skip_while(|(_, line)| line.trim_end() != HEADING);
    if lines.next().is_none() {
        return (Vec::new(), vec![missing(&format!("has no section `{HEADING}`"))]);
    }
    let section = lines.take_while(|(_, line)| !line.starts_with("# ") && !line.starts_with("## "));
    let (mut banned, mut findings) = (Vec::new(), Vec::new());
    for (number, entry) in section.filter_map(|(number, line)| Some((number, line.strip_prefix("- ")?))) {
        match entry.split_once(" — ").or_else(|| entry.split_once(" - ")) {
            Some((words, instead)) if words.contains('`') && !instead.trim().is_empty() => {
                let words = code_spans(words).filter(|word| !word.is_empty());
                let instead = instead.trim();
                banned.extend(words.map(|word| Ban { word: word.to_owned(), instead: instead.to_owned() }));
            }
            _ => findings.push(glossary.finding(number, "write: - `WORD` — what to say instead".to_owned())),
        }
    }
    (banned, findings)
}

/// The texts between back-quotes.
pub(super) fn code_spans(line: &str) -> impl Iterator<Item = &str> {
    line.split('`').skip(1).step_by(2)
}

fn contains_word(line: &str, word: &str) -> bool {
    line.match_indices(word).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let after = line[at + word.len()..].chars().next();
        !before.is_some_and(char::is_alphabetic) && !after.is_some_and(char::is_alphanumeric)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: &str = "# Glossary\n\n## Banned words\n\n- `zorp` — say plim\n- `up`, `very down` - say inflate\n\n\
                        ## Terms\n\n- `target` — memory the guest keeps\n";

    fn found(path: &str, text: &str) -> Vec<String> {
        let tree = Tree::of(&[("GLOSSARY.md", LIST), (path, text)]);
        check(&tree).into_iter().map(|finding| finding.to_string()).collect()
    }

    #[test]
    fn finds_comments_strings_and_names() {
        let text = "// a zorp\nlet a = \"3zorp\";\nlet max_zorp = 1;\n";
        let all = found("crates/a/src/a.rs", text);
        assert_eq!(all.len(), 3);
        assert_eq!(all[0], "crates/a/src/a.rs:1: `zorp`: say plim");
    }

    #[test]
    fn a_word_is_whole_and_capitals_count() {
        assert_eq!(found("README.md", "zorps Zorp azorp zorp2 update\n"), Vec::<String>::new());
        assert_eq!(found("README.md", "zorp/s\n").len(), 1);
        assert_eq!(found("README.md", "it goes very down.\n"), ["README.md:1: `very down`: say inflate"]);
    }

    #[test]
    fn another_section_bans_nothing() {
        assert_eq!(found("README.md", "the target\n"), Vec::<String>::new());
    }

    #[test]
    fn quoting_places_are_left_alone() {
        assert_eq!(found("CHANGELOG.md", "zorp\n"), Vec::<String>::new());
        assert_eq!(found("deny.toml", "zorp\n"), Vec::<String>::new());
        assert_eq!(found("README.md", "zorp <!-- tidy-allow: zorp -->\n"), Vec::<String>::new());
        assert_eq!(found("README.md", "zorp <!-- tidy-allow: up -->\n").len(), 1);
    }

    #[test]
    fn a_missing_list_or_a_strange_entry_is_said() {
        assert_eq!(check(&Tree::default()).len(), 1);
        assert_eq!(check(&Tree::of(&[("GLOSSARY.md", "# Glossary\n")])).len(), 1);
        let strange = check(&Tree::of(&[("GLOSSARY.md", "## Banned words\n- zorp\n- `up` — \n")]));
        assert_eq!(strange.iter().map(|finding| finding.line).collect::<Vec<_>>(), [2, 3]);
    }
}
