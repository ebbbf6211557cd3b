//! `unsafe` lives in the modules that `unsafe_modules.rs` names and nowhere else, so
//! that a reviewer knows all the places where memory can go wrong.

use super::unsafe_modules::UNSAFE_MODULES;
use super::{Finding, Tree};

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    check_against(tree, UNSAFE_MODULES)
}

fn check_against(tree: &Tree, listed: &[(&str, &str)]) -> Vec<Finding> {
    const LIST: &str = "xtask/src/tidy/unsafe_modules.rs";
    let mut findings = Vec::new();
    for file in tree.rust().filter(|file| !listed.iter().any(|(path, _)| *path == file.path)) {
        // One finding a file: the answer is one line in the list, or none of these.
        let mut uses = file.tokens.iter().filter(|token| token.text == "unsafe" && !file.is_test(token.line));
        if let Some(first) = uses.next() {
            let count = 1 + uses.count();
            let message =
                format!("`unsafe` ({count} of it) in a file that {LIST} does not list; use what is safe, or list it");
            findings.push(Finding::new(&file.path, first.line, message));
        }
    }
    for (path, _) in listed {
        let message = match tree.rust_file(path) {
            None => "does not exist",
            Some(file) if !file.tokens.iter().any(|token| token.text == "unsafe") => "has no `unsafe`",
            Some(_) => continue,
        };
        findings.push(Finding::new(LIST, 1, format!("`{path}` is listed and {message}; take it off the list")));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::expect;

    #[test]
    fn unsafe_outside_the_list_is_found_once_a_file() {
        let text = "//! unsafe is a word here.\nfn f() {\n    unsafe { g() }\n}\nunsafe impl Send for X {}\n";
        expect(|tree| check_against(tree, &[]), &[("crates/io/src/a.rs", text)], &["crates/io/src/a.rs:3"]);
        expect(|tree| check_against(tree, &[("crates/io/src/a.rs", "")]), &[("crates/io/src/a.rs", text)], &[]);
    }

    #[test]
    fn tests_may_call_what_is_unsafe_to_call() {
        let text = "#[cfg(test)]\nmod tests {\n    fn f() { unsafe { g() } }\n}\n";
        let files = [("crates/io/src/a.rs", text), ("crates/io/tests/b.rs", "fn f() { unsafe { g() } }")];
        expect(|tree| check_against(tree, &[]), &files, &[]);
    }

    #[test]
    fn the_list_must_be_true() {
        let listed = |tree: &Tree| check_against(tree, &[("a.rs", ""), ("b.rs", ""), ("c.rs", "")]);
        let files = [("a.rs", "unsafe fn f() {}"), ("b.rs", "fn f() {}")];
        let list = "xtask/src/tidy/unsafe_modules.rs:1";
        expect(listed, &files, &[list, list]);
    }
}
