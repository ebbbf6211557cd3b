//! `udm thin check`: everything that has to hold in a pool's metadata, from the superblock to each reference count
//! (`thin_check`).
//!
//! Each metadata block is read once, however many devices share it; the children of a node are read in the order in
//! which they lie. Memory: two bits for each data block of bitmaps in use, 24 bytes for each block of a tree.

mod fault;
mod maps;
mod mend;
mod trees;

use std::sync::Arc;

use udm_pdata::BlockIo;

pub use fault::{Fault, Severity};
pub use mend::{Leak, clear_needs_check, mend};

use self::trees::Walker;
use super::counts::Counts;
use super::view::space_map_root;
use super::{Error, Progress, View, Which};
use crate::thin::MAX_TIME;
use crate::thin::superblock::{LOCATION, NEEDS_CHECK};

/// How much to check.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Depth {
    /// The superblock.
    Superblock,
    /// And the devices, without their mappings.
    Devices,
    /// Everything.
    All,
}

/// What to check.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Whose superblock. Of a metadata snapshot the space maps are not checked: it has none.
    pub which: Which,
    /// How much.
    pub depth: Depth,
    /// Leave out what only costs space or speed, as nodes that are less than a third full.
    pub ignore_non_fatal: bool,
}

/// What is told on the way.
pub trait Listener: Progress {
    /// A stage begins.
    fn stage(&mut self, name: &str);
    /// Something is wrong.
    fn fault(&mut self, fault: &Fault);
    /// The superblock could be read.
    fn head(&mut self, transaction: u64, free_metadata: u64);
}

/// What came of it.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Outcome {
    /// The worst that was found.
    pub worst: Option<Severity>,
    /// How many faults, of notes too.
    pub faults: u64,
    /// Reference counts that are too high by so much: [`mend`] takes them down. [`MOST_LEAKS`] at most.
    pub leaks: Vec<Leak>,
    /// The superblock says that the pool needs a check.
    pub needs_check: bool,
    /// Whether everything was looked at, so that what was found may be mended.
    pub complete: bool,
}

/// Leaks that are remembered for mending; where there are more, mend and check again.
pub const MOST_LEAKS: usize = 1 << 20;

/// Faults that are told one by one; the rest is counted.
const MOST_TOLD: u64 = 1000;

impl Outcome {
    /// Whether thin_check would exit with 0.
    #[must_use]
    pub fn is_good(&self, ignore_non_fatal: bool) -> bool {
        match self.worst {
            Some(Severity::Fatal) => false,
            Some(Severity::NonFatal) => ignore_non_fatal,
            Some(Severity::Note) | None => true,
        }
    }
}

/// What a check carries with it.
struct State<'a> {
    io: &'a dyn BlockIo,
    listener: &'a mut dyn Listener,
    outcome: Outcome,
    ignore_non_fatal: bool,
    metadata: Counts,
    data: Counts,
    data_blocks: u64,
    /// Blocks read, for the progress.
    read: u64,
    expected: u64,
}

impl State<'_> {
    fn fault(&mut self, fault: Fault) {
        if self.ignore_non_fatal && fault.severity == Severity::NonFatal {
            return;
        }
        self.outcome.worst = self.outcome.worst.max(Some(fault.severity));
        self.outcome.faults += 1;
        if self.outcome.faults <= MOST_TOLD {
            self.listener.fault(&fault);
        }
    }

    fn leak(&mut self, leak: Leak) {
        if self.outcome.leaks.len() < MOST_LEAKS {
            self.outcome.leaks.push(leak);
        }
    }

    fn tick(&mut self) {
        self.read += 1;
        if self.read.is_multiple_of(256) {
            self.listener.at(self.read, self.expected.max(self.read));
        }
    }

    fn is_fatal(&self) -> bool {
        self.outcome.worst == Some(Severity::Fatal)
    }
}

