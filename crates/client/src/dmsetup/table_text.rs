//! Lines of a table as they are written: `start length target parameters`.

use std::fmt;
use udm_base::{Sector, Sectors};

/// A line of a table, or the status of a target.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct TableLine {
    pub(super) start: Sector,
    pub(super) len: Sectors,
    pub(super) target: String,
    pub(super) params: String,
}

/// A line that is no line of a table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct LineError {
    /// Counted from 1.
    line: usize,
    text: String,
    missing: &'static str,
    /// The byte where it was expected.
    at: usize,
}

impl fmt::Display for LineError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { line, text, missing, at } = self;
        let column = text[..*at].chars().count();
        write!(f, "line {line} of the table: expected {missing}\n  {text}\n  {:column$}^", "")?;
        f.write_str(
            "\na line is: START LENGTH TARGET PARAMETERS, in sectors of 512 bytes, as in: 0 2048 linear /dev/sda 0",
        )
    }
}

/// The lines of a table. Empty lines and those that begin with `#` do not count, and `#` ends the
/// parameters.
pub(super) fn parse_table(text: &str) -> Result<Vec<TableLine>, LineError> {
    let lines = text.split('\n').enumerate();
    lines.filter_map(|(i, line)| parse_line(line, i + 1).transpose()).collect()
}

/// One line, as `sscanf("%llu %llu %s %n")` takes it: a sign is allowed, and white space between
/// the numbers and the type is not needed.
fn parse_line(line: &str, number: usize) -> Result<Option<TableLine>, LineError> {
    let text = line.trim_matches(is_space);
    if text.is_empty() || text.starts_with('#') {
        return Ok(None);
    }
    let error = |rest: &str, missing| {
        let at = text.len() - rest.trim_start_matches(is_space).len();
        LineError { line: number, text: text.to_owned(), missing, at }
    };
    let (start, rest) = scan_number(text).ok_or_else(|| error(text, "the start, a number"))?;
    let (len, rest) = scan_number(rest).ok_or_else(|| error(rest, "the length, a number"))?;
    let rest = rest.trim_start_matches(is_space);
    let (target, params) = rest.split_at(rest.find(is_space).unwrap_or(rest.len()));
    if target.is_empty() {
        return Err(error(rest, "the target's name"));
    }
    let params = params.trim_start_matches(is_space);
    let params = params.split_once('#').map_or(params, |(params, _)| params);
    Ok(Some(TableLine {
        start: Sector::new(start),
        len: Sectors::new(len),
        target: target.to_owned(),
        params: params.to_owned(),
    }))
}

/// What C's `isspace` holds for space.
pub(super) fn is_space(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\n' | '\r' | '\u{b}' | '\u{c}')
}

/// As `strtoull`: a number with a sign in front, wrapped or held at the largest.
fn scan_number(text: &str) -> Option<(u64, &str)> {
    let text = text.trim_start_matches(is_space);
    let (negative, digits) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
    if end == 0 {
        return None;
    }
    let number = match digits[..end].parse::<u64>() {
        Ok(n) if negative => n.wrapping_neg(),
        Ok(n) => n,
        Err(_) => u64::MAX,
    };
    Some((number, &digits[end..]))
}

/// Parameters as they are loaded. dmsetup doubles every backslash, so that the `\xNN` of a mangled
/// name reaches the kernel as it stands (`_add_target`, `libdm-iface.c`, 1.02.185). Here a backslash
/// before white space or another backslash is an escape and stays one, so that a path printed by
/// `table` loads again.
pub(super) fn escape_params(params: &str) -> String {
    let mut out = String::with_capacity(params.len());
    let mut chars = params.chars().peekable();
    while let Some(c) = chars.next() {
        out.push(c);
        if c == '\\' {
            match chars.peek() {
                Some(&next) if next == '\\' || is_space(next) => {
                    out.push(next);
                    chars.next();
                }
                _ => out.push('\\'),
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(start: u64, len: u64, target: &str, params: &str) -> TableLine {
        TableLine { start: Sector::new(start), len: Sectors::new(len), target: target.into(), params: params.into() }
    }

    #[test]
    fn good_lines() {
        let check = |text: &str, expect: TableLine| assert_eq!(parse_table(text), Ok(vec![expect]), "{text:?}");
        check("0 8 zero", line(0, 8, "zero", ""));
        check("  0   8   linear   /dev/ram0    8  \r", line(0, 8, "linear", "/dev/ram0    8"));
        check("\t+1 08 linear /dev/ram0 8 # why", line(1, 8, "linear", "/dev/ram0 8 "));
        check("0 8zero", line(0, 8, "zero", ""));
        check("0 8.5 zero", line(0, 8, ".5", "zero"));
        check("-1 99999999999999999999 zero", line(u64::MAX, u64::MAX, "zero", ""));
        check("0 8 a#b c", line(0, 8, "a#b", "c"));
        assert_eq!(parse_table("# none\n\n  # here\n"), Ok(vec![]));
        assert_eq!(parse_table("0 8 zero\n\n8 8 error\n").unwrap().len(), 2);
    }

    #[test]
    fn bad_lines() {
        let check = |text: &str, number: usize, missing: &str, at: usize| {
            let error = parse_table(text).unwrap_err();
            assert_eq!((error.line, error.at), (number, at), "{text:?}");
            assert!(error.missing.contains(missing), "{error}");
        };
        check("0", 1, "length", 1);
        check("0 8", 1, "target", 3);
        check("x 8 zero", 1, "start", 0);
        check("0 8 zero\n 8 y zero", 2, "length", 2);
        check("0x0 0x8 zero", 1, "length", 1);
        check("- 8 zero", 1, "start", 0);
        let text = parse_table("0 ü zero").unwrap_err().to_string();
        assert!(text.contains("line 1 of the table: expected the length, a number\n  0 ü zero\n    ^\n"), "{text}");
    }

    #[test]
    fn escapes() {
        let check = |params: &str, expect: &str| assert_eq!(escape_params(params), expect);
        check("/dev/mapper/a\\x20b 0", "/dev/mapper/a\\\\x20b 0");
        check("/my\\ path 0", "/my\\ path 0");
        check("/back\\\\slash 0", "/back\\\\slash 0");
        check("end\\", "end\\\\");
        check("plain", "plain");
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_read_without_panic(text in ".{0,80}") {
            if let Err(error) = parse_table(&text) {
                proptest::prop_assert!(!error.to_string().is_empty());
            }
            proptest::prop_assert!(escape_params(&text).len() >= text.len());
        }
    }
}
