//! What devices say of themselves is what it should be.

use super::{Operation, Outcome};
use crate::world::Turn;

pub(super) const OPERATION: Operation = Operation {
    name: "status",
    what: "asks for the status of everything: no snapshot is invalid, no pool needs a check",
    weight: 10,
    alone: false,
    run,
};

/// Words that no status may have as long as nothing beneath fails.
const BAD: &[&str] = &["Invalid", "Overflow", "Merge failed", "needs_check", "Fail", "Error"];

fn run(turn: &mut Turn<'_>) -> Result<Outcome, String> {
    let words: &[&str] = match turn.rng.below(4) {
        0 => &["status", "--noflush"],
        1 => &["info", "--json"],
        2 => &["table"],
        _ => &["status"],
    };
    let said = turn.run(words)?;
    // Who lists devices and then asks for each may find that one has gone or has another name.
    if !said.ok && !said.err.to_lowercase().contains("no such device") {
        return Err(format!("udm {}: {}", words.join(" "), said.err.trim()));
    }
    let text = said.out;
    if words[0] == "status" {
        for line in text.lines() {
            if let Some(word) = BAD.iter().find(|bad| line.split([' ', ':']).any(|word| word == **bad)) {
                return Err(format!("the status of a device is bad ({word}): {line}"));
            }
        }
    }
    Ok(Outcome::Done)
}
