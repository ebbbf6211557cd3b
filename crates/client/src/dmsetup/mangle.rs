//! Names with characters that udev would not have.
//!
//! A name in the kernel holds any byte but `/`; udev accepts few. dmsetup writes the others as
//! `\xNN` on their way to the kernel and reads them back on their way out (`mangle_string`,
//! `unmangle_string`, `libdm-common.c`, 1.02.185).

use std::borrow::Cow;
use udm_control::codec::{DM_NAME_LEN, DM_UUID_LEN};

/// What is done to names and uuids (`--manglename`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Mangling {
    /// Nothing.
    None,
    /// Bad characters become `\xNN`, unless the name already has such.
    #[default]
    Auto,
    /// Bad characters become `\xNN`, the backslash among them.
    Hex,
}

impl Mangling {
    /// The mode of that name.
    pub(super) fn parse(name: &str) -> Option<Self> {
        match name.to_ascii_lowercase().as_str() {
            "none" => Some(Self::None),
            "auto" => Some(Self::Auto),
            "hex" => Some(Self::Hex),
            _ => None,
        }
    }
}

/// Which field a string is for: it sets the limit, and what an error calls it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Text {
    /// A device's name.
    Name,
    /// A uuid.
    Uuid,
}

impl Text {
    fn word(self) -> &'static str {
        match self {
            Self::Name => "name",
            Self::Uuid => "uuid",
        }
    }

    fn limit(self) -> usize {
        match self {
            Self::Name => DM_NAME_LEN - 1,
            Self::Uuid => DM_UUID_LEN - 1,
        }
    }
}

fn is_good(c: u8) -> bool {
    c.is_ascii_alphanumeric() || b"#+-.:=@_".contains(&c)
}

/// In auto mode a backslash that was itself mangled shows that a name went through twice.
fn check_once(text: &str, what: Text, mode: Mangling) -> Result<(), String> {
    if mode == Mangling::Auto && text.contains("\\x5cx") {
        let what = what.word();
        return Err(format!(
            "the {what} {text:?} is mangled more than once; give it as it stands with --manglename none"
        ));
    }
    Ok(())
}

/// `text` as it is sent.
pub(super) fn mangle<'a>(text: &'a str, what: Text, mode: Mangling) -> Result<Cow<'a, str>, String> {
    check_once(text, what, mode)?;
    if mode == Mangling::None {
        return if text.len() > what.limit() { Err(too_long(text, what)) } else { Ok(Cow::Borrowed(text)) };
    }
    to_mangled(text, what, mode)
}

/// `text` in its mangled form, whatever mode is on.
pub(super) fn to_mangled<'a>(text: &'a str, what: Text, mode: Mangling) -> Result<Cow<'a, str>, String> {
    let bytes = text.as_bytes();
    let mixed = || format!("the {} {text:?} has mangled and unmangled characters", what.word());
    let (mut out, mut was_mangled, mut changed) = (String::new(), false, false);
    let mut i = 0;
    while i < bytes.len() {
        let rest = &bytes[i..];
        if mode != Mangling::Hex && rest.starts_with(b"\\x") {
            if rest.len() < 4 || changed || !text.is_char_boundary(i + 4) {
                return Err(mixed());
            }
            out.push_str(&text[i..i + 4]);
            was_mangled = true;
            i += 4;
        } else {
            if is_good(bytes[i]) {
                out.push(char::from(bytes[i]));
            } else {
                if mode != Mangling::Hex && was_mangled {
                    return Err(mixed());
                }
                out.push_str(&format!("\\x{:02x}", bytes[i]));
                changed = true;
            }
            i += 1;
        }
        if out.len() > what.limit() {
            return Err(too_long(text, what));
        }
    }
    Ok(if changed { Cow::Owned(out) } else { Cow::Borrowed(text) })
}

/// What was received, as it is shown.
pub(super) fn unmangle(text: &[u8], what: Text, mode: Mangling) -> Result<String, String> {
    let shown = printable(text);
    if mode == Mangling::None {
        return Ok(shown);
    }
    check_once(&shown, what, mode)?;
    if let Some(&bad) = text.iter().find(|&&c| !is_good(c) && c != b'\\') {
        let (what, bad) = (what.word(), printable(&[bad]));
        return Err(format!(
            "the {what} {shown:?} should be mangled, but has the character {bad:?}; `--manglename none` shows it as it is"
        ));
    }
    Ok(to_unmangled(text))
}

