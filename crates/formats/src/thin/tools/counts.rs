//! How often each block is referred to: two bits a block as on disk, and a map for counts of three and more. Only
//! bitmaps with a counted block take memory, so that there is never more of it than bitmaps on the disk.

use std::collections::HashMap;

use udm_pdata::Block;
use udm_pdata::layout::{ENTRIES_PER_BITMAP, bitmap_get, bitmap_set};

/// See the module.
#[derive(Default)]
pub(super) struct Counts {
    pages: HashMap<u64, Box<Block>>,
    many: HashMap<u64, u32>,
}

impl Counts {
    /// One more reference to `block`; how many there are now.
    pub(super) fn inc(&mut self, block: u64) -> u32 {
        let (page, entry) = (block / ENTRIES_PER_BITMAP, block % ENTRIES_PER_BITMAP);
        let page = self.pages.entry(page).or_insert_with(Block::zeroed);
        let count = bitmap_get(page, entry);
        if count == 3 {
            let many = self.many.entry(block).or_insert(3);
            *many = many.saturating_add(1);
            return *many;
        }
        bitmap_set(page, entry, count + 1);
        count + 1
    }

    pub(super) fn get(&self, block: u64) -> u32 {
        let (page, entry) = (block / ENTRIES_PER_BITMAP, block % ENTRIES_PER_BITMAP);
        match self.pages.get(&page).map_or(0, |page| bitmap_get(page, entry)) {
            3 => self.many.get(&block).copied().unwrap_or(3),
            few => few,
        }
    }

    /// Whether bitmap `index` says for every block what this does, but for those with three and more.
    pub(super) fn equals(&self, index: u64, bitmap: &Block) -> bool {
        match self.pages.get(&index) {
            Some(page) => page.0[16..] == bitmap.0[16..],
            None => bitmap.0[16..].iter().all(|byte| *byte == 0),
        }
    }
}
