//! `cargo xtask header`: `udm.h`, made from what `crates/capi` has public.
//!
//! The crate keeps to the little of Rust that this understands; whatever else is public there is an error here.
//! (cbindgen does more, but its licence is none of deny.toml's, and it would build a second `syn` in every fresh
//! clone.)
//!
//! | in Rust | in C |
//! |---|---|
//! | `pub struct` | an opaque `typedef` |
//! | `#[repr(C)] pub struct` | the same `struct` |
//! | `pub const` of `u32`, those without a blank line between them | an `enum` without a name |
//! | `pub const` of `u64` | a `#define` |
//! | `pub extern "C" fn` | a function |
//!
//! Documentation becomes comments, up to its first heading.

use std::fmt::Write;
use std::path::Path;
use syn::spanned::Spanned;
use syn::{
    Attribute, Expr, ExprLit, Fields, FnArg, Item, ItemConst, ItemFn, Lit, Meta, MetaNameValue, Pat, PointerMutability,
    ReturnType, Type, Visibility,
};

/// The header, from the root of the project.
pub const HEADER: &str = "crates/capi/include/udm.h";
const SOURCES: &str = "crates/capi/src";
/// In the order of the header. All but `lib.rs`, whose section `# In C` heads it.
const MODULES: [&str; 4] = ["error.rs", "stack.rs", "command.rs", "queue.rs"];
/// The longest line of a declaration.
const WIDTH: usize = 120;

/// The text of the header, made from the sources under `root`.
///
/// # Errors
/// A file that cannot be read or parsed, or something public that has no form in C: which.
pub fn generate(root: &Path) -> Result<String, String> {
    let sources = root.join(SOURCES);
    let read = |name: &str| {
        let path = sources.join(name);
        let text = std::fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        syn::parse_file(&text).map_err(|e| format!("{}: line {}: {e}", path.display(), e.span().start().line))
    };
    for entry in std::fs::read_dir(&sources).map_err(|e| format!("{}: {e}", sources.display()))? {
        let name = entry.map_err(|e| e.to_string())?.file_name();
        if name != "lib.rs" && !MODULES.iter().any(|module| name == *module) {
            return Err(format!("{SOURCES}/{}: xtask/src/header.rs does not know it", name.display()));
        }
    }
    let head = section(&lines(&read("lib.rs")?.attrs), "# In C");
    let mut items = Vec::new();
    for name in MODULES {
        items.extend(read(name)?.items.into_iter().filter(is_public).map(|item| (name, item)));
    }
    let mut out = comment(&[head, vec![String::new(), "Made by `cargo xtask header`.".to_owned()]].concat());
    out += "#ifndef UDM_H\n#define UDM_H\n\n#include <stdint.h>\n#include <sys/uio.h>\n\n";
    out += "#ifdef __cplusplus\nextern \"C\" {\n#endif\n";
    let structs = Structs::of(&items);
    for name in &structs.opaque {
        let name = snake(name);
        let _ = write!(out, "\ntypedef struct {name} {name};");
    }
    out += "\n";
    let mut last_line = None;
    for (at, (module, item)) in items.iter().enumerate() {
        let place = |why: String| format!("{SOURCES}/{module}: line {}: {why}", item.span().start().line);
        let follows = last_line.is_some_and(|line| line + 1 == item.span().start().line);
        last_line = Some(item.span().end().line);
        match item {
            Item::Const(item) if is_type(&item.ty, "u32") => {
                out += if follows { "" } else { "\nenum {\n" };
                out += &indented(&comment(&lines(&item.attrs)));
                let _ = writeln!(out, "\t{} = {},", item.ident, value(item).map_err(place)?);
                let next = items.get(at + 1).is_some_and(|(_, next)| {
                    matches!(next, Item::Const(_)) && next.span().start().line == item.span().end().line + 1
                });
                out += if next { "" } else { "};\n" };
            }
            Item::Const(item) => {
                let value = value(item).map_err(place)?;
                let _ = write!(out, "\n{}#define {} {value}\n", comment(&lines(&item.attrs)), item.ident);
            }
            Item::Struct(item) if structs.opaque.contains(&item.ident.to_string()) => {}
            Item::Struct(item) => {
                let (name, Fields::Named(fields)) = (snake(&item.ident.to_string()), &item.fields) else {
                    return Err(place("expected a struct with names".into()));
                };
                let _ = write!(out, "\n{}struct {name} {{\n", comment(&lines(&item.attrs)));
                for field in &fields.named {
                    let name = field.ident.as_ref().map(ToString::to_string).unwrap_or_default();
                    let declared = declared(&structs.c(&field.ty).map_err(place)?, &name);
                    out += &indented(&format!("{}{declared};\n", comment(&lines(&field.attrs))));
                }
                out += "};\n";
            }
            Item::Fn(item) => {
                let _ = write!(out, "\n{}", comment(&lines(&item.attrs)));
                out += &structs.function(item).map_err(place)?;
            }
            _ => return Err(place("public, and nothing that C knows".into())),
        }
    }
    Ok(out + "\n#ifdef __cplusplus\n}\n#endif\n\n#endif\n")
}

