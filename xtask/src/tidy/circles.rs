//! No files that import each other in a circle: one of them cannot be read, tested or moved without the others.
//!
//! Where halves of one idea lie in several files, the list here has the circle and its reason. Everything else is
//! refused, whether it lies within a folder or spans several.

use std::collections::{BTreeMap, BTreeSet};

use super::imports::{self, Import};
use super::{Finding, Tree};

/// A folder, its files that may import each other (`*`: all beneath it), and why.
type Circle = (&'static str, &'static [&'static str], &'static str);

/// The circles that stand. A new name here wants a reason that a reviewer believes.
const CIRCLES: &[Circle] = &[
    ("crates/client/src/dmsetup", &["*"], "the list of commands, and what commands share of the program"),
    (
        "crates/control/src/handler",
        &["error.rs", "mod.rs"],
        "errors of requests, and the handler that gives them their texts",
    ),
    ("crates/core/src", &["*"], "tables, targets and mapped devices name each other in their interfaces"),
    ("crates/experiments/src", &["chart.rs", "report.rs"], "a page and the charts on it"),
    ("crates/experiments/src/polling", &["files.rs", "mod.rs"], "the experiment, and one of its subjects"),
    (
        "crates/experiments/src/seeds",
        &["mod.rs", "page.rs", "story.rs"],
        "the experiment, and the pages that tell of it",
    ),
    (
        "crates/experiments/src/snapshot_cow",
        &["memory.rs", "mod.rs", "modelled.rs", "real.rs", "seed.rs"],
        "the experiment, and the worlds that it is run in",
    ),
    (
        "crates/export/src/nbd",
        &["handover.rs", "long.rs", "transmission.rs"],
        "long requests are transmitted in pieces, and handed over between two of them",
    ),
    ("crates/export/src/nbd", &["shared.rs", "worker.rs"], "the workers, and what they share"),
    ("crates/export/src/node/fuse", &["serve.rs", "worker.rs"], "the worker, and the requests that it serves"),
    (
        "crates/export/src/vhost_user",
        &["handover.rs", "inflight.rs", "queue.rs", "server.rs", "session.rs", "worker.rs"],
        "a session, and its queues and workers",
    ),
    ("crates/formats/src/thin/tools", &["cursor.rs", "view.rs"], "a cursor over a view"),
    ("crates/formats/src/thin/tools/check", &["maps.rs", "mod.rs", "trees.rs"], "the check, and its parts"),
    (
        "crates/io/src/channel",
        &[
            "background.rs",
            "bio.rs",
            "core.rs",
            "cpu_work.rs",
            "cx.rs",
            "device.rs",
            "internal.rs",
            "mailbox.rs",
            "record.rs",
            "shared.rs",
            "slab.rs",
            "source.rs",
            "timers.rs",
        ],
        "a bio is of its channel, which submits it to devices, which get both",
    ),
    ("crates/io/src/channel", &["mod.rs", "wait.rs"], "a channel, and how it sleeps"),
    ("crates/pdata/src", &["*"], "trees count blocks in maps that are trees"),
    ("crates/sim/src", &["*"], "devices of a world that steps them"),
    (
        "crates/targets/src/snapshot",
        &["*"],
        "what changes on an origin is one worker's, and each part of it begins the next",
    ),
    ("crates/targets/src/thin", &["*"], "the worker of a pool is polled by the pool that it is part of"),
    ("crates/udm/src", &["*"], "the daemon, and the parts of it that commands reach by way of it"),
    ("crates/worker/src", &["outbox.rs", "worker.rs"], "a worker, and what it wants sent"),
    ("soak/src", &["load.rs", "world.rs"], "a world, and the load on it"),
    ("soak/src/operations", &["*"], "the list of operations, and what each one is"),
    ("xtask/src/tidy", &["*"], "the list of checks, and what each one gives"),
];

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    check_against(tree, CIRCLES)
}

fn check_against(tree: &Tree, known: &[Circle]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut met = vec![false; known.len()];
    for package in tree.packages() {
        let imports = imports::of_package(tree, package);
        for circle in circles(&imports) {
            let is_of = |(folder, files, _): &Circle| {
                let mut names = circle.iter().map(|path| path.strip_prefix(folder).and_then(|n| n.strip_prefix('/')));
                names.all(|name| name.is_some_and(|name| files.contains(&"*") || files.contains(&name)))
            };
            match known.iter().position(is_of) {
                Some(at) => met[at] = true,
                None => findings.push(finding(&circle, &imports)),
            }
        }
    }
    // Of a tree that is a test's sample nothing is known.
    for ((folder, files, _), _) in known.iter().zip(met).filter(|(_, met)| !met) {
        if files.iter().all(|file| tree.rust_file(&format!("{folder}/{file}")).is_some()) {
            let message = format!("the files {files:?} are no circle any more; take them from xtask's circles.rs");
            findings.push(Finding::new(format!("{folder}/{}", files[0]), 1, message));
        }
    }
    findings
}

