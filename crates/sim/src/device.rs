//! A simulated disk as a block device.

use crate::disk::{Disk, Pending, SimOptions};
use crate::world::World;
use crate::{Fault, Image, Sim};
use std::any::Any;
use std::ops::Range;
use udm_base::Sectors;
use udm_io::{Bio, BlockDevice, Cx, DeviceId, Limits, Status};

/// A simulated block device.
pub struct SimDevice {
    sim: Sim,
    index: usize,
    options: SimOptions,
}

impl SimDevice {
    /// A device of a world, all zeroes.
    pub fn new(sim: &Sim, options: SimOptions) -> Self {
        Self::with_image(sim, options, Image::new())
    }

    /// A device that begins with what another left, as after a power cut.
    pub fn with_image(sim: &Sim, options: SimOptions, image: Image) -> Self {
        let mut world = sim.lock();
        world.disks.push(Disk {
            durable: image.clone(),
            current: image,
            cache: Vec::new(),
            completed: 0,
            faults: Vec::new(),
            options: options.clone(),
        });
        let index = world.disks.len() - 1;
        drop(world);
        Self { sim: sim.clone(), index, options }
    }

    /// Has operations fail from now on; the first fault that hits decides.
    pub fn inject(&self, fault: Fault) {
        self.disk(|disk| disk.faults.push(fault));
    }

    /// Takes all faults back.
    pub fn heal(&self) {
        self.disk(|disk| disk.faults.clear());
    }

    /// The content that reads see now.
    pub fn content(&self) -> Image {
        self.disk(|disk| disk.current.clone())
    }

    /// The content that would survive any power cut.
    pub fn durable(&self) -> Image {
        self.disk(|disk| disk.durable.clone())
    }

    /// How many completed writes may still be lost.
    pub fn unflushed(&self) -> usize {
        self.disk(|disk| disk.cache.len())
    }

    fn disk<T>(&self, look: impl FnOnce(&mut Disk) -> T) -> T {
        look(&mut self.sim.lock().disks[self.index])
    }

    fn latency(&self, world: &mut World) -> u64 {
        let Range { start, end } = self.options.latency_ns;
        start + world.rng.below(end.saturating_sub(start))
    }
}

impl BlockDevice for SimDevice {
    fn submit(&self, _: &Cx<'_>, bio: Bio) -> Option<Bio> {
        let beyond = bio.sector().checked_add(bio.sectors()).is_none_or(|end| end > self.options.size.from_start());
        let mut world = self.sim.lock();
        let refused = if world.is_off() {
            Some(Status::Gone)
        } else if beyond {
            Some(Status::Invalid)
        } else {
            None
        };
        if let Some(status) = refused {
            drop(world);
            bio.end(status);
            return None;
        }
        let at = self.sim.now().after(self.latency(&mut world));
        let covers = world.disks[self.index].completed;
        world.schedule(at, Pending { disk: self.index, bio, covers });
        None
    }

    fn sectors(&self) -> Sectors {
        self.options.size
    }

    fn limits(&self) -> Limits {
        self.options.limits
    }

    fn id(&self) -> DeviceId {
        DeviceId::Anonymous(std::ptr::from_ref(self) as usize)
    }

    fn name(&self) -> String {
        format!("sim:{}", self.index)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
