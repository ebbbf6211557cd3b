//! One Rust file: its syntax tree, its flat tokens, and which lines are tests.

use std::ops::RangeInclusive;

use proc_macro2::{Delimiter, TokenStream, TokenTree};
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{Attribute, Item, UseTree};

/// A parsed source file.
pub struct RustFile {
    /// Path from the workspace's root.
    pub path: String,
    /// The text as it stands in the file.
    pub text: String,
    /// Whether the whole file is compiled for tests, benches or examples only.
    pub test_only: bool,
    pub(super) syntax: syn::File,
    pub(super) tokens: Vec<Token>,
    pub(super) uses: Vec<Use>,
    test_lines: Vec<RangeInclusive<usize>>,
}

/// A token without its tree, so that `a :: b` is three neighbours even in a macro.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Token {
    pub(super) text: String,
    pub(super) line: usize,
}

/// One leaf of a `use`, its path written out: `use std::{env, io}` has two.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Use {
    pub(super) path: Vec<String>,
    pub(super) line: usize,
}

/// Why a text is not a Rust file.
#[derive(Debug)]
pub struct ParseError {
    /// Counted from 1.
    pub line: usize,
    /// The parser's words.
    pub message: String,
}

impl RustFile {
    /// Parses `text`, which stands at `path`. Meant for the project's own files: the parser
    /// recurses as deep as the text nests.
    ///
    /// # Errors
    /// The first place where it is not Rust.
    pub fn parse(path: &str, text: &str) -> Result<Self, ParseError> {
        let syntax = syn::parse_file(text)
            .map_err(|e| ParseError { line: e.span().start().line.max(1), message: e.to_string() })?;
        let mut tokens = Vec::new();
        let stream: TokenStream = text.parse().unwrap_or_default();
        flatten(stream, &mut tokens);
        let mut lines = TestLines::default();
        lines.visit_file(&syntax);
        let mut uses = Uses::default();
        uses.visit_file(&syntax);
        let test_only = ["tests/", "benches/", "examples/"]
            .iter()
            .any(|folder| path.starts_with(folder) || path.contains(&format!("/{folder}")));
        Ok(Self {
            path: path.to_owned(),
            text: text.to_owned(),
            test_only,
            syntax,
            tokens,
            uses: uses.0,
            test_lines: lines.0,
        })
    }

    /// Whether line `line` is compiled for tests only.
    #[must_use]
    pub fn is_test(&self, line: usize) -> bool {
        self.test_only || self.test_lines.iter().any(|range| range.contains(&line))
    }

    /// How many lines there are, tests aside; comments and blank lines count.
    #[must_use]
    pub fn lines_without_tests(&self) -> usize {
        let lines = self.text.lines().count();
        (1..=lines).filter(|line| !self.is_test(*line)).count()
    }

    /// The lines on which the tokens `path` (as `["Instant", "::", "now"]`) begin.
    pub(super) fn sequences<'a>(&'a self, path: &'a [&'a str]) -> impl Iterator<Item = (usize, &'a [Token])> {
        self.tokens.windows(path.len()).enumerate().filter_map(move |(index, window)| {
            let same = window.iter().zip(path).all(|(token, text)| token.text == *text);
            same.then(|| (window[0].line, &self.tokens[index + path.len()..]))
        })
    }
}

fn flatten(stream: TokenStream, out: &mut Vec<Token>) {
    let mut colon = false;
    for tree in stream {
        let line = tree.span().start().line;
        let mut push = |text: String| out.push(Token { text, line });
        match tree {
            TokenTree::Group(group) => {
                let (open, close) = match group.delimiter() {
                    Delimiter::Parenthesis => ("(", ")"),
                    Delimiter::Brace => ("{", "}"),
                    Delimiter::Bracket => ("[", "]"),
                    Delimiter::None => ("", ""),
                };
                push(open.to_owned());
                flatten(group.stream(), out);
                out.push(Token { text: close.to_owned(), line: group.span_close().start().line });
                colon = false;
            }
            TokenTree::Punct(punct) if punct.as_char() == ':' => {
                // Two colons become one token, so that paths read as they are written.
                match out.last_mut() {
                    Some(last) if colon && last.text == ":" => {
                        last.text.push(':');
                        colon = false;
                    }
                    _ => {
                        out.push(Token { text: ":".to_owned(), line });
                        colon = punct.spacing() == proc_macro2::Spacing::Joint;
                    }
                }
            }
            other => {
                push(other.to_string());
                colon = false;
            }
        }
    }
}

