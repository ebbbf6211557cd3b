//! # Purpose
//! Takes one stripe out of a striped device: its chunks, one after the other.
//! # Table
//! `<start> <length> unstriped <stripes> <chunk sectors> <stripe> <device> <start sector>`
//!
//! Stripes are counted from 0. The length is a multiple of the chunk.
//! # Status
//! Empty.
//! # Messages
//! None.
//! # Differences from the kernel
//! A device that ends before the stripe does is refused when the table is loaded. Flushes reach the device; in the
//! kernel they end without (`drivers/md/dm-unstripe.c`, 6.12: the target asks for none).

use udm_base::{ArgError, Divisor, Sector, Sectors};
use udm_core::{Ctr, Map, NewTarget, StatusKind, Target, TargetDevice, TargetType};
use udm_io::{Bio, Cx, Limits};

pub(crate) static TYPE: TargetType = TargetType::new("unstriped", [1, 1, 0], ctr);

/// What the kernel's `kstrtouint` takes at most.
const COUNT_MAX: u64 = u32::MAX as u64;

struct Unstriped {
    stripes: u64,
    stripe: u64,
    chunk: Divisor,
    to: TargetDevice,
}

fn ctr(ctr: &mut Ctr<'_>) -> Result<NewTarget, ArgError> {
    const NO_DEVICE: &str = "Couldn't get striped device";
    let usage = "<stripes> <chunk sectors> <stripe> <device> <start sector>";
    ctr.args.expect_count(5..=5, "Invalid number of arguments", usage)?;
    let (stripes, _) = ctr.args.number_within(1..=COUNT_MAX, "Invalid stripe count", "a number of stripes")?;
    let (chunk, chunk_arg) = ctr.args.number_within(1..=COUNT_MAX, "Invalid chunk_size", "a chunk size in sectors")?;
    let (stripe, arg) = ctr.args.number_within(0..=COUNT_MAX, "Invalid stripe number", "a stripe")?;
    if stripe > stripes && stripes > 1 {
        let hint = format!("expected a stripe from 0 to {}, found {stripe}", stripes - 1);
        return Err(ArgError::new("Please provide stripe between [0, # of stripes]").hint(hint).at(&arg));
    }
    let name = ctr.args.need(NO_DEVICE, "a device")?;
    let dev = ctr.device(&name, NO_DEVICE)?;
    let (start, _) = ctr.args.number("Invalid striped device offset", "a start sector")?;
    let len = ctr.len.get();
    if !len.is_multiple_of(chunk) {
        let hint = format!("expected a length that {chunk} divides, found {len}");
        return Err(ArgError::new("Target length not divisible by chunk size").hint(hint).at(&chunk_arg));
    }
    // Where the last chunk ends. What is too much for 64 bits is too much for any device.
    let rows = u128::from(len / chunk - 1);
    let end = (rows * u128::from(stripes) + u128::from(stripe) + 1) * u128::from(chunk);
    let reach = Sectors::new(u64::try_from(end).unwrap_or(u64::MAX));
    let to = TargetDevice { dev, start: Sector::new(start), len: reach };
    let target = Unstriped { stripes, stripe, chunk: Divisor::new(chunk), to: to.clone() };
    Ok(NewTarget::new(target).maps_to([to]).in_place().split_at(Sectors::new(chunk)))
}

impl Target for Unstriped {
    fn map(&self, _: &Cx<'_>, mut bio: Bio, at: Sectors) -> Map<'_> {
        let (row, into) = self.chunk.split(at.get());
        let chunk = row * self.stripes + self.stripe;
        bio.set_sector(self.to.start + Sectors::new(chunk * self.chunk.get() + into));
        Map::Remapped(bio, &*self.to.dev)
    }

    fn status(&self, kind: StatusKind) -> String {
        let Self { stripes, stripe, chunk, to } = self;
        match kind {
            StatusKind::Table => format!("{stripes} {} {stripe} {} {}", chunk.get(), to.dev.name(), to.start),
            _ => String::new(),
        }
    }

    fn limits(&self, limits: &mut Limits) {
        limits.max_discard = Sectors::ZERO;
        limits.max_write_zeroes = Sectors::ZERO;
    }
}
