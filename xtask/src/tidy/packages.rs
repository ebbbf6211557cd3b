//! Cargo manifests: names, dependencies and compilation roots.

use std::collections::BTreeMap;

use toml::{Table, Value};

use super::Finding;

/// One `[package]`.
pub(super) struct Package {
    /// Folder from the root with a `/` at its end; empty for the root itself.
    pub(super) folder: String,
    pub(super) name: String,
    pub(super) manifest: Table,
}

/// What a dependency is for; the rules differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    Normal,
    Dev,
}

const SECTIONS: &[(&str, Purpose)] =
    &[("dependencies", Purpose::Normal), ("build-dependencies", Purpose::Normal), ("dev-dependencies", Purpose::Dev)];

impl Package {
    pub(super) fn contains(&self, path: &str) -> bool {
        path.starts_with(&self.folder)
    }

    pub(super) fn manifest_path(&self) -> String {
        format!("{}Cargo.toml", self.folder)
    }

    /// Names of all dependencies, renames resolved, of every platform.
    pub(super) fn dependencies(&self) -> Vec<(String, Purpose)> {
        self.entries().map(|(key, renamed, purpose)| (renamed.unwrap_or(key).to_owned(), purpose)).collect()
    }

    /// The names that the package's own files have for them.
    pub(super) fn keys(&self) -> Vec<(String, Purpose)> {
        self.entries().map(|(key, _, purpose)| (key.to_owned(), purpose)).collect()
    }

    /// Each dependency's key, what is behind it if that has another name, and what it is for.
    fn entries(&self) -> impl Iterator<Item = (&str, Option<&str>, Purpose)> {
        let platforms = self.manifest.get("target").and_then(Value::as_table);
        let platforms = platforms.into_iter().flat_map(Table::values).filter_map(Value::as_table);
        std::iter::once(&self.manifest).chain(platforms).flat_map(|table| {
            SECTIONS.iter().flat_map(move |(section, purpose)| {
                let entries = table.get(*section).and_then(Value::as_table).into_iter().flatten();
                entries.map(|(key, value)| (&**key, value.get("package").and_then(Value::as_str), *purpose))
            })
        })
    }

    /// Paths of the files that rustc is called on, whether or not they exist.
    pub(super) fn is_root(&self, path: &str) -> bool {
        let Some(inner) = path.strip_prefix(&self.folder) else { return false };
        if matches!(inner, "src/lib.rs" | "src/main.rs" | "build.rs") {
            return true;
        }
        let auto = ["src/bin/", "tests/", "benches/", "examples/"];
        let is_auto = auto.iter().filter_map(|folder| inner.strip_prefix(folder)).any(|rest| {
            let one_file = !rest.contains('/');
            let one_folder = rest.ends_with("/main.rs") && rest.matches('/').count() == 1;
            one_file || one_folder
        });
        is_auto || self.declared_roots().any(|declared| declared == inner)
    }

    fn declared_roots(&self) -> impl Iterator<Item = &str> {
        let lists = ["bin", "test", "bench", "example"].into_iter();
        let listed = lists.filter_map(|kind| self.manifest.get(kind)?.as_array()).flatten();
        let library = self.manifest.get("lib").into_iter();
        library.chain(listed).filter_map(|entry| entry.get("path")?.as_str())
    }
}

/// Every package among `texts`; manifests that do not parse go to `broken`.
pub(super) fn find(texts: &BTreeMap<String, String>, broken: &mut Vec<Finding>) -> Vec<Package> {
    let mut packages = Vec::new();
    for (path, text) in texts {
        let Some(folder) = path.strip_suffix("Cargo.toml") else { continue };
        if !(folder.is_empty() || folder.ends_with('/')) {
            continue;
        }
        let manifest = match text.parse::<Table>() {
            Ok(manifest) => manifest,
            Err(e) => {
                let offset = e.span().map_or(0, |span| span.start.min(text.len()));
                let line = 1 + text.as_bytes()[..offset].iter().filter(|b| **b == b'\n').count();
                broken.push(Finding::new(path, line, format!("not a manifest: {}", e.message())));
                continue;
            }
        };
        let name = manifest.get("package").and_then(|p| p.get("name")).and_then(Value::as_str);
        if let Some(name) = name.map(str::to_owned) {
            packages.push(Package { folder: folder.to_owned(), name, manifest });
        }
    }
    packages
}

/// The line of `manifest` on which dependency `name` stands, or 1.
pub(super) fn line_of_dependency(manifest: &str, name: &str) -> usize {
    let names = |line: &str| {
        let rest = line.trim_start().trim_start_matches('"').strip_prefix(name);
        rest.is_some_and(|rest| rest.starts_with(['.', ' ', '=', '"']))
            || line.contains(&format!("package = \"{name}\""))
    };
    manifest.lines().position(names).map_or(1, |index| index + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(manifest: &str) -> Package {
        let texts = BTreeMap::from([("p/Cargo.toml".to_owned(), manifest.to_owned())]);
        let mut broken = Vec::new();
        let package = find(&texts, &mut broken).pop().expect("a package");
        assert_eq!(broken, []);
        package
    }

    #[test]
    fn dependencies_of_every_section_and_platform() {
        let p = package(
            "[package]\nname = \"p\"\n[dependencies]\na = \"1\"\nx = { package = \"b\" }\n\
             [dev-dependencies]\nc.workspace = true\n[target.'cfg(unix)'.dependencies]\nd = \"1\"\n",
        );
        let mut names = p.dependencies();
        names.sort_by(|l, r| l.0.cmp(&r.0));
        let expect = [("a", Purpose::Normal), ("b", Purpose::Normal), ("c", Purpose::Dev), ("d", Purpose::Normal)];
        assert_eq!(names, expect.map(|(n, p)| (n.to_owned(), p)));
    }

    #[test]
    fn roots() {
        let p = package("[package]\nname = \"p\"\n[[bench]]\nname = \"x\"\npath = \"speed/x.rs\"\n");
        let check = |path: &str, expect: bool| assert_eq!(p.is_root(path), expect, "{path}");
        check("p/src/lib.rs", true);
        check("p/src/bin/tool.rs", true);
        check("p/src/bin/tool/main.rs", true);
        check("p/src/bin/tool/part.rs", false);
        check("p/tests/it.rs", true);
        check("p/tests/common/mod.rs", false);
        check("p/speed/x.rs", true);
        check("p/src/other.rs", false);
        check("q/src/lib.rs", false);
    }

    #[test]
    fn the_line_of_a_dependency() {
        let text = "[dependencies]\nudm-iox = \"1\"\nudm-io.workspace = true\n";
        assert_eq!(line_of_dependency(text, "udm-io"), 3);
        assert_eq!(line_of_dependency(text, "absent"), 1);
    }
}
