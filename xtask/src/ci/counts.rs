//! Reads what `cargo test` and `cargo nextest` print, and adds up the tests.

use std::collections::BTreeMap;
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
    /// The reasons behind `SKIP`, and how often each was given.
    pub skips: BTreeMap<String, u64>,
    place: Place,
    /// Whether the test whose output is being read said SKIP.
    block_skips: bool,
    /// How many tests of this binary said SKIP.
    said: u64,
}

/// Whose output we are reading.
#[derive(Debug, Default, PartialEq, Eq)]
enum Place {
    /// The runner's own, or that of a test that failed.
    #[default]
    Shown,
    /// That of a test that passed.
    Passed,
}

impl Counts {
    /// Takes one line of output, without its newline; any text is allowed. Returns whether a
    /// reader wants to see it: the output of tests that passed is noise.
    pub fn take(&mut self, line: &str) -> bool {
        // Within a block of nextest this line is indented, and one of many that it sums up.
        if let Some(result) = line.strip_prefix("test result: ") {
            return self.end_of_binary(result.split_once(". ").map_or("", |(_, numbers)| numbers), ';');
        }
        match nextest_status(line) {
            Some("Summary") => {
                return self.end_of_binary(line.split_once(" run: ").map_or("", |(_, numbers)| numbers), ',');
            }
            Some(status) => {
                self.close_block();
                self.place = if status == "PASS" { Place::Passed } else { Place::Shown };
                return self.place == Place::Shown;
            }
            None => {}
        }
        match line {
            "successes:" => self.place = Place::Passed,
            "failures:" => self.place = Place::Shown,
            // The head of what one test printed.
            _ if line.starts_with("---- ") && line.ends_with(" ----") => self.close_block(),
            _ => {}
        }
        let text = line.trim();
        if let Some(reason) = text.strip_prefix("SKIP ") {
            *self.skips.entry(reason.to_owned()).or_default() += 1;
            self.block_skips = true;
        }
        let is_tick = line.starts_with("test ") && line.ends_with(" ... ok");
        self.place == Place::Shown && !is_tick && text != "running 0 tests" && !text.is_empty()
    }

    /// Takes the totals of one binary; returns whether there were any tests in it.
    fn end_of_binary(&mut self, numbers: &str, separator: char) -> bool {
        self.close_block();
        self.place = Place::Shown;
        let mut any = false;
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
            any |= count > 0;
        }
        // Tests that said so were counted as passed by the runner: move them.
        let moved = std::mem::take(&mut self.said).min(self.passed);
        self.passed -= moved;
        self.skipped = self.skipped.saturating_add(moved);
        any
    }

    fn close_block(&mut self) {
        if std::mem::take(&mut self.block_skips) {
            self.said += 1;
        }
    }
}

/// The word of a line of nextest such as `        PASS [   0.010s] (1/9) ...`: it ends at column 12.
fn nextest_status(line: &str) -> Option<&str> {
    let (word, rest) = line.split_at_checked(12)?;
    (rest.starts_with(" [") && line.starts_with(' ')).then(|| word.trim_start())
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
        let fail = "        FAIL [   0.020s] (3/3) udm-io c";
        let summary = "     Summary [   0.133s] 3 tests run: 2 passed, 1 failed, 4 skipped";
        check(
            &format!(
                "        PASS [   0.010s] (1/3) udm-io a\n  stdout ───\n\n    running 1 test\n    SKIP no fio here\n\n    \
                 test result: ok. 1 passed; 0 failed; 0 ignored\n\n        PASS [   0.010s] (2/3) udm-io b\n{fail}\n    \
                 test c ... FAILED\n    test result: FAILED. 0 passed; 1 failed; 0 ignored\n{summary}\n"
            ),
            "1 passed, 1 failed, 5 skipped",
            &[fail.trim(), "test c ... FAILED", "test result: FAILED. 0 passed; 1 failed; 0 ignored", summary.trim()],
        );
    }

    #[test]
    fn a_binary_without_tests_is_not_shown() {
        check(
            "running 0 tests\n\ntest result: ok. 0 passed; 0 failed; 0 ignored\n",
            "0 passed, 0 failed, 0 skipped",
            &[],
        );
    }

    #[test]
    fn numbers_that_make_no_sense_are_passed_over() {
        let sample = "test result: ok. 99999999999999999999 passed; x failed; 3\ntest result: \n";
        check(sample, "0 passed, 0 failed, 0 skipped", &[]);
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
    fn skips_are_counted_by_reason() {
        let mut counts = Counts::default();
        for line in ["SKIP no root", "SKIP no root", "    SKIP no fio"] {
            counts.take(line);
        }
        assert_eq!(counts.skips.into_iter().collect::<Vec<_>>(), [("no fio".to_owned(), 1), ("no root".to_owned(), 2)]);
    }
}
