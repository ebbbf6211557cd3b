//! Every relative link in a page leads to a file or folder of the tree: a reader who
//! follows a dead one stops believing the rest.

use super::{Finding, Tree};

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in tree.texts().filter(|(path, _)| path.ends_with(".md")) {
        let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
        let mut is_code = false;
        for (index, line) in text.lines().enumerate() {
            is_code ^= line.trim_start().starts_with("```");
            if is_code {
                continue;
            }
            for link in links(line) {
                let file = link.split('#').next().unwrap_or_default();
                let is_elsewhere = file.is_empty() || file.contains("://") || file.starts_with("mailto:");
                if !is_elsewhere && !exists(tree, &resolve(folder, file)) {
                    findings.push(Finding::new(
                        path,
                        index + 1,
                        format!("the link leads to `{file}`, which does not exist"),
                    ));
                }
            }
        }
    }
    findings
}

/// The targets of `[text](target)` in `line`.
fn links(line: &str) -> impl Iterator<Item = &str> {
    line.split("](").skip(1).filter_map(|rest| Some(rest.split_once(')')?.0))
}

/// `link` as it stands in a page of `folder`, as a path from the root.
fn resolve(folder: &str, link: &str) -> String {
    let mut parts: Vec<&str> = folder.split('/').filter(|part| !part.is_empty()).collect();
    for part in link.split('/') {
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

fn exists(tree: &Tree, path: &str) -> bool {
    let folder = format!("{path}/");
    tree.texts().any(|(known, _)| known == path || known.starts_with(&folder))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::expect;

    #[test]
    fn dead_links_are_found() {
        let page = "[a](b.md) [b](../x/c.md#part)\n[dead](no.md)\n```text\n[code](no.md)\n```\n[up](../../x)\n";
        let files = [("d/e/a.md", page), ("d/e/b.md", "[x](https://example.org) [y](#here)"), ("d/x/c.md", "")];
        expect(check, &files, &["d/e/a.md:2", "d/e/a.md:6"]);
    }

    #[test]
    fn folders_may_be_linked() {
        expect(check, &[("a.md", "[d](d/e) [d](d/)"), ("d/e/f.rs", "")], &[]);
    }
}
