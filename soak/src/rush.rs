//! Readers that make no pauses: so that what is done to a device is done in the middle of something.
//!
//! A writer that checks everything is not fast enough for faults that need a request at the very moment of a change.

use crate::client::{Client, Request, What, nbd::Nbd};
use crate::content::BLOCK;
use crate::watch::lock;
use crate::world::{Device, World};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use udm_sim::Rng;

/// Readers at a time.
const READERS: usize = 2;

/// While it is there, a device is read from without a pause.
pub struct Rush {
    over: Arc<AtomicBool>,
    readers: Vec<JoinHandle<()>>,
}

impl Rush {
    /// On what stands on a device, or on it if nothing does.
    pub fn on(world: &Arc<World>, device: &Device, rng: &mut Rng) -> Self {
        let mut on = world.devices();
        on.retain(|other| {
            let there = other.name == device.name || other.on.as_ref() == Some(&device.name);
            there && !lock(&other.volumes).is_empty()
        });
        let over = Arc::new(AtomicBool::new(false));
        let mut readers = Vec::new();
        for _ in 0..READERS {
            if on.is_empty() {
                break;
            }
            let device = on.swap_remove(rng.below(on.len() as u64) as usize);
            let (world, over, rng) = (world.clone(), over.clone(), Rng::new(rng.next()));
            readers.push(std::thread::spawn(move || read(&world, &device, &over, rng)));
        }
        Self { over, readers }
    }
}

impl Drop for Rush {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        self.readers.drain(..).for_each(|reader| drop(reader.join()));
    }
}

fn read(world: &World, device: &Device, over: &AtomicBool, mut rng: Rng) {
    let actor = world.watch.actor(format!("rush on {}", device.name));
    let Some(volume) = lock(&device.volumes).first().cloned() else { return };
    // It may have gone since.
    let Ok(mut nbd) = Nbd::unix(&world.daemon.nbd(), &device.name) else { return };
    let blocks = lock(&volume.model).blocks();
    while !over.load(Ordering::Relaxed) && !world.has_failed() {
        let block = rng.below(blocks);
        let mut batch = [Request::new(What::Read, volume.start + block * BLOCK as u64, BLOCK as u32)];
        actor.begin(format!("reads block {block} of {}", device.name));
        let sound = volume.sound();
        if nbd.execute(&mut batch, &mut || ()).is_err() || (batch[0].answer != Some(Ok(())) && sound == volume.sound())
        {
            world.fail(format!("{}: a read of block {block} gives {:?}", device.name, batch[0].answer));
        }
    }
}
