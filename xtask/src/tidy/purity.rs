//! The policy is pure: it uses no clock, file, environment, network, thread, randomness, unordered map or float.
//!
//! Clippy's `disallowed-methods` forbids most of these by path, but misses uses through a constant or a method of a path. This
//! rule checks the words of the source instead. It walks the tokens, so it ignores comments and strings, and sees macros. It
//! checks tests, too, because a test of a pure function needs none of these.

use proc_macro2::{Delimiter, Ident, Literal, TokenStream, TokenTree};

use super::{Finding, SourceFile, Tree, allows};

/// Names with the same meaning everywhere.
const NAMES: [(&str, &str); 12] = [
    ("Instant", "Snapshot::taken_at is the only time"),
    ("SystemTime", "Snapshot::taken_at is the only time"),
    ("UNIX_EPOCH", "Snapshot::taken_at is the only time"),
    ("HashMap", "its order is random; use BTreeMap"),
    ("HashSet", "its order is random; use BTreeSet"),
    ("RandomState", "no randomness"),
    ("rand", "no randomness"),
    ("thread_local", "no hidden state"),
    ("OnceLock", "no hidden state"),
    ("LazyLock", "no hidden state"),
    ("f32", "integers only"),
    ("f64", "integers only"),
];

/// Modules of `std` that reach outside the process.
const MODULES: [&str; 7] = ["env", "fs", "io", "net", "os", "process", "thread"];

/// Methods of `Path` that query the file system.
const PATH_METHODS: [&str; 8] =
    ["exists", "try_exists", "is_file", "is_dir", "is_symlink", "canonicalize", "read_dir", "read_link"];

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let pure = tree.files.iter().filter(|file| file.path.starts_with("crates/policy/src/") && file.is(".rs"));
    pure.flat_map(impure).collect()
}

fn impure(file: &SourceFile) -> Vec<Finding> {
    // The compiler and the rule on functions report a file that does not parse.
    let Ok(stream) = file.text.parse::<TokenStream>() else { return Vec::new() };
    let mut uses = Vec::new();
    walk(stream, &mut uses);
    uses.retain(|usage| !allows(file.line(usage.line), &usage.word));
    uses.into_iter()
        .map(|usage| file.finding(usage.line, format!("`{}` in a pure crate: {}", usage.word, usage.why)))
        .collect()
}

struct Use {
    line: usize,
    word: String,
    why: &'static str,
}

fn walk(stream: TokenStream, uses: &mut Vec<Use>) {
    let tokens: Vec<TokenTree> = stream.into_iter().collect();
    for (index, token) in tokens.iter().enumerate() {
        let before = index.checked_sub(1).and_then(|before| tokens.get(before));
        match token {
            TokenTree::Group(group) => walk(group.stream(), uses),
            TokenTree::Ident(name) => {
                uses.extend(named(name, before));
                if name == "std" {
                    uses.extend(modules_after(&tokens[index + 1..]));
                }
            }
            TokenTree::Literal(literal) if is_float(literal) && !is_punct(before, '.') => {
                uses.push(found(literal.span(), literal.to_string(), "integers only"));
            }
            TokenTree::Literal(_) | TokenTree::Punct(_) => {}
        }
    }
}

fn found(span: proc_macro2::Span, word: String, why: &'static str) -> Use {
    Use { line: span.start().line, word, why }
}

fn named(name: &Ident, before: Option<&TokenTree>) -> Option<Use> {
    let text = name.to_string();
    if let Some((_, why)) = NAMES.iter().find(|(word, _)| *word == text) {
        return Some(found(name.span(), text, why));
    }
    let called = is_punct(before, '.') || is_punct(before, ':');
    (called && PATH_METHODS.contains(&text.as_str())).then(|| found(name.span(), text, "no files"))
}

/// The forbidden modules in the tokens after `std`: `::fs`, or `::{fs, env::var}`.
fn modules_after(tokens: &[TokenTree]) -> Vec<Use> {
    if !is_punct(tokens.first(), ':') || !is_punct(tokens.get(1), ':') {
        return Vec::new();
    }
    let first_names: Vec<Ident> = match tokens.get(2) {
        Some(TokenTree::Ident(name)) => vec![name.clone()],
        Some(TokenTree::Group(group)) if group.delimiter() == Delimiter::Brace => {
            let inner: Vec<TokenTree> = group.stream().into_iter().collect();
            let parts = inner.split(|token| is_punct(Some(token), ','));
            let firsts = parts.filter_map(|part| match part.first() {
                Some(TokenTree::Ident(name)) => Some(name.clone()),
                _ => None,
            });
            firsts.collect()
        }
        _ => Vec::new(),
    };
    let forbidden = first_names.iter().filter(|name| MODULES.iter().any(|module| name == module));
    forbidden.map(|name| found(name.span(), format!("std::{name}"), "no input, output or threads")).collect()
}

fn is_punct(token: Option<&TokenTree>, sign: char) -> bool {
    matches!(token, Some(TokenTree::Punct(punct)) if punct.as_char() == sign)
}

fn is_float(literal: &Literal) -> bool {
    matches!(syn::Lit::new(literal.clone()), syn::Lit::Float(_))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        let tree = Tree::of(&[("crates/policy/src/demand.rs", text), ("crates/host/src/lib.rs", text)]);
        check(&tree)
            .into_iter()
            .map(|finding| finding.text.split('`').nth(1).unwrap_or_default().to_owned())
            .collect()
    }

    #[test]
    fn finds_what_clippy_misses() {
        assert_eq!(words("fn f(p: &P) -> bool { p.exists() }"), ["exists"]);
        assert_eq!(words("fn f() { let _ = UNIX_EPOCH.elapsed(); }"), ["UNIX_EPOCH"]);
        assert_eq!(words("fn f() { paths.map(Path::exists) }"), ["exists"]);
    }

    #[test]
    fn finds_modules_of_std_however_they_are_used() {
        assert_eq!(words("use std::fs;"), ["std::fs"]);
        assert_eq!(words("use std::{collections::BTreeMap, env::var, net};"), ["std::env", "std::net"]);
        assert_eq!(words("fn f() { std::thread::yield_now() }"), ["std::thread"]);
        assert_eq!(words("use std::time::{Duration, Instant};"), ["Instant"]);
    }

    #[test]
    fn sees_into_macros() {
        assert_eq!(words("fn f() { assert!(HashMap::<u8, u8>::new().is_empty()); }"), ["HashMap"]);
    }

    #[test]
    fn finds_floats_by_type_and_by_literal_but_not_fields_of_tuples() {
        assert_eq!(words("fn f(a: f64) {}"), ["f64"]);
        assert_eq!(words("const A: X = y(0.75);"), ["0.75"]);
        assert_eq!(words("fn f(x: X) -> u8 { x.0.1 }"), Vec::<String>::new());
    }

    #[test]
    fn comments_strings_names_of_ones_own_and_allowed_lines_pass() {
        let text = "//! No HashMap, no f64.\n/// std::fs\nfn net(env: u8) { let thread = \"std::fs\"; }\n\
                    fn g() -> f64 {} // tidy-allow: f64\n";
        assert_eq!(words(text), Vec::<String>::new());
    }
}
