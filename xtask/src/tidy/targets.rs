//! Which files are targets, and what users call them.

use syn::{Expr, Item, Lit};

use super::Tree;
use super::rust_file::RustFile;

/// One device mapper target.
pub(super) struct Target<'a> {
    /// As in a table: the first text in its `TYPE`, or the file's name when that has none.
    pub(super) name: String,
    pub(super) file: &'a RustFile,
}

/// Every file of the targets crate that has a `TYPE` or implements `Target`, the crate's root aside.
pub(super) fn find(tree: &Tree) -> Vec<Target<'_>> {
    let in_crate = |file: &&RustFile| {
        file.path.starts_with("crates/targets/src/") && !file.path.ends_with("/lib.rs") && !file.test_only
    };
    tree.rust().filter(in_crate).filter_map(target_in).collect()
}

fn target_in(file: &RustFile) -> Option<Target<'_>> {
    let items = &file.syntax.items;
    let type_value = items.iter().find_map(type_item);
    if type_value.is_none() && !items.iter().any(implements_target) {
        return None;
    }
    let name = type_value.and_then(first_text).unwrap_or_else(|| file_name(&file.path));
    Some(Target { name, file })
}

/// The value of an item called `TYPE`.
pub(super) fn type_item(item: &Item) -> Option<&Expr> {
    match item {
        Item::Static(i) if i.ident == "TYPE" => Some(&i.expr),
        Item::Const(i) if i.ident == "TYPE" => Some(&i.expr),
        _ => None,
    }
}

/// Whether an item is `impl Target for ...`.
pub(super) fn implements_target(item: &Item) -> bool {
    let Item::Impl(block) = item else { return false };
    let Some((path, _)) = &block.trait_ else { return false };
    path.segments.last().is_some_and(|segment| segment.ident == "Target")
}

/// The first argument of `TargetType::new(…)`, whatever is called on that.
fn first_text(value: &Expr) -> Option<String> {
    match value {
        Expr::MethodCall(call) => first_text(&call.receiver),
        Expr::Call(call) => call.args.first().and_then(first_text),
        Expr::Lit(syn::ExprLit { lit: Lit::Str(text), .. }) => Some(text.value()),
        _ => None,
    }
}

fn file_name(path: &str) -> String {
    let stem = path.trim_end_matches("/mod.rs").trim_end_matches(".rs");
    let name = stem.rsplit('/').next().unwrap_or(stem);
    name.trim_end_matches('_').trim_end_matches("_target").replace('_', "-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_known_by_type_or_trait() {
        let check = |path: &str, text: &str, expect: Option<&str>| {
            let tree = Tree::from_texts([(path.to_owned(), text.to_owned())]);
            let names: Vec<String> = find(&tree).into_iter().map(|t| t.name).collect();
            assert_eq!(names, expect.into_iter().collect::<Vec<_>>(), "{path}: {text}");
        };
        let named = "pub static TYPE: TargetType = TargetType::new(\"thin-pool\", [1, 0, 0], ctr).singleton();";
        check("crates/targets/src/pool.rs", named, Some("thin-pool"));
        check("crates/targets/src/loop_.rs", "impl udm_core::Target for L {}", Some("loop"));
        check("crates/targets/src/thin_pool/mod.rs", "pub const TYPE: T = make();", Some("thin-pool"));
        check("crates/targets/src/helper.rs", "impl Display for L {}", None);
        check("crates/targets/src/lib.rs", named, None);
        check("crates/core/src/target.rs", named, None);
    }
}
