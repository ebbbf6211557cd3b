//! The memory of a pool's mapping cache: pages of words, cut into pieces of a few sizes.
//!
//! Memory is never given back before the cache goes, only used for something else. So a reader who comes late finds
//! words that mean something else, never words that are not there: see the parent for how it notices.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// Words of a leaf, of a node, and of a page.
pub(super) const FAN: usize = 512;
/// Words of a cache line, in which pieces are counted.
pub(super) const UNIT: usize = 8;
/// Units of a page.
const PAGE_UNITS: usize = FAN / UNIT;
/// Pages that are allocated together: 256 KiB.
const CHUNK_PAGES: usize = 64;

/// The sizes of pieces, in units. The last is a page, in which a leaf's words stand by their index.
pub(super) const CLASSES: [usize; 12] = [0, 1, 2, 3, 4, 6, 8, 12, 16, 21, 32, 64];
pub(super) const DENSE: usize = CLASSES.len() - 1;
/// Pages too, of slots: of leaves, and of nodes.
pub(super) const NODE: usize = CLASSES.len();
pub(super) const TOP: usize = NODE + 1;

const fn units(class: usize) -> usize {
    if class >= NODE { PAGE_UNITS } else { CLASSES[class] }
}

/// The smallest class for a leaf with so many entries. Larger pieces are searched from a hash, which wants gaps.
pub(super) fn class_for(entries: usize) -> usize {
    let fits = |units: usize| if units <= 2 { units * UNIT } else { units * UNIT * 7 / 8 };
    let sparse = CLASSES[..DENSE].iter().position(|&units| entries <= fits(units));
    sparse.unwrap_or(DENSE)
}

/// Whose piece it is: the number that its user gave, or nobody's.
const FREE: u64 = u64::MAX;

#[derive(Default)]
struct Page {
    class: usize,
    owners: Vec<u64>,
    used: usize,
}

impl Page {
    /// What a page of this class costs, in bytes.
    const fn cost(class: usize) -> usize {
        FAN * 8 + PAGE_UNITS / units(class) * 8 + size_of::<Self>()
    }
}

/// The words of one allocation. Their number is in the type, so that an index cut to it needs no check.
type Chunk = [AtomicU64; CHUNK_PAGES * FAN];

/// The words, which anybody may read.
pub(super) struct Words(Box<[OnceLock<Box<Chunk>>]>);

impl Words {
    pub(super) fn new(budget: usize) -> Self {
        let chunks = (budget / (FAN * 8)).div_ceil(CHUNK_PAGES).max(1);
        Self((0..chunks).map(|_| OnceLock::new()).collect())
    }

    /// Word `at` of the piece that begins at `unit`.
    #[inline]
    pub(super) fn word(&self, unit: usize, at: usize) -> &AtomicU64 {
        &self.chunk(unit)[(unit * UNIT + at) % (CHUNK_PAGES * FAN)]
    }

    /// The words of a piece.
    #[inline]
    pub(super) fn of(&self, unit: usize, class: usize) -> &[AtomicU64] {
        let first = unit % (PAGE_UNITS * CHUNK_PAGES) * UNIT;
        &self.chunk(unit)[first..first + units(class) * UNIT]
    }

    #[inline]
    fn chunk(&self, unit: usize) -> &Chunk {
        self.0[unit / (PAGE_UNITS * CHUNK_PAGES)].get().expect("pieces are cut from what is there")
    }

    fn make(&self, page: usize) {
        self.0[page / CHUNK_PAGES].get_or_init(|| {
            let words: Box<[AtomicU64]> = (0..CHUNK_PAGES * FAN).map(|_| AtomicU64::new(0)).collect();
            words.try_into().expect("as many as there are in the type")
        });
    }
}

/// Which words are whose. Under the cache's lock.
#[derive(Default)]
pub(super) struct Arena {
    pages: Vec<Page>,
    empty: Vec<usize>,
    /// Pages of each class that may have a free piece.
    partial: [Vec<usize>; TOP + 1],
    hand: usize,
    bytes: usize,
}

impl Arena {
    /// What is in use, with what it costs to know whose it is.
    pub(super) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// A zeroed piece for `owner`, if `budget` allows it.
    pub(super) fn take(&mut self, words: &Words, class: usize, owner: u64, budget: usize) -> Option<usize> {
        loop {
            let Some(&page) = self.partial[class].last() else {
                self.open(words, class, budget)?;
                continue;
            };
            let (found, each) = (&mut self.pages[page], units(class));
            // A page that was emptied, and perhaps used anew, since it was noted.
            let free = if found.class == class { found.owners.iter().position(|&o| o == FREE) } else { None };
            let Some(piece) = free else {
                self.partial[class].pop();
                continue;
            };
            found.owners[piece] = owner;
            found.used += 1;
            let unit = page * PAGE_UNITS + piece * each;
            for word in words.of(unit, class) {
                // Released, so that a reader who finds it here also finds that the piece was taken away.
                word.store(0, Ordering::Release);
            }
            return Some(unit);
        }
    }

    /// Makes an empty page one of `class`.
    fn open(&mut self, words: &Words, class: usize, budget: usize) -> Option<()> {
        if self.bytes + Page::cost(class) > budget {
            return None;
        }
        let page = match self.empty.pop() {
            Some(page) => page,
            None if (self.pages.len() / CHUNK_PAGES) < words.0.len() => {
                words.make(self.pages.len());
                self.pages.push(Page::default());
                self.pages.len() - 1
            }
            None => return None,
        };
        self.bytes += Page::cost(class);
        self.pages[page] = Page { class, owners: vec![FREE; PAGE_UNITS / units(class)], used: 0 };
        self.partial[class].push(page);
        Some(())
    }

    /// Gives a piece back.
    pub(super) fn give(&mut self, unit: usize, class: usize) {
        let (page, piece) = (unit / PAGE_UNITS, unit % PAGE_UNITS / units(class));
        let found = &mut self.pages[page];
        assert!(found.class == class && found.owners[piece] != FREE, "a piece is given back that is nobody's");
        found.owners[piece] = FREE;
        found.used -= 1;
        if found.used == 0 {
            self.bytes -= Page::cost(class);
            *found = Page::default();
            self.empty.push(page);
        } else if found.used + 1 == found.owners.len() {
            self.partial[class].push(page);
        }
    }

    /// The next page that could be emptied, with its class and who has pieces of it.
    pub(super) fn next(&mut self) -> Option<(usize, Vec<u64>)> {
        for _ in 0..self.pages.len() {
            self.hand = (self.hand + 1) % self.pages.len();
            let page = &self.pages[self.hand];
            if page.used > 0 {
                return Some((page.class, page.owners.iter().copied().filter(|&o| o != FREE).collect()));
            }
        }
        None
    }

    /// How many pages there are, empty ones included.
    pub(super) const fn pages(&self) -> usize {
        self.pages.len()
    }
}
