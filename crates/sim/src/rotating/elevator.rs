//! Which request goes next: a one-way elevator, with neighbours merged, as a plain kernel of the time would.

use std::collections::{BTreeMap, VecDeque};
use udm_base::{Sector, Sectors};
use udm_io::{Bio, Op};

/// Requests that wait for the disk. Reads and writes each have `most` places (`nr_requests` of the kernel); who finds
/// none waits outside, in order. Inside, the next request is the one that lies at or after the head, else the first.
#[derive(Default)]
pub(super) struct Elevator {
    /// By first sector; a number sets those at one place apart.
    inside: BTreeMap<(u64, u64), Request>,
    outside: [VecDeque<Bio>; 2],
    counts: [usize; 2],
    number: u64,
}

/// Bios that lie one after the other and go as one.
pub(super) struct Request {
    pub(super) sector: Sector,
    pub(super) sectors: Sectors,
    pub(super) bios: Vec<Bio>,
    kind: usize,
}

impl Elevator {
    /// A bio comes. `merge` is the longest request that bios become.
    pub(super) fn add(&mut self, bio: Bio, most: usize, merge: Sectors) {
        let kind = usize::from(bio.op() != Op::Read);
        self.outside[kind].push_back(bio);
        self.admit(kind, most, merge);
    }

    /// Takes the next request out for a head at `head`.
    pub(super) fn next(&mut self, head: Sector, most: usize, merge: Sectors) -> Option<Request> {
        let ahead = self.inside.range((head.get(), 0)..).next().map(|(key, _)| *key);
        let key = ahead.or_else(|| self.inside.keys().next().copied())?;
        let request = self.inside.remove(&key)?;
        self.counts[request.kind] -= 1;
        self.admit(request.kind, most, merge);
        Some(request)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.inside.is_empty()
    }

    /// Every bio that waits.
    pub(super) fn drain(&mut self) -> Vec<Bio> {
        self.counts = [0; 2];
        let inside = std::mem::take(&mut self.inside).into_values().flat_map(|request| request.bios);
        inside.chain(self.outside.iter_mut().flat_map(std::mem::take)).collect()
    }

    fn admit(&mut self, kind: usize, most: usize, merge: Sectors) {
        while let Some(bio) = self.outside[kind].pop_front() {
            if let Err(bio) = self.enter(bio, kind, most, merge) {
                self.outside[kind].push_front(bio);
                return;
            }
        }
    }

    fn enter(&mut self, bio: Bio, kind: usize, most: usize, merge: Sectors) -> Result<(), Bio> {
        let (sector, sectors) = (bio.sector(), bio.sectors());
        let before = self.inside.range_mut(..(sector.get(), u64::MAX)).next_back();
        if let Some((_, request)) = before
            && request.kind == kind
            && request.sector + request.sectors == sector
            && request.sectors + sectors <= merge
        {
            request.sectors += sectors;
            request.bios.push(bio);
            return Ok(());
        }
        let end = (sector + sectors).get();
        let after = self.inside.range((end, 0)..(end, u64::MAX)).next().map(|(key, _)| *key);
        if let Some(key) = after
            && let Some(mut request) = self.inside.remove(&key)
        {
            if request.kind == kind && request.sectors + sectors <= merge {
                request.sector = sector;
                request.sectors += sectors;
                request.bios.push(bio);
                self.inside.insert((sector.get(), key.1), request);
                return Ok(());
            }
            self.inside.insert(key, request);
        }
        if self.counts[kind] >= most {
            return Err(bio);
        }
        self.counts[kind] += 1;
        self.number += 1;
        self.inside.insert((sector.get(), self.number), Request { sector, sectors, bios: vec![bio], kind });
        Ok(())
    }
}