fn is_public(item: &Item) -> bool {
    let vis = match item {
        Item::Const(item) => &item.vis,
        Item::Enum(item) => &item.vis,
        Item::Fn(item) => &item.vis,
        Item::Mod(item) => &item.vis,
        Item::Static(item) => &item.vis,
        Item::Struct(item) => &item.vis,
        Item::Trait(item) => &item.vis,
        Item::Type(item) => &item.vis,
        Item::Union(item) => &item.vis,
        Item::Use(item) => &item.vis,
        _ => return false,
    };
    matches!(vis, Visibility::Public(_))
}

/// The structs of the header.
struct Structs {
    opaque: Vec<String>,
    open: Vec<String>,
}

impl Structs {
    fn of(items: &[(&str, Item)]) -> Self {
        let (mut opaque, mut open) = (Vec::new(), Vec::new());
        for (_, item) in items {
            if let Item::Struct(item) = item {
                let is_open = item.attrs.iter().any(|attr| attr.path().is_ident("repr"));
                if is_open { &mut open } else { &mut opaque }.push(item.ident.to_string());
            }
        }
        Self { opaque, open }
    }

    fn c(&self, ty: &Type) -> Result<String, String> {
        match ty {
            Type::Ptr(pointer) => {
                let (inner, constant) =
                    (self.c(&pointer.elem)?, matches!(pointer.mutability, PointerMutability::Const(_)));
                Ok(match (&*pointer.elem, constant) {
                    (Type::Ptr(_), true) => format!("{inner}const *"),
                    (Type::Ptr(_), false) => format!("{inner}*"),
                    (_, true) => format!("const {inner} *"),
                    (_, false) => format!("{inner} *"),
                })
            }
            Type::Path(path) => {
                let name = path.path.segments.last().map(|last| last.ident.to_string()).unwrap_or_default();
                Ok(match name.as_str() {
                    "c_char" => "char".to_owned(),
                    "c_int" => "int".to_owned(),
                    "c_uint" => "unsigned int".to_owned(),
                    "i32" => "int32_t".to_owned(),
                    "u32" => "uint32_t".to_owned(),
                    "u64" => "uint64_t".to_owned(),
                    "iovec" => "struct iovec".to_owned(),
                    _ if self.opaque.contains(&name) => snake(&name),
                    _ if self.open.contains(&name) => format!("struct {}", snake(&name)),
                    _ => return Err(format!("{name} is no type that C knows")),
                })
            }
            _ => Err("a type that C does not know".into()),
        }
    }

