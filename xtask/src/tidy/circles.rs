//! No circle between the files of a crate: if a file uses another one, the other does not use it, not even through third ones.
//!
//! A file uses another one if a path in its code leads there. Names are followed through imports and re-exports to the file that
//! defines them. To declare a module is no use of it, nor is to re-export it; tests do not count. A file may use the `mod.rs` that it is a
//! part of: that is where a folder keeps what its files share. Paths within macro calls are not seen.

use std::collections::{BTreeMap, BTreeSet};

use syn::visit::{self, Visit};

use super::{Finding, SourceFile, Tree};

/// The place of a module in its crate: `["host", "cgroup"]`; empty for the root.
type Module = Vec<String>;

/// How many re-exports a name is followed through.
const MOST_STEPS: usize = 8;

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut crates = BTreeMap::<&str, BTreeMap<Module, Source<'_>>>::new();
    for file in &tree.files {
        if let Some((root, module)) = module_of(&file.path)
            && let Ok(parsed) = syn::parse_file(&file.text)
        {
            crates.entry(root).or_default().insert(module.clone(), Source::read(file, module, &parsed));
        }
    }
    crates.values().flat_map(circles).collect()
}

/// The directory of the sources that a file belongs to, and its module there. A `main.rs` beside a `lib.rs` is a crate of its own.
fn module_of(path: &str) -> Option<(&str, Module)> {
    let at = path.find("src/")?;
    let (root, inside) = (&path[..at], path[at + 4..].strip_suffix(".rs")?);
    let of_project = root == "xtask/" || root.strip_prefix("crates/").is_some_and(|name| name.len() > 1);
    if !of_project || inside == "main" {
        return None;
    }
    let inside = inside.strip_suffix("/mod").unwrap_or(inside);
    let parts = inside.split('/').filter(|part| *part != "lib").map(str::to_owned);
    Some((root, parts.collect()))
}

/// A file: which names its imports stand for, and which paths its code uses; all from the crate's root.
struct Source<'t> {
    file: &'t SourceFile,
    module: Module,
    imports: BTreeMap<String, Vec<String>>,
    uses: BTreeSet<Vec<String>>,
}

impl<'t> Source<'t> {
    fn read(file: &'t SourceFile, module: Module, parsed: &syn::File) -> Self {
        let mut source = Self { file, module, imports: BTreeMap::new(), uses: BTreeSet::new() };
        source.visit_file(parsed);
        source
    }

    /// A path as it is written here, from the crate's root; `None` if it begins with no place in this crate.
    fn resolved(&self, path: &[String]) -> Option<Vec<String>> {
        let mut place = self.module.clone();
        let rest = match path.first()?.as_str() {
            "crate" => {
                place.clear();
                &path[1..]
            }
            "self" => &path[1..],
            "super" => {
                let up = path.iter().take_while(|part| *part == "super").count();
                place.truncate(place.len().checked_sub(up)?);
                &path[up..]
            }
            _ => path,
        };
        place.extend_from_slice(rest);
        Some(place)
    }

    fn import(&mut self, tree: &syn::UseTree, before: &[String], is_shown: bool) {
        let joined = |name: &syn::Ident| [before, &[name.to_string()]].concat();
        match tree {
            syn::UseTree::Path(path) => self.import(&path.tree, &joined(&path.ident), is_shown),
            syn::UseTree::Group(group) => {
                group.items.iter().for_each(|item| self.import(item, before, is_shown));
            }
            syn::UseTree::Name(name) if name.ident == "self" => {
                if let Some(last) = before.last() {
                    self.note(last.clone(), before, is_shown);
                }
            }
            syn::UseTree::Name(name) => self.note(name.ident.to_string(), &joined(&name.ident), is_shown),
            syn::UseTree::Rename(name) => self.note(name.rename.to_string(), &joined(&name.ident), is_shown),
            syn::UseTree::Glob(_) => self.note("*".to_owned(), before, is_shown),
        }
    }

    /// An imported name, and the path that it stands for.
    fn note(&mut self, name: String, path: &[String], is_shown: bool) {
        let Some(path) = self.resolved(path) else { return };
        if !is_shown {
            self.uses.insert(path.clone());
        }
        self.imports.insert(name, path);
    }
}

impl<'ast> Visit<'ast> for Source<'_> {
    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        if !is_test(&item.attrs) {
            let is_shown = !matches!(item.vis, syn::Visibility::Inherited);
            self.import(&item.tree, &[], is_shown);
        }
    }

    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        if !is_test(&item.attrs) {
            visit::visit_item_mod(self, item);
        }
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        if !is_test(&item.attrs) {
            visit::visit_item_fn(self, item);
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let parts: Vec<String> = path.segments.iter().map(|part| part.ident.to_string()).collect();
        if parts.len() > 1
            && let Some(path) = self.resolved(&parts)
        {
            self.uses.insert(path);
        }
        visit::visit_path(self, path);
    }

    fn visit_visibility(&mut self, _: &'ast syn::Visibility) {}
}

fn is_test(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("cfg")
            && attribute.parse_args::<syn::Ident>().is_ok_and(|what| what == "test")
    })
}

