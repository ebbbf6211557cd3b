//! Walking the trees, each block once, and counting what refers to what.

use std::collections::{BTreeMap, HashMap};
use std::ops::RangeInclusive;

use udm_pdata::node::Node;
use udm_pdata::{Block, Error as DataError, Kind, Value};

use super::super::cursor::{check_place, child_keys};
use super::super::view::{DetailsValue, View, read};
use super::fault::{Fault, Severity};
use super::{Depth, Error, State};
use crate::thin::{BlockTime, MAX_TIME};

/// What is known of a block that was visited.
#[derive(Clone, Copy)]
struct Summary {
    /// Levels beneath and with it; 0 while it is being walked, [`DAMAGED`] where something in it is.
    height: u8,
    /// What tree it belongs to.
    tree: Tree,
    /// Entries in its leaves.
    entries: u64,
    first: u64,
    last: u64,
}

/// See [`Summary::height`]. It is not walked again: blocks that refer to one another many times over would take for
/// ever.
const DAMAGED: u8 = u8::MAX;

/// The trees of a pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Tree {
    Details,
    Devices,
    Mappings,
    DataIndex,
    DataCounts,
    MetadataCounts,
}

impl Tree {
    fn name(self) -> &'static str {
        match self {
            Self::Details => "device details",
            Self::Devices => "top level of the mapping tree",
            Self::Mappings => "mapping tree",
            Self::DataIndex => "index of the data space map",
            Self::DataCounts => "reference counts of the data space map",
            Self::MetadataCounts => "reference counts of the metadata space map",
        }
    }
}

/// See the module.
#[derive(Default)]
pub(super) struct Walker {
    seen: HashMap<u64, Summary>,
}

/// A place in a tree.
struct Spot<'a> {
    tree: Tree,
    /// For messages.
    of: &'a str,
    keys: RangeInclusive<u64>,
    depth: usize,
}

impl Walker {
    /// A superblock's two trees.
    pub(super) fn pool(&mut self, state: &mut State<'_>, view: &View, depth: Depth) -> Result<(), Error> {
        let disk = *view.superblock.disk();
        state.listener.stage("examining devices tree");
        let mut devices = BTreeMap::new();
        let root = disk.device_details_root.get();
        // A snapshot may share them with the pool: both want to know what is in them.
        self.values::<DetailsValue>(state, root, Tree::Details, |key, value| {
            devices.insert(key, value.0);
        });
        state.listener.stage(match depth {
            Depth::All => "examining mapping tree",
            _ => "examining top level of mapping tree",
        });
        let mut roots = BTreeMap::new();
        self.values::<u64>(state, disk.data_mapping_root.get(), Tree::Devices, |key, root| {
            roots.insert(key, root);
        });
        let time = disk.time.get();
        for (dev, details) in &devices {
            let mut bad = |what: String| state.fault(Fault::fatal(&format!("thin device {dev}: {what}")));
            // Those above a device's are what deleted ones have left.
            if *dev > u32::MAX.into() {
                bad(format!("its id is above {}", u32::MAX));
            }
            if !roots.contains_key(dev) {
                bad("it has details, but no mapping tree".into());
            }
            if details.creation_time > time.min(MAX_TIME) || details.snapshotted_time > time.min(MAX_TIME) {
                let (created, snapped) = (details.creation_time, details.snapshotted_time);
                let text = format!(
                    "thin device {dev}: creation_time is {created} and snapshotted_time {snapped}, after the pool's time {time}"
                );
                state.fault(Fault { severity: Severity::Note, text });
            }
        }
        for (dev, root) in roots {
            let Some(details) = devices.get(&dev) else {
                state.fault(Fault::fatal(&format!("thin device {dev}: it has mappings, but no details")));
                continue;
            };
            if depth != Depth::All {
                continue;
            }
            let of = format!("mappings of thin device {dev}");
            let spot = Spot { tree: Tree::Mappings, of: &of, keys: 0..=u64::MAX, depth: 1 };
            let walked = self.node::<BlockTime>(state, root, &spot, &mut |state, at, block, to| {
                if to.block >= state.data_blocks {
                    let blocks = state.data_blocks;
                    let error = DataError::damage(
                        at,
                        Kind::Node,
                        "a value",
                        format!("data block {}", to.block),
                        format!("less than {blocks}, the data blocks of the pool"),
                    );
                    state.fault(Fault::fatal(&format!("{error} (thin device {dev}, virtual block {block})")));
                } else {
                    state.data.inc(to.block);
                }
            });
            if let Some(walked) = walked
                && walked.entries != details.mapped_blocks
            {
                let text = format!(
                    "thin device {dev}: mapped_blocks is {}, expected {}, the mappings there are",
                    details.mapped_blocks, walked.entries
                );
                state.fault(Fault { severity: Severity::Note, text });
            }
        }
        Ok(())
    }

