//! A line of a table, as text and apart.

use std::fmt;
use udm_base::{Sector, Sectors};

/// `<start> <length> <target> [<arguments>]`
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TableLine {
    /// The first sector on the mapped device.
    pub start: Sector,
    /// How many there are.
    pub len: Sectors,
    /// The target's word.
    pub target: String,
    /// Its arguments, as typed.
    pub params: String,
}

impl TableLine {
    /// Reads one line. The error says which part is missing or wrong.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut rest = text.trim();
        let mut word = |what: &str| {
            let end = rest.find(|c: char| c.is_ascii_whitespace()).unwrap_or(rest.len());
            let (word, tail) = rest.split_at(end);
            rest = tail.trim_start();
            if word.is_empty() { Err(format!("expected {what}, found the end of the line")) } else { Ok(word) }
        };
        let number = |word: &str, what: &str| {
            word.parse::<u64>().map_err(|_| format!("expected {what} as a number of sectors, found {word:?}"))
        };
        let start = number(word("the start")?, "the start")?;
        let len = number(word("the length")?, "the length")?;
        let target = word("a target")?.to_owned();
        Ok(Self { start: Sector::new(start), len: Sectors::new(len), target, params: rest.to_owned() })
    }

    /// Reads a table of several lines; empty ones and those that begin with `#` count for nothing.
    pub fn parse_all(text: &str) -> Result<Vec<Self>, String> {
        let lines = text.lines().enumerate().filter(|(_, l)| !l.trim().is_empty() && !l.trim().starts_with('#'));
        lines.map(|(i, l)| Self::parse(l).map_err(|e| format!("line {}: {e}\n  {l}", i + 1))).collect()
    }

    /// Where the parameters begin in the text of the line.
    pub(crate) fn params_offset(&self) -> usize {
        format!("{} {} {} ", self.start, self.len, self.target).len()
    }

    /// Where the length stands in the text of the line.
    pub(crate) fn len_span(&self) -> std::ops::Range<usize> {
        let at = self.start.to_string().len() + 1;
        at..at + self.len.to_string().len()
    }

    /// Where the target's word stands in the text of the line.
    pub(crate) fn target_span(&self) -> std::ops::Range<usize> {
        let end = self.params_offset() - 1;
        end - self.target.len()..end
    }
}

impl fmt::Display for TableLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.start, self.len, self.target)?;
        if self.params.is_empty() { Ok(()) } else { write!(f, " {}", self.params) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_and_prints() {
        for (text, expect) in [
            ("0 100 zero", Ok("0 100 zero")),
            ("  0  100\tlinear  /dev/sda   5 ", Ok("0 100 linear /dev/sda   5")),
            ("", Err("expected the start, found the end of the line")),
            ("0", Err("expected the length, found the end of the line")),
            ("0 1", Err("expected a target, found the end of the line")),
            ("x 1 zero", Err("expected the start as a number of sectors, found \"x\"")),
            (
                "0 99999999999999999999 zero",
                Err("expected the length as a number of sectors, found \"99999999999999999999\""),
            ),
        ] {
            let got = TableLine::parse(text).map(|l| l.to_string());
            assert_eq!(got, expect.map(str::to_owned).map_err(str::to_owned), "{text:?}");
        }
    }
}
