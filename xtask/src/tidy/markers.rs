//! No unfinished work in the tree: a missing part is an issue, not a mark in the source.

use super::{Finding, SourceFile, Tree, allows};

const MACROS: [&str; 2] = ["todo!", "unimplemented!"]; // tidy-allow: todo!, unimplemented!
const WORDS: [&str; 2] = ["FIXME", "XXX"]; // tidy-allow: FIXME, XXX

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    tree.files.iter().filter(|file| !file.is(".md")).flat_map(marked).collect()
}

fn marked(file: &SourceFile) -> impl Iterator<Item = Finding> {
    file.lines().flat_map(move |(number, line)| {
        let marks = MACROS.into_iter().chain(WORDS).filter(move |mark| is_marked(line, mark));
        let open = marks.filter(move |mark| !allows(line, mark));
        open.map(move |mark| file.finding(number, format!("`{mark}`: finish it or leave it out")))
    })
}

/// Whether the line contains `mark` as a separate word.
fn is_marked(line: &str, mark: &str) -> bool {
    let part_of_word = |next: Option<char>| next.is_some_and(|next| next.is_alphanumeric() || next == '_');
    line.match_indices(mark).any(|(at, _)| {
        let after = line[at + mark.len()..].chars().next();
        !part_of_word(line[..at].chars().next_back()) && (mark.ends_with('!') || !part_of_word(after))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(path: &str, text: &str) -> usize {
        check(&Tree::of(&[(path, text)])).len()
    }

    #[test]
    fn finds_macros_and_words() {
        for mark in MACROS {
            assert_eq!(count("a.rs", &format!("fn f() {{ {mark}() }}\n")), 1, "{mark}");
        }
        for mark in WORDS {
            assert_eq!(count("scripts/a.sh", &format!("# {mark}: later\n")), 1, "{mark}");
        }
    }

    #[test]
    fn leaves_alone_parts_of_words_prose_and_allowed_lines() {
        let word = WORDS[1];
        assert_eq!(count("scripts/a.sh", &format!("mktemp -d /tmp/a.{word}{word}\n")), 0);
        assert_eq!(count("docs/a.md", &format!("{word}\n")), 0);
        assert_eq!(count("a.rs", &format!("// {word} tidy-allow: {word}\n")), 0);
        assert_eq!(count("a.rs", &format!("my_{}()\n", MACROS[0])), 0);
    }
}
