//! The files of the project, read once, for every check.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::process::Command;

use super::Finding;
use super::packages::{self, Package};
use super::rust_file::RustFile;

/// A snapshot of the tracked files (and of new ones that are not ignored).
pub struct Tree {
    texts: BTreeMap<String, String>,
    rust: BTreeMap<String, RustFile>,
    packages: Vec<Package>,
    broken: Vec<Finding>,
}

impl Tree {
    /// Reads what git would commit under `root`; files that are not UTF-8 are left out.
    ///
    /// # Errors
    /// When git does not answer, or a listed file cannot be read.
    pub fn load(root: &Path) -> io::Result<Self> {
        let listing = Command::new("git")
            .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
            .current_dir(root)
            .output()?;
        if !listing.status.success() {
            let why = String::from_utf8_lossy(&listing.stderr);
            return Err(io::Error::other(format!("git ls-files in {}: {why}", root.display())));
        }
        let mut texts = BTreeMap::new();
        for path in String::from_utf8_lossy(&listing.stdout).split('\0').filter(|p| !p.is_empty()) {
            match std::fs::read(root.join(path)) {
                Ok(bytes) => {
                    if let Ok(text) = String::from_utf8(bytes) {
                        texts.insert(path.to_owned(), text);
                    }
                }
                // Deleted in the work tree and not yet in the index; or a link to a folder.
                Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::IsADirectory) => {}
                Err(e) => return Err(io::Error::new(e.kind(), format!("{path}: {e}"))),
            }
        }
        Ok(Self::from_texts(texts))
    }

    /// A tree made of `(path, text)` pairs.
    pub fn from_texts(texts: impl IntoIterator<Item = (String, String)>) -> Self {
        let texts: BTreeMap<String, String> = texts.into_iter().collect();
        let mut rust = BTreeMap::new();
        let mut broken = Vec::new();
        for (path, text) in texts.iter().filter(|(path, _)| path.ends_with(".rs")) {
            match RustFile::parse(path, text) {
                Ok(file) => {
                    rust.insert(path.clone(), file);
                }
                Err(e) => broken.push(Finding::new(path, e.line, format!("not Rust: {}", e.message))),
            }
        }
        let packages = packages::find(&texts, &mut broken);
        let mut tree = Self { texts, rust, packages, broken };
        let test_only = super::dead_files::test_only_files(&tree);
        for path in test_only {
            if let Some(file) = tree.rust.get_mut(&path) {
                file.test_only = true;
            }
        }
        tree
    }

    /// Files that could not be parsed, which every other check passes over.
    #[must_use]
    pub fn unparsable(&self) -> Vec<Finding> {
        self.broken.clone()
    }

    /// Every text file: path from the root, and contents.
    pub fn texts(&self) -> impl Iterator<Item = (&str, &str)> {
        self.texts.iter().map(|(path, text)| (path.as_str(), text.as_str()))
    }

    /// The contents of one file.
    #[must_use]
    pub fn text(&self, path: &str) -> Option<&str> {
        self.texts.get(path).map(String::as_str)
    }

    /// Every Rust file that parses, in order of path.
    pub fn rust(&self) -> impl Iterator<Item = &RustFile> {
        self.rust.values()
    }

    /// One Rust file.
    #[must_use]
    pub fn rust_file(&self, path: &str) -> Option<&RustFile> {
        self.rust.get(path)
    }

    /// Every package of the tree.
    pub(super) fn packages(&self) -> &[Package] {
        &self.packages
    }

    /// The package that `path` lies in: the one with the longest folder.
    pub(super) fn package_of(&self, path: &str) -> Option<&Package> {
        self.packages.iter().filter(|p| p.contains(path)).max_by_key(|p| p.folder.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_not_rust_is_a_finding_with_its_line() {
        let tree = Tree::from_texts([("a/src/lib.rs".to_owned(), "fn f() {}\nfn {\n".to_owned())]);
        let found = tree.unparsable();
        assert_eq!((found[0].path.as_str(), found[0].line), ("a/src/lib.rs", 2));
    }

    #[test]
    fn a_manifest_that_is_not_toml_is_a_finding() {
        let tree = Tree::from_texts([("a/Cargo.toml".to_owned(), "[package\n".to_owned())]);
        assert_eq!(tree.unparsable().len(), 1);
    }

    #[test]
    fn the_nearest_package_owns_a_file() {
        let manifest = |name: &str| format!("[package]\nname = \"{name}\"\n");
        let tree = Tree::from_texts([
            ("Cargo.toml".to_owned(), manifest("outer")),
            ("in/Cargo.toml".to_owned(), manifest("inner")),
        ]);
        let name = |path| tree.package_of(path).map(|p| p.name.as_str());
        assert_eq!(name("in/src/lib.rs"), Some("inner"));
        assert_eq!(name("inside.rs"), Some("outer"));
    }
}
