//! The project's own texts: sources, prose, scripts and settings, without build output and recordings.

use std::fs;
use std::path::Path;

use super::{Finding, TidyError};

/// Directories without handwritten files.
const SKIPPED: [&str; 3] = ["target", ".git", "node_modules"];

/// Endings of the files that are read.
const ENDINGS: [&str; 7] = [".rs", ".md", ".toml", ".sh", ".yml", ".yaml", ".service"];

/// Files that are read despite their ending.
const NAMES: [&str; 2] = ["Makefile", ".ci/run"];

/// One text of the project.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceFile {
    /// Relative to the project's directory, with `/` between the parts.
    pub path: String,
    /// Its content.
    pub text: String,
}

impl SourceFile {
    /// Whether the path ends with `ending`.
    #[must_use]
    pub fn is(&self, ending: &str) -> bool {
        self.path.ends_with(ending)
    }

    /// The crate under `crates/` that contains the file, and the file's path in that crate.
    #[must_use]
    pub fn in_crate(&self) -> Option<(&str, &str)> {
        self.path.strip_prefix("crates/")?.split_once('/')
    }

    /// The lines with their numbers, from 1.
    pub fn lines(&self) -> impl Iterator<Item = (usize, &str)> {
        (1..).zip(self.text.lines())
    }

    /// A finding in this file.
    #[must_use]
    pub fn finding(&self, line: usize, text: String) -> Finding {
        Finding { path: self.path.clone(), line, text }
    }

    /// The text of a line, from 1; empty beyond the end.
    #[must_use]
    pub fn line(&self, number: usize) -> &str {
        number.checked_sub(1).and_then(|index| self.text.lines().nth(index)).unwrap_or_default()
    }
}

/// All texts of the project, sorted by path.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tree {
    /// The texts.
    pub files: Vec<SourceFile>,
}

impl Tree {
    /// Reads the project at `root`.
    ///
    /// # Errors
    /// If a directory or file cannot be read, or if a file is not UTF-8.
    pub fn read(root: &Path) -> Result<Self, TidyError> {
        let mut tree = Self::default();
        tree.add(root, "")?;
        tree.files.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(tree)
    }

    /// The text at `path`.
    #[must_use]
    pub fn file(&self, path: &str) -> Option<&SourceFile> {
        self.files.iter().find(|file| file.path == path)
    }

    /// A project with these paths and texts.
    #[cfg(test)]
    pub(super) fn of(files: &[(&str, &str)]) -> Self {
        let owned =
            |&(path, text): &(&str, &str)| SourceFile { path: path.to_owned(), text: text.to_owned() };
        Self { files: files.iter().map(owned).collect() }
    }

    /// Adds everything below the directory `inside` (empty or ending in `/`) of `root`.
    fn add(&mut self, root: &Path, inside: &str) -> Result<(), TidyError> {
        let directory = root.join(inside);
        let failed = |path: &Path| {
            let path = path.to_path_buf();
            move |source| TidyError::File { path, source }
        };
        for entry in fs::read_dir(&directory).map_err(failed(&directory))? {
            let entry = entry.map_err(failed(&directory))?;
            let kind = entry.file_type().map_err(failed(&entry.path()))?;
            let Some(name) = entry.file_name().to_str().map(str::to_owned) else { continue };
            let path = format!("{inside}{name}");
            if kind.is_dir() && !SKIPPED.contains(&name.as_str()) {
                self.add(root, &format!("{path}/"))?;
            } else if kind.is_file() && is_text(&path) {
                let text = fs::read_to_string(entry.path()).map_err(failed(&entry.path()))?;
                self.files.push(SourceFile { path, text });
            }
        }
        Ok(())
    }
}

fn is_text(path: &str) -> bool {
    NAMES.contains(&path) || ENDINGS.iter().any(|ending| path.ends_with(ending))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(root: &Path, path: &str, bytes: &[u8]) {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }

    #[test]
    fn reads_texts_and_leaves_out_what_is_built_or_recorded() {
        let root = tempfile::tempdir().unwrap();
        for path in ["crates/a/src/lib.rs", ".ci/run", "Makefile", "target/x.rs", ".git/y.md", "traces/t.mtj"]
        {
            write(root.path(), path, b"text\n");
        }
        let tree = Tree::read(root.path()).unwrap();
        let paths: Vec<_> = tree.files.iter().map(|file| file.path.as_str()).collect();
        assert_eq!(paths, [".ci/run", "Makefile", "crates/a/src/lib.rs"]);
        assert_eq!(tree.file("Makefile").unwrap().text, "text\n");
    }

    #[test]
    fn a_file_that_is_no_text_is_named() {
        let root = tempfile::tempdir().unwrap();
        write(root.path(), "docs/odd.md", &[0xff, 0xfe]);
        let error = Tree::read(root.path()).unwrap_err();
        assert!(error.to_string().ends_with("docs/odd.md"), "{error}");
    }

    #[test]
    fn lines_count_from_one() {
        let tree = Tree::of(&[("crates/a/src/b.rs", "one\ntwo\n")]);
        let file = &tree.files[0];
        assert_eq!(file.line(2), "two");
        assert_eq!(file.line(0), "");
        assert_eq!(file.line(9), "");
        assert_eq!(file.in_crate(), Some(("a", "src/b.rs")));
    }
}