/// Checks metadata. Writes nothing. Blocks.
///
/// # Errors
/// When a metadata snapshot is asked for and none is held. Damage is no error: it is told to `listener` and in the
/// outcome.
pub fn check(io: &Arc<dyn BlockIo>, options: Options, listener: &mut dyn Listener) -> Result<Outcome, Error> {
    let mut state = State {
        io: &**io,
        listener,
        outcome: Outcome::default(),
        ignore_non_fatal: options.ignore_non_fatal,
        metadata: Counts::default(),
        data: Counts::default(),
        data_blocks: u64::MAX,
        read: 0,
        expected: 0,
    };
    state.listener.stage("examining superblock");
    let view = match View::open(io.clone(), options.which) {
        Ok(view) => view,
        Err(refused @ Error::Refused(_)) => return Err(refused),
        Err(error) => {
            state.fault(Fault::fatal(&error));
            return Ok(state.outcome);
        }
    };
    superblock(&mut state, &view, io);
    if state.is_fatal() || options.depth == Depth::Superblock {
        return Ok(state.outcome);
    }
    let is_main = view.at == LOCATION;
    state.metadata.inc(view.at);
    let disk = *view.superblock.disk();
    let mut walker = Walker::default();
    walker.pool(&mut state, &view, options.depth)?;
    if options.depth == Depth::All && is_main && !state.is_fatal() {
        let held = disk.held_root.get();
        if held != LOCATION {
            state.listener.stage("examining metadata snapshot");
            state.metadata.inc(held);
            match View::open(io.clone(), Which::At(held)).and_then(|view| view.check_roots().map(|()| view)) {
                Ok(view) => walker.pool(&mut state, &view, Depth::All)?,
                Err(error) => state.fault(Fault::fatal(&error)),
            }
        }
        if !state.is_fatal() {
            state.listener.stage("checking space map counts");
            maps::check(&mut state, &mut walker, &view);
            state.outcome.complete = !state.is_fatal();
        }
    }
    if state.outcome.faults > MOST_TOLD {
        let more = format!("and {} faults more", state.outcome.faults - MOST_TOLD);
        state.listener.fault(&Fault { severity: Severity::Note, text: more });
    }
    Ok(state.outcome)
}

/// What a superblock with a right checksum can still say wrong.
fn superblock(state: &mut State<'_>, view: &View, io: &Arc<dyn BlockIo>) {
    let disk = *view.superblock.disk();
    let at = view.at;
    let mut bad = |field: &str, found: String, expected: String| {
        let text = format!("superblock in metadata block {at}: {field} is {found}, expected {expected}");
        state.fault(Fault { severity: Severity::Fatal, text });
    };
    if disk.incompat_flags.get() != 0 {
        bad("incompat_flags", format!("{:#x}", disk.incompat_flags), "0: features that udm does not know".into());
    }
    if disk.time.get() > MAX_TIME {
        bad("time", disk.time.to_string(), format!("at most {MAX_TIME}"));
    }
    if at == LOCATION {
        let (metadata, data) =
            (space_map_root(&disk.metadata_space_map_root), space_map_root(&disk.data_space_map_root));
        let (recorded, there) = (metadata.nr_blocks.get(), io.blocks());
        let most = there.min(udm_pdata::layout::MAX_METADATA_BLOCKS);
        if recorded == 0 || recorded > most {
            let expected = format!("1 to {most}, the blocks that the device has");
            bad("metadata_space_map_root.nr_blocks", recorded.to_string(), expected);
        }
        if data.nr_blocks.get() > crate::thin::MAX_DATA_BLOCKS {
            let expected = format!("at most {}", crate::thin::MAX_DATA_BLOCKS);
            bad("data_space_map_root.nr_blocks", data.nr_blocks.to_string(), expected);
        }
        if disk.held_root.get() >= recorded {
            bad("held_root", disk.held_root.to_string(), format!("less than {recorded}"));
        }
        state.data_blocks = data.nr_blocks.get();
        state.expected = metadata.nr_allocated.get().min(there);
        state.outcome.needs_check = disk.flags.get() & NEEDS_CHECK != 0;
        state.listener.head(disk.trans_id.get(), recorded.saturating_sub(metadata.nr_allocated.get()));
    } else if let Ok(main) = View::open(io.clone(), Which::Main) {
        state.data_blocks = main.data_blocks();
        let metadata = space_map_root(&main.superblock.disk().metadata_space_map_root);
        state.listener.head(disk.trans_id.get(), metadata.nr_blocks.get().saturating_sub(metadata.nr_allocated.get()));
    }
    if let Err(error) = view.check_roots() {
        state.fault(Fault::fatal(&error));
    }
}
