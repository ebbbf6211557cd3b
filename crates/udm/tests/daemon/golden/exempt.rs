//! Steps that differ for a reason.

use std::cell::Cell;

/// A line of `exempt.txt`.
struct Exemption {
    scenario: String,
    command: String,
    used: Cell<bool>,
}

/// All of them.
pub(crate) struct Exemptions(Vec<Exemption>);

impl Exemptions {
    /// Reads `SCENARIO | COMMAND | REASON` lines; `#` and empty lines are for the reader.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let lines = text.lines().filter(|line| !line.trim().is_empty() && !line.starts_with('#'));
        let parse = |line: &str| match line.split(" | ").collect::<Vec<_>>()[..] {
            [scenario, command, reason] if !reason.trim().is_empty() => Ok(Exemption {
                scenario: scenario.trim().into(),
                command: command.trim().into(),
                used: Cell::new(false),
            }),
            _ => Err(format!("expected SCENARIO | COMMAND | REASON, found {line:?}")),
        };
        lines.map(parse).collect::<Result<_, _>>().map(Self)
    }

    /// Whether this difference is known; it counts as used then.
    pub(crate) fn allows(&self, scenario: &str, command: &str) -> bool {
        let found = self.0.iter().find(|e| e.scenario == scenario && e.command == command.trim());
        found.inspect(|e| e.used.set(true)).is_some()
    }

    /// Those of the scenarios that ran for which there was no difference.
    pub(crate) fn unused(&self, ran: &[String]) -> Vec<String> {
        let unused = self.0.iter().filter(|e| !e.used.get() && ran.contains(&e.scenario));
        unused.map(|e| format!("{} | {}", e.scenario, e.command)).collect()
    }
}
