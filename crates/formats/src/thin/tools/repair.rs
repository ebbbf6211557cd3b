//! `udm thin repair`, `udm thin dump --repair`: what can still be read of damaged metadata (`thin_repair`).
//!
//! Damaged subtrees are left out. The space maps are not looked at: they follow from the trees.

use std::sync::Arc;

use udm_base::Sectors;
use udm_pdata::node::Node;
use udm_pdata::{Block, BlockIo};

use super::dump::{self, walk};
use super::restore::{Overrides, Restored, Restorer};
use super::view::{read, read_superblock};
use super::{Emit, Error, Progress, View};
use crate::thin::superblock::{LOCATION, Superblock};

/// Emits what can be read, and returns why the rest cannot. Blocks.
///
/// # Errors
/// When the superblock is damaged and `overrides` do not say what stood in it, or no root can be found.
pub fn dump(
    io: &Arc<dyn BlockIo>,
    overrides: Overrides,
    out: &mut dyn Emit,
    progress: &mut dyn Progress,
) -> Result<Vec<udm_pdata::Error>, Error> {
    let superblock = match read_superblock(&**io, LOCATION) {
        Ok(superblock) => superblock,
        Err(error) => recreate(overrides, io.blocks()).ok_or_else(|| {
            Error::Refused(format!(
                "{error}; without a superblock --transaction-id, --data-block-size and --nr-data-blocks have to be given"
            ))
        })?,
    };
    let mut view = View::through(io.clone(), superblock).with(overrides);
    if view.check_roots().is_err() || view.details(None).is_err() || view.roots(None).is_err() {
        let disk = view.superblock.disk();
        let (details, mappings) = find_roots(&**io, (disk.device_details_root.get(), disk.data_mapping_root.get()))?;
        let disk = view.superblock.disk_mut();
        disk.device_details_root.set(details);
        disk.data_mapping_root.set(mappings);
    }
    let mut lost = Vec::new();
    walk(&view, &dump::Options::default(), out, progress, Some(&mut lost))?;
    Ok(lost)
}

/// Writes what can be read of `from` as new metadata to `to`. Blocks.
///
/// # Errors
/// As [`dump`] and [`restore`](super::restore::restore).
pub fn repair(
    from: &Arc<dyn BlockIo>,
    to: &Arc<dyn BlockIo>,
    overrides: Overrides,
    progress: &mut dyn Progress,
) -> Result<(Restored, Vec<udm_pdata::Error>), Error> {
    let mut restorer = Restorer::new(to, overrides);
    let lost = dump(from, overrides, &mut restorer, progress)?;
    Ok((restorer.commit()?, lost))
}

fn recreate(overrides: Overrides, blocks: u64) -> Option<Superblock> {
    let mut superblock = Superblock::new(Sectors::new(overrides.data_block_size?.into()), blocks);
    superblock.disk_mut().trans_id.set(overrides.transaction?);
    // The clock is lost: no mapping may be younger than it.
    superblock.disk_mut().time.set(100_000);
    overrides.data_blocks?;
    Some(superblock)
}

/// Looks at every block for what could be the roots of details and mappings, and takes the pair with most devices. Of
/// equal ones the one the superblock names, where it names one of them.
fn find_roots(io: &dyn BlockIo, named: (u64, u64)) -> Result<(u64, u64), Error> {
    let (mut details, mut tops, mut children) = (Vec::new(), Vec::new(), std::collections::HashSet::new());
    let mut memory = Block::zeroed();
    for at in 1..io.blocks() {
        memory = match read(io, at, memory) {
            Ok(block) => block,
            Err(_) => {
                memory = Block::zeroed();
                continue;
            }
        };
        let Ok(node) = Node::read(&memory, at) else { continue };
        match (node.is_leaf(), node.value_size()) {
            (true, 24) => details.push(at),
            (true, 8) => tops.push(at),
            (false, _) => {
                children.extend((0..node.len()).map(|i| node.child(i)));
                details.push(at);
                tops.push(at);
            }
            _ => {}
        }
    }
    let rank = |roots: Vec<u64>, named: u64, keys: &dyn Fn(u64) -> Option<Vec<u32>>| {
        let mut ranked: Vec<(Vec<u32>, bool, u64)> = Vec::new();
        for root in roots {
            if !children.contains(&root)
                && let Some(keys) = keys(root)
            {
                ranked.push((keys, root == named, root));
            }
        }
        ranked.sort_by_key(|(keys, named, root)| (keys.len(), *named, *root));
        ranked
    };
    let devices = |root: u64| {
        let mut cursor = super::cursor::Cursor::<super::view::DetailsValue>::new(io, root, false);
        let mut keys = Vec::new();
        while let Some((key, _)) = cursor.next().ok()? {
            keys.push(u32::try_from(key).ok()?);
        }
        Some(keys)
    };
    let tops_of = |root: u64| {
        let mut cursor = super::cursor::Cursor::<u64>::new(io, root, false);
        let mut keys = Vec::new();
        while let Some((key, child)) = cursor.next().ok()? {
            let block = read(io, child, Block::zeroed()).ok()?;
            Node::read(&block, child).ok().filter(|node| !node.is_leaf() || node.value_size() == 8)?;
            keys.push(u32::try_from(key).ok()?);
        }
        Some(keys)
    };
    let (details, tops) = (rank(details, named.0, &devices), rank(tops, named.1, &tops_of));
    for (keys, _, top) in tops.iter().rev() {
        if let Some((.., root)) = details.iter().rev().find(|(devices, ..)| devices == keys) {
            return Ok((*root, *top));
        }
    }
    Err(Error::Refused("no block can be the root of devices and their mappings: nothing is left to repair".into()))
}
