//! `unsafe` lives in the modules that `unsafe_modules.rs` names and nowhere else, so
//! that a reviewer knows all the places where memory can go wrong.

use super::unsafe_modules::UNSAFE_MODULES;
use super::{Finding, Tree};

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    check_against(tree, UNSAFE_MODULES)
}

fn check_against(tree: &Tree, listed: &[&str]) -> Vec<Finding> {
    const LIST: &str = "xtask/src/tidy/unsafe_modules.rs";
    let mut findings = Vec::new();
    for file in tree.rust().filter(|file| !listed.contains(&file.path.as_str())) {
        for token in file.tokens.iter().filter(|token| token.text == "unsafe") {
            let message = format!("`unsafe` outside the modules of {LIST}; use a safe wrapper, or list this file");
            findings.push(Finding::new(&file.path, token.line, message));
        }
    }
    for path in listed {
        let message = match tree.rust_file(path) {
            None => "is listed as an unsafe module, but does not exist",
            Some(file) if !file.tokens.iter().any(|t| t.text == "unsafe") => {
                "is listed as an unsafe module, but has none"
            }
            Some(_) => continue,
        };
        findings.push(Finding::new(LIST, 1, format!("`{path}` {message}; take it off the list")));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::expect;

    #[test]
    fn unsafe_outside_the_list_is_found() {
        let text = "//! unsafe is a word here.\nfn f() {\n    unsafe { g() }\n}\nunsafe impl Send for X {}\n";
        expect(
            |tree| check_against(tree, &[]),
            &[("crates/io/src/elsewhere.rs", text)],
            &["crates/io/src/elsewhere.rs:3", "crates/io/src/elsewhere.rs:5"],
        );
    }

    #[test]
    fn the_list_must_be_true() {
        let listed = |tree: &Tree| check_against(tree, &["a.rs", "b.rs", "c.rs"]);
        let files = [("a.rs", "unsafe fn f() {}"), ("b.rs", "fn f() {}")];
        let list = "xtask/src/tidy/unsafe_modules.rs:1";
        expect(listed, &files, &[list, list]);
    }
}
