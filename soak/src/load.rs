//! The load: a writer for each volume, which checks whatever it reads.

use crate::client::{Client, Request, What};
use crate::content::{self, BLOCK, ZEROES};
use crate::model::{Effect, Model};
use crate::volume::Volume;
use crate::watch::{Actor, lock};
use crate::world::World;
use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use udm_sim::Rng;

/// Requests that are out together at most.
const DEPTH: u64 = 12;
/// Blocks of a request at most.
const BLOCKS: u64 = 8;

/// Serves a volume until it is to leave.
pub fn run(world: &World, volume: &Arc<Volume>, actor: &Actor, seed: u64) -> Result<(), String> {
    let mut writer = Writer { world, volume, actor, rng: Rng::new(seed), client: None, kills: 0, sizes: 0 };
    while volume.goes_on() && !world.has_failed() {
        writer.batch()?;
        actor.idle();
        // Other volumes and other programs want the CPU as well.
        std::thread::sleep(Duration::from_micros(writer.rng.below(2 * world.options.pace)));
    }
    Ok(())
}

/// Uses a volume whose writer rests, by another client, for some batches.
pub fn burst(
    world: &World,
    volume: &Arc<Volume>,
    actor: &Actor,
    rng: &mut Rng,
    client: Box<dyn Client>,
    batches: u64,
) -> Result<(), String> {
    let (kills, sizes) = (world.daemon.kills(), volume.sizes());
    let mut writer = Writer { world, volume, actor, rng: Rng::new(rng.next()), client: Some(client), kills, sizes };
    for _ in 0..batches {
        writer.batch()?;
    }
    // What was written this way is to be seen by any other.
    let mut flush = vec![Request::new(What::Flush, 0, 0)];
    writer.execute(&mut flush).map(drop)
}

/// Reads all of a volume whose writer has left.
pub fn check(world: &World, volume: &Arc<Volume>, actor: &Actor) -> Result<(), String> {
    const STEP: u64 = 64;
    let mut writer = Writer { world, volume, actor, rng: Rng::new(0), client: None, kills: 0, sizes: 0 };
    let blocks = lock(&volume.model).blocks();
    for first in (0..blocks).step_by(STEP as usize) {
        let count = STEP.min(blocks - first);
        loop {
            let mut batch = vec![writer.request(What::Read, first, count)];
            if writer.execute(&mut batch)? {
                break;
            }
        }
    }
    actor.idle();
    Ok(())
}

struct Writer<'a> {
    world: &'a World,
    volume: &'a Arc<Volume>,
    actor: &'a Actor,
    rng: Rng,
    client: Option<Box<dyn Client>>,
    /// Kills of the daemon when the connection was made.
    kills: u64,
    /// How often the device had grown by then.
    sizes: u64,
}