fn finding(circle: &BTreeSet<&str>, imports: &[Import]) -> Finding {
    let folder = |path: &str| path.rsplit_once('/').map(|(folder, _)| folder.to_owned());
    let folders: BTreeSet<Option<String>> = circle.iter().map(|path| folder(path)).collect();
    let inner: Vec<&Import> = imports.iter().filter(|i| circle.contains(&*i.from) && circle.contains(&*i.to)).collect();
    let steps: Vec<String> = inner.iter().map(|i| format!("{}:{} -> {} ({})", i.from, i.line, i.to, i.name)).collect();
    let what = if folders.len() > 1 {
        "these files of different folders import each other in a circle; move what ties them"
    } else {
        "these files import each other in a circle; move what ties them, or list it with its reason in xtask's circles.rs"
    };
    let (path, line) = inner.first().map_or(("", 1), |import| (&*import.from, import.line));
    Finding::new(path, line, format!("{what}: {}", steps.join("; ")))
}

/// The sets of two or more files each of which leads to all others of its set.
fn circles(imports: &[Import]) -> Vec<BTreeSet<&str>> {
    let mut leads: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for import in imports {
        leads.entry(&import.from).or_default().insert(&import.to);
    }
    let reach = |from: &str| {
        let mut reached = BTreeSet::new();
        let mut pending: Vec<&str> = leads.get(from).into_iter().flatten().copied().collect();
        while let Some(next) = pending.pop() {
            if reached.insert(next) {
                pending.extend(leads.get(next).into_iter().flatten());
            }
        }
        reached
    };
    let reached: BTreeMap<&str, BTreeSet<&str>> = leads.keys().map(|from| (*from, reach(from))).collect();
    let mut found = BTreeSet::new();
    for (from, to) in &reached {
        let back = |other: &&&str| reached.get(**other).is_some_and(|there| there.contains(from));
        let circle: BTreeSet<&str> = to.iter().filter(back).copied().collect();
        if circle.len() > 1 {
            found.insert(circle);
        }
    }
    found.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::expect;

    const MANIFEST: (&str, &str) = ("c/Cargo.toml", "[package]\nname = \"c\"\n");

    fn found(files: &[(&str, &str)], known: &'static [Circle], places: &[&str]) {
        let mut all = vec![MANIFEST];
        all.extend(files);
        let tree = Tree::from_texts(all.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())));
        assert_eq!(tree.unparsable(), [], "the sample itself must parse");
        let found: Vec<String> = check_against(&tree, known).iter().map(|f| format!("{}:{}", f.path, f.line)).collect();
        assert_eq!(found, places);
    }

    const LIB: (&str, &str) = ("c/src/lib.rs", "mod a;\nmod b;\npub use a::A;\npub use b::B;\n");

    #[test]
    fn a_circle_is_found_by_every_way_to_name_a_file() {
        expect(check, &[MANIFEST], &[]);
        for b in [
            "use crate::a::A;\npub struct B;",
            "use crate::A;\npub struct B;",
            "use super::a;\npub struct B;",
            "pub struct B;\nfn f(_: crate::A) {}",
            "pub struct B;\nfn f() {\n    assert!(crate::a::A == 1);\n}",
        ] {
            found(&[LIB, ("c/src/a.rs", "use crate::B;\npub struct A;"), ("c/src/b.rs", b)], &[], &["c/src/a.rs:1"]);
        }
    }

    #[test]
    fn what_is_no_circle() {
        let a = ("c/src/a.rs", "use crate::B;\npub struct A;");
        for b in ["pub struct B;", "pub struct B;\n#[cfg(test)]\nmod tests {\n    use crate::A;\n}"] {
            found(&[LIB, a, ("c/src/b.rs", b)], &[], &[]);
        }
        // Names that a parent hands on do not tie it to them.
        found(&[LIB, ("c/src/a.rs", "use super::X;\npub struct A;"), ("c/src/b.rs", "pub struct B;")], &[], &[]);
    }

    #[test]
    fn a_parent_and_its_child() {
        let lib = ("c/src/lib.rs", "mod a;\nmod d;\npub struct X;\n");
        let uses = ("c/src/a.rs", "use super::X;\npub struct A;");
        found(&[lib, uses, ("c/src/d/mod.rs", "pub use crate::a::A;")], &[], &[]);
        let lib = ("c/src/lib.rs", "mod a;\npub use a::A;\npub struct X(A);\n");
        found(&[lib, uses], &[], &["c/src/a.rs:1"]);
    }

    #[test]
    fn a_known_circle_stands_in_its_folder_and_goes_when_it_is_gone() {
        const KNOWN: &[Circle] = &[("c/src", &["a.rs", "b.rs"], "two halves")];
        let a = ("c/src/a.rs", "use crate::B;\npub struct A;");
        found(&[LIB, a, ("c/src/b.rs", "use crate::A;\npub struct B;")], KNOWN, &[]);
        found(&[LIB, a, ("c/src/b.rs", "pub struct B;")], KNOWN, &["c/src/a.rs:1"]);
    }
}
