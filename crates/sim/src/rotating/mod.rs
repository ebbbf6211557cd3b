//! A modelled rotating disk: a sibling of [`SimDevice`](crate::SimDevice) for questions about order and seeks.
//!
//! Its times come from [`DiskModel`] and from an elevator, and from nothing else: no chance, no clock. The same
//! requests at the same times take the same time, on every machine. Requests submitted at one moment of simulated time
//! are sorted together. A write is durable when it completes; there is no cache, and power cuts are `SimDevice`'s
//! business.

mod elevator;
mod model;
mod spindle;

pub use model::{DiskModel, Head, Service};
pub(crate) use spindle::Spindle;
pub use spindle::{DiskStats, Keep, RotatingOptions};

use crate::Sim;
use spindle::{State, lock};
use std::any::Any;
use std::sync::{Arc, Mutex};
use udm_base::Sectors;
use udm_io::{Bio, BlockDevice, Cx, DeviceId, Limits, Op, Status};

/// A modelled disk. Clones are the same disk.
#[derive(Clone)]
pub struct RotatingDisk {
    sim: Sim,
    number: usize,
    options: Arc<RotatingOptions>,
    state: Arc<Mutex<State>>,
}

impl RotatingDisk {
    /// A disk of a world, all zeroes.
    pub fn new(sim: &Sim, options: RotatingOptions) -> Self {
        let state = Arc::default();
        let mut world = sim.lock();
        let number = world.rotating.len();
        let disk = Self { sim: sim.clone(), number, options: Arc::new(options), state };
        world.rotating.push(Spindle { options: disk.options.clone(), state: disk.state.clone() });
        drop(world);
        disk
    }

    /// Its statistics since it was made.
    pub fn stats(&self) -> DiskStats {
        lock(&self.state).stats
    }

    /// Its parameters.
    pub fn options(&self) -> &RotatingOptions {
        &self.options
    }

    /// Bytes of memory that its content takes.
    pub fn allocated(&self) -> u64 {
        lock(&self.state).content.allocated()
    }
}

impl BlockDevice for RotatingDisk {
    fn submit(&self, _: &Cx<'_>, bio: Bio) -> Option<Bio> {
        let beyond = bio.sector().checked_add(bio.sectors()).is_none_or(|end| end > self.options.size.from_start());
        let refused = if self.sim.is_off() {
            Some(Status::Gone)
        } else if beyond {
            Some(Status::Invalid)
        } else if matches!(bio.op(), Op::Discard) {
            Some(Status::NotSupported)
        } else if bio.sectors().is_zero() {
            // Without a cache there is nothing to flush.
            Some(Status::Ok)
        } else {
            None
        };
        if let Some(status) = refused {
            bio.end(status);
            return None;
        }
        let mut state = lock(&self.state);
        state.stats.bios += 1;
        state.elevator.add(bio, self.options.requests, self.options.merge);
        None
    }

    fn sectors(&self) -> Sectors {
        self.options.size
    }

    fn limits(&self) -> Limits {
        // It makes no zeroes by itself: they are written, and take as long as data.
        Limits { max_discard: Sectors::ZERO, max_write_zeroes: Sectors::ZERO, ..Limits::default() }
    }

    fn id(&self) -> DeviceId {
        DeviceId::Anonymous(Arc::as_ptr(&self.state) as usize)
    }

    fn name(&self) -> String {
        format!("disk:{}", self.number)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
