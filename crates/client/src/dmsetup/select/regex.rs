//! libdevmapper's regular expressions in the words of the `regex` crates: `* + ? | ( ) [ ] . ^ $`
//! mean the same, braces and backslashes do not (`parse_rx.c`, 1.02.185).

use regex_lite::Regex;

/// Compile. A text matches when any part of it does.
pub(super) fn compile(pattern: &str) -> Result<Regex, String> {
    let error = |why: &str| format!("the regular expression {pattern:?} cannot be read: {why}");
    let mut out = String::new();
    let mut chars = pattern.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => literal(&mut out, unescape(chars.next().ok_or_else(|| error("a backslash ends it"))?)),
            '[' => set(&mut out, &mut chars).ok_or_else(|| error("no ] ends the set"))?,
            '.' => out.push_str(r"[^\n\r]"),
            '*' | '+' | '?' | '|' | '(' | ')' | '^' | '$' => out.push(c),
            _ => literal(&mut out, c),
        }
    }
    Regex::new(&out).map_err(|e| error(&e.to_string()))
}

fn unescape(c: char) -> char {
    match c {
        'n' => '\n',
        'r' => '\r',
        't' => '\t',
        other => other,
    }
}

fn literal(out: &mut String, c: char) {
    out.push_str(&regex_lite::escape(c.encode_utf8(&mut [0; 4])));
}

/// A set, after its bracket.
fn set(out: &mut String, chars: &mut std::str::Chars<'_>) -> Option<()> {
    out.push('[');
    let mut first = true;
    loop {
        let c = chars.next()?;
        match c {
            '^' if first => out.push('^'),
            ']' if !first => break,
            '-' if !first && !chars.as_str().starts_with(']') => out.push('-'),
            '\\' => {
                out.push('\\');
                match chars.next()? {
                    c @ ('n' | 'r' | 't') => out.push(c),
                    c if c.is_ascii_punctuation() => out.push(c),
                    c => {
                        out.pop();
                        out.push(c);
                    }
                }
            }
            c if c.is_ascii_punctuation() => {
                out.push('\\');
                out.push(c);
            }
            c => out.push(c),
        }
        first = first && c == '^';
    }
    out.push(']');
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matches() {
        let check = |pattern: &str, text: &str, expect: bool| {
            assert_eq!(compile(pattern).unwrap().is_match(text), expect, "{pattern} {text}");
        };
        check("lin", "my-lin0", true);
        check("^lin[01]$", "lin1", true);
        check("^lin[01]$", "lin2", false);
        check("(top|str)", "stripe", true);
        check("^a{2}$", "aa", false);
        check("^a{2}$", "a{2}", true);
        check(r"^a\.b$", "a.b", true);
        check(r"^a\.b$", "axb", false);
        check(r"^\d$", "d", true);
        check("^[^a-c]$", "b", false);
        check("^[^a-c]$", "d", true);
        check("^[a-]$", "-", true);
        check(r"^[\]x]$", "]", true);
        check("^[a&&b]$", "&", true);
        check("", "anything", true);
        check("^.$", "ä", true);
    }

    #[test]
    fn refused() {
        for bad in ["[", "[]", "(", ")", "*", "a\\", "[\\"] {
            let error = compile(bad).unwrap_err();
            assert!(error.contains("cannot be read"), "{bad}: {error}");
        }
    }

    proptest::proptest! {
        #[test]
        fn any_pattern_is_read_without_panic(pattern in ".{0,20}", text in ".{0,10}") {
            if let Ok(regex) = compile(&pattern) {
                regex.is_match(&text);
            }
        }
    }
}
