//! Every `.rs` file is reached by a `mod`: one that is not is compiled by nobody,
//! tested by nobody, and rots.

use super::{Finding, Tree};

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    tree.rust()
        .filter(|file| tree.package_of(&file.path).is_some() && !tree.is_reached(&file.path))
        .map(|file| {
            let message = "no `mod` leads to this file, so nothing compiles it; declare it or delete it";
            Finding::new(&file.path, 1, message)
        })
        .collect()
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
        let names: Vec<&str> = tree.rust().filter(|file| file.test_only).map(|file| &*file.path).collect();
        assert_eq!(names, ["c/src/t.rs", "c/src/t/deep.rs"]);
    }
}
