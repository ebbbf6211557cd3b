//! When a flakey device is down.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use udm_base::{Arg, ArgError};
use udm_core::Ctr;
use udm_io::{Cx, Nanos};

const SECOND: u64 = 1_000_000_000;

/// Up for a while, then down for a while, and so on.
pub(super) struct Intervals {
    up: u32,
    down: u32,
    unit: Unit,
}

enum Unit {
    Seconds {
        start: Nanos,
        /// It is up as long as it is earlier than this. Told anew by who finds that it is later.
        up_until: AtomicU64,
    },
    /// How many there were.
    Bios(AtomicU64),
}

/// An interval of the table, and whether it is counted in bios.
type Interval = (u32, bool, Arg);

impl Intervals {
    /// Reads `<up interval> <down interval>`.
    pub(super) fn parse(ctr: &mut Ctr<'_>) -> Result<Self, ArgError> {
        let (up, in_bios, _) = interval(ctr, "Invalid up interval")?;
        let (down, too, arg) = interval(ctr, "Invalid down interval")?;
        if in_bios != too {
            let hint = "expected both intervals in seconds, or both in bios";
            return Err(ArgError::new("Invalid down interval").hint(hint).at(&arg));
        }
        if up == 0 && down == 0 {
            let hint = "expected one of the intervals to be at least 1";
            return Err(ArgError::new("Total (up + down) interval is zero").hint(hint).at(&arg));
        }
        if up.checked_add(down).is_none() {
            let hint = format!("expected two intervals of less than {} together, found {up} and {down}", u32::MAX);
            return Err(ArgError::new("Interval overflow").hint(hint).at(&arg));
        }
        let unit = match in_bios {
            true => Unit::Bios(AtomicU64::new(0)),
            false => Unit::Seconds { start: ctr.domain.clock().coarse(), up_until: AtomicU64::new(0) },
        };
        Ok(Self { up, down, unit })
    }

    /// Whether the device is down for a bio that comes now.
    #[inline]
    pub(super) fn is_down(&self, cx: &Cx<'_>) -> bool {
        match &self.unit {
            _ if self.down == 0 => false,
            Unit::Seconds { up_until, start } => {
                // Before the clock is read, so that a later interval's end is not held against an earlier time.
                let up_until = up_until.load(Ordering::Acquire);
                let now = cx.coarse_now();
                now.0 >= up_until && self.is_down_at(now, *start)
            }
            Unit::Bios(count) => self.is_down_after(count.fetch_add(1, Ordering::Relaxed)),
        }
    }

    /// After so many seconds, or bios.
    fn is_down_after(&self, elapsed: u64) -> bool {
        elapsed % self.total() >= u64::from(self.up)
    }

    fn total(&self) -> u64 {
        u64::from(self.up) + u64::from(self.down)
    }

    #[cold]
    fn is_down_at(&self, now: Nanos, start: Nanos) -> bool {
        let elapsed = now.since(start) / SECOND;
        if self.is_down_after(elapsed) {
            return true;
        }
        if let Unit::Seconds { up_until, .. } = &self.unit {
            let down_at = elapsed - elapsed % self.total() + u64::from(self.up);
            up_until.store(start.after(down_at.saturating_mul(SECOND)).0, Ordering::Release);
        }
        false
    }
}

fn interval(ctr: &mut Ctr<'_>, message: &str) -> Result<Interval, ArgError> {
    let arg = ctr.args.need(message, "an interval in seconds")?;
    let (number, in_bios) = match arg.text.strip_suffix("bios") {
        Some(number) => (number, true),
        None => (arg.text.as_str(), false),
    };
    match number.parse() {
        Ok(n) if number.bytes().all(|b| b.is_ascii_digit()) => Ok((n, in_bios, arg)),
        _ => {
            let hint =
                format!("expected seconds up to {}, or as many bios as in 100bios, found {:?}", u32::MAX, arg.text);
            Err(ArgError::new(message).hint(hint).at(&arg))
        }
    }
}

impl fmt::Display for Intervals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = if matches!(self.unit, Unit::Bios(_)) { "bios" } else { "" };
        write!(f, "{}{unit} {}{unit}", self.up, self.down)
    }
}
