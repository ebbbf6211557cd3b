//! `struct dm_ioctl`.

use super::Flags;
use udm_base::DevT;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Bytes of a device's name with its terminating zero (`DM_NAME_LEN`).
pub const DM_NAME_LEN: usize = 128;
/// Bytes of a uuid with its terminating zero (`DM_UUID_LEN`).
pub const DM_UUID_LEN: usize = 129;
/// Bytes of [`DmIoctl`].
pub const HEADER_LEN: usize = size_of::<DmIoctl>();
/// The smallest `data_size`: the header without the padding at its end, where data may begin.
pub const MIN_DATA_SIZE: usize = std::mem::offset_of!(DmIoctl, data);
/// The interface's version: that of kernel 6.12.
pub const INTERFACE_VERSION: [u32; 3] = [4, 48, 0];

/// `struct dm_ioctl`: the head of every buffer.
#[derive(Clone, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct DmIoctl {
    /// The interface's version: the caller's, then the daemon's.
    pub version: [u32; 3],
    /// Bytes of the whole buffer; in an answer, bytes that are used.
    pub data_size: u32,
    /// Where the data begins, from the start of this struct.
    pub data_start: u32,
    /// Targets in the table.
    pub target_count: u32,
    /// Openers.
    pub open_count: i32,
    /// The flags.
    pub flags: Flags,
    /// The event number; in a request that changes devices, a udev cookie.
    pub event_nr: u32,
    /// Unused.
    pub padding: u32,
    /// The device number in the kernel's 64-bit form: [`device`](Self::device).
    pub dev: u64,
    /// The name, ended by a zero: [`name`](Self::name).
    pub name: [u8; DM_NAME_LEN],
    /// The uuid, ended by a zero: [`uuid`](Self::uuid).
    pub uuid: [u8; DM_UUID_LEN],
    /// Padding, or the first bytes of data.
    pub data: [u8; 7],
}

const _: () = assert!(
    HEADER_LEN == 312
        && MIN_DATA_SIZE == 305
        && std::mem::offset_of!(DmIoctl, flags) == 28
        && std::mem::offset_of!(DmIoctl, dev) == 40
        && std::mem::offset_of!(DmIoctl, name) == 48
        && std::mem::offset_of!(DmIoctl, uuid) == 176
);

impl DmIoctl {
    /// A header of this interface's version, all else zero.
    pub const fn new() -> Self {
        Self {
            version: INTERFACE_VERSION,
            data_size: HEADER_LEN as u32,
            data_start: HEADER_LEN as u32,
            target_count: 0,
            open_count: 0,
            flags: Flags::from_bits(0),
            event_nr: 0,
            padding: 0,
            dev: 0,
            name: [0; DM_NAME_LEN],
            uuid: [0; DM_UUID_LEN],
            data: [0; 7],
        }
    }

    /// The name, without its terminating zero; the whole field when it has none.
    pub fn name(&self) -> &[u8] {
        until_zero(&self.name)
    }

    /// The uuid, without its terminating zero; the whole field when it has none.
    pub fn uuid(&self) -> &[u8] {
        until_zero(&self.uuid)
    }

    /// The device number; `None` when the field is zero.
    pub fn device(&self) -> Option<DevT> {
        (self.dev != 0).then(|| DevT::from_huge(self.dev))
    }

    /// Set the name. False, and nothing changed, when it is too long or has a zero in it.
    #[must_use]
    pub fn set_name(&mut self, name: &[u8]) -> bool {
        set_text(&mut self.name, name)
    }

    /// Set the uuid. False, and nothing changed, when it is too long or has a zero in it.
    #[must_use]
    pub fn set_uuid(&mut self, uuid: &[u8]) -> bool {
        set_text(&mut self.uuid, uuid)
    }

    /// Set the device number; `None` is zero.
    pub fn set_device(&mut self, dev: Option<DevT>) {
        self.dev = dev.map_or(0, DevT::to_huge);
    }
}

impl Default for DmIoctl {
    fn default() -> Self {
        Self::new()
    }
}

impl std::fmt::Debug for DmIoctl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DmIoctl")
            .field("version", &self.version)
            .field("data_size", &self.data_size)
            .field("data_start", &self.data_start)
            .field("target_count", &self.target_count)
            .field("open_count", &self.open_count)
            .field("flags", &self.flags)
            .field("event_nr", &self.event_nr)
            .field("dev", &self.device())
            .field("name", &String::from_utf8_lossy(self.name()))
            .field("uuid", &String::from_utf8_lossy(self.uuid()))
            .finish()
    }
}

/// `bytes` up to its first zero.
pub(super) fn until_zero(bytes: &[u8]) -> &[u8] {
    bytes.split(|&b| b == 0).next().unwrap_or(bytes)
}

fn set_text(field: &mut [u8], text: &[u8]) -> bool {
    if text.len() >= field.len() || text.contains(&0) {
        return false;
    }
    field.fill(0);
    field[..text.len()].copy_from_slice(text);
    true
}
