//! # Purpose
//! A disk whose power can be cut: a volatile write cache in memory over a device, which `udm cut` loses as a disk
//! would: parts of what no flush has seen reach the device, in any order, and the rest never does. The kernel has no
//! such target.
//! # Table
//! `<start> <length> power-cut <device> <start sector> [<n> [max_unflushed <MiB>] [atomic <sectors>]]`
//!
//! It is the only target of its table. `max_unflushed`: memory for what no flush has seen, 64 unless set; when it is
//! full the oldest half is written to the device, as disks do. `atomic`: writes are torn at multiples of so many
//! sectors, a logical block unless set.
//! # Status
//! `on|off <unflushed writes> <memory>/<memory at most>` in KiB.
//! # Messages
//! `cut <seed>`: takes the power; tells what is left. From then on all bios fail, until a table is loaded.
//! # Differences from the kernel
//! It has none.
//!
//! A flush writes down what was complete when it was sent, and flushes the device. A FUA write makes itself durable and
//! nothing else. A suspension writes everything down: who takes the device away or loads another table loses nothing.

mod cache;
mod worker;

use cache::{Cache, Content};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use udm_base::{Arg, ArgError, Errno, Sector, Sectors};
use udm_core::{Attributes, Ctr, Error, Map, NewTarget, PowerCut, StatusKind, Target, TargetDevice, TargetType};
use udm_io::{Bio, Cx, Limits, Op, OpFlags, Status};
use udm_worker::Worker;
use worker::{Event, Shared, lock};

pub(crate) static TYPE: TargetType = TargetType::new("power-cut", [1, 0, 0], ctr).singleton();

/// MiB of memory unless the table says otherwise, and at most.
const MEMORY: u64 = 64;
const MOST_MEMORY: u64 = 1 << 20;
/// The largest atomic unit, in sectors.
const MOST_ATOMIC: u64 = 1 << 20;

struct PowerCutTarget {
    to: TargetDevice,
    features: Features,
    worker: Arc<Worker<Shared>>,
}

/// What the table asks for.
struct Features {
    memory: u64,
    atomic: u64,
    /// As the table had them.
    words: String,
}

fn ctr(ctr: &mut Ctr<'_>) -> Result<NewTarget, ArgError> {
    let usage = "<device> <start sector> [<n> [max_unflushed <MiB>] [atomic <sectors>]]";
    ctr.args.expect_count(2..=7, "Invalid argument count", usage)?;
    let to = ctr.device_range("Invalid device sector", "Device lookup failed")?;
    let block = Sectors::in_bytes(to.dev.limits().logical_block_size.into()).get();
    let features = features(ctr, block)?;
    let shared = Shared {
        dev: to.dev.clone(),
        cache: Mutex::default(),
        reads: Mutex::new((0, HashMap::new())),
        off: AtomicBool::new(false),
        atomic: Sectors::new(features.atomic),
        most: features.memory << 20,
    };
    let failed = |e: std::io::Error| ArgError::new("Cannot start").errno(Errno::of(&e)).hint(e.to_string());
    let worker = Worker::new(ctr.domain, shared, &[]).map_err(failed)?;
    worker.start(|events| worker::run(worker.clone(), events)).map_err(failed)?;
    let target = PowerCutTarget { to: to.clone(), features, worker };
    Ok(NewTarget::new(target).maps_to([to]).takes_back().flushes_beneath().in_place())
}

