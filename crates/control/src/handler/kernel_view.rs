//! What callers are shown that take udm for the kernel's device mapper: each device as a block device of the host, by
//! the number of that.

use super::Handler;
use std::borrow::Cow;
use std::sync::Arc;
use udm_base::DevT;
use udm_core::{Error, Info, MappedDevice, Table};
use udm_io::{BlockDevice, DeviceId};

/// Nodes of mapped devices that are block devices of the host.
pub trait BlockNodes {
    /// Makes the block device of a device that was just created, with the minor number `minor` if one was asked for.
    /// Blocks until the device has its number.
    ///
    /// # Errors
    /// EBUSY: the number is taken. What the system says when there can be no block device.
    fn make(&self, md: &Arc<MappedDevice>, minor: Option<u32>) -> Result<(), Error>;

    /// Whether programs have the block device open, as one that does, and how often the node itself holds the device.
    /// With `all` it is looked for descriptors of every process; else a claim (a mounted file system, swap, an
    /// exclusive open) is all that is known. May block briefly.
    fn opens(&self, md: &MappedDevice, all: bool) -> Opens;
}

/// How often a device is open by way of its node.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Opens {
    /// Programs and file systems: one, if there are any.
    pub programs: u32,
    /// The node itself.
    pub node: u32,
}

impl Handler<'_> {
    /// The number that the caller is shown.
    pub(super) fn number_of(&self, info: &Info) -> DevT {
        match self.caller.kernel_view {
            Some(_) => info.node.unwrap_or(info.devt),
            None => info.devt,
        }
    }

    /// The number of a device beneath that the caller is shown.
    pub(super) fn number_beneath(&self, dev: &Arc<dyn BlockDevice>) -> DevT {
        let node = || dev.as_any().downcast_ref::<MappedDevice>().and_then(MappedDevice::node_number);
        self.caller.kernel_view.and_then(|_| node()).unwrap_or_else(|| self.registry.number_of(dev))
    }

    /// How many have the device open, for the caller.
    pub(super) fn open_count(&self, md: &MappedDevice, info: &Info, all: bool) -> u32 {
        match self.caller.kernel_view {
            None => info.open_count,
            Some(nodes) => {
                let Opens { programs, node } = nodes.opens(md, all);
                info.open_count.saturating_sub(node) + programs
            }
        }
    }

    /// A target's line with the numbers of the block devices that it names, where it has udm's numbers or paths.
    pub(super) fn with_numbers<'t>(&self, table: &Table, params: &'t str) -> Cow<'t, str> {
        if self.caller.kernel_view.is_none() {
            return Cow::Borrowed(params);
        }
        let numbered = |dev: &&Arc<dyn BlockDevice>| matches!(dev.id(), DeviceId::Number(_));
        let known: Vec<_> =
            table.devices().iter().filter(numbered).map(|dev| (dev.name(), self.number_beneath(dev))).collect();
        let word = |word: &'t str| match known.iter().find(|(name, _)| name == word) {
            Some((_, number)) => Cow::Owned(number.to_string()),
            None => Cow::Borrowed(word),
        };
        Cow::Owned(params.split(' ').map(word).collect::<Vec<_>>().join(" "))
    }
}
