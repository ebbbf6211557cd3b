//! Every package takes its lints, edition, licence and the rest from the workspace: a
//! rule that one crate does not inherit is not a rule of the project.

use toml::Value;

use super::{Finding, Tree};

/// Keys of `[package]` that come from the workspace.
const INHERITED: &[&str] = &["version", "edition", "rust-version", "license", "publish"];

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for package in tree.packages() {
        let path = package.manifest_path();
        let inherits = |value: Option<&Value>| value.and_then(|v| v.get("workspace")?.as_bool()) == Some(true);
        if !inherits(package.manifest.get("lints")) {
            let message = "add `[lints]` with `workspace = true`: the workspace's lints hold for every member";
            findings.push(Finding::new(&path, 1, message));
        }
        let section = package.manifest.get("package");
        for key in INHERITED {
            if !inherits(section.and_then(|s| s.get(key))) {
                let message = format!("write `{key}.workspace = true` in `[package]`");
                findings.push(Finding::new(&path, 1, message));
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::expect;

    const GOOD: &str = "[package]\nname = \"a\"\nversion.workspace = true\nedition.workspace = true\n\
        rust-version.workspace = true\nlicense.workspace = true\npublish.workspace = true\n\
        [lints]\nworkspace = true\n";

    #[test]
    fn what_is_not_inherited_is_found() {
        expect(check, &[("a/Cargo.toml", GOOD)], &[]);
        let lints = GOOD.replace("[lints]\nworkspace = true\n", "");
        expect(check, &[("a/Cargo.toml", &lints)], &["a/Cargo.toml:1"]);
        for key in INHERITED {
            let without = GOOD.replace(&format!("\n{key}.workspace = true"), "");
            expect(check, &[("a/Cargo.toml", &without)], &["a/Cargo.toml:1"]);
        }
        let off = GOOD.replace("[lints]\nworkspace = true", "[lints]\nworkspace = false");
        expect(check, &[("a/Cargo.toml", &off)], &["a/Cargo.toml:1"]);
    }
}
