//! Which file of a package imports which: `use` and paths, followed through re-exports to the file that defines the
//! name.

use std::collections::{BTreeMap, BTreeSet};

use proc_macro2::{TokenStream, TokenTree};
use syn::visit::{self, Visit};
use syn::{Item, UseTree, Visibility};

use super::Tree;
use super::packages::Package;
use super::rust_file::{RustFile, attributes, is_test_item};

/// One file imports from another.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Import {
    pub(super) from: String,
    pub(super) to: String,
    /// Where, in `from`.
    pub(super) line: usize,
    /// What is imported: the last name of the path.
    pub(super) name: String,
}

/// The imports between the files of a package, those of tests aside, one for each pair of files.
///
/// A re-export (`pub use`) imports only where the file itself uses the name. Derived code and methods of types that
/// were not named are not seen.
pub(super) fn of_package(tree: &Tree, package: &Package) -> Vec<Import> {
    let modules = Modules::of(tree, package);
    let mut found: BTreeMap<(String, String), Import> = BTreeMap::new();
    for mention in &modules.mentions {
        let Some(to) = modules.resolve(&mention.module, &mention.path, 0).filter(|to| **to != mention.file) else {
            continue;
        };
        let name = mention.path.last().cloned().unwrap_or_default();
        let import = Import { from: mention.file.clone(), to: to.clone(), line: mention.line, name };
        found.entry((import.from.clone(), import.to.clone())).or_insert(import);
    }
    found.into_values().collect()
}

type Path = Vec<String>;

/// A name that some module takes in.
struct Use {
    name: String,
    path: Path,
}

#[derive(Default)]
struct Module {
    file: String,
    defined: BTreeSet<String>,
    uses: Vec<Use>,
    globs: Vec<Path>,
}

/// A path that stands in a file.
struct Mention {
    file: String,
    module: Path,
    path: Path,
    line: usize,
}

struct Modules {
    modules: BTreeMap<Path, Module>,
    mentions: Vec<Mention>,
}

impl Modules {
    fn of(tree: &Tree, package: &Package) -> Self {
        let mut modules = Self { modules: BTreeMap::new(), mentions: Vec::new() };
        let source = format!("{}src/", package.folder);
        let has_library = tree.rust_file(&format!("{source}lib.rs")).is_some();
        for file in tree.rust().filter(|file| !file.test_only) {
            let Some(place) = file.path.strip_prefix(&source).filter(|place| !(has_library && *place == "main.rs"))
            else {
                continue;
            };
            let mut module: Path = place.trim_end_matches(".rs").split('/').map(str::to_owned).collect();
            if matches!(module.last().map(String::as_str), Some("mod" | "lib" | "main")) {
                module.pop();
            }
            let mut reader = Reader { file, module, modules: &mut modules };
            reader.declare();
            reader.visit_file(&file.syntax);
        }
        modules
    }

    /// The file that defines what `path` names in `module`.
    fn resolve(&self, module: &[String], path: &[String], depth: usize) -> Option<&String> {
        let mut at = module.to_vec();
        let mut rest = path;
        match path.first()?.as_str() {
            "crate" => (at, rest) = (Vec::new(), &path[1..]),
            "self" => rest = &path[1..],
            "super" => {
                while rest.first().is_some_and(|first| first == "super") {
                    at.pop()?;
                    rest = &rest[1..];
                }
            }
            first => {
                at.push(first.to_owned());
                let is_child = self.modules.contains_key(&at);
                at.pop();
                if !is_child {
                    return None;
                }
            }
        }
        while let Some(next) = rest.first() {
            at.push(next.clone());
            if !self.modules.contains_key(&at) {
                at.pop();
                return self.name(&at, next, depth);
            }
            rest = &rest[1..];
        }
        self.modules.get(&at).map(|module| &module.file)
    }

    fn name(&self, at: &[String], name: &str, depth: usize) -> Option<&String> {
        let module = self.modules.get(at)?;
        if depth > 16 {
            return None;
        }
        if name == "*" || module.defined.contains(name) {
            return Some(&module.file);
        }
        let mut named = module.uses.iter().filter(|import| import.name == name);
        let by_name = named.find_map(|import| self.resolve(at, &import.path, depth + 1));
        by_name.or_else(|| {
            module.globs.iter().find_map(|glob| {
                let mut path = glob.clone();
                path.push(name.to_owned());
                self.resolve(at, &path, depth + 1)
            })
        })
    }
}

