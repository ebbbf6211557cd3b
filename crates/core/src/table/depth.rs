//! How deep stacks are, and whether they close a loop.
//!
//! A device can be reached on many ways, two tables on each floor: every walk looks at each device once.

use crate::MappedDevice;
use std::collections::BTreeMap;
use std::sync::Arc;
use udm_base::DevT;
use udm_io::{BlockDevice, DeviceId};

type Known = BTreeMap<DevT, usize>;

fn mapped(dev: &dyn BlockDevice) -> Option<&MappedDevice> {
    dev.as_any().downcast_ref()
}

/// How many mapped devices lie on the longest way down from any of `devices`.
pub(super) fn levels(devices: &[Arc<dyn BlockDevice>]) -> usize {
    let known = &mut Known::new();
    devices.iter().map(|d| mapped(&**d).map_or_else(|| d.level(), |md| down(md, known))).max().unwrap_or(0)
}

fn down(md: &MappedDevice, known: &mut Known) -> usize {
    if let Some(levels) = known.get(&md.devt()) {
        return *levels;
    }
    let levels =
        1 + md.beneath().iter().map(|d| mapped(&**d).map_or_else(|| d.level(), |b| down(b, known))).max().unwrap_or(0);
    known.insert(md.devt(), levels);
    levels
}

/// As [`levels`], from one device, itself included.
pub(crate) fn level(md: &MappedDevice) -> usize {
    down(md, &mut Known::new())
}

/// How many mapped devices lie on the longest way up from `md`, itself not included.
pub(crate) fn height(md: &MappedDevice) -> usize {
    up(md, &mut Known::new())
}

fn up(md: &MappedDevice, known: &mut Known) -> usize {
    if let Some(height) = known.get(&md.devt()) {
        return *height;
    }
    let height = md.users().iter().map(|user| 1 + up(user, known)).max().unwrap_or(0);
    known.insert(md.devt(), height);
    height
}

/// Whether `dev` is the device of number `owner`, or stands on it.
pub(super) fn reaches(dev: &dyn BlockDevice, owner: DevT) -> bool {
    let mut seen = Known::new();
    let mut next = vec![];
    let mut look = |dev: &dyn BlockDevice, next: &mut Vec<Arc<dyn BlockDevice>>| {
        if let Some(md) = mapped(dev)
            && seen.insert(md.devt(), 0).is_none()
        {
            next.extend(md.beneath());
        }
        dev.id() == DeviceId::Number(owner)
    };
    let mut found = look(dev, &mut next);
    while let (false, Some(dev)) = (found, next.pop()) {
        found = look(&*dev, &mut next);
    }
    found
}
