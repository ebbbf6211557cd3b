//! A metadata device in memory that loses, tears and reorders what was not flushed, and fails where it is told to.

use std::collections::BTreeMap;
use std::future::ready;
use std::sync::{Arc, Mutex, MutexGuard};

use udm_pdata::{BLOCK_SIZE, Block, BlockIo, IoError, IoFuture};

/// What a power cut may tear: a device writes whole sectors.
const SECTOR: usize = 512;

/// Numbers from a seed (splitmix64): the same on every machine.
#[derive(Clone)]
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// Below `n`.
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    /// Once in `n` times.
    pub(crate) fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

#[derive(Default)]
struct State {
    blocks: u64,
    /// What a power cut leaves; zeroes where there is nothing.
    durable: BTreeMap<u64, Box<Block>>,
    /// Written and not flushed, in order.
    pending: Vec<(u64, Box<Block>)>,
    /// How many blocks were written and flushes made.
    writes: u64,
    reads: u64,
    /// The write or flush of this number fails.
    fail_at: Option<u64>,
    /// From the write or flush of this number on everything fails.
    cut_at: Option<u64>,
}

impl State {
    /// Counts one write or flush, and says whether it happens.
    fn step(&mut self) -> Result<(), IoError> {
        let now = self.writes;
        self.writes += 1;
        if self.fail_at == Some(now) || self.cut_at.is_some_and(|at| now >= at) { Err(IoError::Failed) } else { Ok(()) }
    }

    fn is_cut(&self) -> bool {
        self.cut_at.is_some_and(|at| self.writes >= at)
    }

    fn settle(&mut self) {
        for (at, block) in std::mem::take(&mut self.pending) {
            self.durable.insert(at, block);
        }
    }
}

/// The device. Clones are the same device.
#[derive(Clone)]
pub(crate) struct Disk(Arc<Mutex<State>>);

impl Disk {
    pub(crate) fn new(blocks: u64) -> Self {
        Self(Arc::new(Mutex::new(State { blocks, ..State::default() })))
    }

    /// A device that holds `image`.
    pub(crate) fn of(image: &[u8]) -> Self {
        let disk = Self::new((image.len() / BLOCK_SIZE) as u64);
        for (at, bytes) in image.chunks_exact(BLOCK_SIZE).enumerate() {
            if bytes.iter().any(|b| *b != 0) {
                let mut block = Block::zeroed();
                block.0.copy_from_slice(bytes);
                disk.state().durable.insert(at as u64, block);
            }
        }
        disk
    }

    pub(crate) fn io(&self) -> Arc<dyn BlockIo> {
        Arc::new(self.clone())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("nobody panics with it")
    }

    pub(crate) fn grow(&self, blocks: u64) {
        self.state().blocks = blocks;
    }

    /// Writes and flushes so far.
    pub(crate) fn writes(&self) -> u64 {
        self.state().writes
    }

    pub(crate) fn reads(&self) -> u64 {
        self.state().reads
    }

    /// Lets the write or flush number `at`, counted from now, fail.
    pub(crate) fn fail_at(&self, at: u64) {
        let mut state = self.state();
        state.fail_at = Some(state.writes + at);
    }

    /// Lets everything fail from the write or flush number `at` on, counted from now.
    pub(crate) fn cut_at(&self, at: u64) {
        let mut state = self.state();
        state.cut_at = Some(state.writes + at);
    }

