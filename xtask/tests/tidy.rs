//! The tree as it stands is tidy. A failure lists each place; `cargo xtask tidy` prints the same.

#[test]
fn the_tree_is_tidy() {
    let findings = xtask::tidy::run(&xtask::workspace_root()).expect("the tree can be read");
    let lines: Vec<String> = findings.iter().map(ToString::to_string).collect();
    assert!(lines.is_empty(), "{} findings:\n{}", lines.len(), lines.join("\n"));
}
