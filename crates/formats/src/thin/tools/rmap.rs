//! `udm thin rmap`: who has which data blocks (`thin_rmap`).

use std::io::Write;
use std::ops::Range;

use super::{Error, Progress, View};

struct Found {
    data: Range<u64>,
    dev: u32,
    block: u64,
}

/// Lists which devices have blocks in `regions` of the data device, by data block. Holds what it found. Blocks.
///
/// # Errors
/// When a block cannot be read or is damaged, or the result cannot be written.
pub fn rmap(
    view: &View,
    regions: &[Range<u64>],
    mut out: impl Write,
    progress: &mut dyn Progress,
) -> Result<(), Error> {
    let mut found: Vec<Found> = Vec::new();
    let total = view.details(None)?.iter().map(|(_, d)| d.mapped_blocks).fold(0, u64::saturating_add);
    let mut done = 0_u64;
    for (dev, root) in view.roots(None)? {
        let mut cursor = view.mappings(root);
        while let Some((block, to)) = cursor.next()? {
            done += 1;
            if done.is_multiple_of(1 << 14) {
                progress.at(done, total.max(done));
            }
            if !regions.iter().any(|region| region.contains(&to.block)) {
                continue;
            }
            match found.last_mut() {
                Some(last)
                    if last.dev == dev
                        && last.data.end == to.block
                        && block == last.block + (last.data.end - last.data.start) =>
                {
                    last.data.end += 1;
                }
                _ => found.push(Found { data: to.block..to.block + 1, dev, block }),
            }
        }
    }
    found.sort_by_key(|found| found.data.start);
    for Found { data, dev, block } in found {
        let end = block + (data.end - data.start);
        writeln!(out, "data {}..{} -> thin({dev}) {block}..{end}", data.start, data.end).map_err(Error::output)?;
    }
    out.flush().map_err(Error::output)
}
