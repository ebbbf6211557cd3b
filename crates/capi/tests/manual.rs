//! The manual page. (The header is made from the sources: `xtask/tests/header.rs`.)

use std::collections::BTreeSet;

const SOURCES: &[&str] = &[
    include_str!("../src/command.rs"),
    include_str!("../src/error.rs"),
    include_str!("../src/queue.rs"),
    include_str!("../src/stack.rs"),
];

/// The names that stand between `before` and `(`.
fn names<'a>(text: &'a str, before: &'a str) -> BTreeSet<&'a str> {
    text.match_indices(before)
        .filter_map(|(at, _)| text[at + before.len()..].split_once('(').map(|(name, _)| name))
        .filter(|name| name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_'))
        .collect()
}

/// The manual page has every function.
#[test]
fn the_manual_page() {
    let page = include_str!("../../../docs/man/libudm.3");
    for source in SOURCES {
        let names = names(source, "extern \"C\" fn ");
        assert!(!names.is_empty());
        for name in names {
            assert!(page.contains(&format!("{name}(")), "{name} is not in libudm(3)");
        }
    }
}
