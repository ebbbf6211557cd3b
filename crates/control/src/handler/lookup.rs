//! Which device a request is about, and what every answer says of it.

use super::Handler;
use super::error::{Refusal, utf8};
use crate::codec::{DeviceKey, Flags, Reply};
use std::sync::Arc;
use udm_base::Errno;
use udm_core::{MappedDevice, Table, TableSlot};

impl Handler<'_> {
    /// The device that the request names (`__find_device_hash_cell`).
    pub(super) fn device(&self) -> Result<Arc<MappedDevice>, Refusal> {
        let missing = |what: String| Refusal::new(Errno::ENXIO, format!("no device has {what}"));
        let found = match self.request.device_key() {
            Some(DeviceKey::Name(name)) => {
                let found = std::str::from_utf8(name).ok().and_then(|name| self.registry.by_name(name));
                found.ok_or_else(|| missing(format!("the name {:?}", String::from_utf8_lossy(name))))
            }
            Some(DeviceKey::Uuid(uuid)) => {
                let found = std::str::from_utf8(uuid).ok().and_then(|uuid| self.registry.by_uuid(uuid));
                found.ok_or_else(|| missing(format!("the uuid {:?}", String::from_utf8_lossy(uuid))))
            }
            Some(DeviceKey::Dev(dev)) => self.registry.by_devt(dev).ok_or_else(|| missing(format!("the number {dev}"))),
            None => Err(Refusal::new(
                Errno::ENXIO,
                "no device is named: expected a name, a uuid or a number, and only one of them",
            )),
        };
        found.inspect(|md| self.is_about(md))
    }

    /// Notes which device it is that the command changes.
    pub(super) fn is_about(&self, md: &MappedDevice) {
        self.about.set(Some(md.devt().minor));
    }

    /// The table that a query is about.
    pub(super) fn queried_table(&self, md: &MappedDevice) -> Option<Arc<Table>> {
        let inactive = self.request.flags().contains(Flags::QUERY_INACTIVE_TABLE);
        md.table(if inactive { TableSlot::Inactive } else { TableSlot::Active })
    }

    /// An answer with what is known of the device (`__find_device_hash_cell` and `__dev_status`).
    pub(super) fn reply_about(&self, md: &MappedDevice) -> Reply {
        let mut reply = Reply::to(self.request);
        self.describe(md, &mut reply);
        reply
    }

    /// As [`reply_about`](Self::reply_about), for an answer that has begun.
    pub(super) fn describe(&self, md: &MappedDevice, reply: &mut Reply) {
        let info = md.info();
        let inactive = self.request.flags().contains(Flags::QUERY_INACTIVE_TABLE);
        let queried = if inactive { md.table(TableSlot::Inactive) } else { None };
        let header = reply.header_mut();
        // Both fit: the registry keeps the limits of the fields.
        let named = header.set_name(info.name.as_bytes()) && header.set_uuid(info.uuid.as_bytes());
        debug_assert!(named, "a name fits its field");
        header.set_device(Some(info.devt));
        header.open_count = i32::try_from(info.open_count).unwrap_or(i32::MAX);
        header.event_nr = info.event_nr;
        let read_only = if inactive { queried.as_ref().is_some_and(|t| t.read_only()) } else { info.read_only };
        header.target_count = match (inactive, &queried) {
            (false, _) => info.target_count,
            (true, table) => table.as_ref().map_or(0, |t| t.target_count() as u32),
        };
        header.flags.set(Flags::SUSPEND, info.suspended);
        header.flags.set(Flags::READONLY, read_only);
        header.flags.set(Flags::ACTIVE_PRESENT, info.active);
        header.flags.set(Flags::INACTIVE_PRESENT, info.inactive);
        header.flags.set(Flags::INTERNAL_SUSPEND, false);
        header.flags.set(Flags::DEFERRED_REMOVE, info.deferred_remove);
    }
}

/// The name and the uuid that the request gives.
pub(super) fn names<'a>(handler: &'a Handler<'_>) -> Result<(&'a str, &'a str), Refusal> {
    Ok((utf8("the name", handler.request.name())?, utf8("the uuid", handler.request.uuid())?))
}
