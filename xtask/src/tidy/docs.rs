//! Every target and every command has its page, every page is in the table of
//! contents, and every entry there leads to a page.

use super::{Finding, Tree, targets};

const SUMMARY: &str = "docs/src/SUMMARY.md";

/// Commands and the page that tells about each, under `docs/src/commands/`.
const COMMANDS: &[(&str, &str)] = &[
    ("help", "help"),
    ("version", "version"),
    ("create", "create"),
    ("remove", "remove"),
    ("remove_all", "remove_all"),
    ("suspend", "suspend"),
    ("resume", "resume"),
    ("load", "load"),
    ("reload", "load"),
    ("clear", "clear"),
    ("wipe_table", "wipe_table"),
    ("rename", "rename"),
    ("message", "message"),
    ("ls", "ls"),
    ("info", "info"),
    ("deps", "deps"),
    ("status", "status"),
    ("table", "table"),
    ("wait", "wait"),
    ("measure", "measure"),
    ("mknodes", "mknodes"),
    ("mangle", "mangle"),
    ("setgeometry", "setgeometry"),
    ("splitname", "splitname"),
    ("targets", "targets"),
    ("target-version", "target-version"),
    ("udevcreatecookie", "udev"),
    ("udevreleasecookie", "udev"),
    ("udevflags", "udev"),
    ("udevcomplete", "udev"),
    ("udevcomplete_all", "udev"),
    ("udevcookies", "udev"),
    ("daemon", "daemon"),
    ("run", "run"),
    ("bench", "bench"),
    ("export", "export"),
    ("set", "set"),
    ("debug dump", "debug"),
    ("snapshot", "snapshot"),
    ("thin check", "thin"),
    ("thin dump", "thin"),
    ("thin restore", "thin"),
    ("thin repair", "thin"),
    ("thin delta", "thin"),
    ("thin ls", "thin"),
    ("thin rmap", "thin"),
    ("thin metadata-size", "thin"),
];

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for target in targets::find(tree) {
        let page = format!("docs/src/targets/{}.md", target.name);
        if tree.text(&page).is_none() {
            let message = format!("target `{}` has no page; write {page}", target.name);
            findings.push(Finding::new(&target.file.path, 1, message));
        }
    }
    for (command, page) in COMMANDS {
        let page = format!("docs/src/commands/{page}.md");
        let is_told = tree.text(&page).is_some_and(|text| text.contains(&format!("udm {command}")));
        if !is_told {
            let message =
                format!("command `{command}` is not told about here; write at least how `udm {command}` is used");
            findings.push(Finding::new(&page, 1, message));
        }
    }
    findings.extend(contents(tree));
    findings
}

fn contents(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    let summary = tree.text(SUMMARY).unwrap_or_default();
    let mut linked = Vec::new();
    for (index, line) in summary.lines().enumerate() {
        let links = line.split("](").skip(1).filter_map(|rest| rest.split_once(')'));
        for page in links.map(|(page, _)| format!("docs/src/{page}")) {
            if tree.text(&page).is_none() {
                findings.push(Finding::new(SUMMARY, index + 1, format!("{page} does not exist")));
            }
            linked.push(page);
        }
    }
    let is_page = |path: &&str| path.starts_with("docs/src/") && path.ends_with(".md") && *path != SUMMARY;
    for page in tree.texts().map(|(path, _)| path).filter(is_page) {
        if !linked.iter().any(|link| link == page) {
            findings.push(Finding::new(page, 1, format!("no entry of {SUMMARY} leads to this page")));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::expect;

    /// A tree in which every command has its page.
    fn pages() -> Vec<(String, String)> {
        let mut files: Vec<(String, String)> = Vec::new();
        for (command, page) in COMMANDS {
            let path = format!("docs/src/commands/{page}.md");
            match files.iter_mut().find(|(known, _)| *known == path) {
                Some((_, text)) => text.push_str(&format!("udm {command}\n")),
                None => files.push((path, format!("udm {command}\n"))),
            }
        }
        let links = files.iter().map(|(path, _)| format!("- [x]({})\n", path.trim_start_matches("docs/src/")));
        let summary = links.collect();
        files.push((SUMMARY.to_owned(), summary));
        files
    }

    fn check_with(change: impl FnOnce(&mut Vec<(String, String)>), places: &[&str]) {
        let mut files = pages();
        change(&mut files);
        let files: Vec<(&str, &str)> = files.iter().map(|(p, t)| (p.as_str(), t.as_str())).collect();
        expect(check, &files, places);
    }

    #[test]
    fn a_full_book_passes() {
        check_with(|_| {}, &[]);
    }

    #[test]
    fn a_command_without_a_page_is_found() {
        check_with(
            |files| files.retain(|(path, _)| !path.ends_with("/create.md")),
            &["docs/src/commands/create.md:1", "docs/src/SUMMARY.md:3"],
        );
        check_with(|files| files[0].1.clear(), &["docs/src/commands/help.md:1"]);
    }

    #[test]
    fn a_page_outside_the_contents_is_found() {
        check_with(|files| files.push(("docs/src/new.md".to_owned(), "x".to_owned())), &["docs/src/new.md:1"]);
    }

    #[test]
    fn a_target_without_a_page_is_found() {
        let target = "pub static TYPE: T = T::new(\"zero\");";
        check_with(
            |files| files.push(("crates/targets/src/zero.rs".to_owned(), target.to_owned())),
            &["crates/targets/src/zero.rs:1"],
        );
    }
}
