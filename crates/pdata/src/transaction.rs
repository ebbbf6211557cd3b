//! The open transaction: what is in memory, and what may be changed how.
//!
//! A block that the last commit refers to is never changed: it is *shadowed*, that is copied to a block that was free
//! at the last commit. A block with several references is copied too, and what it refers to gets one reference more
//! (`dm-transaction-manager.c`, 6.12). Everything here is synchronous and never waits: what is not in memory stops the
//! attempt with [`Stop::Need`], always before the step that needs it has changed anything, and each step leaves trees
//! and counts whole; so an attempt can be made again from its beginning.

use crate::btree;
use crate::cache::{Attempt, Cache, Slot, Stop};
use crate::data_map::DataMap;
use crate::error::{Error, Kind, Space};
use crate::layout::SpaceMapRoot;
use crate::metadata_map::MetadataMap;
use crate::node::Node;
use crate::overflow::Overflow;
use crate::value::{Ref, Value};

/// See the module.
pub(crate) struct Transaction {
    pub(crate) cache: Cache,
    pub(crate) metadata: MetadataMap,
    pub(crate) data: Option<DataMap>,
    /// Memory for what a block refers to.
    refs: Vec<Ref>,
    /// Bitmaps of data that the last commit has and this transaction no more: they are looked at until the next commit.
    pub(crate) replaced: Vec<u64>,
    /// Whether what is done now belongs to a commit.
    settling: bool,
}

/// Counts and places that are remembered at most before they are written to their trees.
const MOST: usize = 1 << 16;

/// The roots of both space maps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Roots {
    /// Of the space map of the metadata.
    pub metadata: SpaceMapRoot,
    /// Of the space map of the data, if there is one.
    pub data: Option<SpaceMapRoot>,
}

impl Transaction {
    pub(crate) fn new(cache: Cache, metadata: MetadataMap) -> Self {
        Self { cache, metadata, data: None, refs: Vec::new(), replaced: Vec::new(), settling: false }
    }

    /// Whether `block` is a metadata block.
    pub(crate) fn check_metadata(&self, block: u64, from: u64, kind: Kind) -> Result<(), Error> {
        let most = self.metadata.nr_blocks();
        if block >= most {
            return Err(Error::damage(from, kind, "a block that it refers to", block, format!("less than {most}")));
        }
        Ok(())
    }

    pub(crate) fn overflow(&mut self, space: Space) -> &mut Overflow {
        match (space, &mut self.data) {
            (Space::Data, Some(data)) => &mut data.overflow,
            _ => &mut self.metadata.overflow,
        }
    }

    /// Makes the count of `block`, whose bits say three or more, known.
    fn learn(&mut self, space: Space, block: u64) -> Attempt<u32> {
        let count = self.large_count(space, block)?;
        self.overflow(space).learn(block, count);
        Ok(count)
    }

    /// The count of `block`, whose bits say three or more.
    fn large_count(&mut self, space: Space, block: u64) -> Attempt<u32> {
        if let Some(count) = self.overflow(space).get(block) {
            return Ok(count);
        }
        let root = self.overflow(space).root;
        let count = btree::attempt_lookup::<u32>(self, root, block)?;
        let Some(count) = count.filter(|count| *count > 2) else {
            let found = count.map_or("missing".into(), |count| count.to_string());
            let field = match space {
                Space::Metadata => "the count of a metadata block in the tree of large counts",
                Space::Data => "the count of a data block in the tree of large counts",
            };
            return Err(Error::damage(root, Kind::Node, field, format!("{found} (block {block})"), "3 or more").into());
        };
        Ok(count)
    }

    /// The reference count of a metadata block, which exists and whose count can be changed afterwards.
    pub(crate) fn metadata_count(&mut self, block: u64) -> Attempt<u32> {
        match self.metadata.bits(block) {
            3 => self.learn(Space::Metadata, block),
            bits => Ok(bits),
        }
    }