/// `text` with every `\xNN` read back. A `\x` without digits ends it, as in libdevmapper.
pub(super) fn to_unmangled(text: &[u8]) -> String {
    let mut out = Vec::new();
    let mut rest = text;
    while let Some((&first, tail)) = rest.split_first() {
        if let Some(hex) = rest.strip_prefix(b"\\x") {
            let digits = hex.iter().take(2).take_while(|c| c.is_ascii_hexdigit());
            let (count, code) =
                digits.fold((0, 0), |(n, code), &c| (n + 1, code << 4 | char::from(c).to_digit(16).unwrap_or(0)));
            if count == 0 {
                break;
            }
            out.push(code as u8);
            rest = hex.get(2..).unwrap_or(&[]);
        } else {
            out.push(first);
            rest = tail;
        }
    }
    printable(&out)
}

/// Bytes as text: what is not UTF-8 becomes `\xNN`.
pub(super) fn printable(bytes: &[u8]) -> String {
    let mut out = String::new();
    for chunk in bytes.utf8_chunks() {
        out.push_str(chunk.valid());
        chunk.invalid().iter().for_each(|b| out.push_str(&format!("\\x{b:02x}")));
    }
    out
}

fn too_long(text: &str, what: Text) -> String {
    format!("the {} {text:?} is too long: at most {} bytes, mangled", what.word(), what.limit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there() {
        let check = |mode, text: &str, expect: Result<&str, &str>| match (mangle(text, Text::Name, mode), expect) {
            (Ok(got), Ok(expect)) => assert_eq!(got, expect, "{text}"),
            (Err(got), Err(expect)) => assert!(got.contains(expect), "{text}: {got}"),
            (got, _) => panic!("{text}: {got:?}, expected {expect:?}"),
        };
        use Mangling::{Auto, Hex, None};
        check(Auto, "vg-lv_0#+.:=@", Ok("vg-lv_0#+.:=@"));
        check(Auto, "with space", Ok("with\\x20space"));
        check(Auto, "with\\x20space", Ok("with\\x20space"));
        check(Auto, "ä", Ok("\\xc3\\xa4"));
        check(Auto, "back\\slash", Ok("back\\x5cslash"));
        check(Auto, "mixed \\x20", Err("mangled and unmangled"));
        check(Auto, "\\x20 mixed", Err("mangled and unmangled"));
        check(Auto, "cut\\x2", Err("mangled and unmangled"));
        check(Auto, "cut\\x2ä", Err("mangled and unmangled"));
        check(Auto, "a\\x5cx20", Err("more than once"));
        check(Hex, "hex\\x20 space", Ok("hex\\x5cx20\\x20space"));
        check(None, "with space\\x20", Ok("with space\\x20"));
        check(Auto, &"x".repeat(127), Ok(&"x".repeat(127)));
        check(Auto, &"x".repeat(128), Err("at most 127"));
        check(Auto, &" ".repeat(32), Err("too long"));
        check(None, &"x".repeat(128), Err("too long"));
        check(Auto, "", Ok(""));
    }

    #[test]
    fn and_back() {
        let check = |mode, text: &[u8], expect: Result<&str, &str>| match (unmangle(text, Text::Uuid, mode), expect) {
            (Ok(got), Ok(expect)) => assert_eq!(got, expect),
            (Err(got), Err(expect)) => assert!(got.contains(expect), "{got}"),
            (got, _) => panic!("{got:?}, expected {expect:?}"),
        };
        use Mangling::{Auto, Hex, None};
        check(Auto, b"with\\x20space", Ok("with space"));
        check(Auto, b"\\xc3\\xa4", Ok("ä"));
        check(Auto, b"\\xc3", Ok("\\xc3"));
        check(Auto, b"raw space", Err("has the character \" \""));
        check(Auto, b"a\\x5cx20", Err("more than once"));
        check(Hex, b"a\\x5cx20", Ok("a\\x20"));
        check(Auto, b"end\\x", Ok("end"));
        check(Auto, b"odd\\x2", Ok("odd\u{2}"));
        check(None, b"with\\x20 space", Ok("with\\x20 space"));
        check(None, b"\xff", Ok("\\xff"));
    }

    proptest::proptest! {
        #[test]
        fn what_was_mangled_reads_back(name in "[^\\\\\0]{0,20}") {
            if let Ok(sent) = mangle(&name, Text::Name, Mangling::Auto) {
                proptest::prop_assert_eq!(unmangle(sent.as_bytes(), Text::Name, Mangling::Auto), Ok(name.clone()));
            }
        }
    }
}
