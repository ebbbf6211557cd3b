//! The devices that a benchmark makes for itself: `base::concise`, with tables and numbers read.

use udm_core::TableLine;

/// One device of a specification.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConciseDevice {
    /// Its name.
    pub name: String,
    /// Its uuid; empty for none.
    pub uuid: String,
    /// The number that it wants.
    pub minor: Option<u32>,
    /// Whether writes are refused.
    pub read_only: bool,
    /// Its table.
    pub lines: Vec<TableLine>,
}

/// Reads a specification. The error names the device and what is wrong with it.
pub fn parse_concise(text: &str) -> Result<Vec<ConciseDevice>, String> {
    let (devices, result) = udm_base::concise::parse_concise(text.trim());
    result?;
    if devices.is_empty() {
        return Err("expected NAME,UUID,MINOR,FLAGS,TABLE, found nothing".to_owned());
    }
    devices.into_iter().map(device).collect()
}

fn device(text: udm_base::concise::ConciseDevice) -> Result<ConciseDevice, String> {
    let udm_base::concise::ConciseDevice { name, uuid, minor, read_only, table } = text;
    let minor = match minor.trim() {
        "" => None,
        number => Some(number.parse().map_err(|_| format!("{name}: the minor is {number:?}; expected a number"))?),
    };
    let lines = TableLine::parse_all(&table).map_err(|e| format!("{name}: {e}"))?;
    if lines.is_empty() {
        return Err(format!("{name}: expected a table line after the flags, found none"));
    }
    Ok(ConciseDevice { name: name.trim().to_owned(), uuid: uuid.trim().to_owned(), minor, read_only, lines })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices() {
        let got = parse_concise("a\\,b,u,7,ro,0 8 zero,8 8 error; c,,,,0 8 linear /dev/mapper/a 0;\n").unwrap();
        assert_eq!(got.len(), 2);
        assert_eq!(
            (got[0].name.as_str(), got[0].uuid.as_str(), got[0].minor, got[0].read_only),
            ("a,b", "u", Some(7), true)
        );
        assert_eq!(got[0].lines.iter().map(ToString::to_string).collect::<Vec<_>>(), ["0 8 zero", "8 8 error"]);
        assert_eq!((got[1].name.as_str(), got[1].minor, got[1].read_only), ("c", None, false));
    }

    #[test]
    fn refused() {
        for (text, expect) in [
            ("", "found nothing"),
            ("r", "device 1: expected five fields, NAME,UUID"),
            ("r,,,,0 8 zero;x,,", "device 2: expected five fields, NAME,UUID"),
            ("r,,,wo,0 8 zero", "\"wo\""),
            ("r,,x,,0 8 zero", "the minor is \"x\""),
            ("r,,,", "five fields"),
            ("r,,,,;", "found none"),
            ("r,,,,0 8", "r: line 1: expected a target"),
            ("r,,,,0 8 zero\\", "backslash"),
        ] {
            let error = parse_concise(text).unwrap_err();
            assert!(error.contains(expect), "{text:?}: {error}");
        }
    }
}
