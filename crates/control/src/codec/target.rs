//! What the payloads say of targets.

use udm_base::{Sector, Sectors};

/// Bytes of a target type's name in [`TargetSpec`] (`DM_MAX_TYPE_NAME`).
pub const DM_MAX_TYPE_NAME: usize = 16;

/// A line of a table, or the status of one target (`struct dm_target_spec` and its text).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TargetSpec<'a> {
    /// Where the target begins in the device.
    pub start: Sector,
    /// How long it is.
    pub len: Sectors,
    /// `dm_target_spec.status`; zero in all that the kernel gives.
    pub status: i32,
    /// The target type's name.
    pub target_type: &'a [u8],
    /// Its parameters or its status, without the terminating zero.
    pub params: &'a [u8],
}

impl<'a> TargetSpec<'a> {
    /// A line of a table.
    pub fn new(start: Sector, len: Sectors, target_type: &'a [u8], params: &'a [u8]) -> Self {
        Self { start, len, status: 0, target_type, params }
    }
}

/// A target type and its version (`struct dm_target_versions`).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TargetVersion<'a> {
    /// The target type's name.
    pub name: &'a [u8],
    /// Major, minor, patch level.
    pub version: [u32; 3],
}
