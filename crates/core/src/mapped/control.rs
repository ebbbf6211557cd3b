//! What the control side asks of a device: load, clear, open, describe.

use super::{MappedDevice, lock};
use crate::registry::LoadContext;
use crate::table::{Table, TableContext, depth};
use crate::{Cancel, Error, OpenDevice, TableError, TableLine};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use udm_base::{DevT, Errno};
use udm_io::BlockDevice;

/// A disk's geometry, as BIOSes count (`dmsetup setgeometry`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Geometry {
    /// Cylinders, below 65536.
    pub cylinders: u16,
    /// Heads, below 256.
    pub heads: u8,
    /// Sectors of a track, below 256.
    pub sectors: u8,
    /// Where the disk begins, in sectors.
    pub start: u64,
}

/// The control side's state of a device. Its lock is held briefly, never over I/O.
pub(super) struct Control {
    pub(super) name: String,
    pub(super) uuid: String,
    pub(super) active: Option<Arc<Table>>,
    pub(super) inactive: Option<Arc<Table>>,
    pub(super) suspended: bool,
    /// It is suspended, but the wait for its bios was given up, and its targets would not go on.
    pub(super) unsettled: bool,
    pub(super) open_count: u32,
    pub(super) deferred_remove: bool,
    pub(super) deleting: bool,
    pub(super) geometry: Geometry,
}

impl Control {
    /// Whether nothing is in flight because it is suspended.
    pub(super) fn is_still(&self) -> bool {
        self.suspended && !self.unsettled
    }

    pub(super) fn set_suspended(&mut self, suspended: bool) {
        (self.suspended, self.unsettled) = (suspended, false);
    }

    pub(super) fn new(name: String, uuid: String) -> Self {
        Self {
            name,
            uuid,
            active: None,
            inactive: None,
            suspended: false,
            unsettled: false,
            open_count: 0,
            deferred_remove: false,
            deleting: false,
            geometry: Geometry::default(),
        }
    }
}

/// A device as `dmsetup info` shows it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Info {
    /// Its name.
    pub name: String,
    /// Its uuid; empty when it has none.
    pub uuid: String,
    /// Its number.
    pub devt: DevT,
    /// How many hold it open: exports, tables above, nodes.
    pub open_count: u32,
    /// Events so far.
    pub event_nr: u32,
    /// Whether bios are held.
    pub suspended: bool,
    /// Whether writes are refused.
    pub read_only: bool,
    /// Whether an active table is there.
    pub active: bool,
    /// Whether an inactive table is there.
    pub inactive: bool,
    /// Targets of the active table.
    pub target_count: u32,
    /// Whether it is removed at its last close.
    pub deferred_remove: bool,
}

/// How a table is loaded.
#[derive(Clone, Copy)]
pub struct LoadOptions<'a> {
    /// Devices beneath are opened for reading only.
    pub read_only: bool,
    /// Where relative paths begin.
    pub cwd: &'a Path,
    /// Given up, where that is possible, once this holds.
    pub cancel: Cancel<'a>,
    /// What the table says is told to nobody who asks what the load waits for.
    pub secret: bool,
}

impl MappedDevice {
    /// Its name.
    pub fn device_name(&self) -> String {
        lock(&self.control).name.clone()
    }

    /// Its uuid; empty when it has none.
    pub fn uuid(&self) -> String {
        lock(&self.control).uuid.clone()
    }

    pub(crate) fn set_names(&self, name: Option<String>, uuid: Option<String>) {
        let mut control = lock(&self.control);
        control.name = name.unwrap_or_else(|| std::mem::take(&mut control.name));
        control.uuid = uuid.unwrap_or_else(|| std::mem::take(&mut control.uuid));
    }

    /// What `dmsetup info` shows.
    pub fn info(&self) -> Info {
        self.settle();
        let control = lock(&self.control);
        Info {
            name: control.name.clone(),
            uuid: control.uuid.clone(),
            devt: self.devt,
            open_count: control.open_count,
            event_nr: self.events.number(),
            suspended: control.suspended,
            read_only: self.read_only.load(Ordering::Relaxed),
            active: control.active.is_some(),
            inactive: control.inactive.is_some(),
            target_count: control.active.as_ref().map_or(0, |t| t.target_count() as u32),
            deferred_remove: control.deferred_remove,
        }
    }

