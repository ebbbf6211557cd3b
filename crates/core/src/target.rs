//! What a target is.

use crate::{Alone, DeviceOpener, Error, Held, MappedDevice, Ticket, ZeroSkips};
use std::any::Any;
use std::sync::Arc;
use udm_base::{Arg, ArgError, Args, Errno, Sector, Sectors, Stripes};
use udm_io::{Bio, BlockDevice, Cx, DeviceId, Domain, ExtentsReply, Limits, Memory, Nanos, Status};

/// A kind of target: what stands in a table line, and how it is made.
pub struct TargetType {
    /// Its word in a table.
    pub name: &'static str,
    /// The version that kernel 6.12 reports for it.
    pub version: [u32; 3],
    /// What holds for every target of the kind.
    pub features: TargetFeatures,
    /// Makes one from its arguments. May block (it opens devices).
    pub ctr: fn(&mut Ctr<'_>) -> Result<Box<dyn Target>, ArgError>,
}

/// What holds for every target of a kind (`DM_TARGET_*`, `include/linux/device-mapper.h`, 6.12).
#[derive(Clone, Copy, Debug, Default)]
pub struct TargetFeatures {
    /// It must be the only target of its table.
    pub singleton: bool,
    /// It cannot be part of a read-only device.
    pub always_writeable: bool,
    /// A table with it is not replaced by one without.
    pub immutable: bool,
}

impl TargetFeatures {
    /// Nothing special.
    pub const NONE: Self = Self { singleton: false, always_writeable: false, immutable: false };
}

/// What became of a bio that was mapped.
pub enum Map<'t> {
    /// It goes on to a device beneath; the target has set its sector there.
    Remapped(Bio, &'t dyn BlockDevice),
    /// As [`Remapped`](Self::Remapped); when it has come home, [`Target::end_io`] gets it, with the context.
    WithEndIo(Bio, &'t dyn BlockDevice, u64),
    /// It is kept until then; [`Target::resume_io`] gets it, with the context.
    Delayed(Bio, Until<'t>, u64),
    /// [`Target::work`] gets it on a thread that may take its time, then [`Target::resume_io`], with the context.
    Work(Bio, u64),
    /// The target has it: it will end it, or has done so.
    Kept,
    /// It is done.
    Ended(Bio, Status),
    /// It cannot be served while the device is being suspended with `noflush`: pushed back, or EIO otherwise.
    Requeue(Bio),
}

/// How long a bio is kept.
pub enum Until<'t> {
    /// To a time. When the device is suspended or removed, it comes to once.
    At(Nanos),
    /// Until somebody releases it. See [`Held`] for the ticket, and for what a suspension needs.
    Released(&'t Held, Ticket),
}

/// A stretch of a target that maps straight onto a device beneath: what can be compiled.
#[derive(Clone, Copy)]
pub struct Run<'t> {
    /// The device.
    pub dev: &'t Arc<dyn BlockDevice>,
    /// Where the target's first sector lies on it.
    pub start: Sector,
}

/// A target that spreads its range over several runs: what can be compiled too.
pub struct Striping<'t> {
    /// Which run a sector lies on, and how far into it.
    pub stripes: Stripes,
    /// The runs, each of [`len`](Self::len).
    pub legs: Vec<Run<'t>>,
    /// How long each run is.
    pub len: Sectors,
}

/// Which status is asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StatusKind {
    /// `dmsetup status`.
    Info,
    /// `dmsetup table`: what is printed loads again.
    Table,
}

/// A device beneath, as its target uses it.
#[derive(Clone)]
pub struct TargetDevice {
    /// The device.
    pub dev: Arc<dyn BlockDevice>,
    /// Where the target begins to use it.
    pub start: Sector,
    /// How much of it.
    pub len: Sectors,
}

