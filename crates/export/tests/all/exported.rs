//! A device as an export that knows how many have it open.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use udm_export::{Export, Refused};
use udm_io::BlockDevice;

#[derive(Clone)]
pub(crate) struct Exported {
    pub(crate) name: String,
    pub(crate) device: Arc<dyn BlockDevice>,
    pub(crate) read_only: bool,
    /// How many have it open.
    pub(crate) open: Arc<AtomicUsize>,
}

/// Counts down when it goes.
struct Counted(Arc<AtomicUsize>);

impl Export for Exported {
    fn name(&self) -> String {
        self.name.clone()
    }
    fn description(&self) -> String {
        self.device.name()
    }
    fn device(&self) -> Arc<dyn BlockDevice> {
        self.device.clone()
    }
    fn read_only(&self) -> bool {
        self.read_only
    }
    fn open(&self) -> Result<Box<dyn Any + Send>, Refused> {
        self.open.fetch_add(1, Ordering::SeqCst);
        Ok(Box::new(Counted(self.open.clone())))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}
