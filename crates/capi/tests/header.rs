//! The header declares what the library defines, and nothing else; so do the numbers in it.

use std::collections::BTreeSet;

const HEADER: &str = include_str!("../include/udm.h");
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

#[test]
fn functions() {
    let declared: BTreeSet<_> = HEADER
        .lines()
        .filter(|line| line.ends_with(");") && !line.starts_with([' ', '*', '\t']))
        .filter_map(|line| line.split_once('(')?.0.rsplit([' ', '*']).next())
        .collect();
    let defined: BTreeSet<_> = SOURCES.iter().flat_map(|source| names(source, "extern \"C\" fn ")).collect();
    assert!(defined.len() > 5, "{defined:?}");
    assert_eq!(declared, defined);
}

#[test]
fn constants() {
    for (name, value) in [
        ("UDM_READ", "0"),
        ("UDM_WRITE", "1"),
        ("UDM_FLUSH", "2"),
        ("UDM_DISCARD", "3"),
        ("UDM_WRITE_ZEROES", "4"),
        ("UDM_FUA", "1"),
        ("UDM_HIPRI", "2"),
        ("UDM_NO_UNMAP", "4"),
        ("UDM_DEVICE_READ_ONLY", "1"),
        ("UDM_DEVICE_DISCARD", "2"),
        ("UDM_DEVICE_POLL", "4"),
    ] {
        assert!(HEADER.contains(&format!("{name} = {value},")), "{name}");
    }
}

/// The manual page has every function.
#[test]
fn the_manual_page() {
    let page = include_str!("../../../docs/man/libudm.3");
    for source in SOURCES {
        for name in names(source, "extern \"C\" fn ") {
            assert!(page.contains(&format!("{name}(")), "{name} is not in libudm(3)");
        }
    }
}
