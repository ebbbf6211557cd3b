//! The space maps against what was counted.

use std::collections::HashMap;

use udm_pdata::layout::{self, ENTRIES_PER_BITMAP, IndexEntry, SpaceMapRoot, bitmap_get};
use udm_pdata::{Block, Error as DataError, Kind};

use super::super::counts::Counts;
use super::super::view::{View, read_kind, space_map_root};
use super::State;
use super::fault::{Fault, Severity};
use super::mend::Leak;
use super::trees::{Tree, Walker};
use udm_pdata::Space;

/// A space map with everything it says outside its bitmaps.
struct Map {
    space: Space,
    root: SpaceMapRoot,
    index: Vec<IndexEntry>,
    many: HashMap<u64, u32>,
}

/// Checks both space maps. First everything that they themselves refer to is counted: their own blocks are counted by
/// the metadata map.
pub(super) fn check(state: &mut State<'_>, walker: &mut Walker, view: &View) {
    let disk = *view.superblock.disk();
    let data = data_map(state, walker, space_map_root(&disk.data_space_map_root));
    let metadata = metadata_map(state, walker, space_map_root(&disk.metadata_space_map_root));
    let (Some(data), Some(metadata)) = (data, metadata) else { return };
    for map in [&data, &metadata] {
        for entry in &map.index {
            let at = entry.blocknr.get();
            if at < state.io.blocks() {
                state.metadata.inc(at);
            }
        }
    }
    let counted = std::mem::take(&mut state.data);
    compare(state, &data, &counted);
    let counted = std::mem::take(&mut state.metadata);
    compare(state, &metadata, &counted);
}

fn data_map(state: &mut State<'_>, walker: &mut Walker, root: SpaceMapRoot) -> Option<Map> {
    let mut index = Vec::new();
    let expected = root.nr_blocks.get().div_ceil(ENTRIES_PER_BITMAP);
    let mut next = Some(0_u64);
    let bitmaps = root.bitmap_root.get();
    let whole = walker.values::<IndexEntry>(state, bitmaps, Tree::DataIndex, |key, entry| {
        next = next.filter(|next| *next == key).map(|next| next + 1);
        index.push(entry);
    });
    if whole && (next.is_none() || index.len() as u64 != expected) {
        let found = format!("{} bitmaps", index.len());
        let error =
            DataError::damage(bitmaps, Kind::Node, "a key", found, format!("{expected} bitmaps, numbered from 0 on"));
        state.fault(Fault::fatal(&format!("{error} (index of the data space map)")));
        return None;
    }
    let many = counts(state, walker, &root, Tree::DataCounts)?;
    whole.then_some(Map { space: Space::Data, root, index, many })
}

fn metadata_map(state: &mut State<'_>, walker: &mut Walker, root: SpaceMapRoot) -> Option<Map> {
    let at = root.bitmap_root.get();
    let block = match read_kind(state.io, at, Kind::Index) {
        Ok(block) => block,
        Err(error) => {
            state.fault(Fault::fatal(&error));
            return None;
        }
    };
    state.metadata.inc(at);
    let bitmaps = root.nr_blocks.get().div_ceil(ENTRIES_PER_BITMAP) as usize;
    let index = layout::index(&block).index.iter().take(bitmaps).copied().collect();
    let many = counts(state, walker, &root, Tree::MetadataCounts)?;
    Some(Map { space: Space::Metadata, root, index, many })
}

fn counts(state: &mut State<'_>, walker: &mut Walker, root: &SpaceMapRoot, tree: Tree) -> Option<HashMap<u64, u32>> {
    let mut many = HashMap::new();
    let at = root.ref_count_root.get();
    walker
        .values::<u32>(state, at, tree, |block, count| {
            many.insert(block, count);
        })
        .then_some(many)
}

