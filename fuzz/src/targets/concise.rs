//! Devices on one line: what is read, quoted and put together again reads the same.

use udm_base::concise::{parse_concise, quote};

/// Parts of specifications.
pub const WORDS: &[&[u8]] = &[b",,,,", b";", b"\\,", b"\\\\", b"\\;", b",ro,", b"0 8 zero", b"0 8 linear 600:0 0"];

/// Reads `data`, and what it gave once more.
pub fn fuzz_concise(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let (devices, result) = parse_concise(&text);
    if let Err(error) = result {
        assert!(!error.is_empty(), "an error says what is wrong");
    }
    let again = devices.iter().map(|d| {
        let lines: Vec<_> = d.table.split('\n').map(quote).collect();
        let flags = if d.read_only { "ro" } else { "rw" };
        format!("{},{},{},{flags},{};", quote(&d.name), quote(&d.uuid), quote(&d.minor), lines.join(","))
    });
    let again: String = again.collect();
    let (same, result) = parse_concise(&again);
    assert_eq!(result, Ok(()), "{again:?}");
    // White space before a field and before a device is passed over, and dmsetup does not quote it: its rest comes
    // back.
    for (a, b) in devices.iter().zip(&same) {
        for (a, b) in [(&a.name, &b.name), (&a.uuid, &b.uuid), (&a.minor, &b.minor), (&a.table, &b.table)] {
            let is_space = |c: char| c.is_ascii_whitespace() || c == '\x0b';
            assert_eq!(a.trim_start_matches(is_space), b.trim_start_matches(is_space), "{again:?}");
        }
        assert_eq!(a.read_only, b.read_only, "{again:?}");
    }
    assert_eq!(devices.len(), same.len(), "{again:?}");
}
