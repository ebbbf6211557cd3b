//! Numbers as fio takes them.

use crate::Lat;
use std::time::Duration;

/// Bytes: a number, and perhaps `k`, `m`, `g` or `t` for powers of 1024, with `b`, `ib` or nothing after it.
pub(super) fn bytes(text: &str) -> Result<u64, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, suffix) = text.split_at(digits);
    let suffix = suffix.to_ascii_lowercase();
    let bare = suffix.strip_suffix("ib").or(suffix.strip_suffix('b')).unwrap_or(&suffix);
    let shift = match bare {
        "" => 0,
        "k" => 10,
        "m" => 20,
        "g" => 30,
        "t" => 40,
        _ => return Err("expected bytes, as 512, 4k or 1g".to_owned()),
    };
    let number: u64 = number.parse().map_err(|_| "expected bytes, as 512, 4k or 1g".to_owned())?;
    number.checked_mul(1 << shift).ok_or_else(|| "expected less than 16 EiB".to_owned())
}

/// A time: seconds, or a number with `us`, `ms`, `s`, `m` or `h`.
pub(super) fn time(text: &str) -> Result<Duration, String> {
    let expected = || "expected a time, as 5, 500ms or 2m, of at most a week".to_owned();
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let scale = match unit {
        "us" => 1e-6,
        "ms" => 1e-3,
        "" | "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        _ => return Err(expected()),
    };
    let seconds = number.parse::<f64>().map_err(|_| expected())? * scale;
    if seconds > 7.0 * 86_400.0 {
        return Err(expected());
    }
    Duration::try_from_secs_f64(seconds).map_err(|_| expected())
}

/// `off`, `all` or `sample:N`.
pub(super) fn lat(text: &str) -> Result<Lat, String> {
    match text.split_once(':') {
        None if text == "off" => Ok(Lat::Off),
        None if text == "all" => Ok(Lat::Sample(1)),
        Some(("sample", n)) => n.parse().map(Lat::Sample).map_err(|_| "expected a number after sample:".to_owned()),
        _ => Err("expected off, all or sample:N".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        for (text, expect) in
            [("512", 512), ("4k", 4096), ("4K", 4096), ("1MiB", 1 << 20), ("2gb", 2 << 30), ("1t", 1 << 40), ("0", 0)]
        {
            assert_eq!(bytes(text), Ok(expect), "{text}");
        }
        for bad in ["", "k", "4x", "-1", "1.5k", "99999999999999999999", "16777216t"] {
            assert!(bytes(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn times() {
        for (text, ms) in [("3", 3000), ("1.5s", 1500), ("20ms", 20), ("1m", 60_000), ("0", 0)] {
            assert_eq!(time(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        for bad in ["", "s", "1d", "-1", "1e9", "99999999999999", "..", "169h"] {
            assert!(time(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn latencies() {
        assert_eq!(lat("off"), Ok(Lat::Off));
        assert_eq!(lat("all"), Ok(Lat::Sample(1)));
        assert_eq!(lat("sample:8"), Ok(Lat::Sample(8)));
        for bad in ["", "sample", "sample:", "sample:x", "sample:-1", "none"] {
            assert!(lat(bad).is_err(), "{bad}");
        }
    }
}