    /// What is on the device after a power cut: of what was written and not flushed, each block's writes kept, lost, or
    /// torn between two of its states, all regardless of their order.
    pub(crate) fn after_power_cut(&self, rng: &mut Rng) -> Self {
        let state = self.state();
        let mut durable = state.durable.clone();
        let mut pending: BTreeMap<u64, Vec<&Block>> = BTreeMap::new();
        for (at, block) in &state.pending {
            pending.entry(*at).or_default().push(block);
        }
        for (at, writes) in pending {
            let old = durable.get(&at).cloned().unwrap_or_else(Block::zeroed);
            let pick = |rng: &mut Rng| match rng.below(writes.len() as u64 + 1) {
                0 => old.clone(),
                n => Box::new(writes[n as usize - 1].clone()),
            };
            let mut left = pick(rng);
            if rng.one_in(3) {
                for sector in left.0.chunks_exact_mut(SECTOR).enumerate() {
                    let other = pick(rng);
                    sector.1.copy_from_slice(&other.0[sector.0 * SECTOR..][..SECTOR]);
                }
            }
            durable.insert(at, left);
        }
        Self(Arc::new(Mutex::new(State { blocks: state.blocks, durable, ..State::default() })))
    }

    /// Another device with what this one would read now.
    pub(crate) fn copy(&self) -> Self {
        let state = self.state();
        let mut copy = State { blocks: state.blocks, durable: state.durable.clone(), ..State::default() };
        copy.pending = state.pending.clone();
        copy.settle();
        Self(Arc::new(Mutex::new(copy)))
    }

    /// The bytes of the whole device.
    pub(crate) fn image(&self) -> Vec<u8> {
        let copy = self.copy();
        let state = copy.state();
        let mut image = vec![0; state.blocks as usize * BLOCK_SIZE];
        for (at, block) in &state.durable {
            image[*at as usize * BLOCK_SIZE..][..BLOCK_SIZE].copy_from_slice(&block.0);
        }
        image
    }

    /// Changes a block behind everybody's back.
    pub(crate) fn patch(&self, at: u64, change: impl FnOnce(&mut Block)) {
        let mut state = self.state();
        state.settle();
        change(state.durable.entry(at).or_insert_with(Block::zeroed));
    }
}

impl BlockIo for Disk {
    fn blocks(&self) -> u64 {
        self.state().blocks
    }

    fn read(&self, at: u64, mut into: Box<Block>) -> IoFuture<'_, Box<Block>> {
        let mut state = self.state();
        state.reads += 1;
        if at >= state.blocks {
            return Box::pin(ready(Err(IoError::PastEnd)));
        }
        if state.is_cut() {
            return Box::pin(ready(Err(IoError::Failed)));
        }
        let newest = state.pending.iter().rev().find(|(b, _)| *b == at).map(|(_, block)| block);
        match newest.or_else(|| state.durable.get(&at)) {
            Some(block) => into.0.copy_from_slice(&block.0),
            None => into.0.fill(0),
        }
        Box::pin(ready(Ok(into)))
    }

    fn write(&self, blocks: Vec<(u64, Box<Block>)>) -> IoFuture<'_, Vec<(u64, Box<Block>)>> {
        let mut state = self.state();
        let mut result = Ok(());
        for (at, block) in &blocks {
            assert!(*at < state.blocks, "nobody writes past the end: {at}");
            let was_cut = state.is_cut();
            if let Err(error) = state.step() {
                result = Err(error);
            }
            // A write that failed, or was under way when the power went, may have reached the device or a part of it.
            if !was_cut {
                state.pending.push((*at, block.clone()));
            }
        }
        Box::pin(ready(result.map(|()| blocks)))
    }

    fn flush(&self) -> IoFuture<'_, ()> {
        let mut state = self.state();
        let done = state.step();
        if done.is_ok() {
            state.settle();
        }
        Box::pin(ready(done))
    }

    fn write_fua(&self, at: u64, block: Box<Block>) -> IoFuture<'_, Box<Block>> {
        let mut state = self.state();
        assert!(at < state.blocks, "nobody writes past the end: {at}");
        let was_cut = state.is_cut();
        match state.step() {
            Ok(()) => {
                state.pending.retain(|(b, _)| *b != at);
                state.durable.insert(at, block.clone());
                Box::pin(ready(Ok(block)))
            }
            Err(error) => {
                if !was_cut {
                    state.pending.push((at, block));
                }
                Box::pin(ready(Err(error)))
            }
        }
    }
}
