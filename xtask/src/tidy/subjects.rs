//! No sentence of a comment or page has a clause with "who" as its subject: the reader has to find the verb first.

use super::{Finding, Tree};

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in tree.texts().filter(|(path, _)| path.ends_with(".rs") || path.ends_with(".md")) {
        let lines: Vec<&str> = text.lines().map(|line| prose(line, path.ends_with(".md"))).collect();
        for (index, line) in lines.iter().enumerate() {
            let asks = line.contains('?') || lines.get(index + 1).is_some_and(|next| next.contains('?'));
            if !asks && has_such_a_subject(line) {
                let message = "a sentence that begins with \"Who\": name the subject, as in \"A thread that …\"";
                findings.push(Finding::new(path, index + 1, message.to_owned()));
            }
        }
    }
    findings
}

/// The prose of a line; empty for code and headings.
fn prose(line: &str, is_page: bool) -> &str {
    let line = line.trim_start();
    let text =
        if is_page { Some(line) } else { line.strip_prefix("//").map(|text| text.trim_start_matches(['/', '!'])) };
    text.map(str::trim_start).filter(|text| !text.starts_with('#')).unwrap_or_default()
}

/// Whether a sentence begins so: with a capital letter, and not quoted.
fn has_such_a_subject(text: &str) -> bool {
    ["Who ", "Whoever "].iter().any(|word| {
        text.match_indices(word).any(|(at, _)| at == 0 || text[..at].ends_with(' ') || text[..at].ends_with('*'))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::expect;

    #[test]
    fn a_sentence_needs_a_subject() {
        for (line, found) in [
            ("// Who finds it held skips it.", true),
            ("// It is held. Who finds it so skips it.", true),
            ("// Whoever comes waits.", true),
            ("// A poller that finds it held skips it.", false),
            ("// Who has it?", false),
            ("// Not \"Who finds it held\".", false),
            ("//! # Who may use it", false),
            ("// The one who finds it.", false),
        ] {
            let text = format!("{line}\n");
            expect(check, &[("a.rs", &text)], if found { &["a.rs:1"] } else { &[] });
        }
        expect(check, &[("a.md", "- *Gone.* Who is gone is gone.\n\n## Who polls\n")], &["a.md:1"]);
    }
}
