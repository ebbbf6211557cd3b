//! Small files, tests aside. The smallest targets are what people read to learn how
//! device mapper works, so each of them has a budget of its own.

use super::{Finding, Tree, targets};

/// Lines a file may have, tests aside; comments and blank lines count.
const FILE: usize = 700;

/// Lines a target without a budget of its own may have.
const TARGET: usize = 800;

/// The budgets of STYLE.md.
const TARGETS: &[(&str, usize)] = &[("zero", 50), ("ram", 100), ("linear", 150), ("striped", 250)];

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let targets = targets::find(tree);
    let budget = |path: &str| {
        let Some(target) = targets.iter().find(|target| target.file.path == path) else { return FILE };
        TARGETS.iter().find(|(name, _)| *name == target.name).map_or(TARGET, |(_, lines)| *lines)
    };
    let over = tree.rust().filter(|file| !file.test_only).filter_map(|file| {
        let (lines, most) = (file.lines_without_tests(), budget(&file.path));
        let message = format!("{lines} lines without tests, at most {most} are allowed; move one idea out");
        (lines > most).then(|| Finding::new(&file.path, most + 1, message))
    });
    over.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::expect;

    fn lines(count: usize, head: &str) -> String {
        format!("{head}\n{}", "// line\n".repeat(count - 1))
    }

    #[test]
    fn a_file_has_a_limit() {
        expect(check, &[("crates/io/src/a.rs", &lines(700, ""))], &[]);
        expect(check, &[("crates/io/src/a.rs", &lines(701, ""))], &["crates/io/src/a.rs:701"]);
        expect(check, &[("crates/io/tests/a.rs", &lines(2000, ""))], &[]);
    }

    #[test]
    fn tests_are_not_counted() {
        let text = format!("fn a() {{}}\n#[cfg(test)]\nmod tests {{\n{}}}\n", "// line\n".repeat(900));
        expect(check, &[("crates/io/src/a.rs", &text)], &[]);
    }

    #[test]
    fn a_target_has_a_budget() {
        let target = |name: &str| format!("pub static TYPE: T = T::new(\"{name}\");");
        let check_target = |name: &str, most: usize| {
            let path = "crates/targets/src/a.rs";
            expect(check, &[(path, &lines(most, &target(name)))], &[]);
            expect(check, &[(path, &lines(most + 1, &target(name)))], &[&format!("{path}:{}", most + 1)]);
        };
        check_target("zero", 50);
        check_target("ram", 100);
        check_target("linear", 150);
        check_target("striped", 250);
        check_target("loop", 800);
    }
}