impl Writer<'_> {
    fn request(&self, what: What, block: u64, blocks: u64) -> Request {
        Request::new(what, self.volume.start + block * BLOCK as u64, (blocks * BLOCK as u64) as u32)
    }

    /// The block of a request within the volume, and how many.
    fn blocks(&self, request: &Request) -> std::ops::Range<u64> {
        if request.what == What::Flush {
            return 0..0;
        }
        let first = (request.offset - self.volume.start) / BLOCK as u64;
        first..first + u64::from(request.length) / BLOCK as u64
    }

    /// Makes some requests and has them done.
    fn batch(&mut self) -> Result<(), String> {
        let total = lock(&self.volume.model).blocks();
        if self.rng.one_in(12) && !self.volume.read_only {
            let mut flush = vec![Request::new(What::Flush, 0, 0)];
            return self.execute(&mut flush).map(drop);
        }
        let trims = self.client.as_ref().is_some_and(|client| client.trims());
        let mut taken = BTreeSet::new();
        let mut batch = Vec::new();
        for _ in 0..1 + self.rng.below(DEPTH) {
            let blocks = (1 + self.rng.below(BLOCKS)).min(total);
            let first = self.rng.below(total - blocks + 1);
            if (first..first + blocks).any(|block| taken.contains(&block)) {
                continue;
            }
            taken.extend(first..first + blocks);
            let what = match self.rng.below(100) {
                _ if self.volume.read_only => What::Read,
                0..45 => What::Read,
                45..88 => What::Write { fua: self.rng.one_in(16) },
                88..95 if trims => What::Trim,
                _ => What::Zero,
            };
            let mut request = self.request(what, first, blocks);
            if let What::Write { .. } = what {
                request.data.resize(request.length as usize, 0);
            }
            batch.push(request);
        }
        self.execute(&mut batch).map(drop)
    }

    /// Has a batch done and holds it against the model; `false` when the connection was lost.
    fn execute(&mut self, batch: &mut [Request]) -> Result<bool, String> {
        let Some(mut client) = self.connected()? else { return Ok(false) };
        let sound = self.volume.sound();
        self.send(batch);
        self.actor.begin(describe(&self.volume.name, batch));
        let (actor, volume) = (self.actor, self.volume);
        let ended = client.execute(batch, &mut || {
            actor.moved();
            volume.answered();
        });
        let sound = sound.filter(|before| self.volume.sound() == Some(*before)).is_some();
        self.answers(batch, sound)?;
        match ended {
            Ok(()) => {
                self.client = Some(client);
                Ok(true)
            }
            Err(error) => {
                let mut model = lock(&self.volume.model);
                let kills = self.world.daemon.kills();
                if kills != self.kills || kills % 2 == 1 {
                    model.killed();
                } else if sound {
                    return Err(format!("{}: the connection is lost: {error}", self.volume.name));
                } else {
                    // Without an answer they may have been done.
                    batch.iter().for_each(|request| self.blocks(request).for_each(|b| model.done(b, false, false)));
                }
                Ok(false)
            }
        }
    }

    /// A connection; `None` when there is something else to do.
    fn connected(&mut self) -> Result<Option<Box<dyn Client>>, String> {
        if self.volume.sizes() != self.sizes {
            self.client = None;
        }
        if self.client.is_some() && self.world.daemon.kills() == self.kills {
            return Ok(self.client.take());
        }
        self.client = None;
        self.actor.begin(format!("connect to {}", self.volume.name));
        loop {
            let (kills, sizes) = (self.world.daemon.kills(), self.volume.sizes());
            match self.volume.connect(&self.world.daemon) {
                Ok(client) => {
                    // The connection before may have gone without a request that would have noticed.
                    if std::mem::replace(&mut self.kills, kills) != kills {
                        lock(&self.volume.model).killed();
                    }
                    self.sizes = sizes;
                    return Ok(Some(client));
                }
                Err(_) if self.volume.is_wanted() || self.world.has_failed() => return Ok(None),
                // The daemon is on its way, or the device is: the watchdog says when it takes too long.
                Err(error) => {
                    let doing = format!("connect to {}: {error}", self.volume.name);
                    if self.actor.doing().as_ref() != Some(&doing) {
                        self.actor.begin(doing);
                    }
                    std::thread::sleep(Duration::from_millis(20));
                }
            }
        }
    }

    /// Gives writes their contents and tells the model.
    fn send(&self, batch: &mut [Request]) {
        let mut model = lock(&self.volume.model);
        for request in batch {
            for (index, block) in self.blocks(request).enumerate() {
                match request.what {
                    What::Write { .. } => {
                        let stamp = content::stamp();
                        content::fill(&mut request.data[index * BLOCK..][..BLOCK], stamp, block);
                        model.send(block, Effect::Write(stamp));
                    }
                    What::Zero => model.send(block, Effect::Write(ZEROES)),
                    What::Trim => model.send(block, Effect::MayZero),
                    What::Read | What::Flush => {}
                }
            }
        }
    }

    /// Holds answers against the model.
    fn answers(&self, batch: &mut [Request], sound: bool) -> Result<(), String> {
        let mut model = lock(&self.volume.model);
        for request in batch.iter() {
            let Some(answer) = request.answer else { continue };
            if let Err(errno) = answer
                && sound
                && !(request.what == What::Trim && errno == libc::EOPNOTSUPP)
            {
                let error = io::Error::from_raw_os_error(errno);
                return Err(format!(
                    "{}: {:?} at byte {} fails: {error}",
                    self.volume.name, request.what, request.offset
                ));
            }
            self.world.stats.answered(answer.is_ok());
            match request.what {
                What::Read if answer.is_ok() => self.verify(&mut model, request)?,
                What::Read => {}
                What::Flush if answer.is_ok() => model.flushed(),
                What::Flush => {}
                What::Write { fua } => self.blocks(request).for_each(|b| model.done(b, answer.is_ok(), fua)),
                What::Trim | What::Zero => self.blocks(request).for_each(|b| model.done(b, answer.is_ok(), false)),
            }
        }
        Ok(())
    }

    fn verify(&self, model: &mut Model, request: &Request) -> Result<(), String> {
        for (block, bytes) in self.blocks(request).zip(request.data.chunks_exact(BLOCK)) {
            model.read(block, bytes).map_err(|text| format!("WRONG DATA: {}: {text}", self.volume.name))?;
        }
        Ok(())
    }
}

fn describe(name: &str, batch: &[Request]) -> String {
    let one = |request: &Request| {
        let word = match request.what {
            What::Read => "read",
            What::Write { fua: false } => "write",
            What::Write { fua: true } => "write-fua",
            What::Flush => "flush",
            What::Trim => "trim",
            What::Zero => "zero",
        };
        format!("{word} {}+{}", request.offset, request.length)
    };
    let shown: Vec<String> = batch.iter().take(3).map(one).collect();
    format!("{name}: {} requests: {}", batch.len(), shown.join(", "))
}