    /// The geometry that was set since the last table of another size.
    pub fn geometry(&self) -> Geometry {
        lock(&self.control).geometry
    }

    /// Sets the geometry, also of a device without a table. Fails with a start past the end (`dm_set_geometry`,
    /// `drivers/md/dm.c`, 6.12).
    pub fn set_geometry(&self, geometry: Geometry) -> Result<(), Error> {
        let mut control = lock(&self.control);
        let product = u64::from(geometry.cylinders) * u64::from(geometry.heads) * u64::from(geometry.sectors);
        if geometry.start > product {
            let message = format!("the start {} lies past cylinders × heads × sectors = {product}", geometry.start);
            return Err(Error::new(Errno::EINVAL, message));
        }
        control.geometry = geometry;
        Ok(())
    }

    /// Makes a table the inactive one, in place of what was there. May block: it opens devices. `cwd` is where relative
    /// paths begin.
    pub fn load(self: &Arc<Self>, lines: &[TableLine], read_only: bool, cwd: &Path) -> Result<(), Error> {
        self.load_as(lines, &LoadOptions { read_only, cwd, cancel: &|| false, secret: false })
    }

    /// As [`load`](Self::load), with all that can be chosen.
    pub fn load_as(self: &Arc<Self>, lines: &[TableLine], options: &LoadOptions<'_>) -> Result<(), Error> {
        let LoadOptions { read_only, cwd, cancel, secret } = *options;
        let registry = self.registry.upgrade().ok_or_else(|| Error::new(Errno::ENXIO, "udm is ending"))?;
        let doing = self.activities.begin("makes its targets");
        let opener = LoadContext { registry: &registry, cwd, cancel, doing: Some(&doing), secret };
        let cx = TableContext {
            types: registry.types,
            opener: &opener,
            domain: &registry.domain,
            read_only,
            owner: self,
            above: depth::height(self),
        };
        // Without a lock: what lies beneath may take its time, which is no concern of other loads.
        let table = Arc::new(Table::build(lines, &cx).map_err(|e| e.into_error(lines))?);
        doing.now("waits for another table to be put in place");
        let old = {
            // One at a time, so that two cannot close a loop together, nor build a stack that is too deep: what others
            // have put in place since this one was checked is seen here. Dropped before the table is, with which
            // devices may go.
            let _loading = lock(&registry.loads);
            table.check_place(self).map_err(|e| e.into_error(lines))?;
            // Before a resume can make it active: a device beneath that is suspended then has to reach this one.
            self.announce_to(&table);
            let mut control = lock(&self.control);
            if control.deleting {
                return Err(Error::new(Errno::ENXIO, format!("{} is being removed", control.name)));
            }
            check_immutable(control.active.as_deref(), &table).map_err(|e| e.into_error(lines))?;
            control.inactive.replace(table.clone())
        };
        drop(old);
        Ok(())
    }

    /// Tells the devices beneath a table that this one uses them, so that their plans' changes reach it.
    fn announce_to(self: &Arc<Self>, table: &Table) {
        for md in table.devices().iter().filter_map(|d| d.as_any().downcast_ref::<Self>()) {
            lock(&md.holders).add(self);
        }
    }

    /// The devices beneath both tables. Clones of these rather than of a table: where locks are held, the last hold on
    /// a table must not be let go of, because that may remove devices.
    pub(crate) fn beneath(&self) -> Vec<Arc<dyn BlockDevice>> {
        let control = lock(&self.control);
        [&control.active, &control.inactive].into_iter().flatten().flat_map(|t| t.devices()).cloned().collect()
    }

    /// The devices that have a table with this one beneath.
    pub(crate) fn users(&self) -> Vec<Arc<Self>> {
        let uses = |md: &Arc<Self>| md.beneath().iter().any(|d| d.id() == self.id());
        self.holders_now().into_iter().filter(uses).collect()
    }

