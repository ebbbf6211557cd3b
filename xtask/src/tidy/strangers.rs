//! Floors that must not even know each other's words: pdata knows nothing of thin, no
//! export names a target, no target names an export. A name in a string is a
//! dependency that the compiler cannot see.

use std::collections::BTreeSet;

use super::rust_file::{RustFile, Token};
use super::{Finding, Tree, targets};

/// The exports, as a target would spell them.
const EXPORTS: &[&str] = &["nbd", "fuse", "ublk", "vhost_user", "vhost-user"];

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let target_names: BTreeSet<String> = targets::find(tree).into_iter().map(|t| t.name).collect();
    let mut findings = Vec::new();
    for file in tree.rust() {
        if file.path.starts_with("crates/pdata/src/") {
            let knows_thin = |token: &Token| says_thin(&token.text);
            findings.extend(report(file, knows_thin, "pdata must know nothing of thin, but this says"));
        } else if file.path.starts_with("crates/export/src/") {
            let names = |token: &Token| literal(token).is_some_and(|text| target_names.contains(text));
            findings.extend(report(file, names, "an export sees a mapped device and names no target, but this says"));
        } else if file.path.starts_with("crates/targets/src/") {
            let names = |token: &Token| literal(token).is_some_and(|text| EXPORTS.contains(&text));
            findings.extend(report(file, names, "a target knows no export, but this says"));
        }
    }
    findings
}

/// Whether a name or a text has the word, alone or as a part of a name; `within` and `nothing` have not.
fn says_thin(text: &str) -> bool {
    let mut before = '_';
    let starts = text.char_indices().filter(|(_, c)| {
        let start = !before.is_alphabetic() || (before.is_lowercase() && c.is_uppercase());
        before = *c;
        start
    });
    starts
        .map(|(at, _)| text[at..].to_lowercase())
        .any(|rest| rest.starts_with("thin") && !rest.starts_with("thing") && !rest.starts_with("think"))
}

/// The contents of a plain string literal.
fn literal(token: &Token) -> Option<&str> {
    token.text.strip_prefix('"')?.strip_suffix('"')
}

fn report(file: &RustFile, matches: impl Fn(&Token) -> bool, sentence: &str) -> Vec<Finding> {
    let in_code = |token: &&Token| !file.is_test(token.line) && !is_documentation(file, token);
    let found = file.tokens.iter().filter(in_code).filter(|token| matches(token));
    found.map(|token| Finding::new(&file.path, token.line, format!("{sentence} {}", token.text))).collect()
}

/// Documentation may speak of the neighbours; to the lexer it is a string in `doc = "..."`.
fn is_documentation(file: &RustFile, token: &Token) -> bool {
    let line = file.text.lines().nth(token.line - 1).unwrap_or_default().trim_start();
    ["///", "//!", "/**", "/*!", "*"].iter().any(|mark| line.starts_with(mark))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::expect;

    #[test]
    fn pdata_knows_nothing_of_thin() {
        let text = "/// As thin does.\nfn thin_map() {}\nconst S: &str = \"a Thin pool\";\nfn other() {}";
        let places = ["crates/pdata/src/a.rs:2", "crates/pdata/src/a.rs:3"];
        expect(check, &[("crates/pdata/src/a.rs", text)], &places);
        expect(check, &[("crates/core/src/a.rs", text)], &[]);
        let text = "struct MyThinPool;\nfn a_thin() {}\nfn within() {}\nconst N: &str = \"nothing, anything, think\";";
        expect(check, &[("crates/pdata/src/a.rs", text)], &["crates/pdata/src/a.rs:1", "crates/pdata/src/a.rs:2"]);
    }

    #[test]
    fn exports_and_targets_do_not_name_each_other() {
        let target = "pub static TYPE: T = T::new(\"linear\");\nconst E: &str = \"nbd\";\nconst U: &str = \"nbd://\";";
        let export = "fn f(n: &str) -> bool {\n    n == \"linear\" || n == \"linear algebra\"\n}";
        let files = [("crates/export/src/a.rs", export), ("crates/targets/src/linear.rs", target)];
        expect(check, &files, &["crates/export/src/a.rs:2", "crates/targets/src/linear.rs:2"]);
    }
}
