//! Every `.rs` file is reached by a `mod`: one that is not is compiled by nobody,
//! tested by nobody, and rots.

use std::collections::{BTreeMap, BTreeSet};

use syn::{Item, ItemMod, Lit};

use super::rust_file::{RustFile, is_test_item};
use super::{Finding, Tree};

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let reached = reach(tree);
    tree.rust()
        .filter(|file| tree.package_of(&file.path).is_some() && !reached.contains_key(&file.path))
        .map(|file| {
            let message = "no `mod` leads to this file, so nothing compiles it; declare it or delete it";
            Finding::new(&file.path, 1, message)
        })
        .collect()
}

/// The files that only `#[cfg(test)] mod name;` leads to.
pub(super) fn test_only_files(tree: &Tree) -> BTreeSet<String> {
    reach(tree).into_iter().filter_map(|(path, test_only)| test_only.then_some(path)).collect()
}

/// Every file that some root leads to, and whether it does so for tests only.
fn reach(tree: &Tree) -> BTreeMap<String, bool> {
    let mut reached: BTreeMap<String, bool> = BTreeMap::new();
    let is_root = |file: &&RustFile| tree.package_of(&file.path).is_some_and(|p| p.is_root(&file.path));
    let mut pending: Vec<(String, bool, bool)> =
        tree.rust().filter(is_root).map(|file| (file.path.clone(), file.test_only, true)).collect();
    while let Some((path, test_only, is_root)) = pending.pop() {
        match reached.get_mut(&path) {
            // Reached before; go on only when that way was for tests and this one is not.
            Some(known) if test_only || !*known => continue,
            Some(known) => *known = false,
            None => {
                reached.insert(path.clone(), test_only);
            }
        }
        let Some(file) = tree.rust_file(&path) else { continue };
        let place = Place::of_file(&path, is_root);
        for child in children(&file.syntax.items, &place, test_only) {
            if let Some((found, is_mod_rs)) = child.candidates.into_iter().find(|(c, _)| tree.text(c).is_some()) {
                pending.push((found, child.test_only, is_mod_rs));
            }
        }
    }
    reached
}

/// Where `mod` declarations look for files.
struct Place {
    /// Folder of the file itself: what `#[path]` outside of inline modules starts from.
    file_folder: String,
    /// Folder in which `mod name;` finds `name.rs`.
    child_folder: String,
}

impl Place {
    fn of_file(path: &str, is_root: bool) -> Self {
        let (folder, name) = path.rsplit_once('/').map_or(("", path), |(f, n)| (f, n));
        let folder = if folder.is_empty() { String::new() } else { format!("{folder}/") };
        let stem = name.trim_end_matches(".rs");
        let owns_folder = is_root || stem == "mod";
        let child_folder = if owns_folder { folder.clone() } else { format!("{folder}{stem}/") };
        Self { file_folder: folder, child_folder }
    }

    fn inside(&self, inline: &str) -> Self {
        let folder = format!("{}{inline}/", self.child_folder);
        Self { file_folder: folder.clone(), child_folder: folder }
    }
}

struct Child {
    /// Paths to try, and whether a file there owns its folder as `mod.rs` does.
    candidates: Vec<(String, bool)>,
    test_only: bool,
}

fn children(items: &[Item], place: &Place, test_only: bool) -> Vec<Child> {
    let mut out = Vec::new();
    for module in items.iter().filter_map(|item| if let Item::Mod(m) = item { Some(m) } else { None }) {
        let test_only = test_only || is_test_item(&module.attrs);
        let name = module.ident.to_string();
        let name = name.trim_start_matches("r#");
        if let Some((_, items)) = &module.content {
            out.extend(children(items, &place.inside(name), test_only));
            continue;
        }
        let candidates = match path_attribute(module) {
            Some(path) => vec![(normal(&format!("{}{path}", place.file_folder)), true)],
            None => vec![
                (format!("{}{name}.rs", place.child_folder), false),
                (format!("{}{name}/mod.rs", place.child_folder), true),
            ],
        };
        out.push(Child { candidates, test_only });
    }
    out
}

fn path_attribute(module: &ItemMod) -> Option<String> {
    module.attrs.iter().find_map(|attribute| {
        let syn::Meta::NameValue(pair) = &attribute.meta else { return None };
        let syn::Expr::Lit(literal) = &pair.value else { return None };
        let Lit::Str(text) = &literal.lit else { return None };
        pair.path.is_ident("path").then(|| text.value())
    })
}

/// Resolves `.` and `..` in a path from the root.
fn normal(path: &str) -> String {
    let mut parts = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    parts.join("/")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::expect;

    const MANIFEST: (&str, &str) = ("c/Cargo.toml", "[package]\nname = \"c\"\n");

    #[test]
    fn a_file_that_no_mod_names_is_dead() {
        let files = [MANIFEST, ("c/src/lib.rs", "mod a;"), ("c/src/a.rs", ""), ("c/src/b.rs", "")];
        expect(check, &files, &["c/src/b.rs:1"]);
    }

    #[test]
    fn every_way_to_declare_a_module_is_followed() {
        let files = [
            MANIFEST,
            ("c/src/lib.rs", "mod a; mod b; mod inline { mod d; } #[path = \"odd/../e.rs\"] mod other; mod r#loop;"),
            ("c/src/a.rs", "mod under;"),
            ("c/src/a/under.rs", ""),
            ("c/src/b/mod.rs", "mod under;"),
            ("c/src/b/under.rs", ""),
            ("c/src/e.rs", ""),
            ("c/src/inline/d.rs", ""),
            ("c/src/loop.rs", ""),
            ("c/tests/it.rs", "mod common;"),
            ("c/tests/common/mod.rs", ""),
        ];
        expect(check, &files, &[]);
    }

    #[test]
    fn a_file_beneath_a_dead_one_is_dead() {
        let files = [MANIFEST, ("c/src/lib.rs", ""), ("c/src/a.rs", "mod b;"), ("c/src/a/b.rs", "")];
        expect(check, &files, &["c/src/a.rs:1", "c/src/a/b.rs:1"]);
    }

    #[test]
    fn files_for_tests_only() {
        let files = [
            MANIFEST,
            ("c/src/lib.rs", "#[cfg(test)] mod t; mod a;"),
            ("c/src/t.rs", "mod deep;"),
            ("c/src/t/deep.rs", ""),
            ("c/src/a.rs", ""),
        ];
        let tree = Tree::from_texts(files.map(|(p, t)| (p.to_owned(), t.to_owned())));
        let names: Vec<String> = test_only_files(&tree).into_iter().collect();
        assert_eq!(names, ["c/src/t.rs", "c/src/t/deep.rs"]);
    }
}