    /// The declaration, with its newline.
    fn function(&self, item: &ItemFn) -> Result<String, String> {
        let is_c = item.sig.abi.as_ref().is_some_and(|abi| abi.name.as_ref().is_some_and(|name| name.value() == "C"));
        if !is_c {
            return Err(format!("{} is public and not extern \"C\"", item.sig.ident));
        }
        let result = match &item.sig.output {
            ReturnType::Default => "void".to_owned(),
            ReturnType::Type(_, ty) => self.c(ty)?,
        };
        let mut out = declared(&result, &item.sig.ident.to_string()) + "(";
        let mut column = out.len();
        for (at, input) in item.sig.inputs.iter().enumerate() {
            let FnArg::Typed(input) = input else { return Err("a method".into()) };
            let Pat::Ident(name) = &*input.pat else { return Err("an argument without a name".into()) };
            let argument = declared(&self.c(&input.ty)?, &name.ident.to_string());
            if at > 0 && column + argument.len() + 4 > WIDTH {
                out += ",\n\t";
                column = 8;
            } else if at > 0 {
                out += ", ";
                column += 2;
            }
            column += argument.len();
            out += &argument;
        }
        Ok(out + if item.sig.inputs.is_empty() { "void);\n" } else { ");\n" })
    }
}

fn declared(c: &str, name: &str) -> String {
    format!("{c}{}{name}", if c.ends_with('*') { "" } else { " " })
}

fn is_type(ty: &Type, name: &str) -> bool {
    matches!(ty, Type::Path(path) if path.path.is_ident(name))
}

/// What a constant is in C.
fn value(item: &ItemConst) -> Result<String, String> {
    match &*item.expr {
        Expr::Lit(ExprLit { lit: Lit::Int(number), .. }) => Ok(number.base10_digits().to_owned()),
        Expr::Path(path) if path.path.segments.iter().map(|s| s.ident.to_string()).eq(["u64", "MAX"]) => {
            Ok("UINT64_MAX".to_owned())
        }
        _ => Err(format!("{}: expected a number", item.ident)),
    }
}

/// `UdmDeviceInfo` as C writes it.
fn snake(name: &str) -> String {
    let mut out = String::new();
    for c in name.chars() {
        if c.is_ascii_uppercase() && !out.is_empty() {
            out.push('_');
        }
        out.push(c.to_ascii_lowercase());
    }
    out
}

/// The lines of documentation.
fn lines(attrs: &[Attribute]) -> Vec<String> {
    let text = attrs.iter().filter_map(|attr| match &attr.meta {
        Meta::NameValue(MetaNameValue { path, value: Expr::Lit(ExprLit { lit: Lit::Str(text), .. }), .. })
            if path.is_ident("doc") =>
        {
            Some(text.value())
        }
        _ => None,
    });
    text.map(|line| line.strip_prefix(' ').unwrap_or(&line).to_owned()).collect()
}

/// What stands under a heading, up to the next.
fn section(lines: &[String], heading: &str) -> Vec<String> {
    let found = lines.iter().skip_while(|line| *line != heading).skip(1);
    found.take_while(|line| !line.starts_with("# ")).cloned().collect()
}

/// A comment of documentation up to its first heading, with its newline; without the marks of code.
fn comment(lines: &[String]) -> String {
    let mut lines: Vec<&str> = lines.iter().map(String::as_str).take_while(|line| !line.starts_with("# ")).collect();
    lines.retain(|line| !line.starts_with("```"));
    // What headings and marks leave behind.
    lines.dedup_by(|next, before| next.is_empty() && before.is_empty());
    while lines.last().is_some_and(|line| line.is_empty()) {
        lines.pop();
    }
    match lines.as_slice() {
        [] => String::new(),
        [line] => format!("/* {line} */\n"),
        [first, rest @ ..] => {
            let mut out = format!("/* {first}\n");
            for line in rest {
                let _ = writeln!(out, "{}", format!(" * {line}").trim_end());
            }
            out + " */\n"
        }
    }
}

fn indented(text: &str) -> String {
    text.lines().map(|line| format!("\t{line}\n")).collect()
}