impl Target for PowerCutTarget {
    fn map(&self, cx: &Cx<'_>, mut bio: Bio, at: Sectors) -> Map<'_> {
        let it = &*self.worker;
        if it.off.load(SeqCst) {
            return Map::Ended(bio, Status::Io);
        }
        if bio.op() == Op::Flush {
            let number = lock(&it.cache).number();
            self.worker.post(cx, Event::Flush(bio, number));
            return Map::Kept;
        }
        bio.set_sector(self.to.start + at);
        match bio.op() {
            Op::Read => self.read(bio),
            Op::Write if bio.flags().contains(OpFlags::FUA) => {
                let number = lock(&it.cache).number();
                self.worker.post(cx, Event::Fua(bio, number));
                Map::Kept
            }
            _ => self.write(cx, bio),
        }
    }

    fn end_io(&self, _: &Cx<'_>, bio: Bio, at: Sectors, context: u64) -> Map<'_> {
        let pieces = lock(&self.worker.reads).1.remove(&context).unwrap_or_default();
        let is_off = self.worker.off.load(SeqCst);
        let status = if bio.status().is_ok() && is_off { Status::Io } else { bio.status() };
        if status.is_ok() {
            copy_in(&bio, self.to.start + at, &pieces);
        }
        Map::Ended(bio, status)
    }

    fn status(&self, kind: StatusKind) -> String {
        match kind {
            StatusKind::Info { .. } => {
                let power = if self.worker.off.load(SeqCst) { "off" } else { "on" };
                let cache = lock(&self.worker.cache);
                format!("{power} {} {}/{}", cache.len(), cache.bytes() >> 10, self.worker.most >> 10)
            }
            StatusKind::Table => format!("{} {}{}", self.to.dev.name(), self.to.start, self.features.words),
            StatusKind::Measurement => String::new(),
        }
    }

    fn limits(&self, limits: &mut Limits) {
        limits.write_cache = true;
        limits.fua = true;
        limits.max_write_zeroes = Sectors::MAX;
    }

    fn message(&self, words: &[&str]) -> Result<String, Error> {
        let seed = match words {
            ["cut", seed] => seed.parse().ok(),
            _ => None,
        };
        let Some(seed) = seed else {
            return Err(Error::new(Errno::EINVAL, format!("{:?}: expected cut <seed>, a number", words.join(" "))));
        };
        self.cut(seed, false).map(|cut| cut.to_string())
    }

    fn postsuspend(&self) {
        if self.worker.off.load(SeqCst) {
            return;
        }
        let done = self.worker.call(Event::Still);
        if let Ok(Err(status)) | Err(status) = done.map_err(|_| Status::Gone) {
            tracing::error!("power-cut: {}: the cache cannot be written down: {status:?}", self.to.dev.name());
        }
    }

    fn attributes(&self) -> Option<&dyn Attributes> {
        Some(self)
    }
}

impl Attributes for PowerCutTarget {
    fn inspect(&self) -> Vec<(&'static str, String)> {
        self.worker.inspect()
    }

    fn cut_power(&self, seed: u64, record: bool) -> Option<Result<PowerCut, Error>> {
        Some(self.cut(seed, record))
    }

    fn is_off(&self) -> bool {
        self.worker.off.load(SeqCst)
    }
}

impl PowerCutTarget {
    fn read(&self, bio: Bio) -> Map<'_> {
        let it = &*self.worker;
        let (sector, sectors) = (bio.sector(), bio.sectors());
        // What is there now is what is read: the device may get it, and the cache lose it, while the bio is out.
        let pieces = lock(&it.cache).read(sector, sectors);
        if pieces.is_empty() {
            return Map::Remapped(bio, &*self.to.dev);
        }
        if pieces.iter().fold(Sectors::ZERO, |all, piece| all + piece.sectors()) == sectors {
            copy_in(&bio, sector, &pieces);
            return Map::Ended(bio, Status::Ok);
        }
        let mut reads = lock(&it.reads);
        reads.0 += 1;
        let number = reads.0;
        reads.1.insert(number, pieces);
        Map::WithEndIo(bio, &*self.to.dev, number)
    }

    fn write(&self, cx: &Cx<'_>, bio: Bio) -> Map<'_> {
        let it = &*self.worker;
        let content = match bio.op() {
            Op::Discard => Content::Discard,
            Op::WriteZeroes => Content::Zeroes,
            _ => {
                let mut data = vec![0; bio.sectors().as_len()];
                bio.copy_out(0, &mut data);
                Content::Data(data.into())
            }
        };
        let is_fua = bio.flags().contains(OpFlags::FUA);
        let mut cache = lock(&it.cache);
        if !cache.has_room(&content, it.most) {
            drop(cache);
            self.worker.post(cx, Event::Write(bio, content));
            return Map::Kept;
        }
        cache.add(bio.sector(), bio.sectors(), content);
        // Zeroes or a discard that are to be durable: with all that is there, as few programs ask for it.
        let number = is_fua.then(|| cache.number());
        drop(cache);
        match number {
            None => Map::Ended(bio, Status::Ok),
            Some(number) => {
                self.worker.post(cx, Event::Flush(bio, number));
                Map::Kept
            }
        }
    }

    /// Takes the power. Blocks until what is left is on the device.
    fn cut(&self, seed: u64, record: bool) -> Result<PowerCut, Error> {
        if self.worker.off.swap(true, SeqCst) {
            return Err(Error::new(Errno::EBUSY, "its power is off; load its table again and resume it"));
        }
        let cut = self.worker.call(|reply| Event::Cut(seed, record, reply))?;
        let failed = |status: Status| {
            let errno = status.errno().unwrap_or(Errno::EIO);
            Error::new(errno, format!("{}: what is left cannot be written: {status:?}", self.to.dev.name()))
        };
        cut.map_err(failed)
    }
}

/// Reads `[<n> [max_unflushed <MiB>] [atomic <sectors>]]`; `block` is the device's logical block in sectors.
fn features(ctr: &mut Ctr<'_>, block: u64) -> Result<Features, ArgError> {
    const COUNT: &str = "Invalid number of feature args";
    let mut features = Features { memory: MEMORY, atomic: block, words: String::new() };
    if ctr.args.left() == 0 {
        return Ok(features);
    }
    let (count, arg) = ctr.args.number(COUNT, "a number of feature arguments")?;
    if count != ctr.args.left() as u64 {
        let hint = format!("expected {} of them, as many as there are, found {count}", ctr.args.left());
        return Err(ArgError::new(COUNT).hint(hint).at(&arg));
    }
    while let Some(word) = ctr.args.take() {
        let value = |ctr: &mut Ctr<'_>, what, range: std::ops::RangeInclusive<u64>| -> Result<(u64, Arg), ArgError> {
            let (value, arg) = ctr.args.number("Invalid feature argument", what)?;
            if range.contains(&value) {
                return Ok((value, arg));
            }
            let hint = format!("expected {what} from {} to {}, found {value}", range.start(), range.end());
            Err(ArgError::new("Invalid feature argument").hint(hint).at(&arg))
        };
        match word.text.as_str() {
            "max_unflushed" => features.memory = value(ctr, "MiB", 1..=MOST_MEMORY)?.0,
            "atomic" => {
                let (atomic, arg) = value(ctr, "sectors", 1..=MOST_ATOMIC)?;
                if !atomic.is_multiple_of(block) {
                    let hint = format!("expected a multiple of {block} sectors, the device's block, found {atomic}");
                    return Err(ArgError::new("Invalid feature argument").hint(hint).at(&arg));
                }
                features.atomic = atomic;
            }
            _ => {
                let hint = format!("found {:?}; known are max_unflushed, atomic", word.text);
                return Err(ArgError::new("Unrecognised feature requested").hint(hint).at(&word));
            }
        }
        features.words.push_str(&format!(" {} ", word.text));
        features.words.push_str(&match word.text.as_str() {
            "atomic" => features.atomic.to_string(),
            _ => features.memory.to_string(),
        });
    }
    features.words = format!(" {count}{}", features.words);
    Ok(features)
}

impl Drop for PowerCutTarget {
    fn drop(&mut self) {
        self.worker.stop();
    }
}

/// Puts pieces of the device into the memory of a read that begins at `sector` there.
fn copy_in(bio: &Bio, sector: Sector, pieces: &[cache::Piece]) {
    for piece in pieces {
        let skip = (piece.sector() - sector).as_len();
        match piece.data() {
            Some(data) => bio.copy_in(skip, data),
            None => bio.copy_in(skip, &vec![0; piece.sectors().as_len()]),
        }
    }
}

/// What a power cut leaves: ranges, and what they hold, none of which overlap; `None` for zeroes.
pub type Survivors = Vec<(Sector, Option<Vec<u8>>, Sectors)>;

/// What the cut by this seed has left of the writes that a record tells, which `udm cut --record` has made.
///
/// # Errors
/// When it is no such record; with the entry and its place.
pub fn replay(record: &[u8], seed: u64) -> Result<Survivors, String> {
    let (cache, atomic) = Cache::of_record(record)?;
    let pieces = cache.cut(seed, atomic).pieces;
    Ok(pieces.iter().map(|piece| (piece.sector(), piece.data().map(<[u8]>::to_vec), piece.sectors())).collect())
}
