//! Reads what `cargo test` and `cargo nextest` print, and adds up the tests.

use std::collections::BTreeSet;
use std::fmt;

/// Tests counted so far. Its `Display` is the line `N passed, N failed, N skipped`.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Tests that passed and did not say that they skipped.
    pub passed: u64,
    /// Tests that failed.
    pub failed: u64,
    /// Tests that are ignored, or that printed `SKIP <reason>`.
    pub skipped: u64,
    /// The distinct `SKIP <reason>` lines.
    pub skips: BTreeSet<String>,
    place: Place,
    /// Whether the test whose output is being read said SKIP.
    block_skips: bool,
    /// How many tests of this binary said SKIP.
    said: u64,
}

/// Where in the output of one test binary we are.
#[derive(Debug, Default, PartialEq, Eq)]
enum Place {
    #[default]
    Progress,
    /// Between `successes:` and what follows it.
    Successes,
}

impl Counts {
    /// Takes one line of output, without its newline; any text is allowed. Returns whether a
    /// reader wants to see it: the output of tests that passed is noise.
    pub fn take(&mut self, line: &str) -> bool {
        let text = line.trim();
        if let Some(result) = text.strip_prefix("test result: ") {
            self.place = Place::Progress;
            self.close_block();
            self.add(result.split_once(". ").map_or("", |(_, numbers)| numbers), ';');
            return true;
        }
        if let Some((_, numbers)) = text.split_once(" tests run: ").filter(|_| text.starts_with("Summary [")) {
            self.place = Place::Progress;
            self.close_block();
            self.add(numbers, ',');
            return true;
        }
        if text.starts_with("SKIP ") && !text.starts_with("SKIP [") {
            self.skips.insert(text.to_owned());
            self.block_skips = true;
        }
        match text {
            "successes:" => self.place = Place::Successes,
            "failures:" => self.place = Place::Progress,
            // The head of what one test printed.
            _ if text.starts_with("---- ") && text.ends_with(" ----") => self.close_block(),
            _ if text.starts_with("─── ") || text.starts_with("stdout ───") => self.close_block(),
            _ => {}
        }
        let is_tick = text.starts_with("test ") && text.ends_with(" ... ok");
        let is_empty_binary = text == "running 0 tests";
        self.place == Place::Progress && !is_tick && !is_empty_binary && !text.is_empty()
    }

    /// Adds `5 passed; 0 failed; 1 ignored; ...`.
    fn add(&mut self, numbers: &str, separator: char) {
        for part in numbers.split(separator) {
            let mut words = part.split_whitespace();
            let Some(count) = words.next().and_then(|word| word.parse::<u64>().ok()) else { continue };
            let total = match words.next() {
                Some("passed") => &mut self.passed,
                Some("failed") => &mut self.failed,
                Some("ignored" | "skipped") => &mut self.skipped,
                _ => continue,
            };
            *total = total.saturating_add(count);
        }
        // Tests that said so were counted as passed by the runner: move them.
        let said = std::mem::take(&mut self.said);
        let moved = said.min(self.passed);
        self.passed -= moved;
        self.skipped = self.skipped.saturating_add(moved);
    }

    fn close_block(&mut self) {
        if std::mem::take(&mut self.block_skips) {
            self.said += 1;
        }
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} passed, {} failed, {} skipped", self.passed, self.failed, self.skipped)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(output: &str, line: &str, shown: &[&str]) {
        let mut counts = Counts::default();
        let seen: Vec<&str> = output.lines().filter(|line| counts.take(line)).map(str::trim).collect();
        assert_eq!(counts.to_string(), line);
        assert_eq!(seen, shown);
    }

    #[test]
    fn cargo_test() {
        check(
            "running 3 tests\ntest a ... ok\ntest b ... ok\ntest c ... ignored\n\nsuccesses:\n\n\
             ---- a stdout ----\nSKIP no fio here\nnoise\n---- b stdout ----\nnoise\n\nsuccesses:\n    a\n    b\n\n\
             test result: ok. 2 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.1s\n\
             running 1 test\ntest d ... FAILED\n\nfailures:\n\n---- d stdout ----\nboom\n\n\
             test result: FAILED. 0 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.1s\n",
            "1 passed, 1 failed, 2 skipped",
            &[
                "running 3 tests",
                "test c ... ignored",
                "test result: ok. 2 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.1s",
                "running 1 test",
                "test d ... FAILED",
                "failures:",
                "---- d stdout ----",
                "boom",
                "test result: FAILED. 0 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.1s",
            ],
        );
    }

    #[test]
    fn nextest() {
        check(
            "Summary [   0.133s] 7 tests run: 6 passed, 1 failed, 2 skipped\n",
            "6 passed, 1 failed, 2 skipped",
            &["Summary [   0.133s] 7 tests run: 6 passed, 1 failed, 2 skipped"],
        );
    }

    #[test]
    fn numbers_that_make_no_sense_are_passed_over() {
        let sample = "test result: ok. 99999999999999999999 passed; x failed; 3\ntest result: \n";
        check(sample, "0 passed, 0 failed, 0 skipped", &[sample.lines().next().unwrap_or_default(), "test result:"]);
    }

    #[test]
    fn totals_do_not_wrap() {
        let mut counts = Counts::default();
        for _ in 0..2 {
            counts.take("test result: ok. 18446744073709551615 passed; 0 failed");
        }
        assert_eq!(counts.passed, u64::MAX);
    }

    #[test]
    fn a_skip_is_told_once() {
        let mut counts = Counts::default();
        for line in ["SKIP no root", "SKIP no root", "  SKIP no fio"] {
            counts.take(line);
        }
        assert_eq!(counts.skips.into_iter().collect::<Vec<_>>(), ["SKIP no fio", "SKIP no root"]);
    }
}