    /// The reference count of a block, for who only wants to know.
    pub(crate) fn peek_count(&mut self, space: Space, block: u64) -> Attempt<u32> {
        let bits = match space {
            Space::Metadata => self.metadata.bits(block),
            Space::Data => self.data_bits(block, &mut None)?,
        };
        if bits == 3 { self.large_count(space, block) } else { Ok(bits) }
    }

    /// Sees to it that the counts of `refs` can be changed without a wait.
    pub(crate) fn touch(&mut self, refs: &[Ref], from: u64, kind: Kind) -> Attempt<()> {
        let mut bitmap = None;
        for one in refs {
            match *one {
                Ref::Uncounted => {}
                Ref::Metadata(block) => {
                    self.check_metadata(block, from, kind)?;
                    self.metadata_count(block)?;
                }
                Ref::Data(block) => {
                    self.check_data(block, from, kind)?;
                    if self.data_bits(block, &mut bitmap)? == 3 {
                        self.learn(Space::Data, block)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// One reference more or less for each of `refs`, which were [touched](Self::touch). What loses its last one is
    /// free; what it referred to is the caller's concern.
    pub(crate) fn count(&mut self, refs: &[Ref], more: bool) -> Result<(), Error> {
        let mut bitmap = None;
        for one in refs {
            match *one {
                Ref::Uncounted => {}
                Ref::Metadata(block) => self.count_metadata(block, more)?,
                Ref::Data(block) => self.count_data(block, more, &mut bitmap)?,
            }
        }
        Ok(())
    }

    /// One reference more or less for a metadata block whose count is known.
    pub(crate) fn count_metadata(&mut self, block: u64, more: bool) -> Result<(), Error> {
        if self.metadata.add(block, more)? == 0 {
            // It may be given out again, at once if it is fresh, and nobody must write what it was.
            self.cache.remove(block);
        }
        Ok(())
    }

    /// A free block, with one reference from now on.
    pub(crate) fn alloc(&mut self) -> Result<u64, Error> {
        let at = self.metadata.alloc(self.settling)?;
        if self.cache.has(at) {
            let field = "the reference count of this block";
            return Err(Error::damage(at, Kind::Bitmap, field, 0, "at least 1: something refers to it"));
        }
        Ok(at)
    }

    /// A new block of zeroes.
    pub(crate) fn new_block(&mut self, kind: Kind) -> Result<Slot, Error> {
        let at = self.alloc()?;
        Ok(self.cache.insert_zeroed(at, kind))
    }

    /// Fails before anything is changed when fewer than `blocks` are left.
    pub(crate) fn need_space(&self, blocks: u64) -> Result<(), Error> {
        let kept = if self.settling { 0 } else { self.metadata.reserve() };
        if self.metadata.available() < kept + blocks {
            return Err(Error::NoSpace(Space::Metadata));
        }
        Ok(())
    }

    /// The block at `at`, to be changed, in the place where it is from now on: the caller, who owns one reference to
    /// it, has to write down that place. `refs` says what the block refers to.
    pub(crate) fn own(
        &mut self,
        at: u64,
        kind: Kind,
        refs: impl FnOnce(&crate::Block, &mut Vec<Ref>),
    ) -> Attempt<Slot> {
        let slot = self.cache.find(at, kind)?;
        let bits = self.metadata.bits(at);
        if bits == 1 && self.metadata.is_fresh(at) {
            return Ok(slot);
        }
        if bits == 0 {
            return Err(Error::damage(at, kind, "its reference count", 0, "at least 1").into());
        }
        let mut list = std::mem::take(&mut self.refs);
        list.clear();
        let result = self.shadow(slot, bits > 1, kind, refs, &mut list);
        self.refs = list;
        result
    }

    fn shadow(
        &mut self,
        slot: Slot,
        shared: bool,
        kind: Kind,
        refs: impl FnOnce(&crate::Block, &mut Vec<Ref>),
        list: &mut Vec<Ref>,
    ) -> Attempt<Slot> {
        let at = self.cache.at(slot);
        if shared {
            refs(self.cache.block(slot), list);
            self.touch(list, at, kind)?;
            self.metadata_count(at)?;
        }
        let new = self.alloc()?;
        let copy = self.cache.insert_copy(new, kind, slot);
        self.count(list, true)?;
        self.count_metadata(at, false)?;
        Ok(copy)
    }

    /// [`own`](Self::own) for a node of a tree of `V`.
    pub(crate) fn own_node<V: Value>(&mut self, at: u64) -> Attempt<Slot> {
        self.own(at, Kind::Node, |block, list| node_refs::<V>(Node::checked(block), list))
    }

    /// The node in `slot`.
    pub(crate) fn node(&self, slot: Slot) -> Node<'_> {
        Node::checked(self.cache.block(slot))
    }

    /// Tells the trees of large counts, and the data map's index, what changed.
    pub(crate) fn settle(&mut self) -> Attempt<()> {
        self.settling = true;
        let done = self.try_settle();
        self.settling = false;
        done
    }

    fn try_settle(&mut self) -> Attempt<()> {
        if self.data.is_some() {
            self.settle_counts(Space::Data)?;
            self.settle_index()?;
        }
        self.settle_counts(Space::Metadata)
    }

    fn settle_counts(&mut self, space: Space) -> Attempt<()> {
        if !self.overflow(space).is_dirty() {
            self.overflow(space).forget();
            return Ok(());
        }
        let changes = self.overflow(space).changes();
        let told = changes.len();
        let mut root = self.overflow(space).root;
        for (block, count) in changes {
            let done = if count > 2 {
                btree::attempt_insert(self, &mut root, block, &count).map(|_| ())
            } else {
                btree::attempt_remove::<u32>(self, &mut root, block).map(|_| ())
            };
            self.overflow(space).root = root;
            done?;
            self.overflow(space).told(block);
        }
        if self.overflow(space).is_dirty() {
            // Nobody but the map itself refers to its trees, so to change them changes no large count.
            let field = "a node of the tree of large counts";
            return Err(Error::damage(root, Kind::Node, field, "shared", "not shared").into());
        }
        self.overflow(space).forget();
        self.measure_again(space, told);
        Ok(())
    }

    /// Whether [`settle`](Self::settle) should not wait for the commit: much is remembered, or there may soon be too
    /// little space for it to reach its trees.
    pub(crate) fn is_crowded(&self) -> bool {
        let data = self.data.as_ref().map_or(0, DataMap::remembered);
        let remembered = data + self.metadata.overflow.remembered();
        let known = self.data.as_ref().map_or(0, |data| data.overflow.known()) + self.metadata.overflow.known();
        known > MOST
            || remembered != 0 && self.metadata.available() <= self.metadata.reserve() + 2 * remembered as u64 + 32
    }

    /// What is now is committed.
    pub(crate) fn committed(&mut self) {
        self.metadata.committed();
        if let Some(data) = &mut self.data {
            data.committed();
        }
        for at in self.replaced.drain(..) {
            self.cache.remove(at);
        }
    }

    pub(crate) fn roots(&self) -> Roots {
        Roots { metadata: self.metadata.root(), data: self.data.as_ref().map(DataMap::root) }
    }
}

impl From<Space> for Stop {
    fn from(space: Space) -> Self {
        Error::NoSpace(space).into()
    }
}

/// What a node of a tree of `V` refers to.
pub(crate) fn node_refs<V: Value>(node: Node<'_>, list: &mut Vec<Ref>) {
    if !node.is_leaf() {
        list.extend((0..node.len()).map(|i| Ref::Metadata(node.child(i))));
    } else if node.value_size() == V::SIZE {
        let refs = (0..node.len()).map(|i| V::decode(node.value(i)).refers_to());
        list.extend(refs.filter(|one| *one != Ref::Uncounted));
    }
}
