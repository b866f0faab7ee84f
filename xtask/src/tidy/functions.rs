//! No function is longer than a screen: [`LONGEST`] lines from `fn` to its closing brace.
//!
//! The library `syn` parses each source file of the crates and of xtask, so comments, strings and nested functions count
//! as they should. Functions that a macro makes are not seen.

use syn::spanned::Spanned;
use syn::visit::{self, Visit};

use super::{Finding, SourceFile, Tree, allows};

/// The most lines that a function may have.
pub(super) const LONGEST: usize = 70;

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    tree.files.iter().filter(|file| is_source(file)).flat_map(long_functions).collect()
}

fn is_source(file: &SourceFile) -> bool {
    let of_crate = file.in_crate().is_some_and(|(_, inside)| inside.starts_with("src/"));
    file.is(".rs") && (of_crate || file.path.starts_with("xtask/src/"))
}

fn long_functions(file: &SourceFile) -> Vec<Finding> {
    let parsed = match syn::parse_file(&file.text) {
        Ok(parsed) => parsed,
        Err(error) => return vec![file.finding(error.span().start().line, format!("is no Rust: {error}"))],
    };
    let mut functions = Functions::default();
    functions.visit_file(&parsed);
    let long = functions.found.into_iter().filter(|function| function.lines() > LONGEST);
    long.filter(|function| !allows(file.line(function.first), &function.name))
        .map(|function| {
            let (name, lines) = (&function.name, function.lines());
            file.finding(function.first, format!("`{name}` has {lines} lines; at most {LONGEST}"))
        })
        .collect()
}

struct Function {
    name: String,
    first: usize,
    last: usize,
}

impl Function {
    fn lines(&self) -> usize {
        self.last - self.first + 1
    }
}

#[derive(Default)]
struct Functions {
    found: Vec<Function>,
}

impl Functions {
    fn add(&mut self, signature: &syn::Signature, block: &syn::Block) {
        self.found.push(Function {
            name: signature.ident.to_string(),
            first: signature.fn_token.span().start().line,
            last: block.brace_token.span.close().end().line,
        });
    }
}

impl<'ast> Visit<'ast> for Functions {
    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.add(&item.sig, &item.block);
        visit::visit_item_fn(self, item);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.add(&item.sig, &item.block);
        visit::visit_impl_item_fn(self, item);
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        if let Some(block) = &item.default {
            self.add(&item.sig, block);
        }
        visit::visit_trait_item_fn(self, item);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A function of `lines` lines, its attribute and comment not counted.
    fn function(head: &str, lines: usize) -> String {
        format!("#[inline]\n/// Long.\n{head} {{\n{}}}\n", "    x();\n".repeat(lines - 2))
    }

    fn found(text: &str) -> Vec<(usize, String)> {
        let tree = Tree::of(&[("crates/a/src/lib.rs", text)]);
        check(&tree).into_iter().map(|finding| (finding.line, finding.text)).collect()
    }

    #[test]
    fn counts_from_fn_to_its_brace() {
        assert_eq!(found(&function("fn just_fits()", LONGEST)), []);
        let text = function("pub fn too_long()", LONGEST + 1);
        assert_eq!(found(&text), [(3, "`too_long` has 71 lines; at most 70".to_owned())]);
    }

    #[test]
    fn counts_a_head_of_several_lines() {
        assert_eq!(found(&function("fn f(\n    a: u8,\n)", LONGEST - 1)).len(), 1);
    }

    #[test]
    fn sees_methods_default_methods_and_nested_functions() {
        let long = function("fn f()", LONGEST + 1);
        for outer in ["impl A", "trait A", "mod a", "fn g()"] {
            let count = if outer == "fn g()" { 2 } else { 1 };
            assert_eq!(found(&format!("{outer} {{ {long} }}")).len(), count, "{outer}");
        }
    }

    #[test]
    fn looks_at_sources_only_and_lets_a_line_say_no() {
        let long = function("fn f()", LONGEST + 1);
        assert_eq!(check(&Tree::of(&[("crates/a/tests/t.rs", &long)])), []);
        assert_eq!(check(&Tree::of(&[("xtask/src/main.rs", &long)])).len(), 1);
        let allowed = long.replace("f() {", "f() { // tidy-allow: f");
        assert_eq!(found(&allowed), []);
    }

    #[test]
    fn what_does_not_parse_is_said() {
        assert_eq!(found("fn a() {}\nfn }")[0].0, 2);
    }
}