/// Reads one file.
struct Reader<'a> {
    file: &'a RustFile,
    module: Path,
    modules: &'a mut Modules,
}

impl Reader<'_> {
    fn declare(&mut self) {
        let module = Module { file: self.file.path.clone(), ..Module::default() };
        self.modules.modules.entry(self.module.clone()).or_insert(module);
    }

    fn here(&mut self) -> &mut Module {
        self.modules.modules.entry(self.module.clone()).or_default()
    }

    fn mention(&mut self, path: Path, line: usize) {
        let (file, module) = (self.file.path.clone(), self.module.clone());
        self.modules.mentions.push(Mention { file, module, path, line });
    }

    /// Whether the file says `name` outside of `use`.
    fn says(&self, name: &str) -> bool {
        let is_import = |line| self.file.uses.iter().any(|import| import.line == line);
        let mut tokens = self.file.tokens.iter().filter(|token| token.text == name);
        tokens.any(|token| !is_import(token.line) && !self.file.is_test(token.line))
    }

    fn walk(&mut self, tree: &UseTree, prefix: &mut Path, is_public: bool) {
        let (ident, name) = match tree {
            UseTree::Path(part) => {
                prefix.push(part.ident.to_string());
                self.walk(&part.tree, prefix, is_public);
                prefix.pop();
                return;
            }
            UseTree::Group(group) => return group.items.iter().for_each(|item| self.walk(item, prefix, is_public)),
            UseTree::Glob(glob) => {
                self.here().globs.push(prefix.clone());
                if !is_public {
                    self.mention(prefix.clone(), glob.star_token.spans[0].start().line);
                }
                return;
            }
            UseTree::Name(name) => (&name.ident, name.ident.to_string()),
            UseTree::Rename(name) => (&name.ident, name.rename.to_string()),
        };
        let mut path = prefix.clone();
        if ident != "self" {
            path.push(ident.to_string());
        }
        let name = if name == "self" { prefix.last().cloned().unwrap_or_default() } else { name };
        if !is_public || self.says(&name) {
            self.mention(path.clone(), ident.span().start().line);
        }
        self.here().uses.push(Use { name, path });
    }

    /// Paths in the tokens of a macro.
    fn scan(&mut self, tokens: TokenStream) {
        let mut path: Path = Vec::new();
        let mut goes_on = false;
        for token in tokens {
            match token {
                TokenTree::Ident(ident) => {
                    if !std::mem::take(&mut goes_on) {
                        path.clear();
                    }
                    path.push(ident.to_string());
                    if path.len() > 1 {
                        self.mention(path.clone(), ident.span().start().line);
                    }
                }
                TokenTree::Punct(punct) if punct.as_char() == ':' => goes_on = true,
                TokenTree::Group(group) => self.scan(group.stream()),
                _ => goes_on = false,
            }
        }
    }
}

impl<'ast> Visit<'ast> for Reader<'_> {
    fn visit_item(&mut self, item: &'ast Item) {
        if is_test_item(attributes(item)) {
            return;
        }
        let name = match item {
            Item::Const(i) => Some(&i.ident),
            Item::Enum(i) => Some(&i.ident),
            Item::Fn(i) => Some(&i.sig.ident),
            Item::Static(i) => Some(&i.ident),
            Item::Struct(i) => Some(&i.ident),
            Item::Trait(i) => Some(&i.ident),
            Item::Type(i) => Some(&i.ident),
            Item::Union(i) => Some(&i.ident),
            Item::Macro(i) => i.ident.as_ref(),
            _ => None,
        };
        if let Some(name) = name.map(ToString::to_string) {
            self.here().defined.insert(name);
        }
        visit::visit_item(self, item);
    }

    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        if let Some((_, items)) = &item.content {
            self.module.push(item.ident.to_string());
            self.declare();
            items.iter().for_each(|item| self.visit_item(item));
            self.module.pop();
        }
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        self.walk(&item.tree, &mut Vec::new(), !matches!(item.vis, Visibility::Inherited));
    }

    fn visit_impl_item_fn(&mut self, function: &'ast syn::ImplItemFn) {
        if !is_test_item(&function.attrs) {
            visit::visit_impl_item_fn(self, function);
        }
    }

    fn visit_vis_restricted(&mut self, _: &'ast syn::VisRestricted) {}

    fn visit_path(&mut self, path: &'ast syn::Path) {
        if path.segments.len() > 1 {
            let names = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
            self.mention(names, path.segments[0].ident.span().start().line);
        }
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        self.scan(call.tokens.clone());
    }
}
