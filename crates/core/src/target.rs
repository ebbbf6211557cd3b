//! What a target is.

use crate::{Error, Held, Ticket, ZeroSkips};
use std::any::Any;
use udm_base::{Errno, Sectors};
use udm_io::{Bio, BlockDevice, Cx, DeviceId, ExtentsReply, Limits, Nanos, Status};

/// One target of a table: what it does with bios, and what it is told.
///
/// What is known of it from the beginning (the devices beneath, what core does for it) is not here: its constructor
/// hands it over with it, in a [`NewTarget`](crate::NewTarget). Core has checked the range against the target and its
/// borders before `map` is called; it counts bios, splits them, fans out flushes to the devices beneath, and stacks
/// limits.
pub trait Target: Any + Send + Sync {
    /// Maps a bio that begins `at` sectors into the target. Must not block, nor wait for a lock that I/O is done under.
    /// Flushes do not come here, unless the target [says so](crate::NewTarget::sees_flushes).
    fn map(&self, cx: &Cx<'_>, bio: Bio, at: Sectors) -> Map<'_>;

    /// The target's own part of a status or table line, after the name: empty when there is none. May block.
    fn status(&self, kind: StatusKind) -> String;

    /// A bio that [`map`](Self::map) sent on with a context has come home, `at` being where it lies in the target: its
    /// status and its data are the target's to change, and what is answered is done. [`Map::Ended`] gives it the status
    /// that it says; anything that sends it on makes its status good again. Must not block. Bios that a suspension
    /// wants back come here with [`Status::Requeue`].
    ///
    /// Only of targets that [take bios back](crate::NewTarget::takes_back).
    fn end_io(&self, cx: &Cx<'_>, bio: Bio, at: Sectors, context: u64) -> Map<'_> {
        let _ = (cx, at, context);
        let status = bio.status();
        Map::Ended(bio, status)
    }

    /// A bio that was kept goes on: its time has come, it was released, or its work is done. Must not block. While the
    /// device is being suspended, one that is to be kept to another time is pushed back instead.
    ///
    /// Only of targets that [take bios back](crate::NewTarget::takes_back).
    fn resume_io(&self, cx: &Cx<'_>, bio: Bio, at: Sectors, context: u64) -> Map<'_> {
        let _ = (cx, at, context);
        Map::Ended(bio, Status::Io)
    }

    /// What takes the CPU for long is done with a bio, on a thread outside of channels. The answer is the context that
    /// [`resume_io`](Self::resume_io) gets. May take its time, and block.
    ///
    /// Only of targets that [take bios back](crate::NewTarget::takes_back).
    fn work(&self, bio: &mut Bio, at: Sectors, context: u64) -> u64 {
        let _ = (bio, at);
        context
    }

    /// A bio that was remapped has failed, or a flush of a device beneath has. Returns whether that is an event. Called
    /// on the completion path: must not block.
    fn failed(&self, what: Failed, status: Status) -> bool {
        let _ = (what, status);
        false
    }

    /// What a range holds, left in `reply` at once or later: see [`BlockDevice::extents`]. As [`map`](Self::map), must
    /// not block. Where the way down is arithmetic alone, core asks the device beneath instead.
    fn extents(&self, cx: &Cx<'_>, at: Sectors, sectors: Sectors, reply: ExtentsReply) {
        let _ = (cx, at, sectors, reply);
    }

    /// Narrows or widens the limits that core has stacked from the devices beneath. Asked once, when the table is made.
    /// A target that takes no discards, or no WRITE ZEROES, says so by a limit of none; core writes out zeroes that it
    /// does not take.
    fn limits(&self, limits: &mut Limits) {
        let _ = limits;
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

    /// What people see and set of it beyond the kernel's interface, if there is anything.
    fn attributes(&self) -> Option<&dyn Attributes> {
        None
    }
}

/// What people see and set of a target beyond the kernel's interface; the kernel has such things in sysfs and as
/// parameters of modules.
pub trait Attributes {
    /// What it has under way and waits for, as names and values. Must not block, nor wait for a lock that is held for
    /// more than a moment.
    fn inspect(&self) -> Vec<(&'static str, String)> {
        Vec::new()
    }

    /// What the command that has resumed it tells: that it does less than its table says, and what helps. May block.
    fn notice(&self) -> Option<String> {
        None
    }

    /// Changes an option of its own (`udm set`). `None`: it has no such option, or not with that value.
    fn set_option(&self, key: &str, value: &str) -> Option<()> {
        let _ = (key, value);
        None
    }

    /// Writes of zeroes that it completed without allocating, since it was made.
    fn zero_skips(&self) -> ZeroSkips {
        ZeroSkips::default()
    }
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

/// Which status is asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StatusKind {
    /// `dmsetup status`.
    Info {
        /// As it is, without writing out first what would make the numbers current (`DM_STATUS_NOFLUSH_FLAG`,
        /// `include/linux/device-mapper.h`, 6.12).
        noflush: bool,
    },
    /// `dmsetup table`: what is printed loads again.
    Table,
    /// What the integrity subsystem would measure of it besides its name and version, as `key=value` with commas
    /// between; empty when the kernel measures nothing of such a target (`STATUSTYPE_IMA`, 6.12).
    Measurement,
}

/// What has failed beneath a target.
#[derive(Clone, Copy, Debug)]
pub enum Failed {
    /// A bio that began so far into the target.
    At(Sectors),
    /// A flush of the device.
    Flush(DeviceId),
}