    /// Every entry of a small tree, whether or not it was walked before.
    pub(super) fn values<V: Value>(
        &mut self,
        state: &mut State<'_>,
        root: u64,
        tree: Tree,
        mut visit: impl FnMut(u64, V),
    ) -> bool {
        let spot = Spot { tree, of: tree.name(), keys: 0..=u64::MAX, depth: 1 };
        if self.node::<V>(state, root, &spot, &mut |_, _, _, _| ()).is_none() {
            return false;
        }
        let mut cursor = super::super::cursor::Cursor::<V>::new(state.io, root, false);
        loop {
            match cursor.next() {
                Ok(Some((key, value))) => visit(key, value),
                Ok(None) => return true,
                Err(error) => {
                    state.fault(Fault::fatal(&error));
                    return false;
                }
            }
        }
    }

    /// One reference more to the node at `at`, and what is beneath it if it was not walked before. `None` when it is
    /// damaged.
    fn node<V: Value>(
        &mut self,
        state: &mut State<'_>,
        at: u64,
        spot: &Spot<'_>,
        visit: &mut dyn FnMut(&mut State<'_>, u64, u64, V),
    ) -> Option<Summary> {
        let damaged = |state: &mut State<'_>, error: &DataError| {
            state.fault(Fault::fatal(&format!("{error} ({})", spot.of)));
            None
        };
        if at >= state.io.blocks() {
            let error = DataError::Read { block: at, error: udm_pdata::IoError::PastEnd };
            return damaged(state, &error);
        }
        state.metadata.inc(at);
        if let Some(seen) = self.seen.get(&at).copied() {
            let bad =
                |field, found: String, expected: String| DataError::damage(at, Kind::Node, field, found, expected);
            if seen.height == DAMAGED {
                return None;
            }
            if seen.height == 0 {
                return damaged(state, &bad("its place", "beneath itself".into(), "a tree without a cycle".into()));
            }
            if seen.tree != spot.tree {
                let error = bad("its tree", seen.tree.name().into(), spot.tree.name().into());
                return damaged(state, &error);
            }
            if seen.entries > 0 && !(spot.keys.contains(&seen.first) && spot.keys.contains(&seen.last)) {
                let expected = format!("{} to {}, as its parent says", spot.keys.start(), spot.keys.end());
                return damaged(state, &bad("a key", format!("{} to {}", seen.first, seen.last), expected));
            }
            return Some(seen);
        }
        state.tick();
        let read = read(state.io, at, Block::zeroed()).and_then(|block| {
            check_place::<V>(Node::read(&block, at)?, at, &spot.keys, spot.depth)?;
            Ok(block)
        });
        let mut summary = Summary { height: DAMAGED, tree: spot.tree, entries: 0, first: 0, last: 0 };
        let block = match read {
            Ok(block) => block,
            Err(error) => {
                self.seen.insert(at, summary);
                return damaged(state, &error);
            }
        };
        let node = Node::checked(&block);
        self.underfull(state, node, at, spot);
        let ends = if node.len() == 0 { (0, 0) } else { (node.key(0), node.key(node.len() - 1)) };
        (summary.height, summary.first, summary.last) = (0, ends.0, ends.1);
        self.seen.insert(at, summary);
        if node.is_leaf() {
            for i in 0..node.len() {
                visit(state, at, node.key(i), V::decode(node.value(i)));
            }
            summary.height = 1;
            summary.entries = node.len() as u64;
        } else {
            // In the order in which they lie: leaves are most of it, and disks like it.
            let mut children: Vec<usize> = (0..node.len()).collect();
            children.sort_by_key(|i| node.child(*i));
            let mut height = None;
            let mut whole = true;
            for i in children {
                let keys = child_keys(node, i, &spot.keys);
                let below = Spot { tree: spot.tree, of: spot.of, keys, depth: spot.depth + 1 };
                let Some(child) = self.node::<V>(state, node.child(i), &below, visit) else {
                    whole = false;
                    continue;
                };
                summary.entries = summary.entries.saturating_add(child.entries);
                if i + 1 == node.len() {
                    summary.last = child.last;
                }
                let expected = *height.get_or_insert(child.height);
                if expected != child.height {
                    let found = format!("{} levels", child.height);
                    let error =
                        DataError::damage(node.child(i), Kind::Node, "its depth", found, format!("{expected} levels"));
                    damaged(state, &error);
                    whole = false;
                }
            }
            if !whole {
                summary.height = DAMAGED;
                self.seen.insert(at, summary);
                return None;
            }
            summary.height = height.unwrap_or(0).saturating_add(1);
        }
        self.seen.insert(at, summary);
        Some(summary)
    }

    /// A node beneath the root has a third of its entries at least.
    fn underfull(&self, state: &mut State<'_>, node: Node<'_>, at: u64, spot: &Spot<'_>) {
        let least = node.max() / 3;
        if spot.depth > 1 && node.len() < least && !state.ignore_non_fatal {
            let expected = format!("{least} at least");
            let error = DataError::damage(at, Kind::Node, "nr_entries", node.len(), expected);
            state.fault(Fault::fatal(&format!("{error} ({})", spot.of)));
        }
    }
}
