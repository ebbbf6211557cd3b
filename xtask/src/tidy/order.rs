//! Targets all read alike: `TYPE`, struct, `ctr`, `impl Target`, helpers, tests. Who
//! has read one finds the place in the next.

use syn::spanned::Spanned;
use syn::{ImplItem, Item};

use super::rust_file::{RustFile, attributes, is_test_item};
use super::{Finding, Tree, targets};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Part {
    Type,
    Struct,
    Ctr,
    Target,
    Helper,
    Tests,
}

impl Part {
    fn name(self) -> &'static str {
        match self {
            Part::Type => "`TYPE`",
            Part::Struct => "the struct",
            Part::Ctr => "`ctr`",
            Part::Target => "`impl Target`",
            Part::Helper => "helpers",
            Part::Tests => "tests",
        }
    }
}

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    targets::find(tree).iter().flat_map(|target| check_file(target.file)).collect()
}

fn check_file(file: &RustFile) -> Vec<Finding> {
    let parts: Vec<(Part, usize)> =
        file.syntax.items.iter().filter_map(|item| Some((part(item)?, item.span().start().line))).collect();
    let mut findings = Vec::new();
    for wanted in [Part::Type, Part::Struct, Part::Ctr, Part::Target] {
        if !parts.iter().any(|(part, _)| *part == wanted) {
            findings.push(Finding::new(&file.path, 1, format!("this target has no {}", wanted.name())));
        }
    }
    let mut last = Part::Type;
    for (part, line) in parts {
        // A further struct is a helper's; it may stand with those it helps.
        let is_late_struct = part == Part::Struct && last >= Part::Target && last < Part::Tests;
        if part < last && !is_late_struct {
            let message = format!(
                "{} after {}; the order is TYPE, struct, ctr, impl Target, helpers, tests",
                part.name(),
                last.name()
            );
            findings.push(Finding::new(&file.path, line, message));
        }
        last = last.max(part);
    }
    findings
}

/// Which part an item is; imports, constants, modules and traits may stand anywhere.
fn part(item: &Item) -> Option<Part> {
    if is_test_item(attributes(item)) {
        return Some(Part::Tests);
    }
    if targets::type_item(item).is_some() {
        return Some(Part::Type);
    }
    match item {
        Item::Struct(_) | Item::Enum(_) => Some(Part::Struct),
        Item::Fn(function) if function.sig.ident == "ctr" => Some(Part::Ctr),
        Item::Fn(_) => Some(Part::Helper),
        Item::Impl(_) if targets::implements_target(item) => Some(Part::Target),
        Item::Impl(block) => {
            let is_ctr = |item: &ImplItem| matches!(item, ImplItem::Fn(f) if f.sig.ident == "ctr");
            Some(if block.items.iter().any(is_ctr) { Part::Ctr } else { Part::Helper })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::expect;

    const TYPE: &str = "pub static TYPE: T = T::new(\"x\");\n";
    const STRUCT: &str = "struct X;\n";
    const CTR: &str = "fn ctr() {}\n";
    const TARGET: &str = "impl Target for X {}\n";
    const HELPER: &str = "fn help() {}\n";
    const TESTS: &str = "#[cfg(test)] mod tests {}\n";

    fn lines(parts: &[&str], lines: &[usize]) {
        let path = "crates/targets/src/x.rs";
        let places: Vec<String> = lines.iter().map(|line| format!("{path}:{line}")).collect();
        expect(check, &[(path, &parts.concat())], &places.iter().map(String::as_str).collect::<Vec<_>>());
    }

    #[test]
    fn the_order_of_parts() {
        lines(&[TYPE, STRUCT, CTR, TARGET, HELPER, TESTS], &[]);
        lines(&["use a::b;\n", TYPE, STRUCT, "impl X { fn ctr() {} }\n", TARGET, STRUCT, HELPER], &[]);
        lines(&[STRUCT, TYPE, CTR, TARGET], &[2]);
        lines(&[TYPE, STRUCT, HELPER, CTR, TARGET], &[4, 5]);
        lines(&[TYPE, STRUCT, TARGET, CTR], &[4]);
        lines(&[TYPE, STRUCT, CTR, TARGET, TESTS, HELPER], &[6]);
    }

    #[test]
    fn no_part_may_be_missing() {
        lines(&[STRUCT, CTR, TARGET], &[1]);
        lines(&[TYPE, CTR, TARGET], &[1]);
        lines(&[TYPE, STRUCT, TARGET], &[1]);
        lines(&[TYPE, STRUCT, CTR], &[1]);
    }
}
