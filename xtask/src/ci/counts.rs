//! Reads what `cargo test` and its binaries print, and adds up the tests.

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
    /// The reasons for that, and how often each was given; one of an ignored test begins with `ignored: `.
    pub skips: BTreeMap<String, u64>,
    place: Place,
    /// Whether the test whose output is being read said SKIP.
    block_skips: bool,
    /// How many tests of this binary said SKIP.
    said: u64,
    /// Binaries that came to an end.
    ends: u64,
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
    /// Takes all that one test binary printed, and shows of it what [`take`](Self::take) says. A binary that did not
    /// come to its end counts as one test that failed.
    pub fn take_binary(&mut self, text: &str, mut show: impl FnMut(&str)) {
        let ends = self.ends;
        text.lines().filter(|line| self.take(line)).for_each(&mut show);
        if self.ends == ends {
            (self.block_skips, self.said) = (false, 0);
            self.end_of_binary("1 failed");
        }
    }

    /// Takes one line of output, without its newline; any text is allowed. Returns whether a
    /// reader wants to see it: the output of tests that passed is noise.
    pub fn take(&mut self, line: &str) -> bool {
        if let Some(result) = line.strip_prefix("test result: ") {
            return self.end_of_binary(result.split_once(". ").map_or("", |(_, numbers)| numbers));
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
            self.skip(reason);
            self.block_skips = true;
        }
        let is_tick = line.starts_with("test ") && line.ends_with(" ... ok");
        let ignored = line.strip_prefix("test ").and_then(|test| test.split_once(" ... ignored"));
        if let Some((_, reason)) = ignored {
            self.skip(&format!("ignored: {}", reason.strip_prefix(", ").unwrap_or("no reason is given")));
        }
        self.place == Place::Shown && !is_tick && ignored.is_none() && text != "running 0 tests" && !text.is_empty()
    }

    /// Keeps why something was not looked at.
    pub fn skip(&mut self, reason: &str) {
        *self.skips.entry(reason.to_owned()).or_default() += 1;
    }

    /// Takes the totals of one binary; returns whether there were any tests in it.
    fn end_of_binary(&mut self, numbers: &str) -> bool {
        self.close_block();
        self.place = Place::Shown;
        self.ends += 1;
        let mut any = false;
        for part in numbers.split(';') {
            let mut words = part.split_whitespace();
            let Some(count) = words.next().and_then(|word| word.parse::<u64>().ok()) else { continue };
            let total = match words.next() {
                Some("passed") => &mut self.passed,
                Some("failed") => &mut self.failed,
                Some("ignored") => &mut self.skipped,
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
            "running 3 tests\ntest a ... ok\ntest b ... ok\ntest c ... ignored, slow\n\nsuccesses:\n\n\
             ---- a stdout ----\nSKIP no fio here\nnoise\n---- b stdout ----\nnoise\n\nsuccesses:\n    a\n    b\n\n\
             test result: ok. 2 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.1s\n\
             running 1 test\ntest d ... FAILED\n\nfailures:\n\n---- d stdout ----\nboom\n\n\
             test result: FAILED. 0 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.1s\n",
            "1 passed, 1 failed, 2 skipped",
            &[
                "running 3 tests",
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
    fn a_binary_that_was_killed_failed() {
        let mut counts = Counts::default();
        let mut seen = Vec::new();
        counts.take_binary("running 2 tests\ntest a ... ok\nSKIP b", |line| seen.push(line.to_owned()));
        assert_eq!((counts.to_string().as_str(), seen.len()), ("0 passed, 1 failed, 0 skipped", 2));
        counts.take_binary("test result: ok. 1 passed; 0 failed; 0 ignored", |_| {});
        assert_eq!(counts.to_string(), "1 passed, 1 failed, 0 skipped");
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
        for line in
            ["SKIP no root", "SKIP no root", "    SKIP no fio", "test a ... ignored, slow", "test b ... ignored"]
        {
            counts.take(line);
        }
        let skips: Vec<_> = counts.skips.iter().map(|(reason, times)| (reason.as_str(), *times)).collect();
        let expect = [("ignored: no reason is given", 1), ("ignored: slow", 1), ("no fio", 1), ("no root", 2)];
        assert_eq!(skips, expect);
    }
}
