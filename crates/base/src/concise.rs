//! Devices on one line: `name,uuid,minor,flags,line[,line…][;name,…]`, a backslash takes the next
//! character as it stands.

use crate::args::is_space;
use std::mem::take;

/// One device of a specification. `table` has one line of the table a line.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ConciseDevice {
    /// Its name.
    pub name: String,
    /// Its uuid; empty for none.
    pub uuid: String,
    /// The minor number that it wants, as typed; empty for any.
    pub minor: String,
    /// Whether writes are refused.
    pub read_only: bool,
    /// Its table.
    pub table: String,
}

/// Reads a specification. The devices before an error are given too: dmsetup makes each as soon
/// as it has read it (`_create_concise`, `dmsetup.c`, 1.02.185).
pub fn parse_concise(text: &str) -> (Vec<ConciseDevice>, Result<(), String>) {
    let mut devices = Vec::new();
    let result = parse_into(text, &mut devices);
    (devices, result)
}

fn parse_into(text: &str, devices: &mut Vec<ConciseDevice>) -> Result<(), String> {
    let mut rest = text;
    while !rest.is_empty() {
        let (fields, after, ended) = one_device(rest)?;
        if fields.len() < 5 || (!ended && fields[4].is_empty()) {
            return Err(format!(
                "device {}: expected five fields, NAME,UUID,MINOR,FLAGS,TABLE; got {}: {}",
                devices.len() + 1,
                fields.len(),
                fields.join(",")
            ));
        }
        let [name, uuid, minor, flags, table] = [0, 1, 2, 3, 4].map(|i| fields[i].clone());
        let read_only = match flags.as_str() {
            "ro" => true,
            "" | "rw" => false,
            other => return Err(format!("device {name:?}: the flags are {other:?}: expected ro, rw or nothing")),
        };
        devices.push(ConciseDevice { name, uuid, minor, read_only, table });
        rest = after.trim_start_matches(is_space);
    }
    Ok(())
}

/// The fields of the first device, what follows it, and whether a semicolon ended it.
fn one_device(text: &str) -> Result<(Vec<String>, &str, bool), String> {
    let mut fields = Vec::new();
    let mut field = String::new();
    let mut chars = text.char_indices().peekable();
    while let Some((at, c)) = chars.next() {
        match c {
            '\\' => match chars.next() {
                Some((_, next)) => field.push(next),
                None => return Err("a backslash ends the specification: it must stand before a character".into()),
            },
            ',' if fields.len() < 4 => {
                fields.push(take(&mut field));
                while chars.next_if(|&(_, c)| is_space(c)).is_some() {}
            }
            ',' => field.push('\n'),
            ';' => {
                fields.push(field);
                return Ok((fields, &text[at + 1..], true));
            }
            _ => field.push(c),
        }
    }
    fields.push(field);
    Ok((fields, "", false))
}

/// `text` with a backslash before each character that the format gives a meaning.
pub fn quote(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if matches!(c, ',' | ';' | '\\') {
            out.push('\\');
        }
        out.push(c);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(text: &str) -> (Vec<String>, bool) {
        let (devices, result) = parse_concise(text);
        (devices.into_iter().map(|d| d.name).collect(), result.is_ok())
    }

    #[test]
    fn devices() {
        let (devices, result) = parse_concise("a, u ,7,ro,0 8 zero,8 8 error; b\\,c,,,,0 8 zero\n");
        assert_eq!(result, Ok(()));
        assert_eq!(devices[0].name, "a");
        assert_eq!(devices[0].uuid, "u ");
        assert_eq!(devices[0].minor, "7");
        assert!(devices[0].read_only);
        assert_eq!(devices[0].table, "0 8 zero\n8 8 error");
        assert_eq!(devices[1].name, "b,c");
        assert_eq!(devices[1].table, "0 8 zero\n");
        assert_eq!(names("x,,,,0 8 zero;"), (vec!["x".into()], true));
        assert_eq!(names("bare,,,,;"), (vec!["bare".into()], true));
        assert_eq!(names(""), (vec![], true));
    }

    #[test]
    fn refused() {
        let check = |text: &str, before: &[&str], expect: &str| {
            let (devices, result) = parse_concise(text);
            let error = result.unwrap_err();
            assert!(error.contains(expect), "{text}: {error}");
            assert_eq!(devices.iter().map(|d| d.name.as_str()).collect::<Vec<_>>(), before, "{text}");
        };
        check("short", &[], "got 1: short");
        check("a,,,", &[], "got 4");
        check("a,,,,", &[], "five fields");
        check("a,,,,0 8 zero;b,,", &["a"], "device 2");
        check("a,,,wo,0 8 zero", &[], "\"wo\"");
        check("a,,,,0 8 zero\\", &[], "backslash");
    }

    proptest::proptest! {
        #[test]
        fn what_is_quoted_reads_back(name in "[^\0\t\n\x0b\x0c\r ].{0,10}", params in ".{1,20}") {
            let text = format!("{},,3,rw,0 8 {}", quote(&name), quote(&params));
            let (devices, result) = parse_concise(&text);
            proptest::prop_assert_eq!(result, Ok(()));
            proptest::prop_assert_eq!(&devices[0].name, &name);
            proptest::prop_assert_eq!(&devices[0].table, &format!("0 8 {params}"));
        }
    }
}
