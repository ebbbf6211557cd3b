//! Which files `mod` leads to, from where rustc begins.

use std::collections::{BTreeMap, BTreeSet};

use syn::{Item, ItemMod, Lit};

use super::packages::{self, Package};
use super::path::normal;
use super::rust_file::{RustFile, is_test_item};

/// Every file that some root leads to, and whether it does so for tests only.
pub(super) fn reach(
    files: &BTreeSet<&str>,
    rust: &BTreeMap<String, RustFile>,
    packages: &[Package],
) -> BTreeMap<String, bool> {
    let mut reached: BTreeMap<String, bool> = BTreeMap::new();
    let is_root = |file: &&RustFile| packages::of(packages, &file.path).is_some_and(|p| p.is_root(&file.path));
    let mut pending: Vec<(String, bool, bool)> =
        rust.values().filter(is_root).map(|file| (file.path.clone(), file.test_only, true)).collect();
    while let Some((path, test_only, is_root)) = pending.pop() {
        match reached.get_mut(&path) {
            // Reached before; go on only when that way was for tests and this one is not.
            Some(known) if test_only || !*known => continue,
            Some(known) => *known = false,
            None => {
                reached.insert(path.clone(), test_only);
            }
        }
        let Some(file) = rust.get(&path) else { continue };
        let place = Place::of_file(&path, is_root);
        for child in children(&file.syntax.items, &place, test_only) {
            if let Some((found, is_mod_rs)) = child.candidates.into_iter().find(|(c, _)| files.contains(&**c)) {
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
