//! Comments keep to the width that rustfmt keeps code to. It cannot wrap them, so nobody else would say.

use super::{Finding, Tree};

/// Characters of a line (`rustfmt.toml`).
const WIDTH: usize = 120;

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in tree.texts().filter(|(path, _)| path.ends_with(".rs")) {
        for (index, line) in text.lines().enumerate() {
            let width = line.chars().count();
            if width > WIDTH && is_prose(line) {
                let message = format!("a comment of {width} characters; wrap it at {WIDTH}");
                findings.push(Finding::new(path, index + 1, message));
            }
        }
    }
    findings
}

/// Whether a line is a comment that may be wrapped: no sample, syntax, table or drawing.
fn is_prose(line: &str) -> bool {
    let Some(comment) = line.trim_start().strip_prefix("//") else { return false };
    let text = comment.trim_start_matches(['/', '!']);
    let kept = ["    ", "  ", " |", " `", " <", " /"];
    !kept.iter().any(|start| text.starts_with(start))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::expect;

    #[test]
    fn a_long_comment_is_found_and_a_long_sample_is_not() {
        let long = "word ".repeat(30);
        for (lead, found) in [
            ("// ", true),
            ("    /// ", true),
            ("//! ", true),
            ("//!     ", false),
            ("//! `", false),
            ("/// | ", false),
        ] {
            let text = format!("//! A file.\n{lead}{long}\nfn a() {{}}\n");
            let text = if lead.starts_with("//!") { text } else { text.replacen("\n", "\n\n", 1) };
            let line = if lead.starts_with("//!") { 2 } else { 3 };
            let expected = format!("a.rs:{line}");
            let expected: &[&str] = if found { &[&expected] } else { &[] };
            expect(check, &[("a.rs", &text)], expected);
        }
    }
}
