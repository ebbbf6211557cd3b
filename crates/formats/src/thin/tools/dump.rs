//! `udm thin dump`: a pool's mappings, device by device (`thin_dump`).

use super::{Emit, Error, Head, Progress, Run, View};
use crate::thin::Details;

/// What to dump.
#[derive(Clone, Default, Debug)]
pub struct Options {
    /// Only these devices; all where there are none.
    pub devices: Vec<u32>,
    /// Devices without their mappings.
    pub skip_mappings: bool,
}

/// Emits what `view` leads to. Reads each leaf once for each device that has it; holds one block for each level.
/// Blocks.
///
/// # Errors
/// When a block cannot be read or is damaged, or a device has mappings and no details; what was emitted until then is
/// no pool.
pub fn dump(view: &View, options: &Options, out: &mut dyn Emit, progress: &mut dyn Progress) -> Result<(), Error> {
    walk(view, options, out, progress, None)
}

pub(super) fn head(view: &View) -> Head {
    let disk = view.superblock.disk();
    Head {
        // thin_dump leaves it out.
        uuid: String::new(),
        time: disk.time.get(),
        transaction: disk.trans_id.get(),
        flags: disk.flags.get(),
        version: disk.version.get(),
        data_block_size: disk.data_block_size.get(),
        data_blocks: view.data_blocks(),
    }
}

/// As [`dump`]; with `lost`, damaged parts are left out and named there.
pub(super) fn walk(
    view: &View,
    options: &Options,
    out: &mut dyn Emit,
    progress: &mut dyn Progress,
    mut lost: Option<&mut Vec<udm_pdata::Error>>,
) -> Result<(), Error> {
    let details = view.details(lost.as_deref_mut())?;
    let roots = view.roots(lost.as_deref_mut())?;
    let lenient = lost.is_some();
    let total = details.iter().map(|(_, details)| details.mapped_blocks).fold(0, u64::saturating_add);
    let mut done = 0_u64;
    out.begin(&head(view)).map_err(Error::output)?;
    for (dev, root) in roots {
        if !options.devices.is_empty() && !options.devices.contains(&dev) {
            continue;
        }
        let found = details.binary_search_by_key(&dev, |(dev, _)| *dev).ok().map(|i| details[i].1);
        let Some(found) = found.or(lenient.then_some(NO_DETAILS)) else {
            return Err(missing(dev));
        };
        out.device(dev, &found).map_err(Error::output)?;
        if !options.skip_mappings {
            let mut cursor = super::cursor::Cursor::<crate::thin::BlockTime>::new(&*view.io, root, lenient);
            let mut now: Option<Run> = None;
            while let Some((block, to)) = cursor.next()? {
                let next = Run { block, data: to.block, len: 1, time: to.time };
                if !now.as_mut().is_some_and(|now| now.extend(&next))
                    && let Some(done) = now.replace(next)
                {
                    out.run(&done).map_err(Error::output)?;
                }
                done = done.saturating_add(1);
                if done.is_multiple_of(1 << 14) {
                    progress.at(done, total.max(done));
                }
            }
            if let Some(last) = now {
                out.run(&last).map_err(Error::output)?;
            }
            if let Some(lost) = &mut lost {
                lost.append(&mut cursor.lost);
            }
        }
        out.end_device().map_err(Error::output)?;
    }
    out.end().map_err(Error::output)
}

/// What a device gets whose details are lost.
const NO_DETAILS: Details = Details { mapped_blocks: 0, transaction_id: 0, creation_time: 0, snapshotted_time: 0 };

fn missing(dev: u32) -> Error {
    let what = "it has mappings, but no details".to_owned();
    crate::thin::Error::Details { dev, what }.into()
}