/// One target of a table.
///
/// Core has checked the range against the target and its borders before `map` is called; it counts bios,
/// splits them, fans out flushes to [`devices`](Self::devices), and stacks limits.
pub trait Target: Send + Sync + 'static {
    /// Maps a bio that begins `at` sectors into the target. Must not block, nor wait for a lock that I/O is done under.
    /// Flushes do not come here, unless [`wants_flush`](Self::wants_flush).
    fn map(&self, cx: &Cx<'_>, bio: Bio, at: Sectors) -> Map<'_>;

    /// A bio that [`map`](Self::map) sent on with a context has come home, `at` being where it lies in the target: its status and
    /// its data are the target's to change, and what is answered is done. [`Map::Ended`] gives it the status that it says;
    /// anything that sends it on makes its status good again. Must not block. Bios that a suspension wants back come here with
    /// [`Status::Requeue`].
    ///
    /// Only of targets that [take bios back](Self::takes_back).
    fn end_io(&self, cx: &Cx<'_>, bio: Bio, at: Sectors, context: u64) -> Map<'_> {
        let _ = (cx, at, context);
        let status = bio.status();
        Map::Ended(bio, status)
    }

    /// A bio that was kept goes on: its time has come, it was released, or its work is done. Must not block. While the device is being
    /// suspended, one that is to be kept to another time is pushed back instead.
    ///
    /// Only of targets that [take bios back](Self::takes_back).
    fn resume_io(&self, cx: &Cx<'_>, bio: Bio, at: Sectors, context: u64) -> Map<'_> {
        let _ = (cx, at, context);
        Map::Ended(bio, Status::Io)
    }

    /// What takes the CPU for long is done with a bio, on a thread outside of channels. The answer is the context that
    /// [`resume_io`](Self::resume_io) gets. May take its time, and block.
    fn work(&self, bio: &mut Bio, at: Sectors, context: u64) -> u64 {
        let _ = (bio, at);
        context
    }

    /// Whether `map` may answer [`Map::WithEndIo`], [`Map::Delayed`] or [`Map::Work`].
    fn takes_back(&self) -> bool {
        false
    }

    /// The target's own part of a status or table line, after the name: empty when there is none.
    fn status(&self, kind: StatusKind) -> String;

    /// Its status as it is, without writing out first what would make the numbers current (`DM_STATUS_NOFLUSH_FLAG`,
    /// `include/linux/device-mapper.h`, 6.12).
    fn status_as_is(&self) -> String {
        self.status(StatusKind::Info)
    }

    /// What the integrity subsystem would measure of it besides its name and version, as `key=value` with commas
    /// between; empty when the kernel measures nothing of such a target (`STATUSTYPE_IMA`, 6.12).
    fn measurement(&self) -> String {
        String::new()
    }

    /// The devices beneath, one entry for each range used.
    fn devices(&self) -> Vec<TargetDevice> {
        Vec::new()
    }

    /// Devices that it uses by itself: held, and listed as dependencies, but bios are neither mapped nor flushed to them,
    /// and their limits do not count. Metadata, or an origin that is only read.
    fn keeps(&self) -> Vec<Arc<dyn BlockDevice>> {
        Vec::new()
    }

    /// Itself, for targets of the same family that look for each other.
    fn as_any(&self) -> Option<&dyn Any> {
        None
    }

    /// What it has under way and waits for, as names and values for people. Must not block, nor wait for a lock that is held
    /// for more than a moment.
    fn inspect(&self) -> Vec<(&'static str, String)> {
        Vec::new()
    }

    /// Narrows or widens the limits that core has stacked from the devices beneath.
    fn limits(&self, limits: &mut Limits) {
        let _ = limits;
    }

    /// What a range holds, left in `reply` at once or later: see [`BlockDevice::extents`]. As [`map`](Self::map), must not block.
    fn extents(&self, cx: &Cx<'_>, at: Sectors, sectors: Sectors, reply: ExtentsReply) {
        if let Some(run) = self.run() {
            run.dev.extents(cx, run.start + at, sectors, reply);
        }
    }

    /// Bios are split at multiples of this, counted from the target's start.
    fn max_io_len(&self) -> Option<Sectors> {
        None
    }

    /// Whether `map` may remap the submitter's own bio. Otherwise it is given clones.
    fn no_clone(&self) -> bool {
        false
    }

    /// Whether `map` always answers [`Map::Ended`], so that nothing of it is ever in flight.
    fn is_synchronous(&self) -> bool {
        false
    }

    /// The memory that the target is, sector for sector, if it is nothing else: reads and writes that need no splitting
    /// then go there without a call of `map`.
    fn memory(&self) -> Option<&Memory> {
        None
    }

    /// Whether it keeps in memory what its data cannot be found without, so that both end with the process.
    fn is_transient(&self) -> bool {
        self.memory().is_some()
    }

    /// Whether the whole target is one run on a device beneath, for all operations alike: it can be compiled away.
    fn run(&self) -> Option<Run<'_>> {
        None
    }

    /// Whether the whole target is spread over runs on devices beneath, by nothing but arithmetic. Its `max_io_len` is
    /// the chunk.
    fn striping(&self) -> Option<Striping<'_>> {
        None
    }

    /// Whether it takes discards. They come split at its borders and `max_io_len`.
    fn takes_discards(&self) -> bool {
        true
    }

    /// Whether discards come whole, not split at `max_io_len`: the target cuts them itself.
    fn discards_unsplit(&self) -> bool {
        false
    }

    /// Whether it takes WRITE ZEROES; otherwise core writes them out.
    fn takes_write_zeroes(&self) -> bool {
        true
    }

    /// Whether flushes come to `map` too, besides being sent to the devices beneath by core.
    fn wants_flush(&self) -> bool {
        false
    }

    /// Whether it sees to it itself that a flush reaches the devices beneath it: then core sends none there. Only with
    /// [`wants_flush`](Self::wants_flush).
    fn flushes_beneath(&self) -> bool {
        false
    }

    /// A bio that was remapped `at` sectors into the target has failed. Returns whether that is an event. Called on the
    /// completion path: must not block.
    fn failed(&self, at: Sectors, status: Status) -> bool {
        let _ = (at, status);
        false
    }

    /// A flush of the device beneath that is `dev` has failed. Otherwise as [`failed`](Self::failed).
    fn flush_failed(&self, dev: DeviceId, status: Status) -> bool {
        let _ = (dev, status);
        false
    }

    /// Writes of zeroes that it completed without allocating, since it was made: a thin pool's.
    fn zero_skips(&self) -> ZeroSkips {
        ZeroSkips::default()
    }

    /// Whether its bios can be polled for: those that it does not end at once. By itself, when every device beneath can.
    fn can_poll(&self) -> bool {
        let devices = self.devices();
        // What waits for a time is nowhere to be polled for.
        !self.takes_back() && !devices.is_empty() && devices.iter().all(|d| d.dev.can_poll())
    }

    /// Changes an option of its own (`udm set`). `None`: it has no such option, or not with that value.
    fn set_option(&self, key: &str, value: &str) -> Option<()> {
        let _ = (key, value);
        None
    }

    /// `dmsetup message`: the words after the sector. The answer is what the command prints. May block.
    fn message(&self, words: &[&str]) -> Result<String, Error> {
        let _ = words;
        Err(Error::new(Errno::EINVAL, "this target takes no messages"))
    }

    /// Before bios are held back: stop background work, and with `noflush` let queued bios go as [`Status::Requeue`].
    fn presuspend(&self, noflush: bool) {
        let _ = noflush;
    }

    /// After the last bio in flight has ended. May block.
    fn postsuspend(&self) {}

    /// Before the first bio. May block; an error leaves the device suspended.
    fn preresume(&self) -> Result<(), Error> {
        Ok(())
    }

    /// Bios come again.
    fn resume(&self) {}

    /// What who has resumed it is to know: that it does less than its table says, and what helps. May block.
    fn notice(&self) -> Option<String> {
        None
    }
}

