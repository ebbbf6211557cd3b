//! The text that names a null device: `null:size=1G:queues=2:poll_queues=1:latency_us=5:memory=1`.

use std::fmt;
use std::str::FromStr;
use udm_base::{SECTOR_SIZE, Sectors};

/// What a null device is like. Every key may be left out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NullSpec {
    /// `size`: bytes, or with a suffix K, M, G or T of 1024; whole sectors. 250G unless given, as null_blk's `gb`.
    pub size: Sectors,
    /// `queues`: submission queues, 1 to 1024. Every channel has its own anyhow; the number is only shown.
    pub queues: u32,
    /// `poll_queues`: queues that are polled, 0 to 1024; 0 unless given, and then nothing can be polled.
    pub poll_queues: u32,
    /// `latency_us`: how long after its submission an I/O completes, up to a minute; 0 completes it at once.
    pub latency_us: u32,
    /// `memory`: 1 keeps what is written. Otherwise writes go nowhere and reads give zeroes.
    pub memory: bool,
}

impl NullSpec {
    /// What every spec of a null device begins with.
    pub const SCHEME: &str = "null:";
}

impl Default for NullSpec {
    fn default() -> Self {
        Self { size: Sectors::in_bytes(250 << 30), queues: 1, poll_queues: 0, latency_us: 0, memory: false }
    }
}

const KEYS: &str = "size, queues, poll_queues, latency_us, memory";
const QUEUES: u32 = 1024;
const LATENCY_US: u32 = 60_000_000;

/// The text does not name a null device.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0}")]
pub struct NullSpecError(String);

impl FromStr for NullSpec {
    type Err = NullSpecError;

    fn from_str(text: &str) -> Result<Self, NullSpecError> {
        let Some(keys) = text.strip_prefix(Self::SCHEME) else {
            return Err(NullSpecError(format!("a null device begins with {:?}, found {text:?}", Self::SCHEME)));
        };
        let mut spec = Self::default();
        for pair in keys.split(':').filter(|pair| !pair.is_empty()) {
            let Some((key, value)) = pair.split_once('=') else {
                return Err(NullSpecError(format!("expected key=value with a key of {KEYS}, found {pair:?}")));
            };
            match key {
                "size" => spec.size = size(value)?,
                "queues" => spec.queues = number(key, value, 1, QUEUES)?,
                "poll_queues" => spec.poll_queues = number(key, value, 0, QUEUES)?,
                "latency_us" => spec.latency_us = number(key, value, 0, LATENCY_US)?,
                "memory" => spec.memory = number(key, value, 0, 1)? == 1,
                _ => return Err(NullSpecError(format!("expected a key of {KEYS}, found {key:?}"))),
            }
        }
        Ok(spec)
    }
}

fn number(key: &str, value: &str, min: u32, max: u32) -> Result<u32, NullSpecError> {
    let digits = !value.is_empty() && value.bytes().all(|b| b.is_ascii_digit());
    match value.parse() {
        Ok(n) if digits && (min..=max).contains(&n) => Ok(n),
        _ => Err(NullSpecError(format!("expected {key} from {min} to {max}, found {value:?}"))),
    }
}

const SUFFIXES: [(char, u32); 4] = [('K', 10), ('M', 20), ('G', 30), ('T', 40)];

fn size(value: &str) -> Result<Sectors, NullSpecError> {
    let wrong = || {
        let what = "bytes, or a number with K, M, G or T, as 1G; whole sectors of 512 bytes, at least one, below 8192T";
        NullSpecError(format!("expected size as {what}, found {value:?}"))
    };
    let suffix = SUFFIXES.iter().find(|(letter, _)| value.ends_with([*letter, letter.to_ascii_lowercase()]));
    let (digits, shift) = suffix.map_or((value, 0), |(_, shift)| (&value[..value.len() - 1], *shift));
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return Err(wrong());
    }
    let bytes = digits.parse::<u64>().ok().and_then(|n| n.checked_mul(1 << shift)).ok_or_else(wrong)?;
    let whole = bytes % SECTOR_SIZE as u64 == 0 && bytes > 0 && bytes < 1 << 53;
    if whole { Ok(Sectors::in_bytes(bytes)) } else { Err(wrong()) }
}

impl fmt::Display for NullSpec {
    /// The canonical form, with every key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.size.bytes();
        write!(f, "{}size=", Self::SCHEME)?;
        match SUFFIXES.iter().rev().find(|(_, shift)| bytes.trailing_zeros() >= *shift) {
            Some((letter, shift)) => write!(f, "{}{letter}", bytes >> shift)?,
            None => write!(f, "{bytes}")?,
        }
        let Self { queues, poll_queues, latency_us, memory, .. } = self;
        let memory = u8::from(*memory);
        write!(f, ":queues={queues}:poll_queues={poll_queues}:latency_us={latency_us}:memory={memory}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn canonical_form_loads_again() {
        for (input, expect) in [
            ("null:", "null:size=250G:queues=1:poll_queues=0:latency_us=0:memory=0"),
            ("null:size=512", "null:size=512:queues=1:poll_queues=0:latency_us=0:memory=0"),
            ("null:size=1024k:memory=1", "null:size=1M:queues=1:poll_queues=0:latency_us=0:memory=1"),
            (
                "null:latency_us=5::poll_queues=3:queues=2:size=1536M:",
                "null:size=1536M:queues=2:poll_queues=3:latency_us=5:memory=0",
            ),
        ] {
            let spec: NullSpec = input.parse().unwrap();
            assert_eq!(spec.to_string(), expect, "{input}");
            assert_eq!(spec.to_string().parse(), Ok(spec), "{input}");
        }
    }

    #[test]
    fn errors_say_what_was_expected() {
        for (input, part) in [
            ("zero:", "begins with \"null:\""),
            ("null:sise=1G", "size, queues, poll_queues, latency_us, memory"),
            ("null:size", "key=value"),
            ("null:size=", "found \"\""),
            ("null:size=1000", "whole sectors"),
            ("null:size=0", "at least one"),
            ("null:size=1P", "found \"1P\""),
            ("null:size=-1G", "found \"-1G\""),
            ("null:size=é", "found \"é\""),
            ("null:size=99999999999999999999", "below 8192T"),
            ("null:size=16777216T", "below 8192T"),
            ("null:queues=0", "queues from 1 to 1024"),
            ("null:poll_queues=+1", "poll_queues from 0 to 1024"),
            ("null:latency_us=60000001", "from 0 to 60000000"),
            ("null:memory=yes", "memory from 0 to 1"),
        ] {
            let error = input.parse::<NullSpec>().unwrap_err().to_string();
            assert!(error.contains(part), "{input}: {error}");
        }
    }
}
