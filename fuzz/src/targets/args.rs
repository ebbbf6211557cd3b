//! The arguments of a table line: every argument keeps a place from which it parses again.

use udm_base::{Args, DevT};

/// Words of table lines.
pub const WORDS: &[&[u8]] = &[b"\\ ", b"\\\\", b"\t", b"7:0", b"/dev/mapper/", b"nbd://", "\u{e9}".as_bytes()];

/// Splits `data` and checks the places; parses each argument as a device number and back.
pub fn fuzz_args(data: &[u8]) {
    let params = String::from_utf8_lossy(data);
    let mut args = Args::parse(&params);
    let count = args.len();
    let mut end = 0;
    while let Some(arg) = args.take() {
        assert!(arg.span.start >= end && !arg.span.is_empty(), "places rise: {arg:?} after byte {end}");
        end = arg.span.end;
        let mut again = Args::parse(&params[arg.span.clone()]);
        assert_eq!((again.len(), again.take().map(|a| a.text)), (1, Some(arg.text.clone())), "{arg:?}");
        if let Ok(device) = arg.text.parse::<DevT>() {
            assert_eq!(device.to_string().parse(), Ok(device), "{arg:?}");
        }
    }
    assert_eq!(args.left(), 0, "all {count} were taken");
    if let Err(error) = args.need("Missing", "a number") {
        let place = error.span.clone().unwrap_or_default();
        assert!(params.get(place).is_some(), "an error points into the line: {error:?}");
    }
}