/// The file that a path from the root leads to.
fn target(sources: &BTreeMap<Module, Source<'_>>, path: &[String]) -> Option<Module> {
    let mut path = path.to_vec();
    for _ in 0..MOST_STEPS {
        let at = (0..=path.len()).rev().find(|&at| sources.contains_key(&path[..at]))?;
        let (module, rest) = path.split_at(at);
        let imports = &sources[module].imports;
        match rest.first().and_then(|name| imports.get(name)) {
            Some(import) if *import != path => path = [import, &rest[1..]].concat(),
            // The root defines nothing: what no import of it explains is of another crate.
            _ if module.is_empty() => return None,
            _ => return Some(module.to_vec()),
        }
    }
    None
}

/// The circles of a crate, each once.
fn circles(sources: &BTreeMap<Module, Source<'_>>) -> Vec<Finding> {
    let used = |source: &Source<'_>| {
        let targets = source.uses.iter().filter_map(|path| target(sources, path));
        targets.filter(|target| !source.module.starts_with(target)).collect::<BTreeSet<_>>()
    };
    let graph: BTreeMap<&Module, BTreeSet<Module>> =
        sources.iter().map(|(module, source)| (module, used(source))).collect();
    let mut findings = Vec::new();
    let mut seen = BTreeSet::new();
    for start in graph.keys().copied() {
        let Some(circle) = way_back(&graph, start) else { continue };
        if circle.iter().any(|module| !seen.insert(module.clone())) {
            continue;
        }
        let names: Vec<String> = circle.iter().chain([start]).map(|module| module.join("/")).collect();
        let text = format!("is in a circle of files that use each other: {}", names.join(" → "));
        findings.push(sources[start].file.finding(0, text));
    }
    findings
}

/// The shortest way from a file back to itself, without its end.
fn way_back(graph: &BTreeMap<&Module, BTreeSet<Module>>, start: &Module) -> Option<Vec<Module>> {
    let mut ways = std::collections::VecDeque::from([vec![start.clone()]]);
    let mut reached = BTreeSet::new();
    while let Some(way) = ways.pop_front() {
        let here = way.last()?;
        for next in graph.get(here).into_iter().flatten() {
            if next == start {
                return Some(way);
            }
            if reached.insert(next.clone()) {
                ways.push_back([way.as_slice(), std::slice::from_ref(next)].concat());
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(files: &[(&str, &str)]) -> Vec<String> {
        check(&Tree::of(files)).into_iter().map(|finding| finding.to_string()).collect()
    }

    #[test]
    fn two_files_that_use_each_other_are_a_circle() {
        let files = [
            ("crates/x/src/lib.rs", "mod a; mod b; pub use a::A;"),
            ("crates/x/src/a.rs", "use crate::b::B; pub struct A;"),
            ("crates/x/src/b.rs", "pub struct B(crate::A);"),
        ];
        let expected = "crates/x/src/a.rs: is in a circle of files that use each other: a → b → a";
        assert_eq!(found(&files), [expected]);
    }

    #[test]
    fn a_folder_is_no_circle_and_its_re_exports_are_followed() {
        let files = [
            ("crates/x/src/a/mod.rs", "mod b; pub struct A; fn f() { b::g(); }"),
            ("crates/x/src/a/b.rs", "use super::A; pub fn g() {}"),
        ];
        assert_eq!(found(&files), [""; 0]);
        let files = [
            ("crates/x/src/a/mod.rs", "mod b; mod c; pub use b::B; use c::C;"),
            ("crates/x/src/a/b.rs", "use super::C; pub struct B;"),
            ("crates/x/src/a/c.rs", "use crate::a::B; pub struct C;"),
        ];
        assert_eq!(found(&files).len(), 1);
        let files = [
            ("crates/x/src/a/mod.rs", "mod b; mod c; pub use b::B; use c::C;"),
            ("crates/x/src/a/b.rs", "use super::C; pub struct B;"),
            ("crates/x/src/a/c.rs", "pub struct C;"),
        ];
        assert_eq!(found(&files), [""; 0]);
    }

    #[test]
    fn a_circle_of_three_is_told_once() {
        let files = [
            ("xtask/src/a.rs", "use crate::b::B;"),
            ("xtask/src/b.rs", "use crate::c::{self, C};"),
            ("xtask/src/c.rs", "use super::a::A;"),
            ("xtask/src/d.rs", "use super::a::A;"),
        ];
        assert_eq!(found(&files).len(), 1);
    }

    #[test]
    fn tests_and_other_crates_do_not_count() {
        let files = [
            (
                "crates/x/src/a.rs",
                "use crate::b::B; use y::b::C; #[cfg(test)] mod tests { use crate::b::B; }",
            ),
            ("crates/x/src/b.rs", "#[cfg(test)] mod tests { use crate::a::A; }"),
            ("crates/y/src/b.rs", "use crate::a::A;"),
            ("crates/y/src/a.rs", "use x::b::B;"),
        ];
        assert_eq!(found(&files), [""; 0]);
    }
}
