//! How long a delay is: always the same, or as a distribution has it.

use super::Draw;
use std::collections::BTreeMap;
use std::fmt;
use std::io::Read;
use udm_base::{Arg, ArgError};

const MS: u64 = 1_000_000;
/// What a delay is at most: as many milliseconds as the kernel takes.
const MAX_NS: u64 = u32::MAX as u64 * MS;
/// Bytes that a file with a histogram may have.
const FILE_MAX: u64 = 1 << 20;

/// A delay.
pub(crate) struct Latency {
    /// As it stands in the table.
    text: String,
    kind: Kind,
}

/// In nanoseconds.
enum Kind {
    Fixed(u64),
    Uniform(u64, u64),
    Normal {
        mean: u64,
        deviation: u64,
    },
    /// Each latency with how many of all are at most as long.
    Histogram(Vec<(u64, u64)>),
}

impl Latency {
    /// Reads `<milliseconds>`, `uniform:<from>-<to>`, `normal:<mean>,<standard deviation>` or `file:<path>`, where a
    /// time is a number and one of ns, us, ms, s. May block.
    pub(crate) fn parse(arg: &Arg, message: &str) -> Result<Self, ArgError> {
        let kind = Self::kind(&arg.text).map_err(|hint| ArgError::new(message).hint(hint).at(arg))?;
        Ok(Self { text: arg.text.clone(), kind })
    }

    fn kind(text: &str) -> Result<Kind, String> {
        let pair = |rest: &str, by: char| -> Option<(u64, u64)> {
            let (one, two) = rest.split_once(by)?;
            Some((time(one)?, time(two)?))
        };
        let known = || {
            format!(
                "expected milliseconds up to {}, uniform:1ms-5ms, normal:5ms,1ms or file:/path, found {text:?}",
                u32::MAX
            )
        };
        match text.split_once(':') {
            None => text.parse::<u32>().ok().filter(|_| is_digits(text)).map(|ms| Kind::Fixed(u64::from(ms) * MS)),
            Some(("uniform", rest)) => {
                pair(rest, '-').filter(|(from, to)| from <= to).map(|(from, to)| Kind::Uniform(from, to))
            }
            Some(("normal", rest)) => pair(rest, ',').map(|(mean, deviation)| Kind::Normal { mean, deviation }),
            Some(("file", path)) => return histogram(path).map(Kind::Histogram).map_err(|e| format!("{path}: {e}")),
            Some(_) => None,
        }
        .ok_or_else(known)
    }

    /// Whether there is no delay at all.
    pub(crate) fn is_none(&self) -> bool {
        matches!(self.kind, Kind::Fixed(0))
    }

    /// How long it is this time, in nanoseconds. Draws where it is not always as long.
    #[inline]
    pub(crate) fn ns(&self, draw: impl FnOnce() -> Draw) -> u64 {
        match &self.kind {
            Kind::Fixed(ns) => *ns,
            varied => varied.drawn(&mut draw()),
        }
    }
}

impl Kind {
    fn drawn(&self, draw: &mut Draw) -> u64 {
        match self {
            Self::Fixed(ns) => *ns,
            Self::Uniform(from, to) => from + draw.below(to - from + 1),
            Self::Normal { mean, deviation } => {
                // The sum of twelve even draws between 0 and 1 has a deviation of 1 and ends at 6 of them. In integers,
                // so that a seed means the same on every machine.
                let sum: i128 = (0..12).map(|_| i128::from(draw.next() >> 32)).sum();
                let off = ((sum - (6 << 32)) * i128::from(*deviation)) >> 32;
                (i128::from(*mean) + off).clamp(0, i128::from(MAX_NS)) as u64
            }
            Self::Histogram(bins) => {
                let total = bins.last().map_or(1, |bin| bin.1);
                let drawn = draw.below(total);
                bins.get(bins.partition_point(|bin| bin.1 <= drawn)).map_or(0, |bin| bin.0)
            }
        }
    }
}

impl fmt::Display for Latency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // What has to be escaped in a table is escaped again.
        for c in self.text.chars() {
            if c.is_whitespace() || c == '\\' {
                f.write_str("\\")?;
            }
            write!(f, "{c}")?;
        }
        Ok(())
    }
}

fn is_digits(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit())
}

