//! What lies in a channel, for people who ask why something waits. Nothing on a bio's way is done for it: who asks
//! enters each channel as who drains does, and looks which records are in use.

use super::attached::LEVELS;
use super::core::ChannelCore;
use super::cx::Cx;
use super::record::Record;
use super::slab::Slab;
use crate::{Nanos, Op};
use std::collections::HashSet;
use std::ptr::NonNull;
use udm_base::{Sector, Sectors};

/// A channel's state as one who came by found it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ChannelReport {
    /// Its number in its domain.
    pub number: usize,
    /// `None`: its thread, or another, was inside whenever it was looked at.
    pub content: Option<ChannelContent>,
    /// Its thread sleeps until something wakes it.
    pub sleeping: bool,
    /// Its thread has dropped it; it stays until its bios are home.
    pub orphan: bool,
    /// Bios that were ended elsewhere lie in its mailbox.
    pub mail: bool,
}

/// What lies in a channel.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ChannelContent {
    /// Bios that are out.
    pub bios: Vec<BioReport>,
    /// Bios that wait for a clone.
    pub parked: usize,
    /// Completions that its thread has not taken.
    pub untaken: usize,
    /// When its first timer is due.
    pub timer: Option<Nanos>,
}

/// A bio that is out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BioReport {
    /// What it does.
    pub op: Op,
    /// Where, on the device that it was sent to last.
    pub sector: Sector,
    /// How much.
    pub sectors: Sectors,
    /// 0: a submitter's; else a clone of that level of a stack, or an internal bio.
    pub level: usize,
    /// An internal bio.
    pub internal: bool,
    /// The address of the device that it was sent to last, to be compared with those of devices that are known. It may
    /// be one that is gone.
    pub device: usize,
}

/// How often a channel is tried whose thread is inside.
const TRIES: usize = 64;

impl ChannelCore {
    /// Looks, unless somebody is inside all the time. Does not block. Not from inside a channel.
    pub(crate) fn inspect(&self) -> ChannelReport {
        let content = (0..TRIES).find_map(|_| {
            let found = self.lock.enter_remotely(|| self.content());
            if found.is_none() {
                std::thread::yield_now();
            }
            found
        });
        let (sleeping, mail) = (self.is_sleeping(), self.has_mail());
        ChannelReport { number: Cx::new(self).id(), content, sleeping, orphan: self.is_orphan(), mail }
    }

    fn content(&self) -> ChannelContent {
        // SAFETY: inside; nothing is called that reaches the channel.
        let inner = unsafe { self.inner() };
        let mut bios = Vec::new();
        inner.slabs.iter().for_each(|slab| slab.report(false, &mut bios));
        inner.internal.slabs().iter().for_each(|slab| slab.report(true, &mut bios));
        debug_assert!(bios.iter().all(|bio| bio.level < LEVELS));
        let (parked, untaken) = (inner.parked_count, inner.completions.len());
        ChannelContent { bios, parked, untaken, timer: inner.timers.next() }
    }
}

impl Slab {
    fn report(&self, internal: bool, bios: &mut Vec<BioReport>) {
        if self.out() == 0 {
            return;
        }
        let free: HashSet<NonNull<Record>> = self.free_records().collect();
        for record in self.records().filter(|record| !free.contains(record)) {
            bios.push(report(record, internal));
        }
    }
}

/// What a record says that is out.
fn report(record: NonNull<Record>, internal: bool) -> BioReport {
    let at = record.as_ptr();
    // SAFETY: the record is initialised and stays as long as its slab. Who has the bio may be at work on it on another
    // thread; these fields are only written inside the bio's own channel, where this thread is. They are read one by
    // one, without a reference to the record as a whole.
    let (op, sector, sectors, level, dev) = unsafe {
        (
            (&raw const (*at).op).read_volatile(),
            (&raw const (*at).sector).read_volatile(),
            (&raw const (*at).sectors).read_volatile(),
            (&raw const (*at).level).read_volatile(),
            (&raw const (*at).dev).read_volatile(),
        )
    };
    // Never followed: it may be a device that is gone.
    let device = dev.map_or(0, |dev| dev.as_ptr().cast::<()>() as usize);
    BioReport { op, sector, sectors, level: level.into(), internal, device }
}
