//! The rules of the project that a program can check, one file a rule.
//!
//! A check is a function from the [`Tree`] to findings. It reads no file of its
//! own, so its tests hand it a tree made of strings and show it failing.

mod ambient;
mod budgets;
mod changelog;
mod circles;
mod dead_files;
mod docs;
mod headers;
mod hosts;
mod imports;
mod layering;
mod links;
mod markers;
mod members;
mod order;
mod packages;
pub mod rust_file;
mod strangers;
mod targets;
pub mod tree;
mod unsafe_code;
mod unsafe_modules;
mod unused;
mod width;

use std::fmt;
use std::io;
use std::path::Path;

pub use tree::Tree;

/// One broken rule, at one place.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Finding {
    /// Path from the workspace's root, with `/`.
    pub path: String,
    /// Counted from 1; 1 too when the file as a whole is meant.
    pub line: usize,
    /// What is wrong and what to do about it, in one sentence or two.
    pub message: String,
}

impl Finding {
    fn new(path: impl Into<String>, line: usize, message: impl Into<String>) -> Self {
        Self { path: path.into(), line, message: message.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.message)
    }
}

/// A check: the tree in, the findings out.
pub type Check = fn(&Tree) -> Vec<Finding>;

/// The one list of checks.
pub const CHECKS: &[(&str, Check)] = &[
    ("parses", Tree::unparsable),
    ("layering", layering::check),
    ("circles", circles::check),
    ("strangers", strangers::check),
    ("ambient", ambient::check),
    ("unsafe", unsafe_code::check),
    ("budgets", budgets::check),
    ("headers", headers::check),
    ("order", order::check),
    ("dead-files", dead_files::check),
    ("markers", markers::check),
    ("docs", docs::check),
    ("links", links::check),
    ("hosts", hosts::check),
    ("changelog", changelog::check),
    ("members", members::check),
    ("unused", unused::check),
    ("width", width::check),
];

/// Runs every check on the files under `root`, sorted by place.
///
/// # Errors
/// When the tree cannot be listed or a file in it cannot be read.
pub fn run(root: &Path) -> io::Result<Vec<Finding>> {
    let tree = Tree::load(root)?;
    let mut findings: Vec<Finding> = CHECKS.iter().flat_map(|(_, check)| check(&tree)).collect();
    findings.sort();
    findings.dedup();
    Ok(findings)
}

/// For the tests of the checks: runs `check` on a tree made of `(path, text)` and
/// compares `path:line` of what it found with `expect`.
#[cfg(test)]
#[track_caller]
fn expect(check: Check, files: &[(&str, &str)], expect: &[&str]) {
    let tree = Tree::from_texts(files.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())));
    assert_eq!(tree.unparsable(), [], "the sample itself must parse");
    let found = check(&tree);
    let places: Vec<String> = found.iter().map(|f| format!("{}:{}", f.path, f.line)).collect();
    assert_eq!(places, expect, "{found:#?}");
}
