//! Imports go down only, and siblings on one floor never import each other, so that
//! any floor can be read, tested and simulated without those above and beside it.

use super::packages::{Purpose, line_of_dependency};
use super::{Finding, Tree};

/// The floors of the house (ARCHITECTURE.md, "The layers"), the binary on top.
const FLOORS: &[(&str, u8)] = &[
    ("udm-base", 0),
    ("udm-io", 1),
    ("udm-files", 2),
    ("udm-nbd", 2),
    ("udm-kcopyd", 2),
    ("udm-pdata", 3),
    ("udm-sim", 3),
    ("udm-core", 3),
    ("udm-formats", 4),
    ("udm-worker", 4),
    ("udm-targets", 5),
    ("udm-export", 5),
    ("udm-control", 5),
    ("udm-client", 6),
    ("udm-stack", 6),
    ("udm-bench", 7),
    ("udm-capi", 7),
    ("udm-experiments", 8),
    ("udm", 8),
    // Not part of the house: nothing in it may lean on these.
    ("udm-fuzz", 9),
    ("udm-soak", 9),
    ("udm-testing", 9),
    ("xtask", 9),
];

/// Every floor may be tested with these.
const TEST_TOOLS: &[&str] = &["udm-sim", "udm-testing"];

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = manifests(tree);
    findings.extend(sources(tree));
    findings
}

fn manifests(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for package in tree.packages().iter().filter(|p| p.folder.starts_with("crates/")) {
        let path = package.manifest_path();
        if floor(&package.name).is_none() {
            let message = format!("`{}` stands on no floor; give it one in xtask's layering.rs", package.name);
            findings.push(Finding::new(&path, 1, message));
            continue;
        }
        for (dependency, purpose) in package.dependencies() {
            let is_test_tool = purpose == Purpose::Dev && TEST_TOOLS.contains(&dependency.as_str());
            if is_test_tool {
                continue;
            }
            if let Some(message) = objection(&package.name, &dependency) {
                let line = line_of_dependency(tree.text(&path).unwrap_or_default(), &dependency);
                findings.push(Finding::new(&path, line, message));
            }
        }
    }
    findings
}

fn sources(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.rust() {
        let Some(package) = tree.package_of(&file.path).filter(|p| floor(&p.name).is_some()) else { continue };
        let mut last = None;
        for token in file.tokens.iter().filter(|t| t.text.starts_with("udm_")) {
            let named = token.text.replace('_', "-");
            let is_test_tool = TEST_TOOLS.contains(&named.as_str()) && file.is_test(token.line);
            if named == package.name || is_test_tool {
                continue;
            }
            let place = Some((token.line, named.clone()));
            if let Some(message) = objection(&package.name, &named).filter(|_| place != last) {
                findings.push(Finding::new(&file.path, token.line, message));
                last = place;
            }
        }
    }
    findings
}

fn floor(name: &str) -> Option<u8> {
    FLOORS.iter().find(|(known, _)| *known == name).map(|(_, floor)| *floor)
}

/// Why `user` must not use `used`, if it must not.
fn objection(user: &str, used: &str) -> Option<String> {
    let (above, below) = (floor(user)?, floor(used)?);
    if below < above {
        return None;
    }
    let why = if below == above { "they are siblings on one floor" } else { "imports go down only" };
    Some(format!("`{user}` (floor {above}) must not use `{used}` (floor {below}): {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::expect;

    fn manifest(name: &str, rest: &str) -> String {
        format!("[package]\nname = \"{name}\"\n{rest}")
    }

    #[test]
    fn dependencies() {
        let check_manifest = |name: &str, rest: &str, places: &[&str]| {
            expect(check, &[("crates/c/Cargo.toml", &manifest(name, rest))], places);
        };
        check_manifest("udm-core", "[dependencies]\nudm-io.workspace = true\n", &[]);
        check_manifest(
            "udm-io",
            "[dependencies]\nlibc = \"1\"\nudm-core.workspace = true\n",
            &["crates/c/Cargo.toml:5"],
        );
        check_manifest("udm-export", "[dependencies]\nudm-targets.workspace = true\n", &["crates/c/Cargo.toml:4"]);
        check_manifest("udm-io", "[dev-dependencies]\nudm-sim.workspace = true\n", &[]);
        check_manifest("udm-io", "[dev-dependencies]\nudm-testing.workspace = true\n", &[]);
        check_manifest("udm-io", "[dependencies]\nudm-sim.workspace = true\n", &["crates/c/Cargo.toml:4"]);
        check_manifest("udm-io", "[dev-dependencies]\nudm-core.workspace = true\n", &["crates/c/Cargo.toml:4"]);
        check_manifest("udm", "[dependencies]\nxtask = { path = \"../../xtask\" }\n", &["crates/c/Cargo.toml:4"]);
        check_manifest("udm-attic", "", &["crates/c/Cargo.toml:1"]);
    }

    #[test]
    fn imports() {
        let check_source = |name: &str, source: &str, lines: &[&str]| {
            let files = [("crates/c/Cargo.toml", &*manifest(name, "")), ("crates/c/src/lib.rs", source)];
            expect(check, &files, lines);
        };
        check_source("udm-core", "use udm_io::Bio;\nuse udm_core::X;", &[]);
        check_source("udm-io", "fn f() {\n    udm_core::g();\n}", &["crates/c/src/lib.rs:2"]);
        check_source("udm-core", "use udm_sim::Disk;", &["crates/c/src/lib.rs:1"]);
        check_source("udm-core", "#[cfg(test)]\nmod tests {\n    use udm_sim::Disk;\n}", &[]);
        check_source("udm-core", "//! Unlike udm_targets, this.\nconst X: &str = \"udm_targets\";", &[]);
    }
}
