//! What a measurement asks of a device, in fio's words.

use crate::Error;
use std::time::Duration;
use udm_base::{SECTOR_SIZE, Sectors};

/// Which requests, in which order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rw {
    /// One after the other, from the start, around at the end.
    Read,
    /// As `Read`, writing.
    Write,
    /// Anywhere.
    RandRead,
    /// Anywhere, writing.
    RandWrite,
    /// Reads and writes, each in sequence.
    ReadWrite,
    /// Reads and writes anywhere.
    RandRw,
}

impl Rw {
    /// Every pattern, by fio's names; `rw` is `readwrite` too.
    pub const NAMES: &[(&'static str, Self)] = &[
        ("read", Self::Read),
        ("write", Self::Write),
        ("randread", Self::RandRead),
        ("randwrite", Self::RandWrite),
        ("readwrite", Self::ReadWrite),
        ("rw", Self::ReadWrite),
        ("randrw", Self::RandRw),
    ];

    /// fio's name.
    pub fn name(self) -> &'static str {
        Self::NAMES.iter().find(|(_, rw)| *rw == self).map_or("", |(name, _)| name)
    }

    /// Whether places are random.
    pub const fn is_random(self) -> bool {
        matches!(self, Self::RandRead | Self::RandWrite | Self::RandRw)
    }

    /// Whether reads occur.
    pub const fn reads(self) -> bool {
        !matches!(self, Self::Write | Self::RandWrite)
    }

    /// Whether writes occur.
    pub const fn writes(self) -> bool {
        !matches!(self, Self::Read | Self::RandRead)
    }
}

/// Which I/Os have their latency measured. A measured I/O costs two readings of the clock, about 50 ns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lat {
    /// None.
    Off,
    /// One in this many; 1 is every one.
    Sample(u32),
}

/// How data is checked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verify {
    /// Every byte against what offset, generation and seed make it.
    Pattern,
    /// A header with offset and generation, and a checksum over the rest, as fio's `crc32c`.
    Crc32c,
}

impl Verify {
    /// The kinds by name.
    pub const NAMES: &[(&'static str, Self)] = &[("pattern", Self::Pattern), ("crc32c", Self::Crc32c)];
}

/// How a job waits for its requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CompletionMode {
    /// Sleeps in the kernel until it is woken.
    Interrupt,
    /// Submits polled requests, and polls for them. Where a device cannot be polled they complete by interrupt.
    Poll,
    /// Polls briefly, then sleeps, as the daemon does.
    Adaptive,
}

impl CompletionMode {
    /// The modes by name.
    pub const NAMES: &[(&'static str, Self)] =
        &[("interrupt", Self::Interrupt), ("poll", Self::Poll), ("adaptive", Self::Adaptive)];

    /// Its name.
    pub fn name(self) -> &'static str {
        Self::NAMES.iter().find(|(_, mode)| *mode == self).map_or("", |(name, _)| name)
    }
}

/// Whether the device is written before it is measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fill {
    /// When there are reads, if the device was made for the measurement; one that others use is left as it is.
    BeforeReads,
    /// In any case: also before writes, whose first meeting with a page of memory costs more than the write.
    Yes,
    /// Never: what is on the device stays, and is read.
    No,
}

/// What a measurement asks of a device.
#[derive(Clone, PartialEq, Debug)]
pub struct Load {
    /// Which requests.
    pub rw: Rw,
    /// Bytes of a request.
    pub bs: u64,
    /// Requests that each job has in flight.
    pub iodepth: usize,
    /// Jobs, a thread and a channel each.
    pub numjobs: usize,
    /// How long.
    pub runtime: Option<Duration>,
    /// How many requests of each job at most.
    pub number_ios: Option<u64>,
    /// Bytes of the device that are used, from its start; all when not given.
    pub size: Option<u64>,
    /// Per cent of reads in a mix.
    pub rwmixread: u8,
    /// How jobs wait for their requests.
    pub completion: CompletionMode,
    /// Of places and contents.
    pub seed: u64,
    /// How data is checked, if it is.
    pub verify: Option<Verify>,
    /// Whether the device is filled first.
    pub fill: Fill,
    /// Which latencies are measured.
    pub lat: Lat,
}

impl Default for Load {
    /// fio's defaults, 4 KiB sequential reads at depth 1, for 3 seconds.
    fn default() -> Self {
        Self {
            rw: Rw::Read,
            bs: 4096,
            iodepth: 1,
            numjobs: 1,
            runtime: Some(Duration::from_secs(3)),
            number_ios: None,
            size: None,
            rwmixread: 50,
            completion: CompletionMode::Interrupt,
            seed: 1,
            verify: None,
            fill: Fill::BeforeReads,
            lat: Lat::Sample(64),
        }
    }
}

/// Bounds that keep a typing error from asking for all memory there is.
const IODEPTH_MAX: usize = 1 << 16;
const NUMJOBS_MAX: usize = 128;
const BS_MAX: u64 = 1 << 30;
const BUFFERS_MAX: u64 = 1 << 34;

impl Load {
    /// Checks everything that can be checked without a device.
    pub fn check(&self) -> Result<(), Error> {
        let refuse = |text: String| Err(Error::Load(text));
        let sector = SECTOR_SIZE as u64;
        if self.bs == 0 || !self.bs.is_multiple_of(sector) || self.bs > BS_MAX {
            return refuse(format!("--bs={}: expected a multiple of 512 bytes, up to 1g", self.bs));
        }
        if self.iodepth == 0 || self.iodepth > IODEPTH_MAX {
            return refuse(format!("--iodepth={}: expected 1 to {IODEPTH_MAX}", self.iodepth));
        }
        if self.numjobs == 0 || self.numjobs > NUMJOBS_MAX {
            return refuse(format!("--numjobs={}: expected 1 to {NUMJOBS_MAX}", self.numjobs));
        }
        if self.bs * (self.iodepth * self.numjobs) as u64 > BUFFERS_MAX {
            return refuse("--bs × --iodepth × --numjobs: expected buffers of at most 16g in all".to_owned());
        }
        if self.runtime.is_some_and(|time| time.is_zero()) {
            return refuse("--runtime=0: expected a time above 0".to_owned());
        }
        if self.number_ios == Some(0) {
            return refuse("--number-ios=0: expected 1 or more".to_owned());
        }
        if self.runtime.is_none() && self.number_ios.is_none() {
            return refuse("neither --runtime nor --number-ios: expected one of them, or both".to_owned());
        }
        if self.rwmixread > 100 {
            return refuse(format!("--rwmixread={}: expected 0 to 100", self.rwmixread));
        }
        if self.lat == Lat::Sample(0) {
            return refuse("--lat=sample:0: expected 1 or more".to_owned());
        }
        if let Some(size) = self.size
            && (size < self.bs || !size.is_multiple_of(sector))
        {
            return refuse(format!("--size={size}: expected a multiple of 512 bytes, --bs={} or more", self.bs));
        }
        Ok(())
    }