    /// Drops the inactive table. Returns whether there was one.
    pub fn clear(&self) -> bool {
        let old = lock(&self.control).inactive.take();
        old.is_some()
    }

    pub(super) fn opened(&self) -> Result<OpenDevice, Error> {
        let me = self.arc().ok_or_else(|| Error::new(Errno::ENXIO, "the device is gone"))?;
        let mut control = lock(&self.control);
        if control.deleting {
            return Err(Error::new(Errno::ENXIO, format!("{} is being removed", control.name)));
        }
        control.open_count += 1;
        drop(control);
        Ok(OpenDevice::new(me))
    }

    pub(crate) fn closed(&self) {
        let last = {
            let mut control = lock(&self.control);
            control.open_count -= 1;
            let last = control.open_count == 0 && control.deferred_remove;
            // Marked with the same hold of the lock: an open or a cancellation comes before it, or too late.
            control.deleting |= last;
            last
        };
        if let (true, Some(registry), Some(me)) = (last, self.registry.upgrade(), self.arc()) {
            registry.forget(&me);
        }
    }

    /// Marks the device for removal. `Ok(false)`: it is open, and will be removed at its last close.
    pub(crate) fn lock_for_removal(&self, deferred: bool) -> Result<bool, Error> {
        self.settle();
        let mut control = lock(&self.control);
        if control.deleting {
            return Err(Error::new(Errno::ENXIO, format!("{} is being removed already", control.name)));
        }
        if control.open_count > 0 {
            if !deferred {
                let (name, count) = (&control.name, control.open_count);
                let holders = if count == 1 { "export or table above holds" } else { "exports or tables above hold" };
                let message = format!("{name} is in use: {count} {holders} it");
                return Err(Error::new(Errno::EBUSY, message));
            }
            control.deferred_remove = true;
            return Ok(false);
        }
        control.deleting = true;
        Ok(true)
    }

    /// Takes back a deferred removal (`DM_DEV_CREATE`-like users may want the device after all).
    pub fn cancel_deferred_remove(&self) {
        lock(&self.control).deferred_remove = false;
    }

    /// What the targets of the active table have to say to who has resumed it, a line each. May block.
    pub fn notices(&self) -> Vec<String> {
        let table = self.table(super::TableSlot::Active);
        table.iter().flat_map(|table| table.attributes()).filter_map(|attributes| attributes.notice()).collect()
    }

    /// Counts an event and wakes who waits for it.
    pub fn event(&self) {
        self.events.raise();
        if let Some(registry) = self.registry.upgrade() {
            registry.events.raise();
        }
    }

    /// Blocks until the event number is not `seen`.
    pub fn wait_event(&self, seen: u32, cancel: Cancel<'_>) -> Result<(), Error> {
        if self.events.wait(seen, cancel) { Ok(()) } else { Err(Error::new(Errno::EINTR, "the wait was interrupted")) }
    }

    /// Sends a message to the target that `sector` lies in. May block.
    pub fn message(&self, sector: udm_base::Sector, words: &[&str]) -> Result<String, Error> {
        let table = self.table(super::TableSlot::Active);
        let table =
            table.ok_or_else(|| Error::new(Errno::ENXIO, format!("{} has no active table", self.device_name())))?;
        if words.is_empty() {
            return Err(Error::new(Errno::EINVAL, "expected a message, found an empty one"));
        }
        if sector >= table.sectors().from_start() {
            let message = format!("sector {sector} lies past the device's end at {}", table.sectors());
            return Err(Error::new(Errno::EINVAL, message));
        }
        table.find(sector).target.message(words)
    }
}

/// A table of an immutable target type is only replaced by one of the same type (`dm_table_set_type` and
/// `table_load`, 6.12).
fn check_immutable(active: Option<&Table>, new: &Table) -> Result<(), TableError> {
    let Some(kind) = active.and_then(Table::is_immutable) else { return Ok(()) };
    if new.types().next().is_some_and(|t| t.name == kind.name) {
        return Ok(());
    }
    let hint = format!("expected {}, which the active table has for good", kind.name);
    Err(TableError::new(0, "can't replace immutable target type").hint(hint))
}