/// Whether an item with these attributes exists for tests only.
pub(super) fn is_test_item(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        if attribute.path().is_ident("test") {
            return true;
        }
        let syn::Meta::List(list) = &attribute.meta else { return false };
        if !list.path.is_ident("cfg") {
            return false;
        }
        let mut words = Vec::new();
        flatten(list.tokens.clone(), &mut words);
        let words: Vec<&str> = words.iter().map(|t| t.text.as_str()).collect();
        // `not(test)` and `any(test, ...)` are compiled into the product too.
        words == ["test"] || (words.first() == Some(&"all") && words.contains(&"test") && !words.contains(&"not"))
    })
}

/// The attributes of an item, for the kinds that carry them.
pub(super) fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(i) => &i.attrs,
        Item::Enum(i) => &i.attrs,
        Item::ExternCrate(i) => &i.attrs,
        Item::Fn(i) => &i.attrs,
        Item::ForeignMod(i) => &i.attrs,
        Item::Impl(i) => &i.attrs,
        Item::Macro(i) => &i.attrs,
        Item::Mod(i) => &i.attrs,
        Item::Static(i) => &i.attrs,
        Item::Struct(i) => &i.attrs,
        Item::Trait(i) => &i.attrs,
        Item::TraitAlias(i) => &i.attrs,
        Item::Type(i) => &i.attrs,
        Item::Union(i) => &i.attrs,
        Item::Use(i) => &i.attrs,
        _ => &[],
    }
}

#[derive(Default)]
struct TestLines(Vec<RangeInclusive<usize>>);

impl<'ast> Visit<'ast> for TestLines {
    fn visit_item(&mut self, item: &'ast Item) {
        if is_test_item(attributes(item)) {
            let span = item.span();
            // An outer attribute is part of the item, so its first line is too.
            self.0.push(span.start().line..=span.end().line);
        } else {
            visit::visit_item(self, item);
        }
    }

    fn visit_impl_item_fn(&mut self, function: &'ast syn::ImplItemFn) {
        if is_test_item(&function.attrs) {
            let span = function.span();
            self.0.push(span.start().line..=span.end().line);
        }
    }
}

#[derive(Default)]
struct Uses(Vec<Use>);

impl Uses {
    fn walk(&mut self, tree: &UseTree, prefix: &mut Vec<String>) {
        let mut leaf = |ident: String, line: usize, prefix: &[String]| {
            let mut path = prefix.to_vec();
            path.push(ident);
            self.0.push(Use { path, line });
        };
        match tree {
            UseTree::Path(part) => {
                prefix.push(part.ident.to_string());
                self.walk(&part.tree, prefix);
                prefix.pop();
            }
            UseTree::Name(name) => leaf(name.ident.to_string(), name.ident.span().start().line, prefix),
            UseTree::Rename(name) => leaf(name.ident.to_string(), name.ident.span().start().line, prefix),
            UseTree::Glob(glob) => leaf("*".to_owned(), glob.span().start().line, prefix),
            UseTree::Group(group) => {
                for item in &group.items {
                    self.walk(item, prefix);
                }
            }
        }
    }
}

impl<'ast> Visit<'ast> for Uses {
    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        self.walk(&item.tree, &mut Vec::new());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> RustFile {
        RustFile::parse("crates/x/src/lib.rs", text).expect("sample parses")
    }

    #[test]
    fn uses_are_written_out() {
        let file = parse("use std::{\n    env,\n    io::{self as i, *},\n};\n");
        let paths: Vec<(String, usize)> = file.uses.iter().map(|u| (u.path.join("::"), u.line)).collect();
        let expect = [("std::env", 2), ("std::io::self", 3), ("std::io::*", 3)];
        assert_eq!(paths, expect.map(|(p, l)| (p.to_owned(), l)));
    }

    #[test]
    fn test_code_is_known_by_its_attribute() {
        let check = |attribute: &str, expect: bool| {
            let file = parse(&format!("fn a() {{}}\n{attribute}\nmod m {{\n}}\n"));
            assert!(!file.is_test(1), "{attribute}");
            assert_eq!(file.is_test(3), expect, "{attribute}");
            assert_eq!(file.is_test(2), expect, "{attribute}");
        };
        check("#[cfg(test)]", true);
        check("#[cfg(all(test, unix))]", true);
        check("#[cfg(not(test))]", false);
        check("#[cfg(any(test, unix))]", false);
        check("#[cfg(unix)]", false);
    }

    #[test]
    fn lines_without_tests_counts_the_rest() {
        let file = parse("//! x\n\nfn a() {}\n#[cfg(test)]\nmod t {\n    fn b() {}\n}\n");
        assert_eq!(file.lines_without_tests(), 3);
    }

    #[test]
    fn sequences_are_found_inside_macros_too() {
        let file = parse("fn a() {\n    println!(\"{:?}\", Instant::now());\n}\n");
        let lines: Vec<usize> = file.sequences(&["Instant", "::", "now"]).map(|(line, _)| line).collect();
        assert_eq!(lines, [2]);
    }
}