    /// The part of a device of `sectors` that is used, in whole requests; `name` is for the error.
    pub fn span_of(&self, name: &str, sectors: Sectors) -> Result<Span, Error> {
        let there = sectors.checked_bytes().unwrap_or(u64::MAX);
        let size = self.size.unwrap_or(there);
        if size > there {
            return Err(Error::Load(format!("--size={size}: {name} has {there} bytes; expected at most these")));
        }
        let blocks = size / self.bs;
        if blocks == 0 {
            return Err(Error::Load(format!("--bs={}: {name} has {there} bytes, which is less", self.bs)));
        }
        if self.verify.is_some() && blocks < (self.iodepth * self.numjobs) as u64 {
            return Err(Error::Load(format!(
                "--verify: {blocks} blocks of --bs={} for {} jobs × --iodepth={}; expected a block or more for each",
                self.bs, self.numjobs, self.iodepth
            )));
        }
        Ok(Span { blocks, bs: self.bs })
    }
}

/// A stretch from the start of a device, in requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Span {
    /// How many requests fit.
    pub blocks: u64,
    /// Bytes of each.
    pub bs: u64,
}

impl Span {
    /// Bytes in all.
    pub const fn bytes(&self) -> u64 {
        self.blocks * self.bs
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(change: impl FnOnce(&mut Load), expect: &str) {
        let mut load = Load::default();
        change(&mut load);
        let got = load.check().and_then(|()| load.span_of("d", Sectors::new(8)).map(|_| ()));
        match got {
            Ok(()) => assert_eq!(expect, "", "expected to be refused"),
            Err(e) => assert!(!expect.is_empty() && e.to_string().contains(expect), "{expect:?}: {e}"),
        }
    }

    #[test]
    fn what_is_refused() {
        check(|_| (), "");
        check(|l| l.bs = 0, "--bs=0");
        check(|l| l.bs = 513, "--bs=513: expected a multiple of 512");
        check(|l| l.bs = 1 << 31, "--bs=");
        check(|l| l.bs = 8192, "less");
        check(|l| l.iodepth = 0, "--iodepth=0");
        check(|l| l.iodepth = usize::MAX, "--iodepth=");
        check(|l| l.numjobs = 0, "--numjobs=0");
        check(|l| (l.bs, l.iodepth, l.numjobs) = (1 << 30, 1 << 16, 128), "at most 16g");
        check(|l| l.runtime = Some(Duration::ZERO), "--runtime=0");
        check(|l| l.runtime = None, "neither --runtime nor");
        check(|l| (l.runtime, l.number_ios) = (None, Some(1)), "");
        check(|l| l.number_ios = Some(0), "--number-ios=0");
        check(|l| l.rwmixread = 101, "--rwmixread=101");
        check(|l| l.lat = Lat::Sample(0), "--lat=sample:0");
        check(|l| l.size = Some(8192), "d has 4096 bytes");
        check(|l| l.size = Some(512), "--size=512");
        check(|l| (l.bs, l.size) = (512, Some(1000)), "--size=1000");
        check(|l| (l.verify, l.iodepth) = (Some(Verify::Pattern), 2), "--verify: 1 blocks");
    }

    #[test]
    fn the_rest_of_the_last_request_is_left_out() {
        let load = Load { bs: 3072, ..Load::default() };
        assert_eq!(load.span_of("d", Sectors::new(15)).unwrap(), Span { blocks: 2, bs: 3072 });
    }
}