fn compare(state: &mut State<'_>, map: &Map, counted: &Counts) {
    let blocks = map.root.nr_blocks.get();
    let mut used = 0_u64;
    for (number, entry) in map.index.iter().enumerate() {
        let (number, at) = (number as u64, entry.blocknr.get());
        state.tick();
        let bitmap = match read_kind(state.io, at, Kind::Bitmap) {
            Ok(bitmap) => bitmap,
            Err(error) => {
                state.fault(Fault::fatal(&format!("{error} (bitmap {number} of the {} space map)", map.space)));
                continue;
            }
        };
        let first = number * ENTRIES_PER_BITMAP;
        let here = ENTRIES_PER_BITMAP.min(blocks - first);
        let mut free = 0;
        let is_equal = counted.equals(number, &bitmap);
        for e in 0..here {
            let inline = bitmap_get(&bitmap, e);
            free += u64::from(inline == 0);
            if is_equal && inline < 3 {
                continue;
            }
            count(state, map, counted, first + e, inline, at);
        }
        used += here - free;
        hints(state, map, number, entry, &bitmap, (here, free));
    }
    let mut stray: Vec<(u64, u32)> = map.many.iter().map(|(block, count)| (*block, *count)).collect();
    stray.sort_unstable();
    for (block, count) in stray {
        // Those below the end were held against the bitmaps, unless the bitmap says that there is nothing to look up.
        if block >= blocks || counted.get(block) < 3 {
            let at = map.root.ref_count_root.get();
            let expected = "no entry: it has fewer than three references, or is past the end";
            let error = DataError::damage(at, Kind::Node, "an entry", format!("{count} for block {block}"), expected);
            let severity = if block >= blocks || counted.get(block) < 3 { Severity::NonFatal } else { Severity::Fatal };
            state.fault(Fault { severity, text: format!("{error} (reference counts of the {} space map)", map.space) });
        }
    }
    let recorded = map.root.nr_allocated.get();
    if recorded != used {
        let (space, text) = (map.space, used.to_string());
        let text = format!(
            "superblock: {space}_space_map_root.nr_allocated is {recorded}, expected {text}, the blocks in use"
        );
        state.fault(Fault { severity: Severity::Note, text });
    }
}

/// Holds one count of the map against what was counted.
fn count(state: &mut State<'_>, map: &Map, counted: &Counts, block: u64, inline: u32, at: u64) {
    let expected = counted.get(block);
    let found = match inline {
        3 => match map.many.get(&block) {
            Some(count) => *count,
            None => {
                let text = format!(
                    "{} in metadata block {at}: the count of {} block {block} is \"3 or more\", but the tree of reference \
                     counts has none for it; expected {expected}",
                    Kind::Bitmap,
                    map.space
                );
                state.fault(Fault { severity: Severity::Fatal, text });
                return;
            }
        },
        few => few,
    };
    if found == expected {
        return;
    }
    let leaked = found > expected;
    let what = match (leaked, expected) {
        (true, 0) => ": it is leaked",
        (true, _) => ": too many",
        (false, _) => ": it may be given away while it is in use",
    };
    let text = format!(
        "{} in metadata block {at}: the reference count of {} block {block} is {found}, expected {expected}{what}",
        Kind::Bitmap,
        map.space
    );
    let severity = if leaked { Severity::NonFatal } else { Severity::Fatal };
    state.fault(Fault { severity, text });
    if leaked {
        state.leak(Leak { space: map.space, block, extra: found - expected });
    }
}

/// The two hints beside each bitmap's place. The kernel counts entries past the device's end as free, thin_restore does
/// not; and it is off by the one block that it frees last.
fn hints(state: &mut State<'_>, map: &Map, number: u64, entry: &IndexEntry, bitmap: &Block, (here, free): (u64, u64)) {
    let mut note = |field: &str, found: u32, expected: String| {
        let text =
            format!("index of the {} space map, bitmap {number}: {field} is {found}, expected {expected}", map.space);
        state.fault(Fault { severity: Severity::Note, text });
    };
    let past = ENTRIES_PER_BITMAP - here;
    let nr_free = u64::from(entry.nr_free.get());
    if nr_free != free && nr_free != free + past {
        note("nr_free", entry.nr_free.get(), free.to_string());
    }
    let before = u64::from(entry.none_free_before.get()).min(here);
    if let Some(first) = (0..before).find(|e| bitmap_get(bitmap, *e) == 0) {
        note("none_free_before", entry.none_free_before.get(), format!("at most {first}, which is free"));
    }
}
