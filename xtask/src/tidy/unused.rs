//! Every dependency is used, and where only tests use it, it is theirs: what is linked for nothing is built, audited
//! and trusted for nothing.

use std::collections::BTreeSet;

use toml::{Table, Value};

use super::packages::{Package, Purpose, line_of_dependency};
use super::rust_file::RustFile;
use super::{Finding, Tree};

/// Where the versions stand.
const WORKSPACE: &str = "Cargo.toml";

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings: Vec<Finding> = tree.packages().iter().flat_map(|package| of_package(tree, package)).collect();
    findings.extend(of_workspace(tree));
    findings
}

fn of_package(tree: &Tree, package: &Package) -> Vec<Finding> {
    let is_own = |file: &&RustFile| tree.package_of(&file.path).is_some_and(|p| p.folder == package.folder);
    let files: Vec<&RustFile> = tree.rust().filter(is_own).collect();
    let path = package.manifest_path();
    let mut findings = Vec::new();
    for (key, purpose) in package.keys() {
        let lines = files.iter().flat_map(|file| uses(file, &key).map(|line| file.is_test(line)));
        let message = match lines.reduce(|all, one| all && one) {
            None => format!("`{key}` is used by no file of the package: take it out"),
            Some(true) if purpose == Purpose::Normal => {
                format!("`{key}` is used by tests only: it belongs to [dev-dependencies]")
            }
            Some(_) if purpose == Purpose::Dev && package.keys().contains(&(key.clone(), Purpose::Normal)) => {
                format!("`{key}` stands in [dependencies] already, which tests have as well")
            }
            Some(_) => continue,
        };
        findings.push(Finding::new(&path, line_of_dependency(tree.text(&path).unwrap_or_default(), &key), message));
    }
    findings
}

/// The lines on which a file names the crate that a manifest calls `key`.
fn uses<'a>(file: &'a RustFile, key: &str) -> impl Iterator<Item = usize> + use<'a> {
    let name = key.replace('-', "_");
    let imported = file.uses.iter().filter(|import| import.path.first() == Some(&name)).map(|import| import.line);
    let paths = file.tokens.windows(2).filter(|pair| pair[0].text == name && pair[1].text == "::");
    let lines: Vec<usize> = imported.chain(paths.map(|pair| pair[0].line)).collect();
    lines.into_iter()
}

fn of_workspace(tree: &Tree) -> Vec<Finding> {
    let text = tree.text(WORKSPACE).unwrap_or_default();
    // One that does not parse is told by another check.
    let manifest: Table = text.parse().unwrap_or_default();
    let given = manifest.get("workspace").and_then(|w| w.get("dependencies")).and_then(Value::as_table);
    let used: BTreeSet<String> = tree.packages().iter().flat_map(Package::keys).map(|(key, _)| key).collect();
    let unused = given.into_iter().flatten().filter(|(key, _)| !used.contains(*key));
    let message = |key: &str| format!("`{key}` is a dependency of no package: take it out");
    unused.map(|(key, _)| Finding::new(WORKSPACE, line_of_dependency(text, key), message(key))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::expect;

    const PACKAGE: &str = "[package]\nname = \"c\"\n";

    #[track_caller]
    fn places(manifest: &str, source: &str, expected: &[&str]) {
        let files = [
            ("crates/c/Cargo.toml", &*format!("{PACKAGE}{manifest}")),
            ("crates/c/src/lib.rs", source),
            ("crates/c/tests/it.rs", "use for_tests::check;"),
            ("crates/d/src/lib.rs", "use elsewhere::f;"),
        ];
        expect(check, &files, expected);
    }

    #[test]
    fn what_nobody_names() {
        let one = "[dependencies]\na-b.workspace = true\n";
        places(one, "use a_b::C;", &[]);
        places(one, "use a_b;", &[]);
        places(one, "fn f() { a_b::g() }", &[]);
        places(one, "#[derive(a_b::Error)]\nstruct S;", &[]);
        places(one, "m! { a_b::x }", &[]);
        places(one, "", &["crates/c/Cargo.toml:4"]);
        places(one, "//! a_b::C\nfn f(a_b: u32) -> &'static str { \"a_b::C\" }", &["crates/c/Cargo.toml:4"]);
        places("[dependencies]\nelsewhere = \"1\"\n", "", &["crates/c/Cargo.toml:4"]);
        places("[dependencies]\nx = { package = \"y\" }\n", "use x::Z;", &[]);
        places("[target.'cfg(unix)'.dependencies]\na = \"1\"\n", "", &["crates/c/Cargo.toml:4"]);
        places("[dev-dependencies]\na = \"1\"\n", "", &["crates/c/Cargo.toml:4"]);
    }

    #[test]
    fn what_only_tests_name() {
        places("[dependencies]\nfor_tests = \"1\"\n", "", &["crates/c/Cargo.toml:4"]);
        places("[dependencies]\na = \"1\"\n", "#[cfg(test)]\nmod tests { use a::B; }", &["crates/c/Cargo.toml:4"]);
        places("[dependencies]\nfor_tests = \"1\"\n", "use for_tests::check;", &[]);
        places("[dev-dependencies]\nfor_tests = \"1\"\n", "", &[]);
        let both = "[dependencies]\na = \"1\"\n[dev-dependencies]\na = \"1\"\n";
        places(both, "use a::B;", &["crates/c/Cargo.toml:4"]);
    }

    #[test]
    fn what_no_package_has() {
        let workspace = "[workspace.dependencies]\na = \"1\"\nb = \"1\"\n";
        let package = format!("{PACKAGE}[dependencies]\na.workspace = true\n");
        let files = [("Cargo.toml", workspace), ("c/Cargo.toml", &*package), ("c/src/lib.rs", "use a::B;")];
        expect(check, &files, &["Cargo.toml:3"]);
    }
}
