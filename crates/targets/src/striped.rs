//! # Purpose
//! Spreads a range over several devices, chunk by chunk in turn (RAID 0).
//! # Table
//! `<start> <length> striped <stripes> <chunk sectors> [<device> <start sector>]+`
//!
//! The length is a multiple of stripes × chunk.
//! # Status
//! `<stripes> <device>… 1 <flags>`: for each stripe `A`, or `D` once an I/O on it has failed.
//! # Messages
//! None.
//! # Differences from the kernel
//! Discards are cut at chunks rather than sent as one range to each stripe (`drivers/md/dm-stripe.c`, 6.12).

use std::fmt::Write;
use std::sync::atomic::{AtomicU32, Ordering};
use udm_base::{ArgError, Sector, Sectors, Stripes};
use udm_core::{Ctr, Failed, Map, NewTarget, StatusKind, Target, TargetDevice, TargetType};
use udm_io::{Bio, Cx, Limits, Status};

pub(crate) static TYPE: TargetType = TargetType::new("striped", [1, 6, 0], ctr);

/// From this many errors of a stripe on, another is no event (`DM_IO_ERROR_THRESHOLD`).
const ERROR_THRESHOLD: u32 = 15;

struct Striped {
    stripes: Vec<Stripe>,
    geometry: Stripes,
}

struct Stripe {
    device: TargetDevice,
    errors: AtomicU32,
}

fn ctr(ctr: &mut Ctr<'_>) -> Result<NewTarget, ArgError> {
    let usage = "<stripes> <chunk sectors> and <device> <start sector> for each stripe";
    ctr.args.expect_count(2..=usize::MAX, "Not enough arguments", usage)?;
    let (count, count_arg) = positive(ctr, "Invalid stripe count", "a number of stripes")?;
    let (chunk, chunk_arg) = positive(ctr, "Invalid chunk_size", "a chunk size in sectors")?;
    let len = ctr.len.get();
    if !len.is_multiple_of(count) {
        let hint = format!("expected a length that {count} divides, found {len}");
        return Err(ArgError::new("Target length not divisible by number of stripes").hint(hint).at(&count_arg));
    }
    if !(len / count).is_multiple_of(chunk) {
        let hint = format!("expected a multiple of {count} stripes × {chunk} sectors, found {len}");
        return Err(ArgError::new("Target length not divisible by chunk size").hint(hint).at(&chunk_arg));
    }
    let wanted = usize::try_from(count).ok().and_then(|n| n.checked_mul(2)).and_then(|n| n.checked_add(2));
    let wanted = wanted.unwrap_or(usize::MAX);
    ctr.args.expect_count(wanted..=wanted, "Not enough destinations specified", usage)?;
    let mut stripes = Vec::new();
    for _ in 0..count {
        let message = "Couldn't parse stripe destination";
        let device = TargetDevice { len: Sectors::new(len / count), ..ctr.device_range(message, message)? };
        stripes.push(Stripe { device, errors: AtomicU32::new(0) });
    }
    let devices: Vec<_> = stripes.iter().map(|s| s.device.clone()).collect();
    let geometry = Stripes::new(count, Sectors::new(chunk));
    Ok(NewTarget::new(Striped { stripes, geometry }).stripes_over(devices, geometry))
}

impl Target for Striped {
    fn map(&self, _: &Cx<'_>, mut bio: Bio, at: Sectors) -> Map<'_> {
        let (stripe, sector) = self.locate(at);
        bio.set_sector(sector);
        Map::Remapped(bio, &*stripe.device.dev)
    }

    fn status(&self, kind: StatusKind) -> String {
        let mut out = self.stripes.len().to_string();
        match kind {
            StatusKind::Info { .. } => {
                for s in &self.stripes {
                    let _ = write!(out, " {}", s.device.dev.name());
                }
                out += " 1 ";
                out.extend(self.stripes.iter().map(Stripe::letter));
            }
            StatusKind::Table => {
                let _ = write!(out, " {}", self.geometry.chunk());
                for s in &self.stripes {
                    let _ = write!(out, " {} {}", s.device.dev.name(), s.device.start);
                }
            }
            StatusKind::Measurement => return self.measurement(),
        }
        out
    }

    fn limits(&self, limits: &mut Limits) {
        let chunk = self.geometry.chunk().checked_bytes().unwrap_or(0);
        limits.io_min = u32::try_from(chunk).unwrap_or(0);
        limits.io_opt = u32::try_from(chunk.saturating_mul(self.geometry.count())).unwrap_or(0);
    }

    fn failed(&self, what: Failed, status: Status) -> bool {
        match what {
            Failed::At(at) => self.locate(at).0.has_failed(status),
            Failed::Flush(dev) => {
                let own = self.stripes.iter().filter(|s| s.device.dev.id() == dev);
                // Each is to count it, also after one for which it is an event.
                own.filter(|stripe| stripe.has_failed(status)).count() > 0
            }
        }
    }
}

/// The next argument, a number from 1 to 2^32 - 1 as the kernel's `kstrtouint`.
fn positive(ctr: &mut Ctr<'_>, message: &str, what: &str) -> Result<(u64, udm_base::Arg), ArgError> {
    let (n, arg) = ctr.args.number(message, what)?;
    if n == 0 || n > u64::from(u32::MAX) {
        return Err(ArgError::new(message).hint(format!("expected {what} from 1 to 4294967295, found {n}")).at(&arg));
    }
    Ok((n, arg))
}

impl Stripe {
    fn letter(&self) -> char {
        if self.errors.load(Ordering::Relaxed) > 0 { 'D' } else { 'A' }
    }

    /// Counts an error of it; whether that is an event. What it does not offer is none (`stripe_end_io`).
    fn has_failed(&self, status: Status) -> bool {
        status != Status::NotSupported && self.errors.fetch_add(1, Ordering::Relaxed) + 1 < ERROR_THRESHOLD
    }
}

impl Striped {
    /// The stripe that `at` lies on, and where (`stripe_map_sector`).
    #[inline]
    fn locate(&self, at: Sectors) -> (&Stripe, Sector) {
        let (stripe, into) = self.geometry.locate(at);
        let stripe = &self.stripes[stripe];
        (stripe, stripe.device.start + into)
    }

    fn measurement(&self) -> String {
        let mut out = format!("stripes={},chunk_size={}", self.stripes.len(), self.geometry.chunk());
        for (i, s) in self.stripes.iter().enumerate() {
            let (name, start, status) = (s.device.dev.name(), s.device.start, s.letter());
            let _ = write!(
                out,
                ",stripe_{i}_device_name={name},stripe_{i}_physical_start={start},stripe_{i}_status={status}"
            );
        }
        out
    }
}
