//! The file on modelled disks: plain, on an origin, on a snapshot.

use super::Policy;
use super::workload::{Cache, Job, Times};
use std::fmt;
use std::sync::Arc;
use udm_base::{Errno, Sectors};
use udm_bench::Error;
use udm_core::HostRequest;
use udm_io::{BlockDevice, Domain};
use udm_kcopyd::{CopyOptions, Kcopyd};
use udm_sim::{Keep, RotatingDisk, RotatingOptions, Sim};
use udm_stack::{Stack, registry_over};

/// A disk of 2007. The volume is where it would be on a disk that has been in use, and the COW device of one disk as
/// far away as another volume of that size would be.
const DISK: u64 = 80 << 30;
const VOLUME_AT: u64 = 10 << 30;
const COW_AT: u64 = 20 << 30;

/// What the file is on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Subject {
    /// A volume that has no snapshot.
    Plain,
    /// A volume with a snapshot.
    Origin,
    /// The snapshot.
    Snapshot,
}

/// Where the COW device is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Place {
    SameDisk,
    OwnDisk,
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Plain => "plain volume",
            Self::Origin => "origin",
            Self::Snapshot => "snapshot",
        })
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::SameDisk => "same disk",
            Self::OwnDisk => "own disk",
        })
    }
}

/// One run. For a plain volume `place`, `chunk` and `policy` mean nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Case {
    pub(crate) subject: Subject,
    pub(crate) place: Place,
    /// Bytes.
    pub(crate) chunk: u64,
    pub(crate) policy: Policy,
    pub(crate) job: Job,
}

/// What it gave.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Measured {
    pub(crate) times: Times,
    /// Of all disks.
    pub(crate) seeks: u64,
    /// Bytes read and written, on all disks.
    pub(crate) moved: u64,
}

/// The disk, in words.
pub(crate) fn disk() -> String {
    RotatingOptions::desktop(Sectors::in_bytes(DISK)).model.to_string()
}

/// Two disks, `/disk0` and `/disk1`, that keep nothing of what is written.
pub(super) struct World {
    pub(super) domain: Domain,
    disks: [RotatingDisk; 2],
}

impl World {
    /// Disks of `size` bytes. All copies are made by `copies`, if that is given.
    pub(super) fn new(seed: u64, size: u64, copies: Option<CopyOptions>) -> Self {
        let sim = Sim::new(seed);
        let make = || RotatingOptions { keep: Keep::Nothing, ..RotatingOptions::desktop(Sectors::in_bytes(size)) };
        let disks = [RotatingDisk::new(&sim, make()), RotatingDisk::new(&sim, make())];
        let domain = sim.domain();
        if let Some(options) = copies {
            Kcopyd::copy_as(&domain, options);
        }
        Self { domain, disks }
    }

    /// The devices of a specification.
    pub(super) fn stack(&self, concise: &str) -> Result<Stack, Error> {
        let known = self.disks.clone();
        let opener = move |request: &HostRequest<'_>| -> Result<Arc<dyn BlockDevice>, udm_core::Error> {
            match request.spec {
                "/disk0" => Ok(Arc::new(known[0].clone())),
                "/disk1" => Ok(Arc::new(known[1].clone())),
                other => Err(udm_core::Error::new(Errno::ENOENT, format!("{other}: no such disk"))),
            }
        };
        let registry = registry_over(self.domain.clone(), Box::new(opener));
        Stack::over(registry, concise).map_err(|e| Error::Stack(e.to_string()))
    }
}

impl Case {
    /// Runs it, in simulated time: the same each time. Takes about a second for a gigabyte. `seed` is of random places.
    pub(crate) fn run(&self, seed: u64) -> Result<Measured, Error> {
        let world = World::new(seed, DISK, self.policy.copies());
        let stack = world.stack(&self.concise())?;
        let name = match self.subject {
            Subject::Plain => "volume",
            Subject::Origin => "origin",
            Subject::Snapshot => "snapshot",
        };
        let device = stack.device(name).map_err(|e| Error::Stack(e.to_string()))?;
        let before = world.disks.each_ref().map(RotatingDisk::stats);
        let times = self.job.run(&world.domain, device, Cache::OF_2007, seed).map_err(|e| e.of(name))?;
        let after = world.disks.each_ref().map(RotatingDisk::stats);
        let mut measured = Measured { times, seeks: 0, moved: 0 };
        for (before, after) in before.iter().zip(&after) {
            measured.seeks += after.seeks - before.seeks;
            measured.moved += after.bytes_read + after.bytes_written - before.bytes_read - before.bytes_written;
        }
        Ok(measured)
    }

    /// The devices, as a specification.
    fn concise(&self) -> String {
        let sectors = |bytes: u64| Sectors::covering(bytes);
        let volume = self.job.reaches().next_multiple_of(1 << 20);
        let linear = |name: &str, disk: u32, at: u64, len: u64| {
            format!("{name},,,,0 {} linear /disk{disk} {};", sectors(len), sectors(at))
        };
        let mut text = linear("volume", 0, VOLUME_AT, volume);
        if self.subject == Subject::Plain {
            return text;
        }
        let (disk, at) = match self.place {
            Place::SameDisk => (0, COW_AT),
            Place::OwnDisk => (1, VOLUME_AT),
        };
        text += &linear("cow", disk, at, volume + volume / 16 + (64 << 20));
        let (volume, chunk) = (sectors(volume), sectors(self.chunk));
        text += &format!("snapshot,,,,0 {volume} snapshot /dev/mapper/volume /dev/mapper/cow P {chunk};");
        text += &format!("origin,,,,0 {volume} snapshot-origin /dev/mapper/volume;");
        text
    }
}
