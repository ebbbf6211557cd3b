//! `udm thin ls`: a pool's devices in columns (`thin_ls`).

use std::io::Write;
use std::str::FromStr;

use super::counts::Counts;
use super::{Error, Progress, View};
use crate::thin::Details;

/// A column.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Field {
    what: What,
    unit: Unit,
    name: &'static str,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum What {
    Dev,
    Mapped,
    Exclusive,
    Shared,
    Transaction,
    Created,
    Snapped,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Unit {
    Blocks,
    Sectors,
    Bytes,
    /// With a suffix that suits.
    Rounded,
}

const fn field(what: What, unit: Unit, name: &'static str) -> Field {
    Field { what, unit, name }
}

/// Every column, in the order in which thin_ls lists them.
pub const FIELDS: &[Field] = &[
    field(What::Dev, Unit::Blocks, "DEV"),
    field(What::Mapped, Unit::Blocks, "MAPPED_BLOCKS"),
    field(What::Exclusive, Unit::Blocks, "EXCLUSIVE_BLOCKS"),
    field(What::Shared, Unit::Blocks, "SHARED_BLOCKS"),
    field(What::Mapped, Unit::Sectors, "MAPPED_SECTORS"),
    field(What::Exclusive, Unit::Sectors, "EXCLUSIVE_SECTORS"),
    field(What::Shared, Unit::Sectors, "SHARED_SECTORS"),
    field(What::Mapped, Unit::Bytes, "MAPPED_BYTES"),
    field(What::Exclusive, Unit::Bytes, "EXCLUSIVE_BYTES"),
    field(What::Shared, Unit::Bytes, "SHARED_BYTES"),
    field(What::Mapped, Unit::Rounded, "MAPPED"),
    field(What::Exclusive, Unit::Rounded, "EXCLUSIVE"),
    field(What::Shared, Unit::Rounded, "SHARED"),
    field(What::Transaction, Unit::Blocks, "TRANSACTION"),
    field(What::Created, Unit::Blocks, "CREATE_TIME"),
    field(What::Snapped, Unit::Blocks, "SNAP_TIME"),
];

/// What is shown when nobody says.
pub const DEFAULT: &str = "DEV,MAPPED,CREATE_TIME,SNAP_TIME";

impl Field {
    /// As it is written.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.name
    }
}

impl FromStr for Field {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        FIELDS.iter().find(|field| field.name == text).copied().ok_or_else(|| {
            let names: Vec<_> = FIELDS.iter().map(|field| field.name).collect();
            format!("{text:?} is no field; expected {}", names.join(", "))
        })
    }
}

/// Bytes as thin_ls rounds them: at most 8192 of the unit.
fn rounded(mut bytes: u64) -> String {
    const UNITS: [&str; 7] = ["", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let mut unit = 0;
    while bytes > 1 << 20 {
        bytes /= 1024;
        unit += 1;
    }
    if bytes > 8 * 1024 {
        bytes = (bytes + 512) / 1024;
        unit += 1;
    }
    format!("{bytes}{}", UNITS[unit])
}

impl Field {
    fn text(self, block_size: u64, dev: u32, details: &Details, exclusive: u64) -> String {
        let blocks = match self.what {
            What::Dev => u64::from(dev),
            What::Mapped => details.mapped_blocks,
            What::Exclusive => exclusive,
            What::Shared => details.mapped_blocks.wrapping_sub(exclusive),
            What::Transaction => details.transaction_id,
            What::Created => details.creation_time.into(),
            What::Snapped => details.snapshotted_time.into(),
        };
        let sectors = blocks.wrapping_mul(block_size);
        match self.unit {
            Unit::Blocks => blocks.to_string(),
            Unit::Sectors => sectors.to_string(),
            Unit::Bytes => sectors.wrapping_mul(512).to_string(),
            Unit::Rounded => rounded(sectors.wrapping_mul(512)),
        }
    }
}

/// Prints the devices. Reads the mappings, twice, only where a column asks what is exclusive. Blocks.
///
/// # Errors
/// When a block cannot be read or is damaged, a device has no mapping tree, or the result cannot be written.
pub fn ls(
    view: &View,
    fields: &[Field],
    headers: bool,
    mut out: impl Write,
    progress: &mut dyn Progress,
) -> Result<(), Error> {
    let devices = view.details(None)?;
    let mut exclusive = vec![0_u64; devices.len()];
    if fields.iter().any(|field| matches!(field.what, What::Exclusive | What::Shared)) {
        count(view, &devices, &mut exclusive, progress)?;
    }
    let block_size = view.superblock.data_block().get();
    let mut rows: Vec<Vec<String>> = Vec::new();
    if headers {
        rows.push(fields.iter().map(|field| field.name.to_owned()).collect());
    }
    for ((dev, details), exclusive) in devices.iter().zip(exclusive) {
        rows.push(fields.iter().map(|field| field.text(block_size, *dev, details, exclusive)).collect());
    }
    let width = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..fields.len()).map(width).collect();
    for row in &rows {
        for (text, width) in row.iter().zip(&widths) {
            write!(out, "{text:>width$} ").map_err(Error::output)?;
        }
        writeln!(out).map_err(Error::output)?;
    }
    out.flush().map_err(Error::output)
}

fn count(
    view: &View,
    devices: &[(u32, Details)],
    exclusive: &mut [u64],
    progress: &mut dyn Progress,
) -> Result<(), Error> {
    let roots = view.roots(None)?;
    let root = |dev: u32| {
        let found = roots.binary_search_by_key(&dev, |(dev, _)| *dev).ok().map(|i| roots[i].1);
        found.ok_or_else(|| {
            Error::from(crate::thin::Error::Details { dev, what: "it has details, but no mapping tree".into() })
        })
    };
    let total = devices.iter().map(|(_, d)| d.mapped_blocks).fold(0, u64::saturating_add).saturating_mul(2);
    let mut done = 0_u64;
    let mut counts = Counts::default();
    let mut each = |root: u64, visit: &mut dyn FnMut(u64)| {
        let mut cursor = view.mappings(root);
        while let Some((_, to)) = cursor.next()? {
            visit(to.block);
            done += 1;
            if done.is_multiple_of(1 << 14) {
                progress.at(done, total.max(done));
            }
        }
        Ok::<(), Error>(())
    };
    for (dev, _) in devices {
        each(root(*dev)?, &mut |data| {
            counts.inc(data);
        })?;
    }
    for ((dev, _), exclusive) in devices.iter().zip(exclusive) {
        each(root(*dev)?, &mut |data| *exclusive += u64::from(counts.get(data) == 1))?;
    }
    Ok(())
}
