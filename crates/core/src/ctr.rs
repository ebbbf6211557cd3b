//! How a target is made.

use crate::{Alone, DeviceOpener, MappedDevice, NewTarget, TargetDevice};
use std::sync::Arc;
use udm_base::{Arg, ArgError, Args, Errno, Sector, Sectors};
use udm_io::{BlockDevice, Domain};

/// A kind of target: what stands in a table line, and how it is made.
pub struct TargetType {
    /// Its word in a table.
    pub name: &'static str,
    /// The version that kernel 6.12 reports for it.
    pub version: [u32; 3],
    pub(crate) singleton: bool,
    pub(crate) always_writeable: bool,
    pub(crate) immutable: bool,
    pub(crate) ctr: Constructor,
}

/// Makes a target from its arguments. May block (it opens devices).
pub type Constructor = fn(&mut Ctr<'_>) -> Result<NewTarget, ArgError>;

impl TargetType {
    /// A kind of which every target may stand anywhere in any table.
    pub const fn new(name: &'static str, version: [u32; 3], ctr: Constructor) -> Self {
        Self { name, version, singleton: false, always_writeable: false, immutable: false, ctr }
    }

    /// It must be the only target of its table (`DM_TARGET_SINGLETON`, `include/linux/device-mapper.h`, 6.12).
    #[must_use]
    pub const fn singleton(self) -> Self {
        Self { singleton: true, ..self }
    }

    /// It cannot be part of a read-only device (`DM_TARGET_ALWAYS_WRITEABLE`).
    #[must_use]
    pub const fn always_writeable(self) -> Self {
        Self { always_writeable: true, ..self }
    }

    /// A table with it is not replaced by one without (`DM_TARGET_IMMUTABLE`).
    #[must_use]
    pub const fn immutable(self) -> Self {
        Self { immutable: true, ..self }
    }
}

/// What a constructor gets.
pub struct Ctr<'a> {
    /// Where the target begins on the mapped device.
    pub begin: Sector,
    /// How long it is.
    pub len: Sectors,
    /// Its arguments.
    pub args: Args,
    /// Whether the device is to be read-only.
    pub read_only: bool,
    /// For targets that have channels or threads of their own.
    pub domain: &'a Domain,
    /// The device that the table is for.
    pub owner: &'a Arc<MappedDevice>,
    pub(crate) opener: &'a dyn DeviceOpener,
}

impl Ctr<'_> {
    /// Takes the arguments `<device> <start sector>`, as most targets have them: as much of that device as the target
    /// is long. The texts are the kernel's, for a start that is no number and for a failed look-up. May block.
    pub fn device_range(&mut self, bad_start: &str, no_device: &str) -> Result<TargetDevice, ArgError> {
        let name = self.args.need(no_device, "a device")?;
        let (start, _) = self.args.number(bad_start, "a start sector")?;
        Ok(TargetDevice { dev: self.device(&name, no_device)?, start: Sector::new(start), len: self.len })
    }

    /// Opens the device that an argument names, and checks that `len` sectors from `start` lie within it. `message` is
    /// the kernel's for a failed look-up. May block.
    pub fn device(&mut self, arg: &Arg, message: &str) -> Result<Arc<dyn BlockDevice>, ArgError> {
        let opened = self.opener.open(&arg.text, self.read_only, false);
        opened.map_err(|e| ArgError::new(message).errno(e.errno).hint(e.message).at(arg))
    }

    /// As [`device`](Self::device), but only to be read, whatever the table is.
    pub fn device_to_read(&mut self, arg: &Arg, message: &str) -> Result<Arc<dyn BlockDevice>, ArgError> {
        let opened = self.opener.open(&arg.text, true, false);
        opened.map_err(|e| ArgError::new(message).errno(e.errno).hint(e.message).at(arg))
    }

    /// As [`device`](Self::device), refused when someone else has it: for metadata, COW and pool data.
    pub fn device_exclusive(&mut self, arg: &Arg, message: &str) -> Result<Arc<dyn BlockDevice>, ArgError> {
        self.device_exclusive_or(arg, message, None)
    }

    /// Keeps other loads from beginning with what this one does with `dev`, as long as the answer lives: to read what
    /// is on it, or to make something there. Fails with EBUSY while another load is at it.
    pub fn alone_with(&self, dev: &Arc<dyn BlockDevice>, arg: &Arg, message: &str) -> Result<Alone, ArgError> {
        self.opener.alone_with(dev.id()).ok_or_else(|| {
            let hint = format!("another table with {} is being loaded", dev.name());
            ArgError::new(message).errno(Errno::EBUSY).hint(hint).at(arg)
        })
    }

    /// As [`device_exclusive`](Self::device_exclusive), but when the argument names `known`, which another table of the
    /// same device has opened so already, gives that one.
    pub fn device_exclusive_or(
        &mut self,
        arg: &Arg,
        message: &str,
        known: Option<&Arc<dyn BlockDevice>>,
    ) -> Result<Arc<dyn BlockDevice>, ArgError> {
        let opened = self.opener.open_exclusive(&arg.text, self.read_only, known);
        opened.map_err(|e| ArgError::new(message).errno(e.errno).hint(e.message).at(arg))
    }
}