/// A number with its unit, in nanoseconds.
fn time(text: &str) -> Option<u64> {
    let split = text.find(|c: char| !c.is_ascii_digit())?;
    let (number, unit) = text.split_at(split);
    let unit = match unit {
        "ns" => 1,
        "us" => 1_000,
        "ms" => MS,
        "s" => 1_000 * MS,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(unit).filter(|ns| *ns <= MAX_NS)
}

/// What a file has of latencies: an object of nanoseconds and how often each was seen, as the `bins` of fio's
/// `--output-format=json+` (fio 3.33), or an object that has such an object as its `bins`.
fn histogram(path: &str) -> Result<Vec<(u64, u64)>, String> {
    if !path.starts_with('/') {
        return Err("expected a path from the root".into());
    }
    let mut text = String::new();
    // Before it is opened, since to open a FIFO may take for ever.
    if !std::fs::metadata(path).map_err(|e| e.to_string())?.is_file() {
        return Err("expected a regular file".into());
    }
    let file = std::fs::File::open(path).map_err(|e| e.to_string())?;
    file.take(FILE_MAX + 1).read_to_string(&mut text).map_err(|e| e.to_string())?;
    if text.len() as u64 > FILE_MAX {
        return Err(format!("expected at most {FILE_MAX} bytes"));
    }
    bins(&text)
}

fn bins(text: &str) -> Result<Vec<(u64, u64)>, String> {
    let expected = r#"expected {"NANOSECONDS": COUNT, ...}, or such an object as "bins""#;
    let mut value: serde_json::Value = serde_json::from_str(text).map_err(|e| format!("{expected}: {e}"))?;
    if let Some(inner) = value.get_mut("bins") {
        value = inner.take();
    }
    let object = value.as_object().ok_or(expected)?;
    let mut sorted = BTreeMap::new();
    for (ns, count) in object {
        let at = ns.parse::<u64>().ok().filter(|ns| *ns <= MAX_NS);
        let (Some(at), Some(count)) = (at, count.as_u64()) else {
            return Err(format!("{expected}, found {ns:?}: {count}"));
        };
        sorted.insert(at, count);
    }
    let mut sum = 0u64;
    let mut bins = Vec::new();
    for (ns, count) in sorted.into_iter().filter(|(_, count)| *count > 0) {
        sum = sum.checked_add(count).ok_or("the counts add up to more than 2^64")?;
        bins.push((ns, sum));
    }
    if bins.is_empty() { Err("expected a count above 0".into()) } else { Ok(bins) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use udm_base::Args;

    fn parse(text: &str) -> Result<Latency, String> {
        let arg = Args::parse(text).take().unwrap();
        Latency::parse(&arg, "Invalid delay").map_err(|e| e.hint)
    }

    /// The least, the mean and the most of many draws, in microseconds.
    fn drawn(latency: &Latency) -> (u64, u64, u64) {
        let mut draw = Draw::from(1);
        let all: Vec<u64> = (0..20_000).map(|_| latency.kind.drawn(&mut draw) / 1000).collect();
        (*all.iter().min().unwrap(), all.iter().sum::<u64>() / all.len() as u64, *all.iter().max().unwrap())
    }

    #[test]
    fn good_ones_print_as_they_were_and_are_spread_so() {
        for (text, min, mean, max) in [
            ("0", 0..=0, 0..=0, 0..=0),
            ("7", 7000..=7000, 7000..=7000, 7000..=7000),
            ("uniform:1ms-5ms", 1000..=1010, 2950..=3050, 4990..=5000),
            ("uniform:5us-5us", 5..=5, 5..=5, 5..=5),
            ("normal:5ms,1ms", 0..=2000, 4950..=5050, 8000..=11_000),
            ("normal:1ms,10ms", 0..=0, 3500..=5500, 20_000..=61_000),
        ] {
            let latency = parse(text).unwrap();
            assert_eq!(latency.to_string(), text);
            let (a, b, c) = drawn(&latency);
            assert!(min.contains(&a) && mean.contains(&b) && max.contains(&c), "{text}: {a} {b} {c}");
        }
    }

    #[test]
    fn bad_ones_say_what_was_expected() {
        for text in [
            "x",
            "-1",
            "+1",
            "4294967296",
            "uniform:",
            "uniform:1ms",
            "uniform:5ms-1ms",
            "uniform:1-5",
            "normal:5ms",
            "normal:5ms,1h",
            "uniform:99999999999s-99999999999s",
            "poisson:1ms",
        ] {
            let hint = parse(text).err().unwrap_or_else(|| panic!("{text} is taken"));
            assert!(hint.starts_with("expected milliseconds up to 4294967295, uniform:"), "{hint}");
        }
        for text in ["file:relative.json", "file:/nonexistent/x", "file:/"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_histogram_is_drawn_as_often_as_it_says() {
        let latency =
            Latency { text: String::new(), kind: Kind::Histogram(bins(r#"{"bins":{"9000":1,"1000":3}}"#).unwrap()) };
        let (min, mean, max) = drawn(&latency);
        assert!(min == 1 && max == 9 && mean == 2 || mean == 3, "{min} {mean} {max}");
        for (text, good) in [
            (r#"{"5": 1}"#, true),
            (r#"{"5": 0}"#, false),
            (r#"{}"#, false),
            (r#"[1]"#, false),
            (r#"{"x": 1}"#, false),
            (r#"{"5": -1}"#, false),
            (r#"{"5": 18446744073709551615, "6": 1}"#, false),
            (r#"{"18446744073709551615": 1}"#, false),
            ("", false),
        ] {
            assert_eq!(bins(text).is_ok(), good, "{text}");
        }
    }
}