/// What a constructor gets.
pub struct Ctr<'a> {
    /// Where the target begins on the mapped device.
    pub begin: Sector,
    /// How long it is.
    pub len: Sectors,
    /// Its arguments.
    pub args: Args,
    /// Whether the device is to be read-only.
    pub read_only: bool,
    /// For targets that have channels or threads of their own.
    pub domain: &'a Domain,
    /// The device that the table is for.
    pub owner: &'a Arc<MappedDevice>,
    pub(crate) opener: &'a dyn DeviceOpener,
}

impl Ctr<'_> {
    /// Opens the device that an argument names, and checks that `len` sectors from `start` lie within it. `message` is the
    /// kernel's for a failed look-up. May block.
    pub fn device(&mut self, arg: &Arg, message: &str) -> Result<Arc<dyn BlockDevice>, ArgError> {
        let opened = self.opener.open(&arg.text, self.read_only, false);
        opened.map_err(|e| ArgError::new(message).errno(e.errno).hint(e.message).at(arg))
    }

    /// As [`device`](Self::device), but only to be read, whatever the table is.
    pub fn device_to_read(&mut self, arg: &Arg, message: &str) -> Result<Arc<dyn BlockDevice>, ArgError> {
        let opened = self.opener.open(&arg.text, true, false);
        opened.map_err(|e| ArgError::new(message).errno(e.errno).hint(e.message).at(arg))
    }

    /// As [`device`](Self::device), refused when someone else has it: for metadata, COW and pool data.
    pub fn device_exclusive(&mut self, arg: &Arg, message: &str) -> Result<Arc<dyn BlockDevice>, ArgError> {
        self.device_exclusive_or(arg, message, None)
    }

    /// Keeps other loads from beginning with what this one does with `dev`, as long as the answer lives: to read what is on it,
    /// or to make something there. Fails with EBUSY while another load is at it.
    pub fn alone_with(&self, dev: &Arc<dyn BlockDevice>, arg: &Arg, message: &str) -> Result<Alone, ArgError> {
        self.opener.alone_with(dev.id()).ok_or_else(|| {
            let hint = format!("another table with {} is being loaded", dev.name());
            ArgError::new(message).errno(Errno::EBUSY).hint(hint).at(arg)
        })
    }

    /// As [`device_exclusive`](Self::device_exclusive), but when the argument names `known`, which another table of the same
    /// device has opened so already, gives that one.
    pub fn device_exclusive_or(
        &mut self,
        arg: &Arg,
        message: &str,
        known: Option<&Arc<dyn BlockDevice>>,
    ) -> Result<Arc<dyn BlockDevice>, ArgError> {
        let opened = self.opener.open_exclusive(&arg.text, self.read_only, known);
        opened.map_err(|e| ArgError::new(message).errno(e.errno).hint(e.message).at(arg))
    }
}
