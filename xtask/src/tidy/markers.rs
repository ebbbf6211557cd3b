//! No notes to oneself in the sources: what is not done is an issue, and what is not
//! written is not merged.

use super::{Finding, Tree};

/// Spelt in halves, so that this file passes its own check.
const WORDS: &[&str] = &[concat!("TO", "DO"), concat!("FIX", "ME"), concat!("XX", "X"), concat!("HA", "CK")];

const MACROS: &[&str] = &["todo", "unimplemented"];

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    let is_code = |path: &str| [".rs", ".toml", ".sh", "Makefile"].iter().any(|end| path.ends_with(end));
    for (path, text) in tree.texts().filter(|(path, _)| is_code(path)) {
        for (index, line) in text.lines().enumerate() {
            let mut words = line.split(|c: char| !c.is_alphanumeric() && c != '_');
            if let Some(word) = words.find(|word| WORDS.contains(word)) {
                let message = format!("`{word}`: do it now, or file an issue and say here why the code is as it is");
                findings.push(Finding::new(path, index + 1, message));
            }
        }
    }
    for file in tree.rust() {
        for name in MACROS {
            for (line, _) in file.sequences(&[name, "!"]) {
                let message = format!("`{name}!` is a panic that waits for a user; write it, or return an error");
                findings.push(Finding::new(&file.path, line, message));
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::expect;

    #[test]
    fn words_and_macros_are_found() {
        let bad = |text: &str| expect(check, &[("crates/io/src/a.rs", text)], &["crates/io/src/a.rs:2"]);
        for word in WORDS {
            bad(&format!("\n// {word}: later"));
            bad(&format!("\nfn f() {{}} /* {word} */"));
        }
        for name in MACROS {
            bad(&format!("\nfn f() {{ {name}!() }}"));
        }
    }

    #[test]
    fn longer_words_pass() {
        expect(check, &[("scripts/a.sh", "mktemp -d /tmp/x.XXXXXX"), ("a.rs", "fn todo() {}")], &[]);
    }
}
