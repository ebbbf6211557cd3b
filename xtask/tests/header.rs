//! The header of libudm that is committed is the one that its sources make.

use xtask::header::{HEADER, generate};

#[test]
fn the_header_is_the_one_that_is_made() {
    let root = xtask::workspace_root();
    let committed = std::fs::read_to_string(root.join(HEADER)).unwrap();
    let made = generate(&root).unwrap();
    let differs = committed.lines().zip(made.lines()).position(|(one, other)| one != other);
    let line = differs.unwrap_or(committed.lines().count().min(made.lines().count())) + 1;
    assert!(committed == made, "{HEADER} differs at line {line}: run `cargo xtask header`");
}
