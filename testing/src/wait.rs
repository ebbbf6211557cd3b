//! Waiting for something that nothing tells about.

use std::time::Duration;

/// Between two looks: what is there soon is found soon, what takes long is not disturbed.
const SHORT: Duration = Duration::from_millis(1);
const LONG: Duration = Duration::from_millis(10);
const LOOKS: u32 = 6000;

/// Looks again and again until it holds.
///
/// # Panics
/// After a minute and more, which no healthy run comes near.
#[track_caller]
pub fn until(what: &str, holds: impl FnMut() -> bool) {
    assert!(eventually(holds), "never: {what}");
}

/// Looks again and again until it holds, a minute or more; whether it did.
pub fn eventually(mut holds: impl FnMut() -> bool) -> bool {
    (0..LOOKS).any(|look| {
        let pause = if look < 50 { SHORT } else { LONG };
        holds() || {
            std::thread::sleep(pause);
            false
        }
    })
}
