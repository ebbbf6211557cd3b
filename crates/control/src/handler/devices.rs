//! Making, removing, renaming and listing devices.

use super::Handler;
use super::error::{Refusal, utf8};
use super::lookup::names;
use crate::codec::{Flags, NameEntry, Reply};
use std::sync::Arc;
use udm_base::Errno;
use udm_core::{Error, Geometry, MappedDevice, Removal};

impl Handler<'_> {
    /// `dev_create`
    pub(super) fn create(&self) -> Result<Reply, Refusal> {
        let (name, uuid) = names(self)?;
        let persistent = self.request.flags().contains(Flags::PERSISTENT_DEV);
        // Only the minor number counts: the major is the registry's.
        let minor = persistent.then(|| self.request.header().device().map_or(0, |dev| dev.minor));
        let md = self.registry.create(name, uuid, minor)?;
        self.is_about(&md);
        Ok(self.reply_about(&md))
    }

    /// `dev_remove`. What is asked for is done when a client that hung up was all that held the device.
    pub(super) fn remove(&self) -> Result<Reply, Refusal> {
        let md = self.device()?;
        let deferred = self.request.flags().contains(Flags::DEFERRED_REMOVE);
        let mut reply = self.reply_about(&md);
        let removal = self.remove_device(&md, deferred)?;
        reply.header_mut().flags.set(Flags::DEFERRED_REMOVE, removal == Removal::Deferred);
        Ok(reply)
    }

    fn remove_device(&self, md: &Arc<MappedDevice>, deferred: bool) -> Result<Removal, Error> {
        match self.registry.remove(md, false) {
            Err(error) if error.errno == Errno::EBUSY => {}
            other => return other,
        }
        (self.caller.reap)();
        self.registry.remove(md, deferred)
    }

    /// `dm_hash_remove_all`: as long as one goes, those beneath it may follow.
    pub(super) fn remove_all(&self) -> Result<Reply, Refusal> {
        let deferred = self.request.flags().contains(Flags::DEFERRED_REMOVE);
        while self.remove_unopened() {}
        if !self.registry.list().is_empty() {
            (self.caller.reap)();
            while self.remove_unopened() {}
        }
        if deferred {
            // From now on each goes at its last close; one that was closed in between goes at once.
            for md in self.registry.list() {
                let _ = self.registry.remove(&md, true);
            }
        }
        Ok(Reply::to(self.request))
    }

    /// Removes what is not open; true if anything went.
    fn remove_unopened(&self) -> bool {
        self.registry.list().iter().filter(|md| self.registry.remove(md, false).is_ok()).count() > 0
    }

    /// `dev_rename`. The device is looked up by its name alone (`dm_hash_rename`).
    pub(super) fn rename(&self) -> Result<Reply, Refusal> {
        let uuid = self.request.flags().contains(Flags::UUID);
        let new = utf8(if uuid { "the uuid" } else { "the name" }, self.request.new_name()?)?;
        let old = utf8("the name", self.request.name())?;
        if !uuid && new.contains('/') {
            return Err(Refusal::new(Errno::EINVAL, format!("{new:?} cannot be a device's name: it has a '/'")));
        }
        let taken = if uuid { self.registry.by_uuid(new) } else { self.registry.by_name(new) };
        if let Some(other) = taken {
            let what = if uuid { "uuid" } else { "name" };
            let message = format!("the {what} {new:?} belongs to {:?} already", other.device_name());
            return Err(Refusal::new(Errno::EBUSY, message));
        }
        let md = self.registry.by_name(old).ok_or_else(|| {
            Refusal::new(Errno::ENXIO, format!("no device has the name {old:?}; a rename finds it by its name only"))
        })?;
        self.is_about(&md);
        if uuid { self.registry.set_uuid(&md, new) } else { self.registry.rename(&md, new) }?;
        if md.info().active {
            md.event();
        }
        Ok(self.reply_about(&md))
    }

    /// `dev_status`
    pub(super) fn status(&self) -> Result<Reply, Refusal> {
        Ok(self.reply_about(&*self.device()?))
    }

    /// `list_devices`: in the order of the names; a name or a uuid in the request is a prefix to choose by.
    pub(super) fn list_devices(&self) -> Result<Reply, Refusal> {
        let infos: Vec<_> = self.registry.list().iter().map(|md| md.info()).collect();
        let chosen = infos.iter().filter(|info| {
            info.name.as_bytes().starts_with(self.request.name())
                && info.uuid.as_bytes().starts_with(self.request.uuid())
        });
        let entries = chosen.map(|info| NameEntry {
            dev: info.devt,
            name: info.name.as_bytes(),
            event_nr: info.event_nr,
            uuid: Some(info.uuid.as_bytes()).filter(|uuid| !uuid.is_empty()),
        });
        let mut reply = Reply::to(self.request);
        reply.names(entries);
        Ok(reply)
    }

    /// `dev_set_geometry`
    pub(super) fn set_geometry(&self) -> Result<Reply, Refusal> {
        let md = self.device()?;
        let geometry = self.request.geometry()?;
        md.set_geometry(Geometry {
            cylinders: geometry.cylinders,
            heads: geometry.heads,
            sectors: geometry.sectors,
            start: geometry.start.get(),
        })?;
        Ok(Reply::to(self.request))
    }
}
