//! # Purpose
//! A device with snapshots: what is written goes to them first.
//! # Table
//! `<start> <length> snapshot-origin <device>`
//! # Status
//! Empty.
//! # Messages
//! None.
//! # Differences from the kernel
//! Writes are not split at chunks: one that covers many waits for all of them, and they are copied at once.

use super::hurry::Hurrying;
use super::shared::{Origin, serial};
use std::sync::{Arc, Weak};
use udm_base::{ArgError, Sector, Sectors};
use udm_core::{Ctr, Map, MappedDevice, NewTarget, StatusKind, Target, TargetDevice, TargetType};
use udm_io::{Bio, BlockDevice, Cx, ExtentsReply, Limits};

pub(crate) static TYPE: TargetType = TargetType::new("snapshot-origin", [1, 9, 0], ctr);

struct OriginTarget {
    id: u64,
    origin: Arc<Origin>,
    dev: Arc<dyn BlockDevice>,
    md: Weak<MappedDevice>,
    hurry: Hurrying,
}

fn ctr(ctr: &mut Ctr<'_>) -> Result<NewTarget, ArgError> {
    ctr.args.expect_count(1..=1, "origin: incorrect number of arguments", "<device>")?;
    let arg = ctr.args.need("Cannot get target device", "a device")?;
    let dev = ctr.device(&arg, "Cannot get target device")?;
    let no_origin = |e: std::io::Error| ArgError::new("Cannot allocate private origin structure").hint(e.to_string());
    let origin = Origin::of(ctr.domain, dev.clone()).map_err(no_origin)?;
    let device = TargetDevice { dev: dev.clone(), start: Sector::ZERO, len: ctr.len };
    let md = Arc::downgrade(ctr.owner);
    let target = OriginTarget { id: serial(), origin, dev, md, hurry: Hurrying::default() };
    Ok(NewTarget::new(target).maps_to([device]).in_place())
}

impl Target for OriginTarget {
    fn map(&self, cx: &Cx<'_>, mut bio: Bio, at: Sectors) -> Map<'_> {
        bio.set_sector(at.from_start());
        if !bio.op().is_write() {
            return Map::Remapped(bio, &*self.dev);
        }
        match self.origin.write(cx, bio) {
            Some(bio) => Map::Remapped(bio, &*self.origin.dev),
            None => Map::Kept,
        }
    }

    fn status(&self, kind: StatusKind) -> String {
        match kind {
            StatusKind::Table => self.dev.name(),
            _ => String::new(),
        }
    }

    fn extents(&self, cx: &Cx<'_>, at: Sectors, sectors: Sectors, reply: ExtentsReply) {
        self.dev.extents(cx, at.from_start(), sectors, reply);
    }

    fn limits(&self, limits: &mut Limits) {
        (limits.max_discard, limits.max_write_zeroes) = (Sectors::ZERO, Sectors::ZERO);
    }

    fn presuspend(&self, _: bool) {
        self.hurry.begin(&self.origin);
    }

    fn postsuspend(&self) {
        self.hurry.end();
        self.leave();
    }

    fn preresume(&self) -> Result<(), udm_core::Error> {
        // Before the first write: a snapshot that is made from now on waits for what is in flight here.
        let (id, md) = (self.id, self.md.clone());
        self.origin.with(move |state| {
            state.origins.retain(|(other, _)| *other != id);
            state.origins.push((id, md));
        });
        Ok(())
    }

    fn resume(&self) {
        // After a suspension that was interrupted.
        self.hurry.end();
    }
}

impl OriginTarget {
    fn leave(&self) {
        let id = self.id;
        self.origin.with(move |state| state.origins.retain(|(other, _)| *other != id));
    }
}

impl Drop for OriginTarget {
    fn drop(&mut self) {
        self.leave();
    }
}
