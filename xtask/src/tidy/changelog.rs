//! CHANGELOG.md has an Unreleased section, so that a change has a place to be told.

use super::{Finding, Tree};

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    const PATH: &str = "CHANGELOG.md";
    let Some(text) = tree.text(PATH) else {
        return vec![Finding::new(PATH, 1, "there is no CHANGELOG.md")];
    };
    let mut sections = text.lines().enumerate().filter(|(_, line)| line.starts_with("## "));
    match sections.next() {
        Some((_, line)) if line.starts_with("## [Unreleased]") => Vec::new(),
        Some((index, _)) => vec![Finding::new(PATH, index + 1, "the first section must be `## [Unreleased]`")],
        None => vec![Finding::new(PATH, 1, "there is no section `## [Unreleased]`")],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::expect;

    #[test]
    fn unreleased_comes_first() {
        let check_text = |text: &str, places: &[&str]| expect(check, &[("CHANGELOG.md", text)], places);
        check_text("# Changelog\n\n## [Unreleased]\n\n## [0.1.0]\n", &[]);
        check_text("# Changelog\n\n## [0.1.0]\n", &["CHANGELOG.md:3"]);
        check_text("# Changelog\n", &["CHANGELOG.md:1"]);
        expect(check, &[], &["CHANGELOG.md:1"]);
    }
}
