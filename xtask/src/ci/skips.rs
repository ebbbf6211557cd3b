//! Which reasons for skipping are accepted where everything that can be had was installed.

use std::collections::BTreeMap;
use std::path::Path;

/// Names the list, relative to the project's root. Without it every reason is accepted: a user's machine may lack
/// anything.
pub const VARIABLE: &str = "UDM_ACCEPTED_SKIPS";

/// Holds the reasons against the list: a pattern a line, in which `*` stands for anything; a line that begins with `#`
/// tells why those that follow cannot be helped. Names those that are not on it.
pub fn check(list: &Path, reasons: &BTreeMap<String, u64>) -> Result<(), String> {
    let text = std::fs::read_to_string(list).map_err(|e| format!("{}: {e}", list.display()))?;
    let others = not_accepted(&text, reasons.keys().map(String::as_str));
    if others.is_empty() {
        return Ok(());
    }
    let why = "not accepted as reasons to skip; install what is missing, or add them with why they cannot be helped to";
    Err(format!("{why} {}:\n    {}", list.display(), others.join("\n    ")))
}

fn not_accepted<'a>(list: &str, reasons: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let accepted: Vec<&str> = patterns(list).collect();
    reasons.filter(|reason| !accepted.iter().any(|pattern| matches(pattern, reason))).collect()
}

fn patterns(text: &str) -> impl Iterator<Item = &str> {
    text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'))
}

fn matches(pattern: &str, text: &str) -> bool {
    let Some((head, tail)) = pattern.split_once('*') else { return pattern == text };
    let Some(rest) = text.strip_prefix(head) else { return false };
    (0..=rest.len()).filter(|at| rest.is_char_boundary(*at)).any(|at| matches(tail, &rest[at..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_is_anything() {
        for (pattern, text, expect) in [
            ("no fio", "no fio", true),
            ("no fio", "no fio here", false),
            ("no *", "no fio", true),
            ("*fio*", "no fio here", true),
            ("no * here", "no fio", false),
            ("a*b*c", "axxbyyc", true),
            ("*ö", "xö", true),
        ] {
            assert_eq!(matches(pattern, text), expect, "{pattern} {text}");
        }
    }

    #[test]
    fn others_are_named() {
        let list = "# No machine here has it.\nno accelerator\n\n/dev/*: not there\n";
        let others = |reasons: &[&'static str]| not_accepted(list, reasons.iter().copied());
        assert!(others(&["no accelerator", "/dev/x: not there"]).is_empty());
        assert_eq!(others(&["no accelerator", "no fio", "# No machine here has it."]).len(), 2);
    }
}
